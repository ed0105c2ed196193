package fault

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// rowAt is a row of a batch of the rollout.
type rowAt struct {
	b   *dump.Batch
	row int
}

// A rowOrder says whose row of a tensor stands in the place of each row of a batch; nil where the batches beside it do not say.
type rowOrder struct {
	title string
	from  func(b *dump.Batch, beside []*dump.Batch) [][]rowAt // several where a number of the order is open
}

// rowOrders are orders that a tensor is left in which is not permuted with the mini-batches of its rollout: that in which the rollout was sampled, and that of
// an epoch before or behind, whose mini-batch is another step.
func rowOrders() []rowOrder {
	const most = 8 // steps on either side
	list := []rowOrder{{"the rollout in the order in which it was sampled, which the others were permuted from", sampledOrder}}
	for d := 1; d <= most; d++ {
		for _, by := range []int{-d, d} {
			word := map[bool]string{true: "before", false: "behind"}[by < 0]
			title := fmt.Sprintf("the mini-batch %d steps %s, row by row: the permutation of another epoch", d, word)
			list = append(list, rowOrder{title, func(b *dump.Batch, beside []*dump.Batch) [][]rowAt {
				if from := ofSteps(b, beside, by); from != nil {
					return [][]rowAt{from}
				}
				return nil
			}})
		}
	}
	return list
}

// place is a row and what its file says of it.
type place struct {
	rowAt
	step, rank int
}

// placesOf returns the rows of batches, those of a step once.
func placesOf(batches ...*dump.Batch) (list []place) {
	seen := map[int]bool{}
	for _, b := range batches {
		var steps []int
		for _, f := range b.Files {
			step := cmp.Or(f.Step, b.Meta.Step)
			if seen[step] {
				continue
			}
			steps = append(steps, step)
			for r := f.Lo; r < f.Hi; r++ {
				list = append(list, place{rowAt{b, r}, step, f.Rank})
			}
		}
		for _, s := range steps {
			seen[s] = true
		}
	}
	return list
}

// ofSteps returns the rows of the same rank and place by steps further on, nil where a step has fewer or more rows there, or there is none.
func ofSteps(b *dump.Batch, beside []*dump.Batch, by int) []rowAt {
	type key struct{ step, rank int }
	rows := map[key][]rowAt{}
	for _, p := range placesOf(append([]*dump.Batch{b}, beside...)...) {
		k := key{p.step, p.rank}
		rows[k] = append(rows[k], p.rowAt)
	}
	from, at := make([]rowAt, b.Rows), map[key]int{}
	for _, p := range placesOf(b) {
		k, other := key{p.step, p.rank}, key{p.step + by, p.rank}
		if len(rows[k]) != len(rows[other]) {
			return nil
		}
		from[p.row] = rows[other][at[k]]
		at[k]++
	}
	return from
}

// sampledOrder returns the rows that stand in the order of sample_id where those of the batch should: each step takes as many as it has, from a place in the
// rollout that is open, and the steps behind it go on from there. The numbers of a rollout of a rank follow each other.
func sampledOrder(b *dump.Batch, beside []*dump.Batch) (list [][]rowAt) {
	numbered := func(b *dump.Batch) bool { return len(b.Row("sample_id")) == b.Rows }
	if !numbered(b) || slices.ContainsFunc(beside, func(b *dump.Batch) bool { return !numbered(b) }) {
		return nil
	}
	byID := map[int]map[float64]rowAt{} // of each rank
	for _, p := range placesOf(append([]*dump.Batch{b}, beside...)...) {
		if byID[p.rank] == nil {
			byID[p.rank] = map[float64]rowAt{}
		}
		byID[p.rank][p.b.Row("sample_id")[p.row]] = p.rowAt
	}
	first, n := map[int]float64{}, map[int]int{} // number of the first row of a rank's rollout, and how many it has
	own := map[int]map[int][]int{}               // rows by rank and step
	id := b.Row("sample_id")
	for _, p := range placesOf(b) {
		ids := byID[p.rank]
		if _, known := n[p.rank]; !known {
			lo, hi := id[p.row], id[p.row]
			for ; has(ids, lo-1); lo-- {
			}
			for ; has(ids, hi+1); hi++ {
			}
			first[p.rank], n[p.rank] = lo, int(hi-lo)+1
			own[p.rank] = map[int][]int{}
		}
		if x := id[p.row]; x < first[p.rank] || x >= first[p.rank]+float64(n[p.rank]) {
			return nil
		}
		own[p.rank][p.step] = append(own[p.rank][p.step], p.row)
	}
	const places = 64
	for at := range places {
		from, left := make([]rowAt, b.Rows), false
		for rank, steps := range own {
			next := -1
			for _, step := range slices.Sorted(maps.Keys(steps)) {
				rows := steps[step]
				if next < 0 {
					next = at * len(rows)
					if next+len(rows) > n[rank] {
						return list
					}
				}
				for _, r := range rows {
					from[r] = byID[rank][first[rank]+float64(next%n[rank])]
					left = left || from[r] != rowAt{b, r}
					next++
				}
			}
		}
		if left {
			list = append(list, from)
		}
	}
	return list
}

func has(ids map[float64]rowAt, x float64) bool { _, ok := ids[x]; return ok }

// ordersAmong returns edits in which one tensor that an output reads stands in another order of the rollout than the rest.
func ordersAmong(o *stage.Outcome, beside func(step int) []*dump.Batch) []edit {
	var list []edit
	for _, order := range rowOrders() {
		if len(order.from(o.Case.B, beside(o.Case.B.Meta.Step))) == 0 {
			continue
		}
		if o.Check.ID == "gae/advantage" || o.Check.ID == "advantage/return" {
			list = append(list, edit{id: "ADV-ROWS-OF-OTHERS", title: "advantages are, before they are whitened, those of " + order.title, changes: 1,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return whitenedInOrder(order, beside, c, ch) }})
			continue
		}
		for _, name := range slicedBy(o) {
			list = append(list, edit{id: cmp.Or(sliceIDs[name], "SLICE-OF-OTHERS"), title: name + " are those of " + order.title, changes: 1,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					got := c.B.Tensors[ch.Output]
					if got == nil {
						return nil
					}
					best := closest{got: got.Data}
					for _, from := range order.from(c.B, beside(c.B.Meta.Step)) {
						best.consider(ofSlice(name, c, ch, func(r int) (x []float64, mask []bool) { return rowOf(from[r].b, name, from[r].row) }))
					}
					return best.p
				}})
		}
	}
	return list
}

// whitenedInOrder predicts advantages A of other rows of the rollout that are whitened as declared over the tokens of those in whose place they stand: those
// of a recursion that has no future, r = A and V = 0.
func whitenedInOrder(order rowOrder, beside func(step int) []*dump.Batch, c *stage.Case, ch *stage.Check) *stage.Prediction {
	b, got := c.B, c.B.Token(ch.Output)
	if len(got) != len(b.Mask) || b.Cols == 0 {
		return nil
	}
	raw := map[*dump.Batch]*stage.Prediction{}
	rawOf := func(of *dump.Batch) *stage.Prediction {
		if _, known := raw[of]; !known {
			raw[of] = under(notWhitened, c.Of(of, c.Set), ch)
		}
		return raw[of]
	}
	best := closest{got: got}
	for _, from := range order.from(b, beside(b.Meta.Step)) {
		x, most, whole := make([]float64, len(b.Mask)), 0.0, true
		for r, at := range from {
			p := rawOf(at.b)
			if whole = p != nil && len(p.Want) == len(at.b.Mask); !whole {
				break
			}
			for t := range min(b.Cols, at.b.Cols) {
				if i := at.row*at.b.Cols + t; at.b.Mask[i] {
					x[r*b.Cols+t], most = p.Want[i], max(most, p.Bound[i])
				}
			}
		}
		if whole {
			best.consider(withErrors(under(withoutFuture(x), c, ch), x, most, c))
		}
	}
	return best.p
}

// withoutFuture is the input whose advantages, before they are whitened, are x: γ and V are 0.
func withoutFuture(x []float64) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		b, set, ok := perToken("token_rewards", x)(c)
		if b.Token("values") != nil {
			b = b.With("values", make([]float64, len(x)))
		}
		set = set.With("gae.gamma", convention.NumberValue(0), "hypothesis")
		if set.Value("rewards.whiten").Kind() == convention.Enum {
			set = set.With("rewards.whiten", parsed("rewards.whiten", "no"), "hypothesis")
		}
		return b, set, ok
	}
}
