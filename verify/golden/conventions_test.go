package golden

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/convention"
)

// A value that stands wrong in a profile or in a table of native names makes numbers that no framework had: each of these is put in
// the place of the right one, as a wrong line would put it, and an entry of the section must fail.
func TestWrongTableFails(t *testing.T) {
	s := embedded(t)
	for _, p := range []struct{ section, option, value string }{
		{"masked_stats", "mean.eps", "0"}, {"masked_stats", "whiten.ddof", "0"}, {"masked_stats", "whiten.eps_place", "floor_var"},
		{"gae", "gae.hole", "zero_step"}, {"gae", "returns.remask", "false"}, {"gae", "rewards.whiten", "no"}, {"gae", "eos.rule", "replace"},
		{"group_advantages", "adv.center", "loo"}, {"group_advantages", "adv.ddof", "0"}, {"group_advantages", "adv.singleton", "raw"},
		{"group_advantages", "adv.std_of", "rewards"}, {"kl", "kl.kind", "k2"}, {"kl", "kl.clamp_out", "none"}, {"kl", "kl.grad", "naive"},
		{"policy_loss", "loss.kind", "ppo"}, {"policy_loss", "ratio.log_clamp", "none"}, {"policy_loss", "tis.rule", "clamp"},
		{"policy_loss", "clip.dual", "none"}, {"policy_loss", "clip.high_is_absolute", "true"}, {"policy_loss", "agg.kind", "token"},
		{"policy_loss", "agg.len_eps", "0"}, {"value_loss", "value.factor", "1"}, {"value_loss", "value.clip", "none"},
	} {
		wrong, err := convention.Parse(p.option, p.value)
		require.NoError(t, err)
		require.True(t, bentFails(t, s, p.section, p.option, wrong), "%s: %s=%s", p.section, p.option, p.value)
	}
}

// bentFails reports whether an entry of a section fails where an option that has another value gets this one.
func bentFails(t *testing.T, s *Set, name, option string, wrong convention.Value) bool {
	var of *section
	for _, x := range sections {
		if x.name == name {
			of = x
		}
	}
	for _, e := range s.Sections[name].Entries {
		bent, b := false, *e
		b.bend = func(set *convention.Set) *convention.Set {
			if v := set.Value(option); !v.Known() || v == wrong {
				return set
			}
			bent = true
			return set.With(option, wrong, "planted")
		}
		o, err := judge(&b, of.functions[e.Peer+" "+e.Function])
		require.NoError(t, err)
		if require.True(t, bent || o.failed == 0); o.failed > 0 {
			return true
		}
	}
	return false
}
