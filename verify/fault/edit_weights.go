package fault

import (
	"math"
	"slices"

	"plumbline/verify/stage"
)

// weightForms are what programs take for an importance weight e to the d, d = logp_old − logp_gen of a token or of a row.
var weightForms = []struct {
	title string
	of    func(d float64) float64
}{
	{"1 + d, the first terms of e to the d", func(d float64) float64 { return 1 + d }},
	{"e to the d/2", func(d float64) float64 { return math.Exp(d / 2) }},
	{"e to the 2d", func(d float64) float64 { return math.Exp(2 * d) }},
	{"e to the |d|", func(d float64) float64 { return math.Exp(math.Abs(d)) }},
	{"e to the −|d|", func(d float64) float64 { return math.Exp(-math.Abs(d)) }},
	{"e to the 3d", func(d float64) float64 { return math.Exp(3 * d) }},
}

// weightEdits returns edits of importance weights that are another function of their log-ratio. The log-probs of the engine that give the
// same numbers stand for it: of a token ln w' = f, of a row Σ ln w' of its tokens is what f makes of Σd, or n times what it makes of the mean.
func weightEdits(o *stage.Outcome) []edit {
	if o.Check.ID != "ratio/is_weights" {
		return nil
	}
	level := o.Case.Set.Value("tis.level").String()
	var list []edit
	for _, f := range weightForms {
		list = append(list, edit{id: "RATIO-FORM", title: "the importance weight is " + f.title + ", of d = logp_old − logp_gen", changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				old, gen := c.B.Token("logp_old"), c.B.Token("logp_gen")
				if old == nil {
					old = c.B.Token("logp_new")
				}
				if old == nil || gen == nil || c.B.Cols == 0 {
					return nil
				}
				y := make([]float64, len(gen))
				for r := range c.B.Rows {
					var sum, n float64
					for i := r * c.B.Cols; i < (r+1)*c.B.Cols; i++ {
						if c.B.Mask[i] {
							sum, n = sum+old[i]-gen[i], n+1
						}
					}
					for i := r * c.B.Cols; i < (r+1)*c.B.Cols; i++ {
						var l float64
						switch level {
						case "token":
							l = math.Log(f.of(old[i] - gen[i]))
						case "seq_mean", "geometric":
							l = math.Log(f.of(sum / max(n, 1)))
						default:
							l = math.Log(f.of(sum)) / max(n, 1)
						}
						if y[i] = old[i] - l; math.IsNaN(y[i]) || math.IsInf(y[i], 0) {
							y[i] = gen[i]
						}
					}
				}
				p := under(perToken("logp_gen", y), c, ch)
				return roughly(p)
			}})
	}
	return list
}

// lossWeights are importance weights that a loss applies in place of those of the rollout.
var lossWeights = []struct {
	id, title string
	of        func(c *stage.Case, w []float64) []float64
}{
	{"IS-NEW-FOR-OLD", "e to the (logp_new − logp_gen), of the new pass, within the declared bounds", func(c *stage.Case, _ []float64) []float64 {
		return weightsWithin(c, c.B.Token("logp_new"), c.B.Token("logp_gen"), true)
	}},
	{"IS-NEW-FOR-OLD", "e to the (logp_new − logp_gen), of the new pass, without a bound", func(c *stage.Case, _ []float64) []float64 {
		return weightsWithin(c, c.B.Token("logp_new"), c.B.Token("logp_gen"), false)
	}},
	{"IS-CLAMP-MISSING", "e to the (logp_old − logp_gen) without a bound", func(c *stage.Case, _ []float64) []float64 {
		return weightsWithin(c, c.B.Token("logp_old"), c.B.Token("logp_gen"), false)
	}},
	{"IS-INVERTED", "their inverses", func(_ *stage.Case, w []float64) []float64 { return mapped(w, func(x float64) float64 { return 1 / x }) }},
	{"IS-NORMALISED", "their mean over the tokens of the micro-batch", func(c *stage.Case, w []float64) []float64 { return meansOver(c, w, false, false) }},
	{"IS-NORMALISED", "their mean over all cells of the micro-batch", func(c *stage.Case, w []float64) []float64 { return meansOver(c, w, false, true) }},
	{"IS-LEVEL", "their mean over the response", func(c *stage.Case, w []float64) []float64 { return meansOver(c, w, true, false) }},
	{"RATIO-FORM", "their square roots", func(_ *stage.Case, w []float64) []float64 { return mapped(w, math.Sqrt) }},
}

// weightsWithin returns e to the a − b of every token, within the declared bounds of a truncation or not; nil where one is not there.
func weightsWithin(c *stage.Case, a, b []float64, bounded bool) []float64 {
	if a == nil || b == nil {
		return nil
	}
	lo, hi := 0.0, math.Inf(1)
	if bounded {
		lo, hi = numberOr(c, "tis.low", 0), numberOr(c, "tis.high", math.Inf(1))
	}
	w := make([]float64, len(a))
	for i := range w {
		w[i] = min(max(math.Exp(a[i]-b[i]), lo), hi)
	}
	return w
}

// meansOver returns the mean of x over the tokens of a row, or of a micro-batch or all its cells, at each of them.
func meansOver(c *stage.Case, x []float64, rows, pads bool) []float64 {
	b := c.B
	y := slices.Clone(x)
	mean := func(lo, hi int) {
		var sum, n float64
		for i := lo * b.Cols; i < hi*b.Cols; i++ {
			if b.Mask[i] || pads && (b.Origin[i/b.Cols].Cols <= 0 || i%b.Cols < b.Origin[i/b.Cols].Cols) {
				sum, n = sum+x[i], n+1
			}
		}
		for i := lo * b.Cols; i < hi*b.Cols; i++ {
			y[i] = sum / max(n, 1)
		}
	}
	for _, f := range b.Files {
		if !rows {
			mean(f.Lo, f.Hi)
			continue
		}
		for r := f.Lo; r < f.Hi; r++ {
			mean(r, r+1)
		}
	}
	return y
}

// lossWeightEdits returns edits of the importance weights that a loss applies, where the weights of the rollout are dumped.
func lossWeightEdits(o *stage.Outcome) []edit {
	switch o.Check.ID {
	case "token_loss/policy", "gradient/dlogp":
	default:
		return nil
	}
	if t := o.Case.B.Tensors["is_weights"]; t == nil || len(t.Data) != len(o.Case.B.Mask) {
		return nil
	}
	var list []edit
	for _, f := range lossWeights {
		list = append(list, edit{id: f.id, title: "the loss is multiplied by other importance weights: " + f.title, changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				w := f.of(c, c.B.Token("is_weights"))
				if w == nil {
					return nil
				}
				p := under(token("is_weights", func(*stage.Case, []float64) []float64 { return w }), c, ch)
				if p == nil {
					return nil
				}
				q := *p
				q.Bound, q.Alt = slices.Clone(p.Bound), nil
				for i, x := range p.Want { // of e to the d, a bound and a mean
					q.Bound[i] += 64 * c.Unit * math.Abs(x)
				}
				return &q
			}})
	}
	return list
}
