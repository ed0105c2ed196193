package fault

import (
	"fmt"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// exchangedEdits returns edits of a loss P + Σ c_i·T_i of a policy term and others in which a coefficient multiplies another term than its own:
//
//	c·P + T,   c_j·T_i + c_i·T_j   or   c·(P + T)
//
// Where nobody declares the coefficient a program may have one of its policy term.
func exchangedEdits(o *stage.Outcome) (list []edit) {
	if o.Check.ID != "aggregate/loss" {
		return nil
	}
	words := map[string]string{"kl.beta": "KL", "entropy.coef": "entropy", "value.coef": "value"}
	var there []string
	for _, name := range coefficients {
		if c := numberOr(o.Case, name, 0); words[name] != "" && c != 0 && c != 1 && (name != "kl.beta" || lossTerms[0].apart(splitKL(o.Case.Of(o.Case.B, o.Case.Set), o.Check), o.Check)) {
			there = append(there, name)
		}
	}
	add := func(title string, read []string, change func(set *convention.Set, c func(name string) float64) (policy float64, _ *convention.Set)) {
		list = append(list, edit{id: "COEFFICIENT-EXCHANGED", title: title, changes: 1, configured: read, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			c = splitKL(c, ch)
			off, _ := otherTermsOff(c)
			policy := under(off, c, ch)
			by, set := change(c.Set, func(name string) float64 { return numberOr(c, name, 0) })
			d := c.Of(c.B, set)
			return combined(by-1, policy, 1, under(sameInput, d, ch))
		}})
	}
	put := func(set *convention.Set, name string, x float64) *convention.Set {
		return set.With(name, convention.NumberValue(x), "hypothesis")
	}
	for i, name := range there {
		add(fmt.Sprintf("the coefficient of the %[1]s term multiplies the policy term, and the %[1]s term has none", words[name]), []string{name}, func(set *convention.Set, c func(string) float64) (float64, *convention.Set) {
			return c(name), put(set, name, 1)
		})
		add(fmt.Sprintf("the coefficient of the %s term multiplies the policy term, too", words[name]), []string{name}, func(set *convention.Set, c func(string) float64) (float64, *convention.Set) {
			return c(name), set
		})
		for _, other := range there[i+1:] {
			add(fmt.Sprintf("the coefficients of the %s term and of the %s term are exchanged", words[name], words[other]), []string{name, other}, func(set *convention.Set, c func(string) float64) (float64, *convention.Set) {
				return 1, put(put(set, name, c(other)), other, c(name))
			})
		}
	}
	return list
}
