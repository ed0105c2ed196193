package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Ratios to the engine's log-probs are a departure from a framework where those of the rollout are there beside them.
func TestRatiosToTheEngineAloneAreNoDeparture(t *testing.T) {
	for _, name := range []string{"logp_old", "logp_gen"} {
		b := &dumpfile.Batch{Rows: 1, Cols: 1, Mask: []bool{true}, Tensors: map[string]*dumpfile.Tensor{
			name: {Data: []float64{-1}, Layout: dumpfile.PerToken, Type: format.F32}}}
		u := &track{worst: &stage.Outcome{Case: stage.NewCase(b, &convention.Set{}, 0)}}
		require.Equal(t, name == "logp_gen", u.oldUnseen(stage.Change{Option: "ratio.old"}))
		require.False(t, u.oldUnseen(stage.Change{Option: "adv.center"}))
	}
}
