package convention

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The profiles are the columns of tables 4.1 to 4.3, the two that the text derives from them, and the releases that were run.
func TestProfilesAreThoseOfTheConventions(t *testing.T) {
	require.ElementsMatch(t, strings.Fields(`
		oai@2019 trl-ppo@1.9 verl-ppo@0.8 openrlhf-ppo@0.11 nemo-ppo@7ea279a cleanrl@020cf0e tinier-ppo@d3ec1cf ppo-gsm8k@1
		trl-grpo@1.9 trl-rloo@1.9 verl-grpo@0.8 openrlhf-group@0.11 open-instruct@e6c3044 nemo-grpo@7ea279a nanogpt-grpo@1da2900 grpo-mlm@1
		recrl@0ce4bed shielded@1 nplus@2023 liger-grpo@ead96b6
		trl-grpo@1.16 trl-rloo@1.16 trl-ppo@1.12 verl-ppo@0.9 verl-grpo@0.9`), namesOf(Profiles()))
}

// The former releases are those listed; they are printed and declared, and never searched.
func TestFormerProfiles(t *testing.T) {
	all := AllProfiles()
	current := len(Profiles())
	require.Equal(t, ProfileNames(), namesOf(all))
	require.Equal(t, strings.Fields(`
		trl-grpo@0.14 trl-grpo@0.16 trl-grpo@0.22 trl-grpo@0.27 trl-grpo@1.0
		verl-grpo@0.4 verl-grpo@0.4.1 verl-grpo@0.6 verl-ppo@0.4 verl-ppo@0.4.1 verl-ppo@0.6
		openrlhf-group@0.6 openrlhf-group@0.10 openrlhf-group@0.10.3 openrlhf-ppo@0.6 openrlhf-ppo@0.10 openrlhf-ppo@0.10.3`), namesOf(all[current:]))
	for _, p := range all {
		require.Equal(t, slices.Contains(all[current:], p), p.Former, p.Name)
	}
	for _, p := range all[current:] {
		executed := 0
		for _, s := range p.Settings() {
			if s.Evidence == Executed && s.Origin == p.Name {
				executed++
			}
		}
		require.Greater(t, executed, 10, "%s is pinned by what its release computes", p.Name)
		require.True(t, strings.HasPrefix(p.Notes[0], "run: "), p.Name)
		_, version, _ := strings.Cut(p.Name, "@")
		require.True(t, notNewer(version, p.Release) && strings.Count(p.Release, ".") == 2, p.Name)
		base := p
		for base.Base != "" {
			next, _, err := Lookup(base.Base)
			require.NoError(t, err)
			require.True(t, next.Former && next.Framework == p.Framework && next.Algorithm == p.Algorithm && notNewer(next.Release, base.Release), p.Name)
			require.NotEmpty(t, Diff(next, base), "%s changed nothing", base.Name)
			base = next
		}
	}
}

// namesOf are the names of profiles.
func namesOf(list []*Profile) (names []string) {
	for _, p := range list {
		names = append(names, p.Name)
	}
	return names
}

func TestProfilesAreComplete(t *testing.T) {
	for _, p := range Profiles() {
		require.NotEmpty(t, p.Framework, p.Name)
		require.NotEmpty(t, p.Release, p.Name)
		require.NotEmpty(t, p.Notes, p.Name)
		require.Len(t, p.Settings(), len(Options()), p.Name)
		executed := 0
		for i, s := range p.Settings() {
			require.Same(t, Options()[i], s.Option)
			if s.Value.Known() {
				v, err := s.Option.Parse(s.Value.String())
				require.NoError(t, err, "%s", p.Name)
				require.Equal(t, s.Value, v)
			}
			if len(s.Among) > 0 {
				require.Equal(t, Unknown, s.Value.Kind(), "%s %s", p.Name, s.Option.Name)
			}
			require.Contains(t, []string{p.Name, p.Base}, s.Origin, s.Option.Name)
			if s.Evidence == Executed {
				executed++
			}
		}
		ran := slices.ContainsFunc(p.Notes, func(n string) bool { return strings.HasPrefix(n, "run: ") })
		require.Equal(t, ran, executed > 0, "%s says what was run where something was", p.Name)
		if strings.HasSuffix(p.Name, "@0.9") || strings.HasSuffix(p.Name, "@1.16") || strings.HasSuffix(p.Name, "@0.11") || p.Name == "trl-ppo@1.12" {
			require.Greater(t, executed, 15, p.Name)
		}
	}
}

// What the algorithm needs is never declared inapplicable, what it does not have always is.
func TestProfilesFitTheirAlgorithm(t *testing.T) {
	for _, p := range Profiles() {
		has := func(option string) bool { return p.Value(option).Kind() != NotApplicable }
		for _, option := range []string{"adv.kind", "loss.kind", "agg.kind", "agg.denominator", "mask.tokens", "optim.kind"} {
			require.True(t, has(option), "%s %s", p.Name, option)
		}
		for _, option := range []string{"gae.gamma", "gae.lambda", "gae.hole", "returns.before_whiten", "value.factor", "value.clip", "value.mask", "whiten.scope"} {
			require.Equal(t, p.Algorithm == "ppo", has(option) && p.Algorithm != "shielded", "%s %s", p.Name, option)
		}
		for _, option := range []string{"adv.center", "adv.scale"} {
			require.Equal(t, p.Algorithm != "ppo", has(option), "%s %s", p.Name, option)
		}
		require.False(t, has("dpo.loss"), p.Name)
		require.Equal(t, p.Algorithm == "shielded", has("proj.target"), p.Name)
		if k := p.Value("kl.kind"); k.Known() {
			require.True(t, has("kl.place") && has("kl.beta"), p.Name)
		}
		if p.Value("agg.kind").Text() == "seq_mean_token_mean" {
			require.True(t, has("agg.empty_rows"), p.Name)
		}
	}
}

// facts were copied from the prose and the tables of sections 2 and 7, which say the same as section 4 in other places.
var facts = []struct{ profile, option, value, source string }{
	{"trl-ppo@1.9", "whiten.ddof", "1", "2.1 Bessel factor n/(n−1)"},
	{"trl-ppo@1.9", "whiten.scope", "local_batch", "2.1 per process, whole rollout batch"},
	{"trl-ppo@1.9", "whiten.single", "nan", "2.1 Σm=1 gives NaN"},
	{"verl-ppo@0.8", "mean.eps", "1e-8", "2.1 Σxm/(Σm+1e-8)"},
	{"verl-ppo@0.8", "mean.nan_outside", "ignore", "2.1 safe"},
	{"verl-ppo@0.8", "whiten.remask", "false", "2.1 masked cells are not zeroed"},
	{"openrlhf-ppo@0.11", "whiten.ddof", "0", "2.1"},
	{"openrlhf-ppo@0.11", "whiten.eps_place", "floor_var", "2.1 eps is a floor, not added"},
	{"open-instruct@e6c3044", "mean.empty", "zero", "2.1 0 if empty"},
	{"nemo-ppo@7ea279a", "whiten.single", "zero", "2.1 whitened 0 by accident"},
	{"oai@2019", "whiten.scope", "minibatch", "2.1 per minibatch, inside the loss"},
	{"cleanrl@020cf0e", "whiten.eps_place", "add_std", "2.1 (x-μ)/(std+1e-8)"},
	{"trl-ppo@1.9", "score.index", "eos_plus_1", "2.2 first PAD"},
	{"verl-ppo@0.8", "gae.hole", "carry", "2.2 carry-forward"},
	{"nemo-ppo@7ea279a", "gae.hole", "carry", "2.2 same algebra as verl"},
	{"openrlhf-ppo@0.11", "gae.hole", "zero_step", "2.2 one extra γλ step"},
	{"oai@2019", "score.index", "last_column", "2.2 column -1"},
	{"oai@2019", "rewards.whiten", "shift_mean_false", "2.2 shift_mean=False before GAE"},
	{"trl-rloo@1.9", "kl.place", "sequence_reward_before_baseline", "2.3 before the leave-one-out baseline"},
	{"verl-grpo@0.8", "kl.clamp_in", "20", "2.3 d to ±20"},
	{"verl-grpo@0.8", "kl.clamp_applies_to_k1", "false", "2.3 k1, k2 unclamped"},
	{"openrlhf-group@0.11", "kl.clamp_applies_to_k1", "true", "2.3 output ±10 for all"},
	{"open-instruct@e6c3044", "kl.clamp_in", "40", "2.3 d to ±40"},
	{"open-instruct@e6c3044", "kl.index_base", "zero", "2.3 zero-indexed list"},
	{"open-instruct@e6c3044", "kl.kind", "k3", "2.3 default 2"},
	{"nemo-grpo@7ea279a", "kl.grad", "score_function", "2.3 weighted by exp(lp - sg lp)"},
	{"oai@2019", "eos.rule", "replace", "2.4 score replaced"},
	{"oai@2019", "eos.penalty", "-1", "2.4 penalty_reward_value = -1"},
	{"trl-ppo@1.9", "eos.test", "eos_id", "2.4 tests eos_token_id"},
	{"openrlhf-ppo@0.11", "reward.clip_range", "-10,10", "2.4"},
	{"trl-grpo@1.9", "adv.eps", "1e-4", "2.5"},
	{"verl-grpo@0.8", "adv.eps", "1e-6", "2.5"},
	{"openrlhf-group@0.11", "adv.eps", "1e-9", "2.5"},
	{"open-instruct@e6c3044", "adv.ddof", "0", "2.5 (r-μ)/(σ₀+1e-8)"},
	{"nemo-grpo@7ea279a", "adv.scale", "loo_std", "2.5 σ over the others"},
	{"verl-grpo@0.8", "adv.singleton", "raw", "2.5 singleton: A=r/(1+1e-6)"},
	{"trl-rloo@1.9", "ratio.level", "seq_sum", "2.6 exp(Σlp-Σold)"},
	{"verl-ppo@0.8", "ratio.log_clamp", "20", "2.6"},
	{"nemo-grpo@7ea279a", "ratio.log_clamp", "none", "2.6 exp(lp-old)"},
	{"verl-ppo@0.8", "clip.dual", "3", "2.7 always on"},
	{"openrlhf-ppo@0.11", "clip.dual", "none", "2.7 dual_clip=None default"},
	{"open-instruct@e6c3044", "clip.high_is_absolute", "false", "2.7 min(ρ, 1+ε_high)"},
	{"liger-grpo@ead96b6", "clip.high_is_absolute", "true", "2.7 the absolute cap"},
	{"cleanrl@020cf0e", "metric.clip_frac", "outside", "2.7 sign-blind"},
	{"trl-ppo@1.9", "value.mask", "p1", "2.8 one token more than the policy mask"},
	{"verl-ppo@0.8", "value.clip", "0.5", "2.8"},
	{"cleanrl@020cf0e", "value.coef", "0.5", "2.8"},
	{"verl-ppo@0.8", "agg.div_batch", "false", "2.9 not ÷ B (until #5366)"},
	{"trl-grpo@1.9", "agg.empty_rows", "counted", "2.9 empty rows stay in the mean"},
	{"openrlhf-ppo@0.11", "agg.empty_rows", "excluded", "2.9"},
	{"trl-grpo@1.9", "tis.rule", "zero_outside", "2.10 default sequence_mask"},
	{"trl-grpo@1.9", "tis.high", "3", "2.10 clip_max 3.0"},
	{"verl-grpo@0.8", "tis.rule", "truncate_upper", "2.10 upper cap only (2.0)"},
	{"trl-ppo@1.9", "logp.temp_eps", "1e-7", "2.11 logits /= T+1e-7"},
	{"trl-ppo@1.9", "logp.source", "processed", "2.11 already warped"},
	{"openrlhf-ppo@0.11", "entropy.logits", "scaled", "models/actor.py of 0.11.2"},
	{"nemo-ppo@7ea279a", "entropy.logits", "monte_carlo", "2.11"},
	{"trl-ppo@1.9", "dropout", "off", "2.11 disables it in all four models"},
	{"trl-grpo@1.9", "dropout", "on", "2.11 disable_dropout=False by default"},
	{"oai@2019", "optim.eps", "1e-5", "2.12"},
	{"cleanrl@020cf0e", "optim.clip_norm", "0.5", "2.12"},
	{"cleanrl@020cf0e", "gae.gamma", "0.99", "2.14"},
	{"nemo-ppo@7ea279a", "clip.high", "0.28", "2.14 .2/.28, c=10"},
	{"open-instruct@e6c3044", "clip.high", "0.272", "2.14 .2/.272"},
	{"verl-ppo@0.9", "agg.div_batch", "true", "7 seq-mean-token-sum-norm divides by B"},
	{"verl-ppo@0.9", "whiten.single", "error", "7 raises at mask sum 0 or 1"},
	{"openrlhf-ppo@0.11", "kl.clamp_in_side", "below", "7 k3 bounds its input before exp"},
	{"openrlhf-group@0.11", "adv.singleton", "nan", "7 rloo and group_norm silently give NaN"},
	{"openrlhf-ppo@0.11", "mean.empty", "nan", "7"},
	{"trl-ppo@1.12", "mean.nan_outside", "propagate", "7 NaN outside it"},
	{"verl-grpo@0.9", "adv.singleton", "raw", "7 groups of one return r"},
	{"trl-grpo@1.16", "kl.grad", "is_corrected", "7.1 ∂/∂new = −r·x"},
	{"trl-grpo@1.16", "adv.ddof", "1", "7.1"},
	{"trl-grpo@1.16", "adv.eps", "1e-4", "7.1"},
	{"trl-grpo@1.16", "agg.empty_rows", "counted", "7.1 fully masked rows still count in B"},
	{"trl-grpo@1.16", "agg.denominator", "global", "7.1 num_items over the generation batch"},
	{"trl-grpo@1.16", "agg.div_batch", "true", "7.1 dr_grpo: B·max_completion_length"},
	{"trl-grpo@1.16", "agg.div_ga", "false", "7.1 dapo: no further division"},
	{"trl-grpo@1.16", "mean.nan_outside", "propagate", "7.1 0·NaN"},
	{"trl-grpo@1.16", "ratio.log_clamp", "none", "7.1 r = exp(new − old)"},
}

func TestFacts(t *testing.T) {
	for _, f := range facts {
		p, warning, err := Lookup(f.profile)
		require.NoError(t, err)
		require.Empty(t, warning)
		want, err := Parse(f.option, f.value)
		require.NoError(t, err)
		require.Equal(t, want, p.Value(f.option), "%s %s: %s", f.profile, f.option, f.source)
		require.True(t, p.Allows(f.option, want))
	}
}

// What neither the text nor a run decides is unknown, and what is one of several is known to be that.
func TestUndecided(t *testing.T) {
	for _, c := range []struct{ profile, option, text string }{
		{"verl-ppo@0.8", "kl.kind", "? (k1 or k3)"},
		{"verl-ppo@0.9", "agg.denominator", "? (micro or global)"},
		{"openrlhf-group@0.11", "kl.kind", "? (k1 or k2 or k3)"},
		{"trl-grpo@1.16", "ratio.old", "? (stored or stopgrad_new)"},
		{"open-instruct@e6c3044", "adv.singleton", "?"},
		{"openrlhf-ppo@0.11", "whiten.single", "?"},
		{"nplus@2023", "optim.kind", "? (adam or adam_tf1)"},
		{"oai@2019", "metric.clip_frac", "?"},
		{"trl-rloo@1.9", "adv.singleton", "?"},
		{"cleanrl@020cf0e", "kl.kind", "–"},
		{"verl-ppo@0.8", "value.coef", "–"},
	} {
		p, _, err := Lookup(c.profile)
		require.NoError(t, err)
		s, err := p.Setting(c.option)
		require.NoError(t, err)
		require.Equal(t, c.text, s.String(), "%s %s", c.profile, c.option)
		require.False(t, s.Value.Known())
	}
	p, _, _ := Lookup("verl-ppo@0.8")
	allows := func(option, text string) bool {
		v, err := Parse(option, text)
		require.NoError(t, err)
		return p.Allows(option, v)
	}
	require.True(t, allows("kl.kind", "k3"))
	require.False(t, allows("kl.kind", "k2"))
	require.True(t, allows("entropy.coef", "0.3"), "unknown without alternatives allows all")
	require.False(t, allows("adv.ddof", "1"), "not applicable allows nothing")
	require.True(t, allows("adv.ddof", "–"))
	_, err := p.Setting("adv.dof")
	require.ErrorContains(t, err, "adv.ddof")
	require.Panics(t, func() { p.Value("adv.dof") })
}

func TestInheritance(t *testing.T) {
	for _, p := range Profiles() {
		if p.Base == "" {
			for _, s := range p.Settings() {
				require.Equal(t, p.Name, s.Origin)
			}
			continue
		}
		base, _, err := Lookup(p.Base)
		require.NoError(t, err)
		own := 0
		for i, s := range p.Settings() {
			if s.Origin == p.Name {
				own++
				continue
			}
			require.Equal(t, base.Settings()[i], s)
		}
		require.Positive(t, own, p.Name)
		require.Less(t, own, len(Options()), p.Name)
	}
	// The releases differ from what was read in exactly these options.
	for name, want := range map[string]string{
		"verl-ppo@0.9":       "ratio.len_eps agg.div_batch agg.div_ga",
		"verl-grpo@0.9":      "ratio.len_eps agg.div_batch agg.div_ga",
		"trl-ppo@1.12":       "",
		"trl-grpo@1.16":      "mean.nan_outside adv.std_of adv.singleton adv.multi kl.grad",
		"trl-rloo@1.16":      "adv.std_of adv.ddof adv.eps adv.zero_std adv.singleton adv.multi agg.denominator agg.empty_rows",
		"nplus@2023":         "optim.kind",
		"liger-grpo@ead96b6": "",
	} {
		p, _, err := Lookup(name)
		require.NoError(t, err)
		base, _, err := Lookup(p.Base)
		require.NoError(t, err)
		var got []string
		for _, d := range Diff(base, p) {
			require.NotEqual(t, d.A.String(), d.B.String())
			got = append(got, d.A.Option.Name)
		}
		require.Equal(t, strings.Fields(want), append([]string{}, got...), name)
	}
}

func TestLookup(t *testing.T) {
	for _, c := range []struct{ name, want, warning, err string }{
		{"trl-grpo@1.16", "trl-grpo@1.16", "", ""},
		{"trl-grpo@1.16.0", "trl-grpo@1.16", "", ""},
		{"verl-ppo@v0.9.1", "verl-ppo@0.9", "", ""},
		{"trl-grpo@1.16.2", "trl-grpo@1.16", "there is no profile trl-grpo@1.16.2; taking trl-grpo@1.16, the nearest older one", ""},
		{"trl-grpo@2.0.0", "trl-grpo@1.16", "taking trl-grpo@1.16", ""},
		{"trl-grpo@1.15.3", "trl-grpo@1.9", "taking trl-grpo@1.9", ""},
		{"trl-grpo@1.16.0.dev0", "trl-grpo@1.9", "taking trl-grpo@1.9", ""},
		{"trl-grpo@1.9.0rc1", "trl-grpo@1.0", "taking trl-grpo@1.0", ""},
		{"trl-grpo@0.15.2", "trl-grpo@0.14", "there is no profile trl-grpo@0.15.2; taking trl-grpo@0.14, the nearest older one", ""},
		{"trl-grpo@0.14.0rc1", "", "", "none of an older version; there is trl-grpo@1.9, trl-grpo@1.16"},
		{"verl-ppo@0.10+cu128", "verl-ppo@0.9", "taking verl-ppo@0.9", ""},
		{"trl-grpo", "trl-grpo@1.16", "names no version; taking trl-grpo@1.16", ""},
		{"nemo-ppo@abcdef0", "", "", "there is nemo-ppo@7ea279a"},
		{"trl-grpo@", "", "", "there is trl-grpo@1.9"},
		{"trl-grop@1.16", "", "", `did you mean "trl-grpo@1.16"?`},
		{"", "", "", "did you mean"},
		{"trl-grpo@99999999999999999999", "", "", "there is trl-grpo@1.9"},
	} {
		p, warning, err := Lookup(c.name)
		if c.err != "" {
			require.ErrorContains(t, err, c.err, c.name)
			require.Nil(t, p)
			continue
		}
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, p.Name, c.name)
		require.Equal(t, c.warning == "", warning == "", "%s: %s", c.name, warning)
		require.Contains(t, warning, c.warning)
	}
}

// The nearest older version is one that is not newer, and no listed one lies between.
func TestLookupOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		major, minor := rapid.IntRange(0, 2).Draw(t, "major"), rapid.IntRange(0, 30).Draw(t, "minor")
		p, _, err := Lookup("trl-grpo@" + number(float64(major)) + "." + number(float64(minor)))
		switch at := 100*major + minor; {
		case at < 14:
			require.Error(t, err)
		case at < 16:
			require.Equal(t, "trl-grpo@0.14", p.Name)
		case at < 22:
			require.Equal(t, "trl-grpo@0.16", p.Name)
		case at < 27:
			require.Equal(t, "trl-grpo@0.22", p.Name)
		case at < 100:
			require.Equal(t, "trl-grpo@0.27", p.Name)
		case at < 109:
			require.Equal(t, "trl-grpo@1.0", p.Name)
		case at < 116:
			require.Equal(t, "trl-grpo@1.9", p.Name)
		default:
			require.Equal(t, "trl-grpo@1.16", p.Name)
		}
	})
}

// verl adds its KL loss after the aggregation of the policy loss, which rollout_is_weights multiply inside: ppo_loss of 0.9.1's
// workers/utils/losses.py has no option for anything else.
func TestVerlsKLIsOutsideTheWeights(t *testing.T) {
	for _, name := range []string{"verl-grpo@0.8", "verl-grpo@0.9", "verl-ppo@0.8", "verl-ppo@0.9"} {
		p, _, err := Lookup(name)
		require.NoError(t, err)
		require.Equal(t, "outside", FromProfile(p).Value("kl.under_is_weight").String(), name)
	}
}

func TestDiff(t *testing.T) {
	a, _, _ := Lookup("trl-grpo@1.16")
	b, _, _ := Lookup("verl-grpo@0.9")
	require.Empty(t, Diff(a, a))
	ab, ba := Diff(a, b), Diff(b, a)
	require.Len(t, ba, len(ab))
	var names []string
	for i, d := range ab {
		require.Equal(t, Difference{ba[i].B, ba[i].A}, d)
		names = append(names, d.A.Option.Name)
	}
	require.Contains(t, names, "adv.eps")
	require.NotContains(t, names, "adv.ddof")
	at := func(n string) int { return slices.Index(Names(), n) }
	require.True(t, slices.IsSortedFunc(names, func(x, y string) int { return at(x) - at(y) }))
}

// A fault planted in a table is refused, with the file, the line and the reason.
func TestWrongTablesAreRefused(t *testing.T) {
	plant := func(old, new string) error {
		require.Contains(t, groupTable, old)
		_, err := build(described(), []table{{"ppo.txt", ppoTable}, {"group.txt", strings.Replace(groupTable, old, new, 1)},
			{"systems.txt", systemsTable}, {"derived.txt", derivedTable}})
		return err
	}
	require.NoError(t, plant("adv.kind", "adv.kind"))
	line := func(what string) string {
		before, _, _ := strings.Cut(groupTable, what)
		return "group.txt:" + number(float64(strings.Count(before, "\n")+1)) + ":"
	}
	for _, c := range []struct{ old, new, want string }{
		{"\nloss.kind                ppo", "\nloss.kind                pop", "want ppo, reinforce"},
		{"\nadv.ddof                 1 ", "\nadv.ddof                 2 ", "want 0, 1"},
		{"\nadv.ddof                 1 ", "\nadv.dof                  1 ", `did you mean "adv.ddof"?`},
		{"\nadv.ddof                 1 ", "\nadv.ddof                 1 1 ", "9 values for 8 profiles"},
		{"\nadv.ddof                 1 ", "\nadv.ddof                 . ", "want 0, 1"},
		{"\nadv.ddof                 1 ", "\nadv.ddof                 !? ", "executed, and yet"},
		{"\nadv.ddof                 1 ", "\nadv.ddof                 ?1 ", "is one alternative"},
		{"\nadv.ddof                 1 ", "\nadv.ddof                 ?1|7 ", "want 0, 1"},
		{"\nadv.ddof                 1 ", "\nadv.ddof                 ?1|– ", "among alternatives"},
	} {
		require.ErrorContains(t, plant(c.old, c.new), c.want)
		require.ErrorContains(t, plant(c.old, c.new), line(c.old[1:]))
	}
	require.ErrorContains(t, plant("\nadv.kind                 group", "\nadv.center               mean"), "adv.center of trl-grpo@1.9 is set twice")
	require.ErrorContains(t, plant("\nrfpp.mode                –", ""), "trl-grpo@1.9 says nothing of rfpp.mode")
	require.ErrorContains(t, plant("nemo-grpo@7ea279a", "nemo-grpo@7ea279b"), "profile nemo-grpo@7ea279b is not described")

	_, err := build(former(), []table{{"former.txt", strings.Replace(formerTable, "\nagg.div_ga               true", "\nagg.div_ga               ", 1)}})
	require.ErrorContains(t, err, "former.txt:")
	list := described()
	list[1].Base = "oai@2018"
	_, err = build(list, []table{{"ppo.txt", ppoTable}, {"group.txt", groupTable}, {"systems.txt", systemsTable}, {"derived.txt", derivedTable}})
	require.ErrorContains(t, err, `did you mean "oai@2019"?`)
	list = append(described(), &Profile{Name: "oai@2019"})
	_, err = build(list, nil)
	require.ErrorContains(t, err, "described twice")
}

// What a caller does to a result reaches nobody else.
func TestResultsAreCopies(t *testing.T) {
	Profiles()[0] = nil
	Names()[0] = ""
	p := Profiles()[0]
	p.Settings()[0] = Setting{}
	require.Equal(t, "oai@2019", p.Name)
	require.NotNil(t, p.Settings()[0].Option)
	require.NotEmpty(t, Names()[0])
}

func TestNamed(t *testing.T) {
	for _, p := range Profiles() {
		require.True(t, Named(p.Name))
		family, _, _ := strings.Cut(p.Name, "@")
		require.False(t, Named(family), "Lookup takes it for the newest of the family")
	}
	require.False(t, Named("search"))
}

// verl's reward managers put the score of a response at its last token whatever the estimator is (reward_manager/naive.py: valid_response_length − 1).
func TestScoresOfVerl(t *testing.T) {
	for _, name := range []string{"verl-ppo@0.9", "verl-grpo@0.9", "verl-grpo@0.8"} {
		p, _, err := Lookup(name)
		require.NoError(t, err)
		require.Equal(t, "last_response", p.Value("score.index").String(), name)
	}
}
