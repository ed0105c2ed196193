package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// order is a way in which the rows of one tensor are permuted where those of the others are not: from gives the row whose elements
// stand in row r, of the n rows of a step of k groups; inFile, of those of a file.
type order struct {
	title  string
	inFile bool
	from   func(r, n, k int) int
}

// orders are the permutations that programs make: off by one, reversed, repeat in place of repeat_interleave or the reverse, and the
// micro-batches of a step exchanged.
var orders = []order{
	{"of the row before, over the whole step", false, func(r, n, _ int) int { return (r + n - 1) % n }},
	{"of the row behind, over the whole step", false, func(r, n, _ int) int { return (r + 1) % n }},
	{"of the row before in its file", true, func(r, n, _ int) int { return (r + n - 1) % n }},
	{"of the row behind in its file", true, func(r, n, _ int) int { return (r + 1) % n }},
	{"in the reverse order", false, func(r, n, _ int) int { return n - 1 - r }},
	{"in the reverse order in its file", true, func(r, n, _ int) int { return n - 1 - r }},
	{"repeated as a block where every row is repeated in place", false, func(r, n, k int) int { return r/(n/k) + r%(n/k)*k }},
	{"repeated in place where the rows are repeated as a block", false, func(r, n, k int) int { return r/k + r%k*(n/k) }},
	{"of the other half of the step", false, func(r, n, _ int) int { return (r + n/2) % n }},
}

// rearranged returns the input in which the rows of a tensor stand in another order.
func rearranged(name string, o order) input {
	return token(name, func(c *stage.Case, x []float64) []float64 {
		b := c.B
		k := 1
		if id := b.Row("group_id"); id != nil {
			k = len(slices.Compact(slices.Sorted(slices.Values(id))))
		}
		if b.Rows < 2 || len(x)%b.Rows != 0 || b.Rows%k != 0 {
			return nil
		}
		w := len(x) / b.Rows
		y := make([]float64, len(x))
		spans := []dump.FileInfo{{Lo: 0, Hi: b.Rows}}
		if o.inFile {
			spans = b.Files
		}
		for _, f := range spans {
			for r := range f.Hi - f.Lo {
				s := f.Lo + o.from(r, f.Hi-f.Lo, k)
				copy(y[(f.Lo+r)*w:(f.Lo+r+1)*w], x[s*w:(s+1)*w])
			}
		}
		if slices.Equal(x, y) {
			return nil
		}
		return y
	})
}

// rowFaults are bugs that give a row what belongs to another one.
var rowFaults = slices.Concat(
	[]*Hypothesis{
		{ID: "ADV-ROWS-PERMUTED", Checks: []string{"advantage"},
			Predict: sortedRows},
		{ID: "GRAD-ROWS-PERMUTED", Checks: []string{"gradient/dlogp", "gradient/dvalues"},
			Predict: permuted},
	},
	inOrders(Hypothesis{ID: "REWARD-OF-OTHER-ROW", Checks: []string{"advantage", "reward/token"},
		Title: "the rewards are those of other completions: ",
	}, func(o order) *Hypothesis { return &Hypothesis{Input: rearranged("scores", o)} }),
	inOrders(Hypothesis{ID: "ADV-ROWS-OF-OTHERS", Checks: []string{"token_loss", "gradient/dlogp"},
		Title: "the loss uses the advantages of other rows: ",
	}, func(o order) *Hypothesis {
		return &Hypothesis{Predict: policyTerm(1, rearranged("advantages", o))}
	}),
)

// inOrders returns one hypothesis for every order of rows.
func inOrders(of Hypothesis, with func(o order) *Hypothesis) []*Hypothesis {
	var list []*Hypothesis
	for _, o := range orders {
		h, w := of, with(o)
		h.Title += o.title
		h.Input, h.Predict = w.Input, w.Predict
		list = append(list, &h)
	}
	return list
}

// sortedRows predicts numbers per row that are the right ones in other rows: the k-th smallest of those that were dumped should be
// the k-th smallest of the right ones. It takes four different numbers to say so.
func sortedRows(c *stage.Case, ch *stage.Check) *stage.Prediction {
	p, got := under(sameInput, c, ch), c.B.Tensors[ch.Output]
	if p == nil || got == nil || len(got.Data) != len(p.Want) || slices.ContainsFunc(got.Data, math.IsNaN) || slices.ContainsFunc(p.Want, math.IsNaN) {
		return nil
	}
	step := 1 // from one row to the next
	if got.Layout == dump.PerToken && c.B.Cols > 0 {
		step = c.B.Cols
	}
	var rows []int // the first judged cell of each
	for r := range c.B.Rows {
		if step == 1 {
			rows = append(rows, r)
		} else if first, _ := firstLast(c.B.Mask[r*step : (r+1)*step]); first >= 0 {
			rows = append(rows, r*step+first)
		}
	}
	by := func(x []float64) []int {
		at := slices.Clone(rows)
		slices.SortStableFunc(at, func(i, j int) int {
			switch {
			case x[i] < x[j]:
				return -1
			case x[i] > x[j]:
				return 1
			}
			return 0
		})
		return at
	}
	dumped, right := by(got.Data), by(p.Want)
	different, moved := 1, 0
	for k := 1; k < len(right); k++ {
		if p.Want[right[k]]-p.Want[right[k-1]] > 8*(p.Bound[right[k]]+p.Bound[right[k-1]]) {
			different++
		}
	}
	q := altered(p)
	for k, i := range dumped {
		j := right[k]
		if i/step != j/step && math.Abs(p.Want[i]-p.Want[j]) > 8*(p.Bound[i]+p.Bound[j]) {
			moved++
		}
		for t := range step {
			at := i/step*step + t
			if step == 1 || c.B.Mask[at] {
				q.Want[at], q.Bound[at] = p.Want[j], p.Bound[j]
			}
		}
	}
	if different < 4 || moved < 2 {
		return nil
	}
	return q
}

// groupFaults are bugs of which rows a baseline and a deviation are taken over.
var groupFaults = []*Hypothesis{
	{ID: "ADV-OTHER-GROUP", Checks: []string{"advantage"},
		Predict: ofOtherGroup},
	{ID: "ADV-GROUPS-PER-RANK", Checks: []string{"advantage"},
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			if c.B.Meta.WorldSize < 2 {
				return nil, nil, false
			}
			return regrouped(func(c *stage.Case, r int) float64 {
				id := c.B.Row("group_id")
				if id == nil {
					return math.NaN()
				}
				return id[r]*float64(c.B.Meta.WorldSize) + float64(c.B.Files[c.B.File(r)].Rank)
			})(c)
		}},
	{ID: "REWARD-ONE-FUNCTION", Checks: []string{"advantage"},
		Predict: oneFunction},
	{ID: "ADV-TRUNCATED-ZERO", Checks: []string{"advantage"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p := under(sameInput, c, ch)
			if p == nil || c.FactList("eos_token_id") == nil || len(p.Want) != c.B.Rows && len(p.Want) != len(c.B.Mask) {
				return nil
			}
			q, cut := *p, 0
			q.Want, q.Bound, q.Alt = slices.Clone(p.Want), slices.Clone(p.Bound), nil
			w := len(p.Want) / max(c.B.Rows, 1)
			for r := range c.B.Rows {
				if !ended(c, r) {
					cut++
					clear(q.Want[r*w : (r+1)*w])
				}
			}
			if cut == 0 || cut == c.B.Rows {
				return nil
			}
			return &q
		}},
	{ID: "ADV-CLIPPED", Checks: []string{"advantage", "gae/advantage"}, Configured: []string{"reward.clip"}, // after a baseline that is the advantage
		Predict: cutOff},
}

// ofOtherGroup predicts group advantages of which mean and deviation are those of the next group, or the one before, in the order
// of ids. What belongs to a row itself is its score: the advantage is a line in it, the same for all rows of a group.
func ofOtherGroup(c *stage.Case, ch *stage.Check) *stage.Prediction {
	id, score, got := c.B.Row("group_id"), c.B.Row("scores"), c.B.Tensors[ch.Output]
	p := under(sameInput, c, ch)
	if p == nil || id == nil || score == nil || got == nil || got.Layout != dump.PerRow || len(p.Want) != len(id) || len(score) != len(id) {
		return nil
	}
	groups := slices.Compact(slices.Sorted(slices.Values(id)))
	type fit struct{ mean, slope, bound float64 }
	fits := map[float64]fit{}
	members := membersOf(id)
	for _, g := range groups {
		low, high := extremes(members[g], func(r int) float64 { return score[r] })
		if score[low] == score[high] { // divided by ε alone
			eps := c.Set.Value("adv.eps")
			if eps.Kind() != convention.Number || eps.Num() == 0 {
				return nil
			}
			fits[g] = fit{score[low], 1 / eps.Num(), max(p.Bound[low], 4*c.Unit)}
			continue
		}
		slope := (p.Want[high] - p.Want[low]) / (score[high] - score[low])
		fits[g] = fit{score[low] - p.Want[low]/slope, slope, max(p.Bound[low], p.Bound[high])}
	}
	if len(groups) < 2 {
		return nil
	}
	best := closest{got: got.Data}
	for _, by := range []int{1, len(groups) - 1} {
		for part := range 3 { // mean and deviation, the mean, the deviation
			q := *p
			q.Want, q.Bound, q.Alt = make([]float64, len(id)), make([]float64, len(id)), nil
			for r, g := range id {
				at, _ := slices.BinarySearch(groups, g)
				own, other := fits[g], fits[groups[(at+by)%len(groups)]]
				mean, slope := other.mean, other.slope
				switch part {
				case 1:
					slope = own.slope
				case 2:
					mean = own.mean
				}
				q.Want[r] = (score[r] - mean) * slope
				q.Bound[r] = 8 * (own.bound + other.bound) * (1 + math.Abs(q.Want[r]))
			}
			best.consider(&q)
		}
	}
	return best.p
}

// oneFunction predicts advantages of the one reward function that leaves the fewest of them wrong.
func oneFunction(c *stage.Case, ch *stage.Check) *stage.Prediction {
	t, got := c.B.Tensors["rewards_per_func"], c.B.Tensors[ch.Output]
	if t == nil || got == nil || t.Width < 2 || c.B.Row("scores") == nil {
		return nil
	}
	weights := c.FactList("reward_weights")
	best := closest{got: got.Data}
	for f := range 2 * t.Width {
		weight := 1.0
		if f >= t.Width {
			if f -= t.Width; len(weights) != t.Width || weights[f] == 1 {
				continue
			}
			weight = weights[f]
		}
		x := make([]float64, c.B.Rows)
		for r := range x {
			if v := t.Data[r*t.Width+f]; !math.IsNaN(v) {
				x[r] = weight * v
			}
		}
		best.consider(under(token("scores", func(*stage.Case, []float64) []float64 { return x }), c, ch))
	}
	return best.p
}

// cutOff predicts the healthy numbers, those beyond the smallest and the largest that were dumped cut off there: at two cells at
// least, or at a round number.
func cutOff(c *stage.Case, ch *stage.Check) *stage.Prediction {
	p, got := under(sameInput, c, ch), c.B.Tensors[ch.Output]
	if p == nil || got == nil || len(got.Data) != len(p.Want) {
		return nil
	}
	judged := func(i int) bool { return len(p.Want) != len(c.B.Mask) || c.B.Mask[i] }
	low, high := math.Inf(1), math.Inf(-1)
	for i, x := range got.Data {
		if judged(i) {
			low, high = min(low, x), max(high, x)
		}
	}
	if low >= high { // one number everywhere is no bound
		return nil
	}
	q := altered(p)
	at, within := [2]int{}, 0
	for i, w := range p.Want {
		if !judged(i) {
			continue
		}
		switch {
		case w > high+4*p.Bound[i]:
			q.Want[i] = high
			at[1]++
		case w < low-4*p.Bound[i]:
			q.Want[i] = low
			at[0]++
		case w != 0:
			within++
		}
	}
	round := func(x float64) bool { return x*4 == math.Trunc(x*4) }
	none := func(bound float64) bool { return math.Abs(bound) <= 1e-6*max(high, -low) }                                                                  // what has no gradient of one sign is cut off by no bound
	if at[0]+at[1] == 0 || at[0] > 0 && none(low) || at[1] > 0 && none(high) || at[0] == 1 && !round(low) || at[1] == 1 && !round(high) || within == 0 { // what holds every number is a factor or a sign
		return nil
	}
	return q
}
