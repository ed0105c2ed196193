package fault

import (
	"cmp"
	"slices"

	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A rankOrder says whose row of a tensor a row of a rollout reads that is gathered from its ranks, of which each has the rows own in the order in which they
// were sampled. It is another one of these, or of those of the first rank.
type rankOrder struct {
	title string
	from  func(rank, k int, own, first []int) int
}

var rankOrders = []rankOrder{
	{"of the rows of every rank in reversed order", func(_, k int, own, _ []int) int { return own[len(own)-1-k] }},
	{"of the rows in reversed order on every rank but the first", func(rank, k int, own, _ []int) int {
		if rank == 0 {
			return own[k]
		}
		return own[len(own)-1-k]
	}},
	{"of the rows of the first rank on all of them", func(_, k int, _, first []int) int { return first[min(k, len(first)-1)] }},
	{"of the row before on its rank", func(_, k int, own, _ []int) int { return own[(k+len(own)-1)%len(own)] }},
	{"of the row behind on its rank", func(_, k int, own, _ []int) int { return own[(k+1)%len(own)] }},
}

// rows returns the row that each row reads, nil where the batch is of one rank, or its ranks have other numbers of rows.
func (o rankOrder) rows(c *stage.Case) []int {
	b, ranks := c.B, map[int][]int{}
	for _, r := range byPlace(c.B) {
		rank := b.Files[b.File(r)].Rank
		ranks[rank] = append(ranks[rank], r)
	}
	if len(ranks) < 2 || len(ranks[0]) == 0 {
		return nil
	}
	from := make([]int, b.Rows)
	for rank, own := range ranks {
		if len(own) != len(ranks[0]) {
			return nil
		}
		for k, r := range own {
			from[r] = o.from(rank, k, own, ranks[0])
		}
	}
	return from
}

// rankOrderEdits returns edits of advantages and returns that read a tensor, or the KL of sequences, in an order that gathering it from the ranks has left.
func rankOrderEdits(o *stage.Outcome) (list []edit) {
	if o.Check.Stage != convention.Advantage || o.Case.B.Meta.WorldSize < 2 {
		return nil
	}
	for _, order := range rankOrders {
		if order.rows(o.Case.Of(o.Case.B, o.Case.Set)) == nil {
			return nil
		}
		for _, name := range slicedBy(o) {
			if name != "values" && name != "token_rewards" {
				continue // scores have a family of their own
			}
			list = append(list, edit{id: cmp.Or(sliceIDs[name], "SLICE-OF-OTHERS"), title: name + " are those " + order.title, changes: 1, foreign: true,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					from := order.rows(c)
					if from == nil {
						return nil
					}
					return ofSlice(name, c, ch, func(r int) (x []float64, mask []bool) { return rowOf(c.B, name, from[r]) })
				}})
		}
		list = append(list, edit{id: "KL-OF-OTHER-ROWS", title: "the KL of a response in its reward is that " + order.title, changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return klOfOthers(order, c, ch) }})
	}
	return list
}

// klOfOthers predicts advantages of rewards of sequences, s − β·Σ kl, that have the sum of another row.
func klOfOthers(order rankOrder, c *stage.Case, ch *stage.Check) *stage.Prediction {
	b, from := c.B, order.rows(c)
	if v := c.Set.Value("kl.place"); from == nil || v.Kind() != convention.Enum || v.Text() != "sequence_reward_before_baseline" || b.Cols == 0 {
		return nil
	}
	kl := b.Token("kl")
	if kl == nil {
		p := under(sameInput, c, stage.Find("kl/token"))
		if p == nil {
			return nil
		}
		kl = p.Want
	}
	if len(kl) != len(b.Mask) {
		return nil
	}
	sums := rl.RowSums(nil, kl, b.Mask, b.Rows, b.Cols)
	x := make([]float64, len(kl))
	for r := range sums {
		if first, _ := firstLast(b.Mask[r*b.Cols : (r+1)*b.Cols]); first >= 0 {
			x[r*b.Cols+first] = sums[from[r]]
		}
	}
	p, right := under(perToken("kl", x), c, ch), under(sameInput, c, ch)
	if p == nil || right == nil || len(p.Bound) != len(right.Bound) {
		return nil
	}
	q := altered(p)
	for i := range q.Bound { // the tokens whose KL is summed are off by what they are in the right ones
		q.Bound[i] += right.Bound[i]
	}
	return q
}

// unfilteredEdits returns the edit of advantages that are cut at the front of the rollout before dynamic sampling drops groups without a spread (Yu et al. 2025,
// section 3.2): the rows that are kept are fewer, and their sample_id says where each stood.
func unfilteredEdits(o *stage.Outcome) (list []edit) {
	if o.Check.ID != "advantage/group" {
		return nil
	}
	for _, f := range []struct {
		title string
		zero  bool
	}{
		{"groups are dropped from the rows, and the advantages are those at the front of the rollout before", true},
		{"groups are dropped from the rows, and the advantages are those of the scores at the front of the rollout before", false},
	} {
		if unfiltered(o.Case.Of(o.Case.B, o.Case.Set), o.Check, o.Got, f.zero) == nil {
			continue
		}
		list = append(list, edit{id: "ADV-ROWS-OF-OTHERS", title: f.title, changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				t := c.B.Tensors[ch.Output]
				if t == nil {
					return nil
				}
				return unfiltered(c, ch, t.Data, f.zero)
			}})
	}
	return list
}

// unfiltered predicts for the k-th row that is kept the advantage of the k-th row of the rollout, which is 0 for one that was dropped, or where zero is false not known. The
// first number of the rollout is open by the groups that may have been dropped in front.
func unfiltered(c *stage.Case, ch *stage.Check, got []float64, zero bool) *stage.Prediction {
	const most = 8 // groups dropped in front
	b, id := c.B, c.B.Row("sample_id")
	p := under(sameInput, c, ch)
	n, same := groupSize(b.Row("group_id"))
	if p == nil || len(id) != b.Rows || !same || n < 2 {
		return nil
	}
	rows, at := byPlace(c.B), map[float64]int{}
	for _, r := range rows {
		at[id[r]] = r
	}
	advantage := make([]float64, b.Rows)
	bound := make([]float64, b.Rows)
	w := len(p.Want) / max(b.Rows, 1)
	for r := range advantage {
		i := r
		if w > 1 {
			first, _ := firstLast(b.Mask[r*b.Cols : (r+1)*b.Cols])
			if i = r*b.Cols + first; first < 0 {
				continue
			}
		}
		advantage[r], bound[r] = p.Want[i], p.Bound[i]
	}
	best := closest{got: got}
	for dropped := range most + 1 {
		x, e, told, gaps := make([]float64, b.Rows), make([]float64, b.Rows), make([]bool, b.Rows), false
		start := id[rows[0]] - float64(dropped*n)
		for k, r := range rows {
			from, kept := at[start+float64(k)]
			if told[r] = kept || zero; !kept {
				gaps = true
				continue
			}
			x[r], e[r] = advantage[from], bound[from]
		}
		if gaps {
			best.consider(onlyRows(perRowOrToken(x, e, c, ch), told, c))
		}
	}
	return best.p
}

// onlyRows is a prediction that says nothing of some rows.
func onlyRows(p *stage.Prediction, rows []bool, c *stage.Case) *stage.Prediction {
	if p == nil || !slices.Contains(rows, false) {
		return p
	}
	q, w := *p, max(len(p.Want)/max(len(rows), 1), 1)
	q.Judge = make([]bool, len(p.Want))
	for i := range q.Judge {
		q.Judge[i] = rows[i/w] && (p.Judge == nil || p.Judge[i]) && (len(p.Want) != len(c.B.Mask) || c.B.Mask[i])
	}
	return &q
}
