package dump

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A recursion whose rewards were not dumped is searched where policy and reference differ most, with its rewards where most ratios are not 1.
func TestRecursionsAreSearchedWhereTheirInputsTell(t *testing.T) {
	var run Batches
	for step, shift := range []struct{ ratio, kl float64 }{{0.5, 0}, {0, 0.5}} {
		b := &dumpfile.Batch{Rows: 2, Cols: 3, Mask: slices.Repeat([]bool{true}, 6), Tensors: map[string]*dumpfile.Tensor{}, Origin: make([]dumpfile.Origin, 2),
			Files: []dumpfile.FileInfo{{Name: "step", Hi: 2, Cols: 3}}}
		b.Meta = dumpfile.Meta{Step: step + 1, WorldSize: 1, MicroBatches: 1, DLogpScale: 1}
		for name, x := range map[string]float64{"logp_old": -1, "logp_new": -1 - shift.ratio, "logp_ref": -1 - shift.kl, "values": 0.25, "returns": 0.5, "token_rewards": 0.125} {
			b.Tensors[name] = &dumpfile.Tensor{Name: name, Layout: dumpfile.PerToken, Width: 1, Shape: []int{2, 3}, Data: slices.Repeat([]float64{x}, 6), Type: format.F32}
		}
		run = append(run, b)
	}
	searched := func() int {
		s, err := newSession(run, Options{})
		require.NoError(t, err)
		return s.telling(&track{check: stage.Find("gae/returns")}, unit{run[0], &convention.Set{}}).b.Meta.Step
	}
	require.Equal(t, 1, searched())
	for _, b := range run {
		delete(b.Tensors, "token_rewards")
	}
	require.Equal(t, 2, searched())
}
