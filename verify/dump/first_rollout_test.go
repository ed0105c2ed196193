package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
)

// The first rollout ends where rows come that are new, after rows that came again; in the first pass over its rows nothing ends.
func TestFirstRollout(t *testing.T) {
	updates := func(steps ...[]float64) int {
		var f firstRollout
		for _, ids := range steps {
			f.add(&dumpfile.Batch{Rows: len(ids), Cols: 1, Mask: make([]bool, len(ids)), Tensors: map[string]*dumpfile.Tensor{"sample_id": {Name: "sample_id", Layout: dumpfile.PerRow, Width: 1, Data: ids}}})
		}
		return f.updates
	}
	a, b, c, d := []float64{1, 2}, []float64{3, 4}, []float64{5, 6}, []float64{7, 8}
	require.Equal(t, 4, updates(a, b, a, b, c, d, c, d))
	require.Equal(t, 4, updates(a, b, []float64{4, 1}, []float64{2, 3}, c))
	require.Zero(t, updates(a, b, c, d), "one epoch")
	require.Zero(t, updates(a, b, a, b), "one rollout")
}
