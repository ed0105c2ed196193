package fault

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// klEdits returns edits of the estimator k3 = eˣ − x − 1 of x = logp_ref − logp whose terms have other whole numbers before them.
func klEdits(o *stage.Outcome) []edit {
	if !slices.Contains([]string{"kl/token", "gradient/dlogp", "token_loss/policy", "aggregate/loss", "aggregate/kl_loss"}, o.Check.ID) {
		return nil
	}
	list := klPowers()
	if v := o.Case.Set.Value("kl.kind"); v.Kind() != convention.Enum || v.Text() != "k3" {
		return list
	}
	detached := o.Check.Stage == convention.Gradient && rightKL(o.Case)
	for a := -1.0; a <= 2; a++ {
		for b := -2.0; b <= 2; b++ {
			for n := -2.0; n <= 2; n++ {
				differ := 0
				for _, d := range []bool{a != 1, b != -1, n != -1} {
					if d {
						differ++
					}
				}
				if differ == 0 || differ > mostChanges || a == 0 && b == 0 && n == 0 || o.Check.Stage == convention.Gradient && n != -1 {
					continue
				}
				value := func(x float64) float64 { return a*math.Exp(x) + b*x + n }
				if a+n == 0 {
					value = func(x float64) float64 { return a*math.Expm1(x) + b*x }
				}
				slope := func(x float64) float64 { return a*math.Exp(x) + b }
				id, title := "KL-FORMULA", "the estimate of KL is "+sum(a, b, n)+", x = logp_ref − logp"
				if detached {
					id, title = "KL-GRAD", "the estimate of KL is right, and has the gradient of "+sum(a, b, 0)+", x = logp_ref − logp"
					if a == 0 && b == -1 {
						title += ": its exponential is detached"
					} else if a == 1 && b == 0 {
						title += ": its linear term is detached"
					}
				}
				list = append(list, edit{id: id, title: title, changes: differ,
					predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return estimated(c, ch, value, slope) }})
			}
		}
	}
	return list
}

// rightKL reports whether the estimates of KL that were dumped are right: then a gradient that is another one lacks, or has, a part of it.
func rightKL(c *stage.Case) bool {
	return c.B.Token("kl") != nil && stage.Judge(stage.Find("kl/token"), c.B, c.Set).Verdict == check.Pass
}

// klPowers returns edits of any estimator as a power of the log-ratio with another factor before it than the catalogue has.
func klPowers() []edit {
	var list []edit
	for _, p := range []struct {
		title        string
		value, slope func(x float64) float64
	}{
		{"½·|x|", func(x float64) float64 { return math.Abs(x) / 2 }, func(x float64) float64 { return .5 * float64(compare(x, 0)) }},
		{"2·|x|", func(x float64) float64 { return 2 * math.Abs(x) }, func(x float64) float64 { return 2 * float64(compare(x, 0)) }},
		{"½·x, without the square", func(x float64) float64 { return x / 2 }, func(float64) float64 { return .5 }},
		{"−½·x, without the square", func(x float64) float64 { return -x / 2 }, func(float64) float64 { return -.5 }},
		{"¼·x²", func(x float64) float64 { return x * x / 4 }, func(x float64) float64 { return x / 2 }},
		{"−½·x²", func(x float64) float64 { return -x * x / 2 }, func(x float64) float64 { return -x }},
		{"√|x|", func(x float64) float64 { return math.Sqrt(math.Abs(x)) }, func(x float64) float64 { return math.Copysign(.5/math.Sqrt(math.Abs(x)), x) }},
		{"½·|x|³", func(x float64) float64 { return math.Abs(x*x*x) / 2 }, func(x float64) float64 { return 1.5 * x * math.Abs(x) }},
		{"x·eˣ: the sum over the reference's distribution", func(x float64) float64 { return x * math.Exp(x) }, func(x float64) float64 { return (1 + x) * math.Exp(x) }},
	} {
		list = append(list, edit{id: "KL-FORMULA", title: "the estimate of KL is " + p.title + ", x = logp_ref − logp", changes: 1, configured: coefficientOf(p.value),
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return estimated(c, ch, p.value, p.slope) }})
	}
	return list
}

// coefficientOf returns kl.beta for an estimate that is a positive multiple of −x, |x| or x², x = logp_ref − logp: of k1, abs or k2.
func coefficientOf(value func(x float64) float64) []string {
	for _, f := range []func(x float64) float64{func(x float64) float64 { return -x }, math.Abs, func(x float64) float64 { return x * x }} {
		multiple := value(-2) / f(-2)
		if multiple > 0 && value(3) == multiple*f(3) && value(-5) == multiple*f(-5) {
			return []string{"kl.beta"}
		}
	}
	return nil
}

// sum writes a·eˣ + b·x + n without what is 0.
func sum(a, b, n float64) string {
	var text string
	for _, t := range []struct {
		k    float64
		what string
	}{{a, "eˣ"}, {b, "x"}, {n, ""}} {
		if t.k == 0 {
			continue
		}
		sign := " + "
		if t.k < 0 {
			sign = " − "
		}
		k := fmt.Sprintf("%g", math.Abs(t.k))
		if k == "1" && t.what != "" {
			k = ""
		} else if t.what != "" {
			k += "·"
		}
		text += sign + k + t.what
	}
	return strings.TrimPrefix(strings.Replace(text, " − ", "−", boolToInt(strings.HasPrefix(text, " − "))), " + ")
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
