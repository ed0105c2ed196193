package convention

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNativeMeanings(t *testing.T) {
	all := NativeMeanings("loss_agg_mode")
	require.NotEmpty(t, all)
	found := false
	for _, m := range all {
		if strings.HasPrefix(m.Table, "verl") {
			found = true
			require.Equal(t, "actor_rollout_ref.actor.loss_agg_mode", m.Name)
			require.Contains(t, m.Values, [2]string{"token-mean", "agg.kind=token, where loss_mode is not sapo"})
		}
	}
	require.True(t, found)
	require.Empty(t, NativeMeanings("num_generations"), "a fact of any run")
	require.Empty(t, NativeMeanings("no_such_name"))
	for _, table := range natives() {
		for _, name := range table.names {
			for _, m := range NativeMeanings(name) {
				require.NotEmpty(t, m.Values, "%s: %s", m.Table, name)
			}
		}
	}
}
