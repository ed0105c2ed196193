package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// regroupEdits returns edits of the groups of an advantage, A = (r − m)/s: other rows are one group, or a count is that of another group.
func regroupEdits(o *stage.Outcome) []edit {
	if o.Check.ID != "advantage/group" {
		return nil
	}
	list := slices.Concat(countEdits(o), rangeEdits(o), groupOrders(o), ownRewardEdits(o), dealtEdits(o), acrossEdits(o), othersTwice(o), othersMoments(o), leftGroups(o), centredSpreads(o), shuffledGroupEdits(o), unscaledEdits(o))
	if classes := classesOf(o.Case, o.Check); classes != nil {
		list = append(list, edit{id: "ADV-WRONG-GROUPS", title: "mean and deviation are those of rows that are no group: rows were cut into groups by their places, or in another order",
			changes: mostChanges, foreign: true, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				classes := classesOf(c, ch)
				if classes == nil {
					return nil
				}
				return under(ofGroups(classes), c, ch)
			}})
	}
	return list
}

// firstAdvantages returns one advantage of every row, that of its first token where each token has one; nil where a row has none.
func firstAdvantages(b *dump.Batch, name string) []float64 {
	if x := b.Row(name); len(x) == b.Rows {
		return x
	}
	x := b.Token(name)
	if x == nil || b.Cols == 0 {
		return nil
	}
	out := make([]float64, b.Rows)
	for r := range out {
		i := firstOf(b, r)
		if i < 0 {
			return nil
		}
		out[r] = x[i]
	}
	return out
}

// classesOf returns the groups that advantages were taken over, as an id of every row, where they are others than those of the dump. The rows of one group
// are on a line A = a·(r − m), a > 0, whose zero m is the mean of their scores: two rows give the line, and those that are on it their mean. That the
// healthy formula gives the advantages of these groups is for the caller to see. Nil where the rows are not made up of such groups.
func classesOf(c *stage.Case, ch *stage.Check) []float64 {
	const most, near = 256, 2e-5
	b := c.B
	id, r, adv := b.Row("group_id"), c.Row("scores").X, firstAdvantages(b, ch.Output)
	if len(id) != b.Rows || len(r) != b.Rows || len(adv) != b.Rows || b.Rows > most || b.Rows < 4 {
		return nil
	}
	var sizeR, sizeA float64
	for i := range r {
		if math.IsNaN(r[i]-r[i]) || math.IsNaN(adv[i]-adv[i]) { // NaN or Inf
			return nil
		}
		sizeR, sizeA = max(sizeR, math.Abs(r[i])), max(sizeA, math.Abs(adv[i]))
	}
	var sets [][]int
	for i := range r {
		for j := i + 1; j < len(r); j++ {
			dr, da := r[j]-r[i], adv[j]-adv[i]
			if math.Abs(dr) < 1e-3*sizeR || dr*da <= 0 {
				continue
			}
			a := da / dr
			m := r[i] - adv[i]/a
			slack := near * (sizeA + a*sizeR) * max(1, sizeR/math.Abs(dr)/4)
			var on []int
			var sum float64
			for k := range r {
				if math.Abs(adv[k]-a*(r[k]-m)) <= slack {
					on, sum = append(on, k), sum+r[k]
				}
			}
			if len(on) > 0 && on[0] == i && math.Abs(sum/float64(len(on))-m)*a <= 4*slack {
				sets = append(sets, on)
			}
		}
	}
	slices.SortStableFunc(sets, func(a, b []int) int { return len(b) - len(a) })
	classes, n := slices.Repeat([]float64{-1}, len(r)), 0.0
	for _, on := range sets {
		if slices.ContainsFunc(on, func(k int) bool { return classes[k] >= 0 }) {
			continue
		}
		for _, k := range on {
			classes[k] = n
		}
		n++
	}
	same := map[float64]float64{} // rows of equal scores have no line, and no advantage
	for k := range classes {
		if classes[k] >= 0 {
			continue
		}
		if math.Abs(adv[k]) > near*sizeA {
			return nil
		}
		if _, known := same[r[k]]; !known {
			same[r[k]] = n
			n++
		}
		classes[k] = same[r[k]]
	}
	pairs, was := map[[2]float64]bool{}, map[float64]bool{}
	for k := range classes {
		pairs[[2]float64{classes[k], id[k]}], was[id[k]] = true, true
	}
	if 2*int(n) > len(r) || len(pairs) == int(n) && len(pairs) == len(was) {
		return nil
	}
	return classes
}

// countEdits returns edits of a leave-one-out baseline, the sum of the other scores of a group of n over n − 1, whose divisor is the count of another group:
//
//	A = q·(r − (Σ − r)/d),   q = 1/s or 1
func countEdits(o *stage.Outcome) []edit {
	if o.Case.Set.Value("adv.center").String() != "loo" {
		return nil
	}
	var list []edit
	for _, f := range []struct {
		title string
		of    func(sizes []float64, rows float64) float64
	}{
		{"the largest group less 1", func(sizes []float64, _ float64) float64 { return slices.Max(sizes) - 1 }},
		{"the smallest group less 1", func(sizes []float64, _ float64) float64 { return slices.Min(sizes) - 1 }},
		{"the first group less 1", func(sizes []float64, _ float64) float64 { return sizes[0] - 1 }},
		{"the mean of the groups less 1", func(sizes []float64, rows float64) float64 { return rows/float64(len(sizes)) - 1 }},
		{"the rows less 1", func(_ []float64, rows float64) float64 { return rows - 1 }},
	} {
		list = append(list, edit{id: "ADV-CENTER", title: "the sum of the other scores of a group is divided by another count: " + f.title, changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return countedBy(f.of, c, ch) }})
	}
	return list
}

func countedBy(of func(sizes []float64, rows float64) float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	id, r, p := c.B.Row("group_id"), c.Row("scores").X, under(sameInput, c, ch)
	if p == nil || len(id) != c.B.Rows || len(r) != len(id) || len(p.Want)%len(id) != 0 || len(p.Want) == 0 {
		return nil
	}
	w := len(p.Want) / len(id)
	members := map[float64][]int{}
	var order []float64
	for k, g := range id {
		if members[g] == nil {
			order = append(order, g)
		}
		members[g] = append(members[g], k)
	}
	var sizes []float64
	for _, g := range order {
		sizes = append(sizes, float64(len(members[g])))
	}
	d := of(sizes, float64(len(id)))
	if !(d > 0) {
		return nil
	}
	q := altered(p)
	for _, g := range order {
		rows := members[g]
		n, sum := float64(len(rows)), 0.0
		for _, k := range rows {
			sum += r[k]
		}
		if n < 2 {
			continue
		}
		for _, k := range rows {
			right := r[k] - (sum-r[k])/(n-1)
			if math.Abs(right) < 1e-6*(math.Abs(r[k])+math.Abs(sum)) {
				return nil // its divisor cannot be told
			}
			by := (r[k] - (sum-r[k])/d) / right
			for t := range w {
				if i := k*w + t; p.Want[i] != 0 {
					q.Want[i] = p.Want[i] * by
					q.Bound[i] = 4*p.Bound[i]*(1+math.Abs(by)) + 16*c.Unit*(math.Abs(q.Want[i])+math.Abs(p.Want[i]/right)*(math.Abs(r[k])+math.Abs(sum)))
				}
			}
		}
	}
	return q
}

// rangeEdits returns edits of the range that scores are held in, one of whose ends is another one.
func rangeEdits(o *stage.Outcome) []edit {
	const name = "reward.clip_range"
	v := o.Case.Set.Value(name)
	if v.Kind() != convention.Tuple {
		return nil
	}
	lo, hi := v.Nums()[0], v.Nums()[1]
	var list []edit
	for _, f := range []struct {
		title  string
		lo, hi float64
	}{
		{"the lower bound is 0", 0, hi}, {"the upper bound is 0", lo, 0}, {"there is no lower bound", -1e30, hi}, {"there is no upper bound", lo, 1e30},
		{"the lower bound is −1", -1, hi}, {"the upper bound is 1", lo, 1}, {"both bounds are half as far", lo / 2, hi / 2}, {"both bounds are twice as far", 2 * lo, 2 * hi},
	} {
		if f.lo >= f.hi || f.lo == lo && f.hi == hi {
			continue
		}
		list = append(list, edit{id: "REWARD-CLIP-MISSING", title: "scores are held in another range than " + v.String() + ": " + f.title, changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				return under(option(name, fmt.Sprintf("%g,%g", f.lo, f.hi)), c, ch)
			}})
	}
	return list
}
