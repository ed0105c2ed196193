package fault

import (
	"math"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// writtenLimits are the numbers that configurations give to what a loss leaves out.
var writtenLimits = map[string][]float64{
	"loss.off_policy_max": {0.02, 0.05, 0.1, 0.01, 0.2, 0.5, 1, 0.005, 0.002, 0.001, 0.3, 2, 5},
	"loss.top_entropy":    {0.2, 0.1, 0.3, 0.5, 0.25, 0.4, 0.6, 0.7, 0.75, 0.8, 0.9},
}

// gates are the temperatures of a soft gate for A > 0 and A < 0: those of TRL 1.16 (sapo_temperature_pos, sapo_temperature_neg) and of one number.
var gates = [][2]float64{{1, 1.05}, {1, 1}}

// Beside returns options that no profile's defaults have and that an output shows, with a bug in what they do: numbers that leave tokens out as a bug
// would, a gate in place of a clip where losses at a ratio of 1 are half of what they should be, and whitening where token rewards are a line in the right ones. Each is one explanation's base.
func Beside(o *stage.Outcome, open func(option string) bool) (list [][]stage.Change) {
	if o.Check.ID == "reward/token" {
		return whitenedBeside(o, open)
	}
	if !policyOutput(o) || o.Case == nil {
		return nil
	}
	adv, loss := o.Case.Of(o.Case.B, o.Case.Set).Optional("advantages").X, o.Case.B.Token("token_loss")
	if len(adv) != len(o.Case.B.Mask) || len(loss) != len(adv) {
		return nil
	}
	to := func(option string, v convention.Value) stage.Change {
		return stage.Change{Option: option, From: o.Case.Set.Value(option), To: v}
	}
	far := rightLimit(o.Case, adv, loss)
	for _, f := range keepForms() {
		if far && f.option == "loss.off_policy_max" || !open(f.option) || o.Case.Set.Value(f.option).Kind() == convention.Number {
			continue
		}
		for _, x := range writtenLimits[f.option] {
			change := to(f.option, convention.NumberValue(x))
			keep := f.keep(o.Case.Of(o.Case.B, o.Case.Set.With(f.option, change.To, "search")))
			if showsLeftOut(o.Case.B.Mask, adv, loss, keep) && !slices.ContainsFunc(list, func(l []stage.Change) bool { return l[0] == change }) {
				list = append(list, []stage.Change{change})
			}
		}
	}
	if gate, err := convention.Parse("loss.kind", "sapo"); err == nil && open("loss.kind") && halfOfAdvantages(o.Case, adv, loss) {
		for _, g := range gates {
			list = append(list, []stage.Change{to("loss.kind", gate),
				to("sapo.tau_pos", convention.NumberValue(g[0])), to("sapo.tau_neg", convention.NumberValue(g[1]))})
		}
	}
	return list
}

// rightLimit reports whether the tokens that are left out are those of the rows with A < 0 whose mean of gen − new is above some limit, as they should be.
func rightLimit(c *stage.Case, adv, loss []float64) bool {
	d := gaps(c.Of(c.B, c.Set), "")
	if d == nil {
		return false
	}
	kept, out := math.Inf(-1), math.Inf(1)
	mean := make([]float64, c.B.Rows)
	for r := range mean {
		lo, hi := r*c.B.Cols, (r+1)*c.B.Cols
		var sum, n float64
		for i := lo; i < hi; i++ {
			if c.B.Mask[i] {
				sum, n = sum+d[i], n+1
			}
		}
		mean[r] = sum / n
		for i := lo; i < hi; i++ {
			switch {
			case !c.B.Mask[i] || !(adv[i] < 0):
			case loss[i] == 0:
				out = min(out, mean[r])
			default:
				kept = max(kept, mean[r])
			}
		}
	}
	keep := make([]bool, len(adv))
	for i := range keep {
		keep[i] = !(adv[i] < 0 && mean[i/c.B.Cols] > kept)
	}
	return kept < out && showsLeftOut(c.B.Mask, adv, loss, keep)
}

// showsLeftOut reports whether losses are 0 where they are not kept, and nowhere else, but for advantages of 0.
func showsLeftOut(mask []bool, adv, loss []float64, keep []bool) bool {
	if len(keep) != len(mask) {
		return false
	}
	left, kept := 0, 0
	for i, m := range mask {
		switch {
		case !m || adv[i] == 0:
		case (loss[i] == 0) == keep[i]:
			return false
		case keep[i]:
			kept++
		default:
			left++
		}
	}
	return left > 0 && kept > 0
}

// halfOfAdvantages reports whether the losses of all tokens whose ratio is 1 are −A/2: a logistic function is ½ there.
func halfOfAdvantages(c *stage.Case, adv, loss []float64) bool {
	lp, old := c.B.Token("logp_new"), c.B.Token("logp_old")
	n := 0
	for i, m := range c.B.Mask {
		if !m || adv[i] == 0 || lp == nil || old == nil || lp[i] != old[i] {
			continue
		}
		if math.Abs(loss[i]+adv[i]/2) > 1e-5*math.Abs(adv[i]) {
			return false
		}
		n++
	}
	return n >= leastWritten
}
