package fault

import (
	"math"
	"slices"

	"plumbline/verify/stage"
)

// runningBaselines are baselines of the groups of a rollout, in their order, that go on from group to group: of the means of all of them, that of group k.
var runningBaselines = []struct {
	title string
	of    func(means []float64, k int) float64
}{
	{"the mean of its group and of all groups before it", func(means []float64, k int) float64 { return meanOf(means[:k+1]) }},
	{"the mean of all groups before it, of the first 0", func(means []float64, k int) float64 { return meanOf(append([]float64{0}, means[:k]...)[min(k, 1):]) }},
	{"the mean of all groups before it, of the first its own", func(means []float64, k int) float64 { return meanOf(means[:max(k, 1)]) }},
	{"the sum of the means of its group and of all groups before it", func(means []float64, k int) float64 { return total(means[:k+1]) }},
	{"the mean of its group and of all groups behind it", func(means []float64, k int) float64 { return meanOf(means[k:]) }},
	{"the mean of the means of all groups but its own", func(means []float64, k int) float64 { return meanOf(slices.Delete(slices.Clone(means), k, k+1)) }},
}

// runningEdits returns edits of group advantages A = (r − b)/s whose b is made of the means of several groups.
func runningEdits(o *stage.Outcome) (list []edit) {
	if r := rolloutOf(o.Case, o.Check); r == nil || r.n < 3 {
		return nil
	}
	for _, f := range runningBaselines {
		list = append(list, edit{id: "ADV-CENTER", title: "the baseline of a group is " + f.title, changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return runningBy(f.of, c, ch) }})
	}
	return list
}

// runningBy predicts advantages with other baselines of groups. A baseline of means of at most x is off by a few units of x, and the difference with it.
func runningBy(of func(means []float64, k int) float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	r := rolloutOf(c, ch)
	if r == nil || r.n < 3 || c.Set.Value("reward.clip").String() == "after_baseline" {
		return nil
	}
	score, scaled := c.B.Row("scores"), c.Set.Value("adv.scale").String() == "group_std"
	eps, ddof := numberOr(c, "adv.eps", 0), numberOr(c, "adv.ddof", 1)
	var means, by []float64
	var most float64
	for lo := 0; lo < len(r.rows); lo += r.g {
		x := eachOf(r.g, func(k int) float64 { return score[r.rows[lo+k]] })
		means, most = append(means, meanOf(x)), max(most, math.Abs(slices.Max(x)), math.Abs(slices.Min(x)))
		if by = append(by, 1); scaled {
			by[len(by)-1] = math.Sqrt(squares(x)/max(float64(r.g)-ddof, 1)) + eps
		}
	}
	adv, bound := make([]float64, c.B.Rows), make([]float64, c.B.Rows)
	for k, row := range r.rows {
		g := k / r.g
		if !(by[g] > 0) {
			return nil
		}
		b := of(means, g)
		adv[row] = (score[row] - b) / by[g]
		size := most + math.Abs(b)
		bound[row] = 8*c.Unit*float64(r.n)*size/by[g] + 8*c.Unit*math.Abs(adv[row])*(1+most/by[g])
	}
	return perRowOrToken(adv, bound, c, ch)
}
