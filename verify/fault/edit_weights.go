package fault

import (
	"math"

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
						case "seq_geo":
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
