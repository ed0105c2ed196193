package fault

import (
	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
)

// anewIDs are the bugs that tensors of a rollout are which were computed anew when its rows came again.
var anewIDs = map[string]string{"values": "VALUES-RECOMPUTED"}

// anewEdits returns edits of a recursion that was computed of what the same rows had at an earlier step: a tensor of the rollout that is computed anew in every
// epoch, where the advantages and returns that are made of it are kept.
func anewEdits(o *stage.Outcome, beside func(step int) []*dump.Batch) (list []edit) {
	if o.Check.ID != "gae/advantage" && o.Check.ID != "gae/returns" {
		return nil
	}
	for _, name := range slicedBy(o) {
		if anewIDs[name] == "" {
			continue
		}
		list = append(list, edit{id: anewIDs[name], title: o.Check.Output + " are of the " + name + " that the same rows had at an earlier step: " + name + " were computed anew since", changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				from := firstUsesOf(c.B, beside(c.B.Meta.Step))
				if from == nil {
					return nil
				}
				return ofSlice(name, c, ch, func(r int) (x []float64, mask []bool) { return rowOf(from[r].b, name, from[r].row) })
			}})
	}
	return list
}

// firstUsesOf returns the rows of a batch as the first step had them that is there, nil where no earlier step has all of them.
func firstUsesOf(b *dump.Batch, beside []*dump.Batch) []staleRow {
	id := b.Row("sample_id")
	if len(id) != b.Rows {
		return nil
	}
	at := map[float64]staleRow{}
	for _, other := range beside {
		ids := other.Row("sample_id")
		if other.Meta.Step >= b.Meta.Step || len(ids) != other.Rows {
			continue
		}
		for r, x := range ids {
			if was, known := at[x]; !known || other.Meta.Step < was.b.Meta.Step {
				at[x] = staleRow{other, r, x}
			}
		}
	}
	from := make([]staleRow, b.Rows)
	for r, x := range id {
		row, known := at[x]
		if !known {
			return nil
		}
		from[r] = row
	}
	return from
}
