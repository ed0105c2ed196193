package convention

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAssign(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"clip.low", "0.1", "clip.low=0.1 |"},
		{"num_mini_batches", "3", "| num_mini_batches=3"},
		{"eos_token_id", "[1, 2]", "| eos_token_id=1,2"},
		{"align", "response_only", "align=response_only |"},
	} {
		set, err := Assign(c.name, c.text, "--set")
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, strings.TrimSpace(valuesOf(set)+" | "+factsOf(set)))
	}
	for _, c := range []struct{ name, text, want string }{
		{"num_minibatches", "3", `no option "num_minibatches"; did you mean "num_mini_batches"?`},
		{"clip.lo", "3", `did you mean "clip.low"?`},
		{"num_mini_batches", "many", "want a whole number"},
		{"eos_token_id", "[1", `eos_token_id: "[1" is no value`},
		{"epsilon_high", "0.2", "epsilon_high is no option but a name of trl-grpo; --config reads"},
		{"scalars_scope", "micro_batch", "scalars_scope is said in the metadata of the files"},
		{"seed", "1", "no option"},
	} {
		_, err := Assign(c.name, c.text, "--set")
		require.ErrorContains(t, err, c.want, c.name)
	}
}
