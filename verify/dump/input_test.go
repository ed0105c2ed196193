package dump

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	format "plumbline/internal/format/dump"
)

// The words that a loop has for its tensors lead to the names that are read: those of CleanRL's ppo.py, flattened and not.
func TestMeantByOtherWords(t *testing.T) {
	names := format.TensorNames()
	for word, want := range map[string]string{"b_logprobs": "logp_old", "b_values": "values", "b_returns": "returns", "b_advantages": "advantages", "mb_advantages": "advantages",
		"newlogprob": "logp_new", "newvalue": "values_new", "next_value": "next_values", "nextvalues": "next_values", "next_done": "dones", "v_loss": "value_loss",
		"pg_loss": "pg_loss", "b_obs": "", "b_actions": "", "ratio": ""} {
		require.Equal(t, want, meant(word, names, otherWords), word)
	}
	for word, of := range otherWords {
		if of != "scores or token_rewards" {
			require.True(t, slices.Contains(names, of), "%s: %s", word, of)
		}
	}
}
