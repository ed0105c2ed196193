package convention

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The words are those of the release's own configuration class, and read back they set the option.
func TestNativeWords(t *testing.T) {
	for _, c := range []struct{ framework, option, value, want string }{
		{"trl grpo", "agg.kind", "seq_sum_const", `loss_type="dr_grpo"`},
		{"trl grpo", "kl.beta", "0.04", `beta=0.04`},
		{"verl", "agg.kind", "seq_mean_token_mean", `loss_agg_mode="seq-mean-token-mean"`},
	} {
		v, err := Parse(c.option, c.value)
		require.NoError(t, err)
		words := NativeWords(c.framework, c.option, v)
		require.NotEmpty(t, words, c.option)
		require.Equal(t, c.want, words[0])
	}
	v, err := Parse("adv.ddof", "0")
	require.NoError(t, err)
	require.Empty(t, NativeWords("trl grpo", "adv.ddof", v), "no setting of TRL does that")
}
