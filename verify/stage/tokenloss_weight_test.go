package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// Two options say whether importance weights multiply the KL: what a run declares by one is not overruled by what a search tries of the other. Of a
// profile, which has both, a search changes the one that it takes.
func TestWeightsOnTheKLAreDeclared(t *testing.T) {
	parse := func(option, text string) convention.Value {
		v, err := convention.Parse(option, text)
		require.NoError(t, err)
		return v
	}
	under := func(origin, where, originOther string) bool {
		set := (&convention.Set{}).With("tis.applies_to_kl", parse("tis.applies_to_kl", "false"), origin)
		if where != "" {
			set = set.With("kl.under_is_weight", parse("kl.under_is_weight", where), originOther)
		}
		return NewCase(&dump.Batch{}, set, 0).underWeight()
	}
	require.False(t, under("dump", "", ""))
	require.False(t, under("dump", "inside", "search"))
	require.True(t, under("dump", "inside", "dump"))
	require.True(t, under("trl-grpo@1.16", "inside", "search"))
}
