package stage

import (
	"math"
	"slices"
	"testing"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

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
