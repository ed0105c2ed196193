package stage

import (
	"math"
	"slices"
	"strings"

	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// clipShare returns the share of clipped tokens of a sign of the advantage; kind "" is metric.clip_frac. Tokens whose ratio lies on
// the bound within its error may count or not. TRL takes the mean over rows of a sequence ratio, one per row.
func clipShare(of sign, kind string) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) ([]float64, []float64) {
		name := kind
		if name == "" {
			name = c.Enum("metric.clip_frac")
		}
		on, open, o := c.clipped(of, name)
		if !c.OK() {
			return nil, nil
		}
		if o.Level == rl.RatioToken || strings.ToLower(c.B.Meta.Framework) != "trl" || c.B.Cols == 0 {
			x, e := c.means(rows, on, nil)
			extra, _ := c.means(rows, open, nil)
			for f := range e {
				e[f] += extra[f]
			}
			return x, e
		}
		return perSpan(rows, func(s span) (x, e float64) {
			n := float64(s.hi - s.lo)
			for r := s.lo; r < s.hi; r++ {
				x += on[r*c.B.Cols] / n
				e += open[r*c.B.Cols]/n + 2*c.Unit/n
			}
			return x, e
		})
	}
}

// clipShares are the shares that a name without a definition may stand for besides: that of metric.clip_frac, and of ratios beyond the bounds
// whatever the advantage is, each with and without the tokens whose ratio lies on a bound within its error.
func clipShares(c *Case, rows []span) (list [][]float64) {
	for _, kind := range []string{"", "outside"} {
		d := c.Of(c.B, c.Set)
		if kind == "" && d.EnumOr("metric.clip_frac", "") == "" {
			continue
		}
		x, e := clipShare(anySign, kind)(d, rows)
		if !d.OK() || x == nil {
			continue
		}
		list = append(list, x)
		const most = 16 // of such tokens
		for k := -most; k <= most; k++ {
			y, some := slices.Clone(x), false
			for f, s := range rows {
				n := 0.0
				for _, m := range c.B.Mask[s.lo*c.B.Cols : s.hi*c.B.Cols] {
					if m {
						n++
					}
				}
				if by := float64(k) / max(n, 1); k != 0 && math.Abs(by) <= e[f] {
					y[f], some = x[f]+by, true
				}
			}
			if some {
				list = append(list, y)
			}
		}
	}
	return list
}

// verlClipShare returns what verl 0.9.1's losses log as pg_clipfrac: the share of tokens whose clipped term is the larger one, under
// cispo the share whose ratio the clamp changes, under sapo, which has no clip, 0.
func verlClipShare(c *Case, rows []span) ([]float64, []float64) {
	switch c.Set.Value("loss.kind").String() {
	case "cispo":
		return clipShare(anySign, "outside")(c, rows)
	case "sapo":
		return make([]float64, len(rows)), make([]float64, len(rows))
	case "gmpo":
		return geometricShare(positive)(c, rows)
	}
	return clipShare(anySign, "binding")(c, rows)
}

// verlLowerShare returns what the same losses log as pg_clipfrac_lower: the share of tokens on the dual clip, which only the clipped
// surrogate has, and under gmpo what its pg_clipfrac is for A < 0.
func verlLowerShare(c *Case, rows []span) ([]float64, []float64) {
	switch c.Set.Value("loss.kind").String() {
	case "gspo", "cispo", "sapo":
		return make([]float64, len(rows)), make([]float64, len(rows))
	case "gmpo":
		return geometricShare(negative)(c, rows)
	}
	return clipShare(anySign, "lower")(c, rows)
}

// geometricShare returns the share of tokens with advantages of a sign whose log-ratio lies beyond −clip.low or clip.high, whichever way
// the clip acts (verl 0.9.1, compute_policy_loss_geo_mean). One that lies on a bound within its error may count or not. In a 16-bit
// type the difference and the bounds are numbers of the type.
func geometricShare(of sign) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) ([]float64, []float64) {
		low, high := c.NumOr("clip.low", math.Inf(1)), c.NumOr("clip.high", math.Inf(1))
		lp, adv, old := c.Token("logp_new"), c.Token("advantages"), c.oldLogp()
		if !c.OK() {
			return nil, nil
		}
		if old.X == nil {
			old = lp
		}
		u := half(lp, old)
		if u > 0 {
			low, _ = rounded(low, u)
			high, _ = rounded(high, u)
		}
		on, open := make([]float64, len(lp.X)), make([]float64, len(lp.X))
		for i, x := range lp.X {
			a, d := adv.X[i], x-old.X[i]
			e := lp.E(i) + old.E(i) + (c.Unit+tol.U64)*math.Abs(d)
			if u > 0 {
				d, _ = rounded(d, u)
				e = 0
			}
			counts, near := a > 0, math.Abs(a) <= adv.E(i) && adv.E(i) > 0
			if of == negative {
				counts = a < 0
			}
			beyond := d < -low || d > high
			if e += 2 * c.Unit * max(low, high); u > 0 {
				e = 0
			}
			edge := e > 0 && min(math.Abs(d+low), math.Abs(d-high)) <= e
			if counts && beyond {
				on[i] = 1
			}
			if edge && (counts || near) || near && beyond {
				open[i] = 1
			}
		}
		x, e := c.means(rows, on, nil)
		extra, _ := c.means(rows, open, nil)
		for f := range e {
			e[f] += extra[f]
		}
		return x, e
	}
}

// clipOfRow returns the smallest or largest share of clipped tokens of a row, over the rows that have one, NaN if none has. TRL's sequence
// ratio counts in every row, since it is not masked.
func clipOfRow(of sign, how combine) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) (x, e []float64) {
		on, open, o := c.clipped(of, "binding")
		if !c.OK() {
			return nil, nil
		}
		return perSpan(rows, func(s span) (x, e float64) {
			x = math.NaN()
			for r := s.lo; r < s.hi; r++ {
				var n, share, doubt float64
				for i := r * c.B.Cols; i < (r+1)*c.B.Cols; i++ {
					if c.B.Mask[i] || o.Level != rl.RatioToken {
						n++
						share += on[i]
						doubt += open[i]
					}
				}
				if n == 0 {
					continue
				}
				share, doubt = share/n, doubt/n
				if math.IsNaN(x) || how == smallest && share < x || how == largest && share > x {
					x = share
				}
				e = max(e, doubt+2*c.Unit*share)
			}
			return x, e
		})
	}
}

// clipped returns, 1 or 0, which tokens are clipped, and which may be or not.
func (c *Case) clipped(of sign, name string) (on, open []float64, o rl.RatioOptions) {
	kind, _ := rl.ParseClipFracKind(name)
	clip := rl.ClipOptions{Low: c.NumOr("clip.low", math.Inf(1)), High: c.NumOr("clip.high", math.Inf(1))}
	if kind == rl.ClipFracLower {
		clip.Dual = c.NumOr("clip.dual", math.Inf(1))
	}
	o = c.ratioOptions()
	lp, adv, old := c.Token("logp_new"), c.Token("advantages"), c.oldLogp()
	if !c.OK() {
		return nil, nil, o
	}
	if c.boundedBefore() {
		clip.Delta = c.Default("clip.delta", 0)
	}
	clip = promotedClip(clip, half(lp, old))
	r := c.ratios(lp, c.promotedOld(lp, old, o), c.lossMask(), o)
	if clip.Delta > 0 {
		for i, x := range r.x {
			r.x[i] = min(x, clip.Delta)
		}
	}
	on = rl.Clipped(nil, r.x, adv.X, kind, clip)
	open = make([]float64, len(on))
	moved := make([]float64, len(on))
	for _, s := range []float64{-1, 1} {
		for i, x := range r.x {
			moved[i] = x + s*(r.err[i]+4*c.Unit*x)
			if clip.Delta > 0 {
				moved[i] = min(moved[i], clip.Delta)
			}
		}
		for i, v := range rl.Clipped(moved, moved, adv.X, kind, clip) {
			if v != on[i] || adv.E(i) > 0 && math.Abs(adv.X[i]) <= adv.E(i) {
				open[i] = 1
			}
		}
	}
	for i, a := range adv.X {
		if of == negative && !(a < 0) || of == positive && !(a > 0) {
			on[i] = 0
			if math.Abs(a) >= adv.E(i) {
				open[i] = 0
			}
		}
	}
	return on, open, o
}

// boundedBefore reports whether ratios were bounded by clip.delta before it was counted which of them are clipped: TRL 1.16's
// _compute_loss overwrites them, in the losses that have both bounds.
func (c *Case) boundedBefore() bool {
	return strings.EqualFold(c.B.Meta.Framework, "trl") && !slices.Contains([]string{"cispo", "sapo", "vespo"}, c.Set.Value("loss.kind").String())
}
