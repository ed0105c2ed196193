package fault

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
)

// inOrder returns the numbers from 0 up to n.
func inOrder(n int) []int {
	list := make([]int, n)
	for k := range list {
		list[k] = k
	}
	return list
}

// membersOf returns the rows of every group by its id.
func membersOf(id []float64) map[float64][]int {
	members := map[float64][]int{}
	for r, g := range id {
		members[g] = append(members[g], r)
	}
	return members
}

// extremes returns which of some places has the smallest number, and which the largest; of equal ones the first.
func extremes(at []int, x func(i int) float64) (low, high int) {
	low, high = at[0], at[0]
	for _, i := range at {
		if x(i) < x(low) {
			low = i
		}
		if x(i) > x(high) {
			high = i
		}
	}
	return low, high
}

// byPlace returns the rows of a batch in the order in which they were sampled, their own where the dump does not number them.
func byPlace(b *dump.Batch) []int {
	rows := inOrder(b.Rows)
	if of := b.Row("sample_id"); len(of) == len(rows) {
		slices.SortStableFunc(rows, func(i, j int) int { return cmp.Compare(of[i], of[j]) })
	}
	return rows
}

// A scoreOrder says whose score a response is given: that of the row from[k] of the rollout for the k-th that was sampled; nil where it says nothing.
type scoreOrder struct {
	title string
	from  func(c *stage.Case, rows []int) []int
}

// scoreOrders are orders in which scores come back: that of the lengths, by which workers balance their load and an engine finishes, and those of tables that are
// flattened along their columns, as parts of several ranks that are stacked along the wrong axis.
func scoreOrders(c *stage.Case) []scoreOrder {
	lengths := func(longestFirst bool) func(c *stage.Case, rows []int) []int {
		return func(c *stage.Case, rows []int) []int {
			n := tokensOf(c.B, c.B.Mask)
			from := slices.Clone(rows)
			slices.SortStableFunc(from, func(i, j int) int {
				if longestFirst {
					i, j = j, i
				}
				return cmp.Compare(n[i], n[j])
			})
			return from
		}
	}
	back := func(of func(c *stage.Case, rows []int) []int) func(c *stage.Case, rows []int) []int {
		return func(c *stage.Case, rows []int) []int {
			from, place, at := of(c, rows), make([]int, len(rows)), make([]int, len(rows))
			for k, r := range rows {
				place[r] = k
			}
			for k, r := range from {
				at[place[r]] = rows[k]
			}
			return at
		}
	}
	list := []scoreOrder{
		{"the scores stand in the order of the lengths of their responses, the shortest first", lengths(false)},
		{"the scores stand in the order of the lengths of their responses, the longest first", lengths(true)},
		{"the scores are put back in order once too often: that of the lengths of their responses, the shortest first", back(lengths(false))},
		{"the scores are put back in order once too often: that of the lengths of their responses, the longest first", back(lengths(true))},
	}
	list = append(list, movedOrders(c)...)
	words := map[int]string{}
	if n, same := groupSize(c.B.Row("group_id")); same && n > 1 {
		words[n], words[c.B.Rows/n] = "the responses to a prompt", "the prompts"
	}
	if w := c.B.Meta.WorldSize; w > 1 {
		words[w] = "the ranks"
	}
	for d := 2; d <= c.B.Rows/2; d++ {
		if c.B.Rows%d != 0 {
			continue
		}
		what := fmt.Sprintf("%d parts", d)
		if words[d] != "" {
			what += ", as many as " + words[d]
		}
		list = append(list, scoreOrder{"the scores are dealt out to the rows in turn from " + what + ": they are stacked, or flattened, along the wrong axis",
			func(c *stage.Case, rows []int) []int {
				from := make([]int, len(rows))
				for k := range from {
					from[k] = rows[k%d*(len(rows)/d)+k/d]
				}
				return from
			}})
	}
	return list
}

// movedOrders are orders that a queue, a list that is filled from its end, or an index that is off by one gives: of all responses of a rollout, of those to a
// prompt, of those of a rank or of another equal part, and of the prompts.
func movedOrders(c *stage.Case) []scoreOrder {
	order := func(title string, from func(k, n int) int) scoreOrder {
		return scoreOrder{"the scores are those of " + title, func(_ *stage.Case, rows []int) []int {
			y := make([]int, len(rows))
			for k := range y {
				y[k] = rows[from(k, len(rows))]
			}
			return y
		}}
	}
	list := []scoreOrder{
		order("the responses in reversed order", func(k, n int) int { return n - 1 - k }),
		order("the response before", func(k, n int) int { return (k + n - 1) % n }),
		order("the response behind", func(k, n int) int { return (k + 1) % n }),
		order("the response beside: every two are exchanged", func(k, n int) int { return min(k^1, n-1) }),
	}
	group, same := groupSize(c.B.Row("group_id"))
	if !same {
		group = 0
	}
	for size := 2; size <= c.B.Rows/2; size++ {
		if c.B.Rows%size != 0 {
			continue
		}
		what := fmt.Sprintf("every %d rows", size)
		switch {
		case size == group:
			what = "every group"
		case c.B.Meta.WorldSize > 1 && size == c.B.Rows/c.B.Meta.WorldSize:
			what = "every rank"
		}
		list = append(list,
			order("the responses in reversed order within "+what, func(k, _ int) int { return k/size*size + size - 1 - k%size }),
			order("the response before within "+what, func(k, _ int) int { return k/size*size + (k+size-1)%size }),
			order("the response behind within "+what, func(k, _ int) int { return k/size*size + (k+1)%size }),
			order("the responses of "+what+", which stand in reversed order", func(k, n int) int { return n - size - k/size*size + k%size }),
			order("the responses of the rows before, of "+what, func(k, n int) int { return (k + n - size) % n }),
			order("the responses of the rows behind, of "+what, func(k, n int) int { return (k + size) % n }))
	}
	return list
}

// scoreOrderEdits returns edits in which responses have the scores of others of their rollout, by the order that these came back in, or by one that the
// advantages show.
func scoreOrderEdits(o *stage.Outcome) []edit {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	score := c.B.Row("scores")
	if o.Check.ID != "advantage/group" && o.Check.ID != "reward/token" && o.Check.ID != "advantage/return" || len(score) != c.B.Rows || c.B.Rows < 4 {
		return nil
	}
	var list []edit
	for _, order := range scoreOrders(c) {
		list = append(list, edit{id: "REWARD-OF-OTHER-ROW", title: order.title, changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				rows := byPlace(c.B)
				return scoresOf(rows, order.from(c, rows), c, ch)
			}})
	}
	return append(list, edit{id: "REWARD-OF-OTHER-ROW", title: "the scores are those of other rows of the rollout, each of one row", changes: mostChanges, foreign: true,
		predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			from := shownScores(c, ch)
			if from == nil {
				return nil
			}
			return scoresOf(inOrder(c.B.Rows), from, c, ch)
		}})
}

// scoresOf predicts an output for the scores of other rows, rows[k] that of from[k].
func scoresOf(rows, from []int, c *stage.Case, ch *stage.Check) *stage.Prediction {
	score := c.B.Row("scores")
	if len(from) != len(rows) || len(score) != len(rows) {
		return nil
	}
	x := make([]float64, len(rows))
	for k, r := range rows {
		x[r] = score[from[k]]
	}
	if slices.Equal(x, score) {
		return nil
	}
	return under(token("scores", func(*stage.Case, []float64) []float64 { return x }), c, ch)
}

// shownScores returns, of each row, the row whose score its advantage is made of. The advantages of a group are a line in its scores, A = q·(s − m), and two of
// its rows that have the scores of two rows of the rollout give the line; where each of the others is the score of some row, these are a candidate for the
// group. It is for candidates that use no score more often than rows have it, one for each group that has one alone. Nil where groups have fewer than four
// rows, different scores are as good as equal, or a group has none or several candidates.
func shownScores(c *stage.Case, ch *stage.Check) []int {
	const most, least, near = 256, 4, 2e-6
	b := c.B
	id, score, adv := b.Row("group_id"), b.Row("scores"), firstAdvantages(b, ch.Output)
	n, same := groupSize(id)
	if ch.ID != "advantage/group" || !same || n < least || len(adv) != len(score) || len(score) > most || len(id) != len(score) || c.Set.Value("adv.kind").String() != "group" {
		return nil
	}
	rowsOf := map[float64][]int{} // by their score
	members := map[float64][]int{}
	for k, x := range score {
		if math.IsNaN(x-x) || math.IsNaN(adv[k]-adv[k]) {
			return nil
		}
		rowsOf[x], members[id[k]] = append(rowsOf[x], k), append(members[id[k]], k)
	}
	values := slices.Sorted(maps.Keys(rowsOf))
	slack := near * max(math.Abs(values[0]), math.Abs(values[len(values)-1]))
	for k := 1; k < len(values); k++ {
		if values[k]-values[k-1] <= 4*slack {
			return nil // whose score it is cannot be told
		}
	}
	from, left := slices.Repeat([]int{-1}, len(score)), maps.Clone(rowsOf)
	for _, g := range slices.Sorted(maps.Keys(members)) {
		rows := members[g]
		only := scoresOfLine(rows, adv, values, rowsOf, slack)
		if only == nil {
			return nil
		}
		for k, r := range rows {
			rest := left[only[k]]
			if len(rest) == 0 {
				return nil
			}
			from[r], left[only[k]] = rest[0], rest[1:]
		}
	}
	return from
}

// scoresOfLine returns the scores that the advantages of a group are a rising line of, nil where no scores are, or more than one choice of them.
func scoresOfLine(rows []int, adv, values []float64, rowsOf map[float64][]int, slack float64) (only []float64) {
	low, high := extremes(rows, func(r int) float64 { return adv[r] })
	if !(adv[high] > adv[low]) {
		return nil
	}
	for i, u := range values {
		for _, v := range values[i+1:] {
			by := (v - u) / (adv[high] - adv[low])
			at, used := make([]float64, 0, len(rows)), map[float64]int{}
			for _, r := range rows {
				x := u + by*(adv[r]-adv[low])
				k, _ := slices.BinarySearch(values, x-slack)
				if k == len(values) || values[k] > x+slack || used[values[k]] == len(rowsOf[values[k]]) {
					break
				}
				used[values[k]]++
				at = append(at, values[k])
			}
			if len(at) < len(rows) {
				continue
			}
			if only != nil {
				return nil
			}
			only = at
		}
	}
	return only
}
