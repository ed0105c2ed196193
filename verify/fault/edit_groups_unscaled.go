package fault

import (
	"math"
	"slices"

	"plumbline/verify/stage"
)

// batchDeviation returns the number s + ε that all differences from the baselines of groups are divided by, the deviation of the rewards of all rows; false where
// advantages are of another form, or have more than one such number.
func batchDeviation(c *stage.Case, ch *stage.Check) (by float64, ok bool) {
	if ch.ID != "advantage/group" || c.EnumOr("adv.kind", "") != "group" || c.EnumOr("adv.scale", "") != "batch_std" || c.EnumOr("adv.std_of", "rewards") != "rewards" || c.EnumOr("reward.clip", "none") == "after_baseline" {
		return 0, false
	}
	scaled, bare := under(sameInput, c, ch), under(option("adv.scale", "none"), c, ch)
	if scaled == nil || bare == nil || len(scaled.Want) != len(bare.Want) {
		return 0, false
	}
	const near = 1e-6 // of the largest: both are of float64, and only a second number is further off
	largest := -1
	for i, x := range bare.Want {
		if math.IsNaN(x-x) || math.IsNaN(scaled.Want[i]-scaled.Want[i]) {
			return 0, false
		}
		if largest < 0 || math.Abs(x) > math.Abs(bare.Want[largest]) {
			largest = i
		}
	}
	if largest < 0 || scaled.Want[largest] == 0 {
		return 0, false
	}
	by = bare.Want[largest] / scaled.Want[largest]
	for i, x := range bare.Want {
		if math.Abs(x-by*scaled.Want[i]) > near*math.Abs(bare.Want[largest]) {
			return 0, false
		}
	}
	return by, by > 0
}

// beforeBatchDeviation returns the case of the differences of rewards from the baselines of their groups, which a program divides by one number, and that number.
func beforeBatchDeviation(c *stage.Case, ch *stage.Check) (*stage.Case, float64) {
	by, ok := batchDeviation(c, ch)
	t := c.B.Tensors[ch.Output]
	if !ok || t == nil {
		return nil, 0
	}
	x := slices.Clone(t.Data)
	for i := range x {
		x[i] *= by
	}
	return c.Of(c.B.With(ch.Output, x), c.Set.With("adv.scale", parsed("adv.scale", "none"), "hypothesis")), by
}

// unscaledEdits returns the edits of the baselines of groups whose differences are divided by the deviation of all rewards, which stays the right one.
func unscaledEdits(o *stage.Outcome) (list []edit) {
	k, _ := beforeBatchDeviation(o.Case.Of(o.Case.B, o.Case.Set), o.Check)
	if k == nil {
		return nil
	}
	judged := *o
	judged.Case, judged.Got = k, k.B.Tensors[o.Check.Output].Data
	for _, e := range slices.Concat(countEdits(&judged), groupOrders(&judged), ownRewardEdits(&judged), dealtEdits(&judged), acrossEdits(&judged), shuffledGroupEdits(&judged)) {
		of := e.predict
		e.predict = func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			k, by := beforeBatchDeviation(c, ch)
			if k == nil {
				return nil
			}
			p := of(k, ch)
			if p == nil {
				return nil
			}
			return timesCells(p, 16*c.Unit, func(int) float64 { return 1 / by }) // n squares that are added in pairs are known to log₂ n + 3 units, their root to half of them
		}
		list = append(list, e)
	}
	return list
}
