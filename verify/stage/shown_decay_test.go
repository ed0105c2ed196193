package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// Returns tell γ and λ, and the coefficient of the KL in the rewards, where rewards were not dumped; those of another recursion tell nothing.
func TestDecaysWithoutRewards(t *testing.T) {
	lean := func(beta float64, recurse func(r, v []float64) []float64) *dump.Batch {
		b := ppoBatch(3, rewardsOf(beta, 0), recurse)
		old, ref := make([]float64, len(b.Mask)), make([]float64, len(b.Mask))
		for i, k := range b.Token("kl") {
			old[i], ref[i] = -2, -2-k
		}
		b = b.Without("raw").Without("token_rewards").Without("kl")
		for name, x := range map[string][]float64{"logp_old": old, "logp_ref": ref} {
			b.Tensors[name] = &dump.Tensor{Data: x, Layout: dump.PerToken, Type: format.F32, Shape: []int{b.Rows, b.Cols}}
		}
		return b
	}
	for _, c := range []struct {
		beta float64
		want map[string]string
	}{
		{0.03, map[string]string{"gae.gamma": "0.967", "gae.lambda": "0.913", "kl.place": "token_reward", "kl.kind": "k1", "kl.beta": "0.03", "kl.clamp_in": "none", "kl.clamp_out": "none"}},
		{0, map[string]string{"gae.gamma": "0.967", "gae.lambda": "0.913", "kl.place": "loss", "returns.before_whiten": "true"}},
	} {
		shown := Shown(Find("gae/returns"), lean(c.beta, gaeOf(0.967, 0.913)), &convention.Set{})
		require.NotEmpty(t, shown)
		require.Equal(t, c.want, texts(shown[0]))
	}
	require.Empty(t, decaysAlone(lean(0.03, func(r, v []float64) []float64 {
		a := gaeOf(0.967, 0.913)(r, v)
		for i := range a {
			a[i] *= 1 + 0.2*float64(i%3)
		}
		return a
	})))
}
