package stage

import (
	"math"

	"plumbline/verify/convention"
)

// clippedBehindSome is [clippedBehind] of the prediction, or of that under another centre of a group without a scale.
func clippedBehindSome(o *Outcome) bool {
	if clippedBehind(o) {
		return true
	}
	set := o.Case.Set
	for _, c := range []struct{ option, value string }{{"adv.kind", "group"}, {"adv.scale", "none"}, {"kl.place", "none"}} {
		v, err := convention.Parse(c.option, c.value)
		if err != nil {
			panic("stage: " + err.Error())
		}
		set = set.With(c.option, v, "search")
	}
	for _, v := range set.Among("adv.center") {
		p := Judge(o.Check, o.Case.B, set.With("adv.center", v, "search"))
		if p.Pred != nil && clippedBehind(p) {
			return true
		}
	}
	return false
}

// clippedBehind reports whether advantages are those of the prediction, held to a least and a greatest value that several rows have: a clip behind
// the baseline (OpenRLHF 0.11.2 compute_reward, reward.clip_range), whose range nobody declares, gives them.
func clippedBehind(o *Outcome) bool {
	if len(o.Got) != len(o.Pred.Want) || o.Case.B.Rows == 0 {
		return false
	}
	judged := func(i int) bool { return o.Pred.Judge == nil || o.Pred.Judge[i] }
	lo, hi := math.Inf(1), math.Inf(-1)
	for i, x := range o.Got {
		if judged(i) {
			lo, hi = min(lo, x), max(hi, x)
		}
	}
	per := len(o.Got) / o.Case.B.Rows
	if per == 0 || !(lo < hi) {
		return false
	}
	held := map[int]bool{} // rows
	for i, x := range o.Got {
		if !judged(i) {
			continue
		}
		switch want := o.Pred.Want[i]; {
		case math.Abs(x-want) <= o.Limit(i):
		case x == hi && want > hi || x == lo && want < lo:
			held[i/per] = true
		default:
			return false
		}
	}
	return len(held) >= 3
}
