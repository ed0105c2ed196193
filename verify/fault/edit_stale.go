package fault

import (
	"cmp"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// staleRow is a row of a rollout and the batch that has it.
type staleRow struct {
	b    *dump.Batch
	row  int
	rank float64 // by which the rows of a rollout are in order
}

// rowsBefore returns the rows of the rollout before that of a batch in the order of its own: as many rows, the last that were sampled before all of
// the batch's. Rows without sample_id are in the order of steps, and those of the steps before it that have no group of the batch: these are of an epoch
// before. It is nil where there are fewer.
func rowsBefore(b *dump.Batch, beside []*dump.Batch) (rows []staleRow, own []int) {
	id := b.Row("sample_id")
	own = byPlace(b)
	first := 0.0
	if len(id) == b.Rows {
		first = id[own[0]]
	}
	seen, group := map[float64]bool{}, b.Row("group_id")
	at := 0.0
	for _, other := range beside {
		if other.Meta.Step >= b.Meta.Step {
			continue
		}
		ids := other.Row("sample_id")
		if (len(ids) == other.Rows) != (len(id) == b.Rows) {
			return nil, nil
		}
		of := other.Row("group_id")
		for r := range other.Rows {
			if len(id) != b.Rows && len(of) == other.Rows && slices.Contains(group, of[r]) {
				continue
			}
			rank := at
			if at++; len(ids) == other.Rows {
				if rank = ids[r]; rank >= first || seen[rank] {
					continue
				}
				seen[rank] = true
			}
			rows = append(rows, staleRow{other, r, rank})
		}
	}
	slices.SortStableFunc(rows, func(a, b staleRow) int { return cmp.Compare(a.rank, b.rank) })
	if len(rows) < b.Rows {
		return nil, nil
	}
	return rows[len(rows)-b.Rows:], own
}

// staleIDs are the bugs that a tensor of the rollout before is, where one has a name of its own.
var staleIDs = map[string]string{"scores": "REWARDS-STALE", "token_rewards": "REWARDS-STALE"}

// staleEdits returns edits in which an output of the advantages reads a tensor of the rollout before, row by row in the order in which they were sampled.
func staleEdits(o *stage.Outcome, beside func(step int) []*dump.Batch) []edit {
	if o.Check.Stage != convention.Advantage && o.Check.Stage != convention.Reward && o.Check.Stage != convention.TokenLoss {
		return nil
	}
	var list []edit
	add := func(name, title string, predict func(from []staleRow, c *stage.Case, ch *stage.Check) *stage.Prediction) {
		for n := range mostShifts + 1 {
			list = append(list, edit{id: cmp.Or(staleIDs[name], sliceIDs[name], "SLICE-OF-OTHERS"), title: title, changes: 1, foreign: true,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					var from []staleRow
					if n > 0 {
						from = rowsShifted(c.B, n*c.B.Rows, beside(c.B.Meta.Step))
					} else if rows, own := rowsBefore(c.B, beside(c.B.Meta.Step)); rows != nil {
						from = make([]staleRow, c.B.Rows)
						for k, r := range own {
							from[r] = rows[k]
						}
					}
					if from == nil {
						return nil
					}
					return predict(from, c.Of(c.B.Without("rewards_per_func"), c.Set), ch)
				}})
		}
	}
	for _, name := range slicedBy(o) {
		add(name, name+" are those of the rollout before", func(from []staleRow, c *stage.Case, ch *stage.Check) *stage.Prediction {
			return ofSlice(name, c, ch, func(r int) (x []float64, mask []bool) { return rowOf(from[r].b, name, from[r].row) })
		})
		if name == "scores" && (o.Case.EnumOr("eos.rule", "none") != "none" || o.Case.EnumOr("reward.clip", "none") != "none") {
			add(name, "scores are those of the rollout before, with what was made of them: the penalty of responses without EOS, the clip", shapedBefore)
		}
	}
	if slices.Contains(o.Case.Read, "kl.beta") {
		list = append(list, edit{id: "KL-BETA", title: "kl.beta is that of the rollout before: the controller's new number comes too late", changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				x, ok := betaBefore(c, beside(c.B.Meta.Step))
				if !ok {
					return nil
				}
				return under(number("kl.beta", func(float64) float64 { return x }), c, ch)
			}})
	}
	if o.Check.ID == "advantage/group" {
		list = append(list, edit{id: "ADV-CENTER", title: "the baseline of a group is the mean of the group at its place in the rollout before", changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				rows, own := rowsBefore(c.B, beside(c.B.Meta.Step))
				return baselineBefore(rows, own, c, ch)
			}})
	}
	return list
}

// betaBefore returns the last coefficient of the KL that the steps before declare and the step does not, false where it is the same in all of them.
func betaBefore(c *stage.Case, beside []*dump.Batch) (beta float64, ok bool) {
	last := 0
	for _, other := range beside {
		for _, option := range other.Meta.Options {
			if x, is := option.Value.(float64); is && option.Name == "kl.beta" && other.Meta.Step < c.B.Meta.Step && other.Meta.Step > last && x != numberOr(c, "kl.beta", x) {
				beta, last, ok = x, other.Meta.Step, true
			}
		}
	}
	return beta, ok
}

// baselineBefore predicts advantages A = (r − m)/s whose m is the mean of other rows, rows[k] in the place of own[k], and s their own.
func baselineBefore(rows []staleRow, own []int, c *stage.Case, ch *stage.Check) *stage.Prediction {
	id, score, p := c.B.Row("group_id"), c.Row("scores").X, under(sameInput, c, ch)
	if rows == nil || p == nil || len(id) != c.B.Rows || len(score) != len(id) || len(p.Want)%len(id) != 0 || c.EnumOr("adv.center", "mean") != "mean" {
		return nil
	}
	wide := len(p.Want) / len(id) // numbers of a row, which are one number in its tokens
	first := func(r int) float64 {
		if wide == 1 {
			return p.Want[r]
		}
		return p.Want[max(firstOf(c.B, r), r*wide)]
	}
	before := make([]float64, len(id))
	for k, r := range own {
		x, _ := rowOf(rows[k].b, "scores", rows[k].row)
		if len(x) != 1 {
			return nil
		}
		before[r] = x[0]
	}
	q := altered(p)
	for _, at := range membersOf(id) {
		low, high := extremes(at, func(r int) float64 { return score[r] })
		if score[low] == score[high] {
			return nil // what it is divided by is ε
		}
		by := (first(high) - first(low)) / (score[high] - score[low])
		moved := by * (centreOf("mean", score, at, at[0]) - centreOf("mean", before, at, at[0]))
		for _, r := range at {
			for i := r * wide; i < (r+1)*wide; i++ {
				q.Want[i] += moved
				q.Bound[i] = 4*p.Bound[i] + 8*c.Unit*(math.Abs(moved)+math.Abs(q.Want[i]))
			}
		}
	}
	return q
}

// mostShifts is how many mini-batches a rollout may have whose rows are taken for those of the rollout before.
const mostShifts = 8

// rowsShifted returns, for each row of a batch that is a mini-batch of a rollout of n rows, that which was sampled n rows before it; nil where not all are
// there, or where the batch is that rollout.
func rowsShifted(b *dump.Batch, n int, beside []*dump.Batch) []staleRow {
	id := b.Row("sample_id")
	if len(id) != b.Rows || b.Rows == 0 || n == b.Rows && slices.Max(id)-slices.Min(id) == float64(b.Rows-1) {
		return nil
	}
	at := map[float64]staleRow{}
	for _, other := range beside {
		if ids := other.Row("sample_id"); other.Meta.Step < b.Meta.Step && len(ids) == other.Rows {
			for r, x := range ids {
				at[x] = staleRow{other, r, x}
			}
		}
	}
	from := make([]staleRow, b.Rows)
	for r, x := range id {
		row, ok := at[x-float64(n)]
		if !ok {
			return nil
		}
		from[r] = row
	}
	return from
}

// shapedBefore predicts token rewards whose scores are those of other rows as the rule of EOS and the clip leave them there.
func shapedBefore(from []staleRow, c *stage.Case, ch *stage.Check) *stage.Prediction {
	if ch.ID != "reward/token" {
		return nil
	}
	plain := c.Set.With("kl.beta", parsed("kl.beta", "0"), "hypothesis").With("rewards.whiten", parsed("rewards.whiten", "no"), "hypothesis")
	made, score := map[*dump.Batch]*stage.Prediction{}, make([]float64, c.B.Rows)
	for r, s := range from {
		p, ok := made[s.b]
		if !ok {
			p = under(sameInput, c.Of(s.b.Without("rewards_per_func"), plain), ch)
			made[s.b] = p
		}
		if p == nil || len(p.Want) != len(s.b.Mask) {
			return nil
		}
		score[r] = total(p.Want[s.row*s.b.Cols : (s.row+1)*s.b.Cols])
	}
	return roughly(under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		b, shaped := c.B.With("scores", score), true
		b.Meta.ScoresShaped = &shaped
		return b, c.Set, true
	}, c, ch)) // the old score may have been taken off again
}
