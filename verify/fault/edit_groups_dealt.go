package fault

import (
	"math"
	"slices"

	"plumbline/verify/stage"
)

// dealtParts are what a row may have of another group.
var dealtParts = []struct {
	title           string
	mean, deviation bool
}{
	{"the mean of another group is subtracted from a reward", true, false},
	{"a reward is divided by the deviation of another group", false, true},
	{"mean and deviation are those of another group", true, true},
}

// dealtEdits returns edits of group advantages A = (r − m)/(s + ε) that have m, s or both of other groups, each group's in as many rows as it has: the
// statistics are right, and spread over the rows in another order than these have, which the rows of a step that were shuffled do not show.
func dealtEdits(o *stage.Outcome) []edit {
	if !plainGroups(o.Case, o.Check) || o.Case.Set.Value("adv.center").String() != "mean" || o.Case.Set.Value("reward.clip").String() == "after_baseline" {
		return nil
	}
	var list []edit
	for _, part := range dealtParts {
		if part.deviation && o.Case.Set.Value("adv.scale").String() != "group_std" {
			continue
		}
		list = append(list, edit{id: "ADV-OTHER-GROUP", title: part.title + ", each group's in as many rows as it has", changes: mostChanges, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				return dealt(part.mean, part.deviation, c, ch)
			}})
	}
	return list
}

// dealt predicts advantages of the means, the deviations or both of other groups: those under which the dumped ones are right, where there is a way to deal each
// group's out to as many rows as it has. It is nil where fewer than eight rows have another group's, or groups are fewer than three.
func dealt(mean, deviation bool, c *stage.Case, ch *stage.Check) *stage.Prediction {
	const most, least, several = 512, 8, 3
	b := c.B
	id, score, got := b.Row("group_id"), b.Row("scores"), firstAdvantages(b, ch.Output)
	if !plainGroups(c, ch) || len(got) != len(id) || len(id) > most || slices.ContainsFunc(got, math.IsNaN) {
		return nil
	}
	groups := slices.Compact(slices.Sorted(slices.Values(id)))
	if len(groups) < several {
		return nil
	}
	type stats struct {
		mean, by, size float64
		rows           int
	}
	eps, ddof, scaled := numberOr(c, "adv.eps", 0), numberOr(c, "adv.ddof", 1), c.Set.Value("adv.scale").String() == "group_std"
	of := make([]stats, len(groups))
	own := make([]int, len(id))
	for g, group := range groups {
		var x []float64
		for r := range id {
			if id[r] == group {
				x, own[r] = append(x, score[r]), g
			}
		}
		s := stats{mean: meanOf(x), by: 1, rows: len(x)}
		var square float64
		for _, v := range x {
			square += (v - s.mean) * (v - s.mean)
			s.size = max(s.size, math.Abs(v))
		}
		if scaled {
			s.by = math.Sqrt(square/max(float64(len(x))-ddof, 1)) + eps
		}
		of[g] = s
	}
	advantage := func(r, g int) (x, bound float64) {
		m, s := of[own[r]], of[own[r]]
		if mean {
			m = of[g]
		}
		if deviation {
			s = of[g]
		}
		x = (score[r] - m.mean) / s.by
		return x, 8*c.Unit*(math.Abs(score[r])+2*m.size)/s.by + 8*c.Unit*math.Abs(x)*(1+s.size/s.by)
	}
	fits := func(r, g int) bool {
		x, bound := advantage(r, g)
		return math.Abs(got[r]-x) <= bound
	}
	served := make([][]int, len(groups)) // rows of each group's statistics
	var deal func(r int, seen []bool) bool
	deal = func(r int, seen []bool) bool {
		for g := range groups {
			if seen[g] || !fits(r, g) {
				continue
			}
			seen[g] = true
			if len(served[g]) < of[g].rows {
				served[g] = append(served[g], r)
				return true
			}
			for k, other := range served[g] {
				if deal(other, seen) {
					served[g][k] = r
					return true
				}
			}
		}
		return false
	}
	for r := range id {
		if !deal(r, make([]bool, len(groups))) {
			return nil
		}
	}
	adv, bound, moved := make([]float64, len(id)), make([]float64, len(id)), 0
	for g, rows := range served {
		for _, r := range rows {
			adv[r], bound[r] = advantage(r, g)
			moved += boolToInt(!fits(r, own[r]))
		}
	}
	if moved < least {
		return nil
	}
	return perRowOrToken(adv, bound, c, ch)
}
