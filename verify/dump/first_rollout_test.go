package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// The first rollout ends where rows come that are new, after rows that came again; in the first pass over its rows nothing ends.
func TestFirstRollout(t *testing.T) {
	updates := func(steps ...[]float64) int {
		var f firstRollout
		for _, ids := range steps {
			f.add(&dumpfile.Batch{Rows: len(ids), Cols: 1, Mask: make([]bool, len(ids)), Tensors: map[string]*dumpfile.Tensor{"sample_id": {Name: "sample_id", Layout: dumpfile.PerRow, Width: 1, Data: ids}}}, &convention.Set{})
		}
		return f.updates
	}
	a, b, c, d := []float64{1, 2}, []float64{3, 4}, []float64{5, 6}, []float64{7, 8}
	require.Equal(t, 4, updates(a, b, a, b, c, d, c, d))
	require.Equal(t, 4, updates(a, b, []float64{4, 1}, []float64{2, 3}, c))
	require.Zero(t, updates(a, b, c, d), "one epoch")
	require.Zero(t, updates(a, b, a, b), "one rollout")
}

// An engine that is declared to be a rollout old has the weights of the start in the first two.
func TestFirstRolloutOfAnOldEngine(t *testing.T) {
	rollout := func(staleness float64, apart ...float64) int {
		var f firstRollout
		for i, by := range apart {
			b := &dumpfile.Batch{Rows: 1, Cols: 2, Mask: []bool{true, true}, Tensors: map[string]*dumpfile.Tensor{}}
			b.Meta.Options = append(b.Meta.Options, dumpfile.Option{Name: "max_staleness", Value: staleness})
			for name, x := range map[string][]float64{"logp_gen": {-1.002 - by, -2.001}, "logp_ref": {-1, -2}, "sample_id": {float64(i)}} {
				layout := map[bool]dumpfile.Layout{true: dumpfile.PerRow, false: dumpfile.PerToken}[name == "sample_id"]
				b.Tensors[name] = &dumpfile.Tensor{Name: name, Layout: layout, Width: 1, Data: x}
			}
			f.add(b, &convention.Set{})
		}
		return f.rollout()
	}
	require.Equal(t, 2, rollout(1, 0, 0, 0, 0, 0.3, 0.3, 0.5))
	require.Equal(t, 1, rollout(2, 0, 0, 0, 0.3, 0.3, 0.5))
	require.Zero(t, rollout(0, 0, 0, 0.3), "an engine of this rollout")
	require.Zero(t, rollout(1, 0, 0, 0), "one that is never synchronised")
}
