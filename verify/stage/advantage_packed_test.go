package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// Packed advantages that are a column late, or early, give tokens at the edge of a response the number of its neighbour; those that differ otherwise do not.
func TestAdvantagesOfPackedNeighbours(t *testing.T) {
	lengths, own := []int{4, 3, 4, 2, 4, 3, 4, 3}, []float64{1, -1, 0.5, 0.5, -2, 1, -1, 2}
	judge := func(shift int, change func(x []float64)) *Outcome {
		g := newGrid(4, lengths...)
		var packed []float64
		col := 0
		for r, n := range lengths {
			g.Origin[r] = dump.Origin{Col: col, Cols: n}
			col += n
			for range n {
				packed = append(packed, own[r])
			}
		}
		x := make([]float64, len(g.Mask))
		for r, n := range lengths {
			for i := range n {
				x[r*4+i] = packed[min(max(g.Origin[r].Col+i-shift, 0), col-1)]
			}
		}
		g.Files[0].Packed = true
		change(x)
		g.Tensors["advantages"] = &dump.Tensor{Name: "advantages", Layout: dump.PerToken, Width: 1, Shape: []int{8, 4}, Data: x}
		return rules(t, "advantage/signal", g.Batch, set(t, ""))
	}
	same := func([]float64) {}
	require.Equal(t, check.Pass, judge(0, same).Verdict)
	for _, shift := range []int{1, -1} {
		o := judge(shift, same)
		require.Equal(t, check.Fail, o.Verdict)
		require.Len(t, o.Rules.Violations, 1)
		require.Equal(t, "ADV-SHIFT", o.Rules.Violations[0].Fault)
		require.Equal(t, check.Pass, judge(shift, func(x []float64) { x[1] += 0.5 }).Verdict)
	}
}
