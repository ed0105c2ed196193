package stage

import (
	"math"
	"slices"
	"strings"

	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// fileLoss returns the losses of the files.
func fileLoss(c *Case, rows []span) (x, e []float64) {
	in := c.perFile("loss")
	if !c.OK() {
		return nil, nil
	}
	e = make([]float64, len(rows))
	copy(e, in.Err)
	return slices.Clone(in.X), e
}

// perFile returns a number of every file, predicted if it was not dumped.
func (c *Case) perFile(name string) Input {
	if x := c.B.PerFile(name); x != nil {
		return Input{X: x, Err: c.rounding(name)}
	}
	return c.predicted(name)
}

// lossSize returns the size of the losses of the files.
func (c *Case) lossSize() float64 {
	in := c.perFile("loss")
	var s float64
	for _, x := range in.X {
		s += math.Abs(x)
	}
	return s
}

// maskedMean returns the metric Σ x·m / Σ m of a tensor.
func maskedMean(name string) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) ([]float64, []float64) {
		in := c.Token(name)
		if !c.OK() {
			return nil, nil
		}
		m, e := c.means(rows, in.X, in.Err)
		for f := range e { // the sum and the division have the type of the terms
			e[f] += 2 * in.Half * math.Abs(m[f])
		}
		return m, e
	}
}

// anyMeans returns what the mean of a tensor may be of each file where no framework says what the name means: by any aggregation of its tokens, as
// OpenRLHF logs the KL of its loss, and the mean over the ranks of a micro-batch of any, as TRL did up to 1.8; of a step the mean over its files.
func (c *Case) anyMeans(name string, step bool) (list [][]float64) {
	of := c.aggregated(c.B.Token(name))
	for k := range aggregations {
		if of == nil {
			return nil
		}
		own, joined := make([]float64, len(of)), make([]float64, len(of))
		for f := range of {
			own[f] = of[f][k]
		}
		for f, file := range c.B.Files {
			var n float64
			for g, other := range c.B.Files {
				if step || file.MicroBatch == other.MicroBatch {
					n, joined[f] = n+1, joined[f]+own[g]
				}
			}
			joined[f] /= n
		}
		if list = append(list, joined); !step {
			list = append(list, own, times(own, c.accumulation())) // a log is of before the division by the accumulation steps
		}
	}
	return list
}

// rowSums is the mean over rows of the sum of a tensor over the mask, as TRL's PPO logs it. Its error is that of the terms, fold(n) + 2u of
// their magnitudes for sums over at most n cells of at most as many rows, and one more for what is masked by a product.
func rowSums(name string) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) ([]float64, []float64) {
		in := c.Token(name)
		if !c.OK() {
			return nil, nil
		}
		mask := c.lossMask()
		x, e := make([]float64, len(rows)), make([]float64, len(rows))
		for f, r := range rows {
			var size float64
			for i := r.lo * c.B.Cols; i < r.hi*c.B.Cols; i++ {
				if !mask[i] {
					continue
				}
				x[f] += in.X[i]
				size += math.Abs(in.X[i])
				if in.Err != nil {
					e[f] += in.Err[i]
				}
			}
			n := float64(r.hi - r.lo)
			u := c.Unit + tol.U64
			e[f] = (e[f] + (foldError(c.B.Cols, c.Unit)+foldError(r.hi-r.lo, c.Unit)+3*u+2*in.Half)*size) / n
			x[f] /= n
		}
		return x, e
	}
}

// means returns the means of x over the mask of ranges of rows, and their errors.
func (c *Case) means(rows []span, x, err []float64) (m, e []float64) {
	m, e = make([]float64, len(rows)), make([]float64, len(rows))
	mask := c.lossMask()
	for f, r := range rows {
		m[f], e[f] = c.meanOver(r, mask, x, err)
	}
	return m, e
}

// meanOver returns the mean of x over the mask of some rows, and its error: fold(n) + 2u of the sum of magnitudes. verl adds 1e-8
// to the count.
func (c *Case) meanOver(rows span, mask []bool, x, err []float64) (m, e float64) {
	var n, sum, size float64
	for i := rows.lo * c.B.Cols; i < rows.hi*c.B.Cols; i++ {
		if mask[i] {
			n++
			sum += x[i]
			size += math.Abs(x[i])
			if err != nil {
				e += err[i]
			}
		}
	}
	if n == 0 { // clamped to 1 by TRL, 0/0 elsewhere
		return c.emptyMean(), 0
	}
	slack := c.Default("mean.eps", 0) / n
	return sum / n, (e + (foldError(int(n), c.Unit)+2*(c.Unit+tol.U64)+slack)*size) / n
}

// emptyMean is the mean of no tokens.
func (c *Case) emptyMean() float64 {
	if c.inapplicable("mean.empty", "nan") == "zero" {
		return 0
	}
	return math.NaN()
}

// sign is which advantages a clip fraction counts.
type sign int

const (
	anySign sign = iota
	negative
	positive
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
		x, e := make([]float64, len(rows)), make([]float64, len(rows))
		for f, s := range rows {
			n := float64(s.hi - s.lo)
			for r := s.lo; r < s.hi; r++ {
				x[f] += on[r*c.B.Cols] / n
				e[f] += open[r*c.B.Cols]/n + 2*c.Unit/n
			}
		}
		return x, e
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
		x, e = make([]float64, len(rows)), make([]float64, len(rows))
		for f, s := range rows {
			x[f] = math.NaN()
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
				if math.IsNaN(x[f]) || how == smallest && share < x[f] || how == largest && share > x[f] {
					x[f] = share
				}
				e[f] = max(e[f], doubt+2*c.Unit*share)
			}
		}
		return x, e
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

// updateKL returns the mean of logp_old − logp_new over the mask.
func updateKL(c *Case, rows []span) ([]float64, []float64) {
	return c.meanKL(rows, rl.KLK1)
}

// verlUpdateKL returns the same, and the mean of |logp_old − logp_new| under kl_cov: verl 0.9.1's compute_policy_loss_kl_cov logs the
// absolute difference, which its penalty is made of, by the name that its other losses give the signed one.
func verlUpdateKL(c *Case, rows []span) ([]float64, []float64) {
	if c.Set.Value("loss.kind").String() == "kl_cov" {
		return c.meanKL(rows, rl.KLAbs)
	}
	return updateKL(c, rows)
}

// approxKL returns that of k3, or in TRL of k2; see alternative.
func approxKL(c *Case, rows []span) ([]float64, []float64) {
	if strings.EqualFold(c.B.Meta.Framework, "trl") {
		return c.meanKL(rows, rl.KLK2)
	}
	return c.meanKL(rows, rl.KLK3)
}

// meanKL returns the mean over the mask of an estimator of KL(old‖π).
func (c *Case) meanKL(rows []span, kind rl.KLKind) ([]float64, []float64) {
	lp, old := c.Token("logp_new"), c.trainersOld()
	clamp := c.NumOr("ratio.log_clamp", 0)
	if !c.OK() {
		return nil, nil
	}
	if old.X == nil {
		old = lp
	}
	n := len(lp.X)
	o := rl.KLOptions{Kind: kind, ClampIn: clamp, ClampAll: true}
	k, _ := rl.KL(nil, make([]float64, n), old.X, lp.X, nil, o)
	e := make([]float64, n)
	for i := range e {
		e[i] = klBound(o, old.X[i]-lp.X[i], lp.E(i)+old.E(i), c.Unit)
	}
	return c.means(rows, k, e)
}

// alternative returns approx_kl as the mean of k2, in TRL over all cells: its PPOTrainer fills both log-probs with one number where
// there is no token, and takes 0.5·(diff²).mean() (TRL 1.12.0).
func (m *metric) alternative(c *Case, rows []span, step bool) []float64 {
	x, e := c.meanKL(rows, rl.KLK2)
	if mask := c.lossMask(); strings.EqualFold(c.B.Meta.Framework, "trl") {
		for f, r := range rows {
			tokens := 0
			for _, m := range mask[r.lo*c.B.Cols : r.hi*c.B.Cols] {
				if m {
					tokens++
				}
			}
			x[f] *= float64(tokens) / float64(max((r.hi-r.lo)*c.B.Cols, 1))
		}
	}
	if step {
		m.combine(c, x, e)
	}
	return x
}

// lengths returns the mean, smallest or largest number of tokens of a row.
func lengths(how combine) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) (x, e []float64) {
		if v, ok := c.Set.Fact("mask_truncated_completions"); ok && v == true {
			note(&c.Absent, "the masks before truncated completions were masked")
			return nil, nil
		}
		x, e = make([]float64, len(rows)), make([]float64, len(rows))
		for f, s := range rows {
			var sum, low, high float64
			for r := s.lo; r < s.hi; r++ {
				var n float64
				for _, m := range c.B.Mask[r*c.B.Cols : (r+1)*c.B.Cols] {
					if m {
						n++
					}
				}
				sum += n
				if r == s.lo || n < low {
					low = n
				}
				high = max(high, n)
			}
			switch how {
			case smallest:
				x[f] = low
			case largest:
				x[f] = high
			default:
				x[f] = sum / float64(s.hi-s.lo)
				e[f] = 2 * (c.Unit + tol.U64) * x[f]
			}
		}
		return x, e
	}
}

// meanScore returns the mean of the scores.
func meanScore(c *Case, rows []span) (x, e []float64) {
	in := c.Row("scores")
	if !c.OK() {
		return nil, nil
	}
	x, e = make([]float64, len(rows)), make([]float64, len(rows))
	for f, s := range rows {
		var size float64
		n := float64(s.hi - s.lo)
		for r := s.lo; r < s.hi; r++ {
			x[f] += in.X[r] / n
			size += math.Abs(in.X[r]) / n
			e[f] += in.E(r) / n
		}
		e[f] += (foldError(int(n), c.Unit) + 2*(c.Unit+tol.U64)) * size
	}
	return x, e
}
