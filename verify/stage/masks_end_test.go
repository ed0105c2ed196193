package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// The token that ends responses is known by what stands behind it: a mask that ends before it in every row leaves it out. What follows an end that the masks have is
// of a template, and padding that follows at once ends nothing.
func TestEndsThatMasksLeaveOut(t *testing.T) {
	const cols = 6
	fault := func(rows ...[]float64) string {
		var lengths []int
		var all []float64
		for _, row := range rows {
			lengths, all = append(lengths, int(row[0])), append(all, row[1:]...)
		}
		g := newGrid(cols, lengths...).token("response_ids", all...)
		o := rules(t, "masks/position", g.Batch, set(t, ""))
		if o.Verdict != check.Fail {
			return ""
		}
		return o.Rules.Violations[0].Fault
	}
	require.Equal(t, "MASK-NO-EOS", fault([]float64{2, 5, 6, 2, 0, 0, 0}, []float64{3, 5, 6, 7, 2, 0, 0}, []float64{1, 8, 2, 0, 0, 0, 0}, []float64{2, 9, 4, 2, 0, 0, 0}, []float64{6, 3, 3, 4, 5, 6, 7}))
	require.Empty(t, fault([]float64{3, 5, 6, 2, 0, 0, 0}, []float64{4, 5, 6, 7, 2, 0, 0}, []float64{2, 8, 2, 0, 0, 0, 0}, []float64{3, 9, 4, 2, 0, 0, 0}), "the end is in the masks, padding behind it")
	require.Empty(t, fault([]float64{3, 5, 6, 2, 9, 0, 0}, []float64{4, 5, 6, 7, 2, 9, 0}, []float64{2, 8, 2, 9, 0, 0, 0}, []float64{3, 9, 4, 2, 9, 0, 0}), "the end is in the masks, a template behind it")
	require.Empty(t, fault([]float64{2, 5, 6, 0, 0, 0, 0}, []float64{3, 5, 6, 7, 0, 0, 0}, []float64{1, 8, 0, 0, 0, 0, 0}, []float64{2, 9, 4, 0, 0, 0, 0}), "responses that were stopped, and padding")
	require.Empty(t, fault([]float64{2, 5, 6, 2, 0, 0, 0}, []float64{3, 5, 6, 7, 2, 0, 0}, []float64{1, 8, 2, 0, 0, 0, 0}), "few rows")
}
