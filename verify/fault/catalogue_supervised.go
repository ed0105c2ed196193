package fault

import (
	"math"

	"plumbline/verify/stage"
)

// supervisedFaults are losses of supervised fine-tuning whose tokens are another function of the log-prob than its negative.
func supervisedFaults() []*Hypothesis {
	list := append(smoothing(), &Hypothesis{ID: "GRADIENT-PART", Checks: []string{"gradient/dlogp"}, Predict: partDetached})
	for _, f := range []struct {
		title string
		g, dg func(x float64) float64 // −loss of a token, and its derivative by the log-prob x
	}{
		{"the loss of a token is 1 − p, without a logarithm", math.Expm1, math.Exp},
		{"the loss of a token is −p, without a logarithm", math.Exp, math.Exp},
		{"the loss of a token is the square of its log-prob", func(x float64) float64 { return -x * x }, func(x float64) float64 { return -2 * x }},
		{"the loss of a token is weighted by its own probability: −p·ln p", func(x float64) float64 { return x * math.Exp(x) }, func(x float64) float64 { return (1 + x) * math.Exp(x) }},
		{"the loss of a token is weighted by 1 − p, as a focal loss of exponent 1 is", func(x float64) float64 { return -x * math.Expm1(x) },
			func(x float64) float64 { return -math.Expm1(x) - x*math.Exp(x) }},
		{"the loss of a token is weighted by (1 − p)², as a focal loss is", func(x float64) float64 { return x * math.Expm1(x) * math.Expm1(x) },
			func(x float64) float64 { return math.Expm1(x) * (math.Expm1(x) + 2*x*math.Exp(x)) }},
	} {
		of := token("logp_new", func(_ *stage.Case, x []float64) []float64 { return mapped(x, f.g) })
		list = append(list,
			&Hypothesis{ID: "SFT-FUNCTION", Title: f.title, Checks: []string{"token_loss/policy"}, Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				x := c.B.Token("logp_new")
				p := under(sameInput, c, ch)
				if c.B.Meta.Algorithm != "sft" || x == nil || p == nil || len(p.Want) != len(x) {
					return nil
				}
				q := &stage.Prediction{Judge: p.Judge, Scale: p.Scale, Want: make([]float64, len(x)), Bound: make([]float64, len(x))}
				for i := range x {
					if q.Judge != nil && q.Judge[i] || q.Judge == nil && c.B.Mask[i] {
						q.Want[i], q.Bound[i] = -f.g(x[i]), p.Bound[i]*math.Abs(f.dg(x[i]))+16*c.Unit*(1+math.Abs(x[i]))*(1+math.Abs(x[i]))
					}
				}
				return q
			}},
			&Hypothesis{ID: "SFT-FUNCTION", Title: f.title, Checks: []string{"preference/sft_loss"}, Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				return roughly(under(of, c, ch))
			}},
			&Hypothesis{ID: "SFT-FUNCTION", Title: f.title, Checks: []string{"gradient/dlogp"}, Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				x := c.B.Token("logp_new")
				if c.B.Meta.Algorithm != "sft" || x == nil {
					return nil
				}
				p := under(sameInput, c, ch)
				if p == nil || len(p.Want) != len(x) {
					return nil
				}
				q := &stage.Prediction{Judge: p.Judge, Want: make([]float64, len(x)), Bound: make([]float64, len(x))}
				for i, w := range p.Want {
					if q.Judge == nil && !c.B.Mask[i] {
						continue
					}
					// exp and its products are off by a few roundings of terms that are at most 1 + |x|.
					d := f.dg(x[i])
					q.Want[i], q.Bound[i] = w*d, p.Bound[i]*math.Abs(d)+16*c.Unit*math.Abs(w)*(1+math.Abs(x[i]))
				}
				return q
			}})
	}
	return list
}
