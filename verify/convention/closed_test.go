package convention

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What a release can be configured to do is possible, whatever its default; what it has no option for is not.
func TestPossible(t *testing.T) {
	for _, c := range []struct {
		profile, option, value string
		want                   bool
	}{
		{"trl-grpo@1.16", "agg.kind", "token", true},           // loss_type dapo
		{"trl-grpo@1.16", "agg.kind", "seq_sum_const", true},   // dr_grpo
		{"trl-grpo@1.16", "adv.kind", "batch_baseline", false}, // of no GRPOConfig
		{"trl-grpo@1.16", "adv.ddof", "0", false},
		{"trl-grpo@1.16", "kl.beta", "0.123", true}, // any number of the configuration
		{"trl-grpo@1.16", "mask.tokens", "none", false},
		{"trl-ppo@1.12", "adv.kind", "group", false},
		{"verl-ppo@0.9", "kl.kind", "k3", true},
		{"cleanrl@020cf0e", "mean.eps", "0.5", false},
	} {
		p, _, err := Lookup(c.profile)
		require.NoError(t, err)
		o, err := Find(c.option)
		require.NoError(t, err)
		v, err := o.Parse(c.value)
		require.NoError(t, err)
		require.Equal(t, c.want, p.Possible(c.option, v), "%s %s=%s", c.profile, c.option, c.value)
		require.Equal(t, c.want, p.Configurable(c.option, v), "%s %s=%s: of the release itself", c.profile, c.option, c.value)
	}
}

// Every value of every profile is possible under it, and under the other releases of its algorithm.
func TestOwnValuesArePossible(t *testing.T) {
	for _, p := range Profiles() {
		for _, s := range p.Settings() {
			require.True(t, p.Possible(s.Option.Name, s.Value), "%s %s", p.Name, s.Option.Name)
		}
		require.Equal(t, p, FromProfile(p).Profile())
	}
	require.Nil(t, (&Set{}).Profile())
}
