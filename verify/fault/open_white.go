package fault

import (
	"math"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// whitenedBeside are the ways to whiten token rewards that are a rising line in those which are not whitened, y = (r − m)/s + m, whatever cells m and s are of: as
// lm-human-preferences and its kin whiten them, with either number of degrees of freedom.
func whitenedBeside(o *stage.Outcome, open func(option string) bool) (list [][]stage.Change) {
	if o.Case == nil || !open("rewards.whiten") || o.Case.EnumOr("rewards.whiten", "no") != "no" || o.Pred == nil || !risingLine(o) {
		return nil
	}
	for _, ddof := range []string{"0", "1"} {
		var changes []stage.Change
		for _, x := range [][2]string{{"rewards.whiten", "shift_mean_false"}, {"whiten.ddof", ddof}, {"whiten.scope", "global"}, {"whiten.mask", "response"}, {"whiten.eps_place", "inside_sqrt"}, {"whiten.eps", "1e-8"}} {
			v, err := convention.Parse(x[0], x[1])
			if err != nil {
				panic("fault: " + err.Error())
			}
			if from := o.Case.Set.Value(x[0]); open(x[0]) && from != v {
				changes = append(changes, stage.Change{Option: x[0], From: from, To: v})
			}
		}
		list = append(list, changes)
	}
	return list
}

// risingLine reports whether the output is a line in its prediction, with another slope than 1.
func risingLine(o *stage.Outcome) bool {
	const least, near = 3, 1e-4 // different numbers; of the span of the output
	low, high := -1, -1
	values := map[float64]bool{}
	judged := func(i int) bool { return o.Case.B.Mask[i] && (o.Pred.Judge == nil || o.Pred.Judge[i]) }
	if len(o.Got) != len(o.Case.B.Mask) || len(o.Pred.Want) != len(o.Got) {
		return false
	}
	for i, w := range o.Pred.Want {
		if !judged(i) {
			continue
		}
		if values[w] = true; low < 0 || w < o.Pred.Want[low] {
			low = i
		}
		if high < 0 || w > o.Pred.Want[high] {
			high = i
		}
	}
	if len(values) < least {
		return false
	}
	span := o.Got[high] - o.Got[low]
	slope := span / (o.Pred.Want[high] - o.Pred.Want[low])
	if !(slope > 0) || math.Abs(slope-1) <= near {
		return false
	}
	for i, w := range o.Pred.Want {
		if judged(i) && !(math.Abs(o.Got[low]+slope*(w-o.Pred.Want[low])-o.Got[i]) <= near*span) {
			return false
		}
	}
	return true
}
