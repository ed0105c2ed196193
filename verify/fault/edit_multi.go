package fault

import (
	"math"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A multiForm is how rewards of several functions are normalised each, added by their weights and normalised again: z = (r − m)/(s + ε) for each function, and
// (S − m)/(s + ε) of S = Σ w·z. A reward that is missing adds nothing.
type multiForm struct {
	title          string
	centre, spread string  // the rows of mean and deviation: of the group, of its place in all groups, of all
	ddof           float64 // by how much less is taken from the number of rows in the first deviation
	zeroMean       bool    // a missing reward counts as 0 in the mean,
	zeroSpread     bool    // in the deviation,
	zeroReward     bool    // and as a reward
	again          string  // the rows of the second normalisation
	centred        bool    // whose mean is not subtracted
	undivided      bool    // and whose deviation is not divided by
	plainSpread    bool    // or is that of the sums of the rewards as they are, by their weights
	unweighted     bool    // or without them
}

var multiForms = []multiForm{
	{title: "every function's reward is divided by the deviation of the answers of the same place in all groups, not of its group", centre: "group", spread: "place", again: "all"},
	{title: "from every function's reward the mean of the answers of the same place in all groups is subtracted, not of its group", centre: "place", spread: "group", again: "all"},
	{title: "every function's reward is divided by its deviation over the batch, not over the group", centre: "group", spread: "all", again: "all"},
	{title: "from every function's reward the mean of the batch is subtracted, not of its group", centre: "all", spread: "group", again: "all"},
	{title: "every function's reward is normalised over the batch, not over the group", centre: "all", spread: "all", again: "all"},
	{title: "the sum of the normalised rewards is normalised over the group, not over the batch", centre: "group", spread: "group", again: "group"},
	{title: "the sum of the normalised rewards is divided by its deviation, and its mean not subtracted", centre: "group", spread: "group", again: "all", centred: true},
	{title: "the mean of the sum of the normalised rewards is subtracted, and nothing divided by", centre: "group", spread: "group", again: "all", undivided: true},
	{title: "the sum of the normalised rewards is divided by the deviation of the weighted sum of the rewards as they are", centre: "group", spread: "group", again: "all", plainSpread: true},
	{title: "the sum of the normalised rewards is divided by the deviation of the sum of the rewards as they are, without their weights", centre: "group", spread: "group", again: "all", plainSpread: true, unweighted: true},
	{title: "every function's reward is divided by the deviation with n, the sum by that with n − 1", centre: "group", spread: "group", again: "all", ddof: 1},
	{title: "a missing reward counts as 0 in the mean of its function", centre: "group", spread: "group", again: "all", zeroMean: true},
	{title: "a missing reward counts as 0 in the deviation of its function", centre: "group", spread: "group", again: "all", zeroSpread: true},
	{title: "a missing reward counts as 0 in mean and deviation of its function", centre: "group", spread: "group", again: "all", zeroMean: true, zeroSpread: true},
	{title: "a missing reward counts as 0, and is normalised with the others of its function", centre: "group", spread: "group", again: "all", zeroMean: true, zeroSpread: true, zeroReward: true},
	{title: "a missing reward counts as 0, from which the mean of its function's others is subtracted", centre: "group", spread: "group", again: "all", zeroReward: true},
}

// multiFormEdits returns edits of rewards that are normalised each before they are added.
func multiFormEdits(o *stage.Outcome) (list []edit) {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	if o.Check.ID != "advantage/group" || c.Set.Value("adv.multi").String() != "normalize_then_sum" {
		return nil
	}
	for _, f := range multiForms {
		list = append(list, edit{id: "ADV-MULTI", title: f.title, changes: 1, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return f.predict(c, ch) }})
	}
	return list
}

// rowsOf returns the rows that stand together in each scope; nil where the places of groups are not known.
func (f multiForm) rowsOf(c *stage.Case, scope string) [][]int {
	b, id := c.B, c.B.Row("group_id")
	sets := make([][]int, b.Rows)
	if scope == "all" {
		all := inOrder(b.Rows)
		for r := range sets {
			sets[r] = all
		}
		return sets
	}
	if len(id) != b.Rows {
		return nil
	}
	size, same := groupSize(id)
	if scope == "place" && (!same || size < 2 || size == b.Rows) {
		return nil
	}
	of, seen, key := map[float64][]int{}, map[float64]int{}, make([]float64, b.Rows)
	for _, r := range byPlace(b) {
		if key[r] = id[r]; scope == "place" {
			key[r] = float64(seen[id[r]])
			seen[id[r]]++
		}
		of[key[r]] = append(of[key[r]], r)
	}
	for r := range sets {
		sets[r] = of[key[r]]
	}
	return sets
}

// predict gives the advantages of the form. Rewards of at most x are off by u·x, their z as [standardised] says, and the sum of F of them by (F + 1)·u·Σ|w·z| more.
func (f multiForm) predict(c *stage.Case, ch *stage.Check) *stage.Prediction {
	b, t, w := c.B, c.B.Tensors["rewards_per_func"], c.FactList("reward_weights")
	right, eps, ddof := under(sameInput, c, ch), numberOr(c, "adv.eps", math.NaN()), numberOr(c, "adv.ddof", math.NaN())
	if f.ddof > 0 && ddof != 1 || right == nil || len(right.Want) != b.Rows || t == nil || t.Width != len(w) || len(t.Data) != b.Rows*len(w) || math.IsNaN(eps) || math.IsNaN(ddof) || c.Set.Value("adv.scale").Kind() != convention.Enum {
		return nil
	}
	centres, spreads, again := f.rowsOf(c, f.centre), f.rowsOf(c, f.spread), f.rowsOf(c, f.again)
	if centres == nil || spreads == nil || again == nil {
		return nil
	}
	sums, off, scored, plain := make([]float64, b.Rows), make([]float64, b.Rows), make([]bool, b.Rows), make([]float64, b.Rows)
	for k, weight := range w {
		column := func(rows []int, zero bool) (x []float64) {
			for _, r := range rows {
				if v := t.Data[r*len(w)+k]; !math.IsNaN(v) {
					x = append(x, v)
				} else if zero {
					x = append(x, 0)
				}
			}
			return x
		}
		for r := range sums {
			v := t.Data[r*len(w)+k]
			if scored[r] = scored[r] || !math.IsNaN(v); math.IsNaN(v) && f.zeroReward {
				v = 0
			}
			in, around := column(centres[r], f.zeroMean), column(spreads[r], f.zeroSpread)
			n := float64(len(around)) - ddof + f.ddof
			if math.IsNaN(v) || len(in) == 0 || n <= 0 {
				continue
			}
			if f.unweighted {
				plain[r] += v
			} else {
				plain[r] += weight * v
			}
			by, size := math.Sqrt(squares(around)/n)+eps, math.Abs(v)
			for _, x := range append(in, around...) {
				size = max(size, math.Abs(x))
			}
			z := (v - meanOf(in)) / by
			sums[r] += weight * z
			off[r] += math.Abs(weight) * (24*c.Unit*size/by*(1+math.Abs(z)) + float64(len(w)+9)*c.Unit*math.Abs(z))
		}
	}
	q := altered(right)
	for r, x := range sums {
		var of, raw []float64
		most, size := 0.0, 0.0
		for _, k := range again[r] {
			if scored[k] {
				of, raw, most, size = append(of, sums[k]), append(raw, plain[k]), max(most, off[k]), max(size, math.Abs(sums[k]))
			}
		}
		if !f.plainSpread {
			raw = of
		}
		if n := float64(len(of)) - ddof; !scored[r] || n <= 0 {
			continue
		} else if mean, by := meanOf(of), math.Sqrt(squares(raw)/n)+eps; f.undivided {
			standardised(q, r, x, mean, 1, most, size, c.Unit)
		} else if f.centred {
			standardised(q, r, x, 0, by, most, size, c.Unit)
		} else {
			standardised(q, r, x, mean, by, most, size, c.Unit)
		}
	}
	return q
}

// squares is the sum of the squared differences from the mean.
func squares(x []float64) (sum float64) {
	mean := meanOf(x)
	for _, v := range x {
		sum += (v - mean) * (v - mean)
	}
	return sum
}
