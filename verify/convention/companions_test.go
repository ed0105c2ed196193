package convention

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// An estimator that is declared by the option's name has the whitening that the framework's own name for it sets, and a scope that is declared alone that
// of the names that whiten over it; of a framework without such a name the rest of the whitening is unknown, not inapplicable.
func TestCompanions(t *testing.T) {
	for _, c := range []struct{ profile, framework, option, value, scope, ddof, place string }{
		{"verl-grpo@0.9", "verl grpo", "adv.kind", "rfpp_baseline", "global", "1", "inside_sqrt"},
		{"openrlhf-group@0.11", "openrlhf grpo", "adv.kind", "rfpp_baseline", "global", "0", "floor_var"},
		{"nemo-grpo@7ea279a", "nemo-rl grpo", "adv.kind", "rfpp", "?", "?", "?"},
		{"verl-grpo@0.9", "verl grpo", "whiten.scope", "global", "global", "1", "inside_sqrt"},
		{"openrlhf-group@0.11", "openrlhf grpo", "whiten.scope", "global", "global", "0", "floor_var"},
		{"nemo-grpo@7ea279a", "nemo-rl grpo", "whiten.scope", "global", "global", "?", "?"},
		{"verl-grpo@0.9", "verl grpo", "adv.kind", "opo", "–", "–", "–"},
		{"verl-grpo@0.9", "verl grpo", "whiten.scope", "none", "none", "–", "–"},
	} {
		t.Run(c.profile+" "+c.option+"="+c.value, func(t *testing.T) {
			p, _, err := Lookup(c.profile)
			require.NoError(t, err)
			o, err := Find(c.option)
			require.NoError(t, err)
			v, err := o.Parse(c.value)
			require.NoError(t, err)
			s := FromProfile(p)
			require.Equal(t, s, s.WithCompanions(c.framework, p.Name), "nothing is declared")
			s = s.With(c.option, v, "the dump").WithCompanions(c.framework, p.Name)
			require.Equal(t, []string{c.scope, c.ddof, c.place}, []string{s.Value("whiten.scope").String(), s.Value("whiten.ddof").String(), s.Value("whiten.eps_place").String()})
		})
	}
}
