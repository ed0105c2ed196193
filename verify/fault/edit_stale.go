package fault

import (
	"cmp"
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
	for _, name := range slicedBy(o) {
		list = append(list, edit{id: cmp.Or(staleIDs[name], sliceIDs[name], "SLICE-OF-OTHERS"), title: name + " are those of the rollout before", changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				rows, own := rowsBefore(c.B, beside(c.B.Meta.Step))
				if rows == nil {
					return nil
				}
				from := make([]staleRow, c.B.Rows)
				for k, r := range own {
					from[r] = rows[k]
				}
				d := c.Of(c.B.Without("rewards_per_func"), c.Set)
				return ofSlice(name, d, ch, func(r int) (x []float64, mask []bool) { return rowOf(from[r].b, name, from[r].row) })
			}})
	}
	return list
}
