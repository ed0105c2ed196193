package fault

import (
	"math"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// estimators are those of Schulman 2020 as functions of x = logp_ref − logp, with their slopes.
var estimators = []struct {
	title        string
	value, slope func(x float64) float64
}{
	{"k1 = −x", func(x float64) float64 { return -x }, func(float64) float64 { return -1 }},
	{"k2 = ½x²", func(x float64) float64 { return x * x / 2 }, func(x float64) float64 { return x }},
	{"k3 = eˣ − x − 1", func(x float64) float64 { return math.Expm1(x) - x }, math.Expm1},
	{"|x|", math.Abs, func(x float64) float64 { return float64(compare(x, 0)) }},
}

// klPairEdits returns edits of an estimate of KL that is the sum of two of them, as of a straight-through form whose one value is not taken away again, and
// of one that is multiplied by another ratio of two passes than its own.
func klPairEdits(o *stage.Outcome) []edit {
	var list []edit
	switch o.Check.ID {
	case "kl/token", "gradient/dlogp", "token_loss/policy", "aggregate/loss", "aggregate/kl_loss":
		for i, a := range estimators {
			for _, b := range estimators[i+1:] {
				list = append(list, edit{id: "KL-FORMULA", title: "the estimate of KL is the sum of two: " + a.title + " and " + b.title + ", x = logp_ref − logp", changes: 1, foreign: true,
					predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
						return estimated(c, ch, func(x float64) float64 { return a.value(x) + b.value(x) }, func(x float64) float64 { return a.slope(x) + b.slope(x) })
					}})
			}
		}
	}
	if o.Check.ID != "kl/token" {
		return list
	}
	passes := []string{"logp_new", "logp_old", "logp_ref", "logp_gen"}
	for _, a := range passes {
		for _, b := range passes {
			if a == b || o.Case.B.Token(a) == nil || o.Case.B.Token(b) == nil || a != "logp_ref" && b != "logp_ref" && a != "logp_gen" && b != "logp_gen" { // ρ has powers of its own
				continue
			}
			list = append(list, edit{id: "KL-GRAD", title: "the estimate of KL is multiplied by e to the (" + a + " − " + b + "), which is not its ratio", changes: 1, foreign: true,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return timesPasses(a, b, c, ch) }})
		}
	}
	return list
}

// timesPasses predicts the estimate of KL without its weights, times e^{a − b} of two passes.
func timesPasses(a, b string, c *stage.Case, ch *stage.Check) *stage.Prediction {
	set := c.Set.With("kl.grad", parsed("kl.grad", "naive"), "hypothesis")
	if v := c.Set.Value("kl.kind"); v.Kind() == convention.Enum && v.Text() == "ratio_d" {
		set = set.With("kl.kind", parsed("kl.kind", "k1"), "hypothesis")
	}
	p, x, y := under(sameInput, c.Of(c.B, set), ch), c.B.Token(a), c.B.Token(b)
	if p == nil || x == nil || y == nil || len(p.Want) != len(x) {
		return nil
	}
	q := altered(p)
	for i, d := range q.Want {
		w := math.Exp(x[i] - y[i])
		q.Want[i] = w * d
		q.Bound[i] = w*p.Bound[i] + math.Abs(q.Want[i])*(4+math.Abs(x[i])+math.Abs(y[i]))*c.Unit
	}
	return q
}
