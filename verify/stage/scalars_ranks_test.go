package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// A mean over the tokens of two ranks is not the mean of their means: 3 tokens of mean 1 and 1 token of mean 5 make 2, not 3.
func TestJoinRanks(t *testing.T) {
	b := &dump.Batch{Rows: 2, Cols: 3, Mask: []bool{true, true, true, false, true, false},
		Files: []dump.FileInfo{{Hi: 1, Cols: 3}, {Lo: 1, Hi: 2, Cols: 3, Rank: 1}}, Meta: dump.Meta{WorldSize: 2, MicroBatches: 1}}
	c := NewCase(b, &convention.Set{}, tol.U32)
	x, e := []float64{1, 5}, []float64{0, 0}
	c.joinRanks(x, e)
	require.InDeltaSlice(t, []float64{2, 2}, x, 1e-15)
	require.Greater(t, e[0], 0.0)

	c.B.Files = c.B.Files[:1] // a rank is missing
	x = []float64{1}
	c.joinRanks(x, e)
	require.Equal(t, []float64{1}, x)
}
