package stage

import (
	"math"
	"slices"
	"testing"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// raw names the advantages before whitening in the batches of these laws.
const raw = "raw"

// white whitens the raw advantages of a batch as the advantage checks do.
func (s *subject) white(g grid) *Prediction {
	return s.predicted("whiten", g.Batch, func(c *Case) *Prediction {
		y, _ := c.whitenAdvantages(Input{X: c.B.Token(raw)}, false)
		return &Prediction{Want: y.X, Bound: y.Err}
	})
}

// framework whitens as the framework itself does, which may multiply by the mask and clear masked cells; the check need not,
// since it compares the cells of the mask only and cannot tell what a hook filled in.
func (s *subject) framework(g grid) *Prediction {
	return s.predicted("framework", g.Batch, func(c *Case) *Prediction {
		o, kind := c.whitenOptions()
		o.Var.Mean.Outside, _ = rl.ParseOutsideRule(c.inapplicable("mean.nan_outside", "propagate"))
		o.Remask = c.Bool("whiten.remask")
		if !c.OK() {
			return nil
		}
		y, err := rl.Whiten(nil, c.B.Token(raw), kind.Of(c.B.Mask, c.B.Rows, c.B.Cols), c.B.Rows, c.B.Cols, o)
		if err != nil {
			panic(refusal(err.Error()))
		}
		return &Prediction{Want: y, Bound: make([]float64, len(y))}
	})
}

// unwhitened draws a batch of one or two files whose rows have at least two tokens.
func (s *subject) unwhitened(holes bool) grid {
	s.cols = max(s.cols, 2)
	g := s.grid(holes)
	for r := range g.Rows {
		g.Mask[r*g.Cols], g.Mask[r*g.Cols+1] = true, true
	}
	if g.Rows > 1 && s.r.IntN(2) == 0 {
		g = split(g, 1+s.r.IntN(g.Rows-1), 1+s.r.IntN(2))
	}
	offset := float64(s.r.IntN(3) * 8)
	x := s.draw(len(g.Mask), func() float64 { return offset + s.dyadic() })
	for i := range x {
		x[i] += 16 * float64(i%2) // no set is nearly constant
	}
	return g.token(raw, x...)
}

// set of cells that are whitened together, with what whitening knows of them.
type together struct {
	cells          []int // that the moments are taken of
	rows           [2]int
	n, mean, mu, v float64
	rate           float64
}

// sets returns what is whitened together, with the moments as the options define them.
func (s *subject) sets(g grid) (all []together) {
	runs := [][2]int{{0, g.Rows}}
	if len(g.Files) > 1 {
		switch scope := s.text("whiten.scope", ""); {
		case scope == "minibatch", scope == "local_batch" && g.Files[1].Rank != g.Files[0].Rank:
			runs = [][2]int{{0, g.Files[0].Hi}, {g.Files[0].Hi, g.Rows}}
		}
	}
	x, eps, ddof := g.Token(raw), s.num("mean.eps", 0), s.num("whiten.ddof", 0)
	for _, run := range runs {
		k := together{rows: run}
		for i := run[0] * g.Cols; i < run[1]*g.Cols; i++ {
			kind := s.text("whiten.mask", "response")
			if kind == "none" || g.Mask[i] || kind == "length" && i%g.Cols <= lastToken(g.Batch, i/g.Cols) {
				k.cells = append(k.cells, i)
				k.mean += x[i]
			}
		}
		k.n = float64(len(k.cells))
		k.mean, k.mu = k.mean/k.n, k.mean/(k.n+eps)
		for _, i := range k.cells {
			k.v += (x[i] - k.mu) * (x[i] - k.mu)
		}
		k.v *= k.n / (k.n - ddof) / (k.n + eps)
		e := s.num("whiten.eps", 1e-8)
		switch s.text("whiten.eps_place", "") {
		case "inside_sqrt":
			k.rate = 1 / math.Sqrt(k.v+e)
		case "floor_var":
			k.rate = 1 / math.Sqrt(max(k.v, e))
		case "add_std":
			k.rate = 1 / (math.Sqrt(k.v) + e)
		}
		all = append(all, k)
	}
	return all
}

// average returns the mean of x over the cells.
func (k *together) average(x []float64) (sum float64) {
	for _, i := range k.cells {
		sum += x[i]
	}
	return sum / k.n
}

// off bounds the error of average: that of the terms, and n roundings of Σ|x|/n.
func (k *together) off(p *Prediction) (e float64) {
	for _, i := range k.cells {
		e += p.Bound[i] + k.n*tol.U64*math.Abs(p.Want[i])
	}
	return e / k.n
}

// slack is what mean.eps leaves of the mean: x̄ − μ = x̄·ε/(n + ε).
func (k *together) slack(s *subject) float64 {
	return math.Abs(k.mean) * s.num("mean.eps", 0) / k.n
}

func whitens(set *convention.Set) bool {
	v := set.Value("whiten.scope")
	return v.Kind() == convention.Enum && v.Text() != "none"
}

// openWhitening is what profiles that whiten do not say: shielded@1 whitens numbers per response.
const openWhitening = "whiten.mask=response whiten.single=zero "

var wrongWhitening = map[string]fault{
	"ddof 0": {options: "whiten.ddof=0"}, "ddof 1": {options: "whiten.ddof=1"},
	"the mean stays": {options: "whiten.shift_mean=false_plain"}, "statistics of all cells": {options: "whiten.mask=none"},
	"ε of 10⁻³": {options: "whiten.eps=1e-3"}, "per row": {options: "whiten.scope=row"},
}

// only picks faults by name.
func only(all map[string]fault, names ...string) map[string]fault {
	some := map[string]fault{}
	for _, n := range names {
		f, ok := all[n]
		if !ok {
			panic("no fault " + n)
		}
		some[n] = f
	}
	return some
}

// and adds a fault to some.
func and(some map[string]fault, name string, f fault) map[string]fault {
	some[name] = f
	return some
}

// addsConstant moves everything by 10⁻⁶.
var addsConstant = fault{after: func(_ *subject, _ *dump.Batch, p *Prediction) {
	for i := range p.Want {
		p.Want[i] += 1e-6
	}
}}

var whitenLaws = []law{{
	name: "mean 0 (B)", open: openWhitening, where: whitens,
	holds: func(s *subject) string {
		g := s.unwhitened(true)
		p := s.white(g)
		for _, k := range s.sets(g) {
			want := k.rate * (k.mean - k.mu)
			if broken := near(nil, []float64{k.average(p.Want)}, []float64{want}, func(int) float64 {
				return k.off(p) + k.rate*k.slack(s)*1e-3 + k.n*4*tol.U64*math.Abs(k.rate*k.mean)
			}); broken != "" {
				return broken
			}
		}
		return ""
	},
	faults: and(only(wrongWhitening, "the mean stays", "statistics of all cells"), "a constant", addsConstant),
}, {
	name: "variance v/(v + ε) (B)", open: openWhitening, where: whitens,
	holds: func(s *subject) string {
		g := s.unwhitened(true)
		p := s.white(g)
		for _, k := range s.sets(g) {
			m := k.average(p.Want)
			var v, e float64
			for _, i := range k.cells {
				c, b := p.Want[i]-m, p.Bound[i]+k.off(p)
				v += c * c
				e += 2*math.Abs(c)*b + b*b
			}
			f := 1 / (k.n - s.num("whiten.ddof", 0))
			want := k.v * k.rate * k.rate
			// mean.eps is in v and not in what is taken here: relative ε/n and (x̄ε/n)²/v.
			slack := s.num("mean.eps", 0)/k.n + k.slack(s)*k.slack(s)/k.v
			if broken := near(nil, []float64{v * f}, []float64{want}, func(int) float64 {
				return e*f + want*(4*slack+(8*k.n+40)*tol.U64)
			}); broken != "" {
				return broken
			}
		}
		return ""
	},
	faults: and(only(wrongWhitening, "ddof 0", "ddof 1", "ε of 10⁻³"), "a factor", fault{after: func(_ *subject, _ *dump.Batch, p *Prediction) {
		for i := range p.Want {
			p.Want[i] *= 1 + 1e-6
		}
	}}),
}, {
	name: "a shift by c changes nothing (B)", open: openWhitening, where: whitens,
	holds: func(s *subject) string {
		g := s.unwhitened(true)
		x := g.Token(raw)
		c := float64(1 + s.r.IntN(16))
		p, q := s.white(g), s.white(replaced(g, raw, changedAt(x, func(int) bool { return true }, func(i int) float64 { return x[i] + c })))
		slack := make([]float64, len(x))
		for _, k := range s.sets(g) {
			rest := s.num("mean.eps", 0) / k.n
			for i := k.rows[0] * g.Cols; i < k.rows[1]*g.Cols; i++ {
				slack[i] = 2*k.rate*c*rest + math.Abs(p.Want[i])*3*rest*rest*c*(c+math.Abs(k.mean))/k.v
			}
		}
		return near(g.Mask, q.Want, p.Want, func(i int) float64 { return p.Bound[i] + q.Bound[i] + slack[i] })
	},
	faults: only(wrongWhitening, "the mean stays"),
}, {
	name: "a factor of −1 changes signs (E)", open: openWhitening, where: whitens,
	holds: func(s *subject) string {
		g := s.unwhitened(true)
		negative := func(x []float64) []float64 {
			return changedAt(x, func(int) bool { return true }, func(i int) float64 { return -x[i] })
		}
		return identical(g.Mask, s.white(replaced(g, raw, negative(g.Token(raw)))).Want, negative(s.white(g).Want))
	},
	faults: map[string]fault{"a constant": addsConstant},
}, {
	name: "a factor of 2 changes nothing without ε (E)", given: "whiten.eps=0", open: openWhitening, where: whitens,
	holds: func(s *subject) string {
		g := s.unwhitened(true)
		return identical(g.Mask, s.white(replaced(g, raw, doubled(g.Token(raw)))).Want, s.white(g).Want)
	},
	faults: and(only(wrongWhitening, "ε of 10⁻³"), "not divided", fault{options: "whiten.scope=none"}),
}, {
	name: "what masked cells hold does not matter (E)", open: openWhitening, where: whitens,
	holds: func(s *subject) string {
		g := s.unwhitened(true)
		return s.dirtiedWhite(g, s.white, func(i int) bool { return !g.Mask[i] }, s.junk)
	},
	faults: only(wrongWhitening, "statistics of all cells"),
}, {
	name: "what padding holds does not matter (E)", open: openWhitening, where: whitens,
	holds: func(s *subject) string {
		g := s.unwhitened(true)
		return s.dirtiedWhite(g, s.white, func(i int) bool { return i%g.Cols > lastToken(g.Batch, i/g.Cols) }, s.junk)
	},
	faults: only(wrongWhitening, "statistics of all cells"),
}, {
	name: "in the framework: ±1e6 in padding does not matter (E)", open: openWhitening, where: func(set *convention.Set) bool { return whitens(set) && set.Value("whiten.remask").Known() },
	holds: func(s *subject) string {
		g := s.unwhitened(true)
		return s.dirtiedWhite(g, s.framework, func(i int) bool { return i%g.Cols > lastToken(g.Batch, i/g.Cols) }, func(i int) float64 { return 1e6 * float64(1-2*(i%2)) })
	},
	faults: only(wrongWhitening, "statistics of all cells"),
}, {
	name: "in the framework: NaN in padding does not matter (E)", open: openWhitening, where: func(set *convention.Set) bool { return whitens(set) && set.Value("whiten.remask").Known() },
	holds: func(s *subject) string {
		g := s.unwhitened(true)
		return s.dirtiedWhite(g, s.framework, func(i int) bool { return i%g.Cols > lastToken(g.Batch, i/g.Cols) }, func(i int) float64 { return math.NaN() })
	},
	faults: and(only(wrongWhitening, "statistics of all cells"), "multiplies", fault{options: "mean.nan_outside=propagate"}),
}, {
	name: "in the framework: masked cells are 0 (E)", open: openWhitening, where: func(set *convention.Set) bool { return whitens(set) && set.Value("whiten.remask").Known() },
	holds: func(s *subject) string {
		g := s.unwhitened(true)
		for i, y := range s.framework(g).Want {
			masked := !g.Mask[i]
			if s.text("whiten.mask", "") == "length" {
				masked = i%g.Cols > lastToken(g.Batch, i/g.Cols)
			}
			if masked && y != 0 {
				return at(g.Batch, i) + ": a masked cell is not 0"
			}
		}
		return ""
	},
	faults: map[string]fault{"whiten.remask false": {options: "whiten.remask=false"}},
}, {
	name: "permutation of rows (B)", open: openWhitening, where: whitens,
	holds: func(s *subject) string {
		g := s.unwhitened(true)
		g = grid{rowsOf(g, s.r.Perm(g.Rows)...).Batch} // one file
		order := s.r.Perm(g.Rows)
		p, q := s.white(g), s.white(rowsOf(g, order...))
		return near(rowsOf(g, order...).Mask, q.Want, permuted(p.Want, order, g.Cols), func(i int) float64 {
			return q.Bound[i] + p.Bound[order[i/g.Cols]*g.Cols+i%g.Cols]
		})
	},
	faults: map[string]fault{"the first row's mean": {after: func(_ *subject, b *dump.Batch, p *Prediction) {
		for i := range p.Want {
			p.Want[i] += 1e-6 * b.Token(raw)[0]
		}
	}}},
}, {
	name: "whitening twice (B)", open: openWhitening, where: whitens,
	holds: func(s *subject) string {
		g := s.unwhitened(true)
		p := s.white(g)
		q := s.white(replaced(g, raw, p.Want))
		bound := make([]float64, len(p.Want))
		eps := s.num("whiten.eps", 1e-8)
		for _, k := range s.sets(g) {
			// The standard deviation is 1 up to ε, mean.eps and the rounding of the first pass, the mean up to its own.
			rest := eps*(2+1/k.v+1/math.Sqrt(k.v)) + 2*s.num("mean.eps", 0) + (8*k.n+40)*tol.U64
			for i := k.rows[0] * g.Cols; i < k.rows[1]*g.Cols; i++ {
				bound[i] = q.Bound[i] + math.Abs(p.Want[i])*(rest+2*k.off(p)) + 2*k.off(p) + 2*k.rate*k.slack(s)
			}
		}
		return near(g.Mask, q.Want, p.Want, func(i int) float64 { return bound[i] })
	},
	faults: and(only(wrongWhitening, "ε of 10⁻³"), "a cubic term", fault{after: func(_ *subject, _ *dump.Batch, p *Prediction) {
		for i, y := range p.Want {
			p.Want[i] += 1e-6 * y * y * y
		}
	}}),
}, {
	name: "[0, 1] tells ddof (X)", given: "mean.eps=0", open: openWhitening, where: whitens,
	holds: func(s *subject) string {
		g := ofOneFile(newGrid(2, 2)).token(raw, 0, 1)
		want := math.Sqrt(0.5)
		if s.text("whiten.ddof", "") == "0" {
			want = 1
		}
		y := s.white(g).Want
		if !(math.Abs(y[1]-want) <= 1e-7) || !(math.Abs(y[0]+want) <= 1e-7) {
			return "other numbers than ±1 for ddof 0 and ±0.7071 for ddof 1"
		}
		return ""
	},
	faults: only(wrongWhitening, "ddof 0", "ddof 1"),
}, {
	name: "equal numbers give exactly 0 (E)", open: openWhitening + "whiten.constant_zero=true", where: whitens,
	holds: func(s *subject) string {
		g := s.unwhitened(true)
		c := s.r.NormFloat64()
		g = replaced(g, raw, s.draw(len(g.Mask), func() float64 { return c }))
		return identical(g.Mask, s.white(g).Want, make([]float64, len(g.Mask)))
	},
	faults: map[string]fault{"a residue over ε": {options: "whiten.constant_zero=false"}},
}, {
	name: "equal numbers whose sum is exact give exactly 0 (E)", open: openWhitening + "whiten.constant_zero=true", where: whitens,
	holds: func(s *subject) string {
		g := s.unwhitened(true)
		c := s.dyadic()
		g = replaced(g, raw, s.draw(len(g.Mask), func() float64 { return c }))
		return identical(g.Mask, s.white(g).Want, make([]float64, len(g.Mask)))
	},
	faults: and(only(wrongWhitening, "the mean stays"), "mean.eps", fault{options: "mean.eps=1e-8 whiten.constant_zero=false"}),
}, {
	name: "one cell gives 0 (E)", open: openWhitening, where: whitens,
	holds: func(s *subject) string {
		g := ofOneFile(newGrid(1, 1)).token(raw, s.r.NormFloat64())
		return identical(nil, s.white(g).Want, []float64{0})
	},
	faults: map[string]fault{"0·(1/0)": {options: "whiten.single=nan whiten.ddof=1"}, "the mean stays": {options: "whiten.shift_mean=false_add_back"}},
}, {
	name: "ranks pool their moments (E)", open: openWhitening, where: whitens,
	holds: func(s *subject) string {
		s.rows = max(s.rows, 2)
		g := rowsOf(s.unwhitened(true), s.r.Perm(s.rows)...)
		return identical(g.Mask, s.white(split(g, 1+s.r.IntN(g.Rows-1), 2)).Want, s.white(g).Want)
	},
	faults: map[string]fault{"by rank": {options: "whiten.scope=local_batch"}, "by file": {options: "whiten.scope=minibatch"}},
}, {
	name: "shift_mean false keeps the mean (B)", given: "whiten.shift_mean=false_add_back", open: openWhitening, where: whitens,
	holds: func(s *subject) string {
		g := s.unwhitened(true)
		p := s.white(g)
		for _, k := range s.sets(g) {
			if broken := near(nil, []float64{k.average(p.Want)}, []float64{k.mean}, func(int) float64 {
				return k.off(p) + (1+k.rate)*k.slack(s) + k.n*4*tol.U64*(1+k.rate)*math.Abs(k.mean)
			}); broken != "" {
				return broken
			}
		}
		return ""
	},
	faults: and(only(wrongWhitening, "the mean stays"), "the mean is not added back", fault{options: "whiten.shift_mean=true"}),
}}

// dirtiedWhite compares whitened advantages with those of a batch that holds other numbers in some cells.
func (s *subject) dirtiedWhite(g grid, white func(grid) *Prediction, on func(i int) bool, fill func(int) float64) string {
	dirty := replaced(g, raw, changedAt(g.Token(raw), on, fill))
	return identical(g.Mask, white(dirty).Want, slices.Clone(white(g).Want))
}

var whitenSkips = skips{
	"what masked cells hold does not matter (E)": {
		"whiten.mask none: every cell counts": "oai@2019 nplus@2023 cleanrl@020cf0e",
		"whiten.mask length: holes count":     "trl-ppo@1.9 trl-ppo@1.12",
	},
	"what padding holds does not matter (E)": {
		"whiten.mask none: every cell counts": "oai@2019 nplus@2023 cleanrl@020cf0e",
	},
	"in the framework: NaN in padding does not matter (E)": {
		"mean.nan_outside propagate: NaN times 0 is NaN": "trl-ppo@1.9 trl-ppo@1.12 openrlhf-ppo@0.11",
	},
	"in the framework: masked cells are 0 (E)": {
		"whiten.remask false: masked cells keep what the formula gives": "verl-ppo@0.8 verl-ppo@0.9 openrlhf-ppo@0.11",
	},
	"equal numbers give exactly 0 (E)": {
		"whiten.constant_zero false: the rounding of the mean is left over ε": "oai@2019 nplus@2023 trl-ppo@1.9 trl-ppo@1.12 verl-ppo@0.8 verl-ppo@0.9 openrlhf-ppo@0.11 cleanrl@020cf0e tinier-ppo@d3ec1cf",
	},
	"equal numbers whose sum is exact give exactly 0 (E)": {
		"mean.eps 1e-8: the mean of equal numbers is another number": "verl-ppo@0.8 verl-ppo@0.9 tinier-ppo@d3ec1cf",
	},
	"one cell gives 0 (E)": {
		"whiten.single nan: 0·(1/0)":        "trl-ppo@1.9 trl-ppo@1.12 cleanrl@020cf0e",
		"whiten.single error: an exception": "verl-ppo@0.8 verl-ppo@0.9",
	},
	"ranks pool their moments (E)": {
		"whiten.scope minibatch: whitened inside the loss":   "oai@2019 nplus@2023 cleanrl@020cf0e",
		"whiten.scope local_batch: every process for itself": "trl-ppo@1.9 trl-ppo@1.12",
	},
}

func TestWhitenLaws(t *testing.T) { testLaws(t, whitenLaws, whitenSkips) }
