package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// Responses to one prompt differ in their first tokens, which a mask that begins late leaves out in every row. A beginning that all responses have was forced,
// and rows whose masks begin in different columns were cut for another reason.
func TestMasksThatBeginLate(t *testing.T) {
	const cols = 5
	batch := func(ids [][]float64, late ...int) grid {
		lengths := make([]int, len(ids))
		for r := range lengths {
			lengths[r] = 4
		}
		g := newGrid(cols, lengths...)
		var all, group []float64
		for r, row := range ids {
			for t := range late[r%len(late)] {
				g.Mask[r*cols+t] = false
			}
			all, group = append(all, row...), append(group, float64(r/2))
		}
		return g.token("response_ids", all...).row("group_id", group...)
	}
	sampled := [][]float64{{5, 6, 7, 2, 0}, {8, 6, 7, 2, 0}, {9, 6, 5, 2, 0}, {4, 3, 7, 2, 0}, {5, 5, 7, 2, 0}, {5, 6, 9, 2, 0}}
	forced := [][]float64{{9, 6, 7, 2, 0}, {9, 5, 7, 2, 0}, {9, 6, 5, 2, 0}, {9, 3, 7, 2, 0}, {9, 5, 7, 2, 0}, {9, 6, 9, 2, 0}}
	s := set(t, "").WithFact("eos_token_id", 2.0)
	fault := func(g grid) string {
		o := rules(t, "masks/position", g.Batch, s)
		if o.Verdict != check.Fail {
			return ""
		}
		return o.Rules.Violations[len(o.Rules.Violations)-1].Fault
	}
	require.Empty(t, fault(batch(sampled, 0)))
	require.Equal(t, "LOSS-MASK-FIRST", fault(batch(sampled, 1)))
	require.Equal(t, "LOSS-MASK-FIRST", fault(batch(sampled, 2)))
	require.Empty(t, fault(batch(forced, 1)), "a beginning that was forced")
	require.Empty(t, fault(batch(sampled, 1, 2)), "rows that begin in different columns")
	require.Empty(t, fault(batch(sampled, 3)), "more than a slip of a slice")
	require.Empty(t, fault(batch(sampled[:2], 1)), "one group")
	none := batch(sampled, 1)
	delete(none.Tensors, "group_id")
	require.Empty(t, fault(none), "nothing says which rows have one prompt")
	ids := batch(sampled, 1)
	ids.Meta.Align = dump.AlignShifted
	require.Empty(t, fault(ids), "nothing says where the prompt ends")
}
