package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/verify/check"
)

// Without input_ids the ids of responses tell one thing: that the id which fills the rows behind EOS, 2, counts. What ends early may have been stopped otherwise.
func TestPaddingBehindTheEndCounts(t *testing.T) {
	s := set(t, "").WithFact("eos_token_id", 2.0)
	for _, c := range []struct {
		lengths []int
		ids     []float64
		fault   string
	}{
		{[]int{3, 4}, []float64{5, 6, 2, 0, 0, 7, 8, 9, 2, 0}, ""},
		{[]int{4, 5}, []float64{5, 6, 2, 0, 0, 7, 8, 9, 2, 0}, "MASK-PAST-EOS"},
		{[]int{4, 4}, []float64{5, 6, 2, 7, 0, 7, 8, 9, 2, 0}, ""}, // something else stands behind the first one
		{[]int{2, 3}, []float64{5, 6, 2, 0, 0, 7, 8, 9, 2, 0}, ""},
	} {
		g := newGrid(5, c.lengths...).token("response_ids", c.ids...)
		g.Tensors["response_ids"].Type = format.I64
		o := Judge(Find("masks/position"), g.Batch, s)
		if require.Equal(t, c.fault != "", o.Verdict == check.Fail, c.ids); c.fault != "" {
			require.Equal(t, c.fault, o.Rules.Violations[0].Fault)
		}
	}
}
