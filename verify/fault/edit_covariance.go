package fault

import (
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// chosenByCovariance are wrong orders in which kl_cov takes its tokens, as numbers of which it takes the largest: where the covariance is (A − Ā)·(lp − mean lp)
// (Cui et al. 2025, Eq. 11).
var chosenByCovariance = []struct {
	title string
	of    func(cov float64) float64
}{
	{"of the smallest covariance", func(x float64) float64 { return -x }},
	{"of the largest magnitude of the covariance", math.Abs},
	{"of the smallest magnitude of the covariance", func(x float64) float64 { return -math.Abs(x) }},
}

// covarianceEdits returns edits of kl_cov that holds other tokens back than those of the largest covariance.
func covarianceEdits(o *stage.Outcome) (list []edit) {
	if o.Case.Set.Value("loss.kind").String() != "kl_cov" || o.Check.ID != "token_loss/policy" && o.Check.ID != "gradient/dlogp" {
		return nil
	}
	for _, f := range chosenByCovariance {
		list = append(list, edit{id: "LOSS-COVARIANCE", title: "kl_cov holds back the tokens " + f.title + ", not those of the largest", changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return heldByCovariance(f.of, c, ch) }})
	}
	return list
}

// heldByCovariance predicts token losses −A·ρ + coef·|lp − old|, or their gradient, with the second term in the tokens of a file whose key is the largest.
func heldByCovariance(key func(cov float64) float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	b := c.B
	lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), c.Optional("advantages").X
	o := rl.CovOptions{Fraction: numberOr(c, "cov.fraction", 0), Coef: numberOr(c, "cov.coef", 0)}
	plain := under(number("cov.coef", func(float64) float64 { return 0 }), c, ch)
	if plain == nil || len(lp) != len(b.Mask) || len(old) != len(lp) || len(adv) != len(lp) || len(plain.Want) != len(lp) || o.Coef == 0 {
		return nil
	}
	var weight *stage.Prediction
	if ch.Stage == convention.Gradient {
		if weight = weightsOf(c, ch); weight == nil || len(weight.Want) != len(lp) {
			return nil
		}
	}
	q := altered(plain)
	for _, f := range b.Files {
		lo, hi := f.Lo*b.Cols, f.Hi*b.Cols
		cov := rl.TokenCovariance(nil, lp[lo:hi], adv[lo:hi], b.Mask[lo:hi], 0)
		for i, held := range rl.KLCovSelect(nil, mapped(cov, key), b.Mask[lo:hi], o) {
			d := lp[lo+i] - old[lo+i]
			switch {
			case !held:
			case weight != nil:
				q.Want[lo+i] += weight.Want[lo+i] * o.Coef * float64(compare(d, 0))
				q.Bound[lo+i] += 8 * c.Unit * math.Abs(q.Want[lo+i])
			default:
				q.Want[lo+i] += o.Coef * math.Abs(d)
				q.Bound[lo+i] += 8 * c.Unit * (math.Abs(q.Want[lo+i]) + o.Coef*(math.Abs(lp[lo+i])+math.Abs(old[lo+i])))
			}
		}
	}
	return q
}
