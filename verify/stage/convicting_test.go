package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/tol"
)

func TestGroupsRecur(t *testing.T) {
	of := func(id ...float64) bool {
		g := newGrid(1, 1, 1, 1, 1).row("group_id", id...)
		g.Files = []dump.FileInfo{{Hi: 2}, {MicroBatch: 1, Lo: 2, Hi: 4}}
		g.Origin[2].File, g.Origin[3].File = 1, 1
		return GroupsRecur(g.Batch)
	}
	require.True(t, of(7, 7, 7, 7))
	require.False(t, of(7, 7, 8, 8), "none is in two files")
	require.False(t, of(7, 8, 7, 8), "they were cut")
	require.False(t, of(7, 7, 7, 8))
}

func TestWeightsAtTheirUpperBound(t *testing.T) {
	g := newGrid(1, 1, 1).token("is_weights", 0.5, 1.9)
	require.False(t, AtUpperBound(NewCase(g.Batch, set(t, "tis.high=2"), tol.U32)))
	require.False(t, AtUpperBound(NewCase(g.Batch, set(t, "tis.high=none"), tol.U32)))
	g.Tensors["is_weights"].Data[0] = 2
	require.True(t, AtUpperBound(NewCase(g.Batch, set(t, "tis.high=2"), tol.U32)))
}
