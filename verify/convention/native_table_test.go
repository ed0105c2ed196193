package convention

import (
	"embed"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

//go:embed testdata/native
var nativeNames embed.FS

// names reads a list of the names of a configuration class.
func names(t *testing.T, table string) []string {
	data, err := nativeNames.ReadFile("testdata/native/" + table + ".txt")
	require.NoError(t, err)
	var all []string
	prefix := ""
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		if under, ok := strings.CutPrefix(line, "under "); ok {
			prefix = strings.TrimSpace(under) + "."
			continue
		}
		for _, name := range strings.Fields(line) {
			all = append(all, prefix+name)
		}
	}
	return all
}

// Every name of the configuration classes, as they were read off the pinned releases, is in the tables, and the tables know
// no name beyond those, but for what hooks add, what the scripts around the classes take, and subtrees.
func TestNativeNamesAreThoseOfTheReleases(t *testing.T) {
	beyond := strings.Fields("advantage_eps config env reward_model_path dataset_num_proc reward_model_name_or_path" +
		" use_rollout_log_probs ppo_infer_micro_batch_size_per_gpu ppo_infer_max_token_len_per_gpu limit_images gdpo_reward_keys gdpo_reward_weights betas" +
		" logger defaults model_engine data_source save_contents")
	for _, table := range slices.Concat(natives(), nativesByAlgorithm()) {
		theirs := names(t, table.name)
		require.Greater(t, len(theirs), 150, table.name)
		known := map[string]bool{}
		for _, name := range theirs {
			full, ok := table.find(name)
			require.True(t, ok, "%s does not know %s", table.name, name)
			require.True(t, full == name || strings.HasSuffix(full, ".*"), "%s: %s is read as %s", table.name, name, full)
			known[name] = true
		}
		for _, name := range table.names {
			last := name[strings.LastIndex(name, ".")+1:]
			if last != "*" && nativeShared().rules[name] == nil && !slices.Contains(beyond, last) {
				require.True(t, known[name], "%s knows %s, which the release does not have", table.name, name)
			}
		}
	}
}

// Every value that a table accepts as a word gives values that the options have, and what classes of numbers give is legal
// for one of a few numbers.
func TestNativeTablesAreLegal(t *testing.T) {
	for _, table := range slices.Concat(natives(), nativesByName(), nativesByAlgorithm()) {
		for _, name := range table.names {
			require.NotEmpty(t, table.rules[name], name)
			for _, r := range table.rules[name] {
				for _, e := range r.effects {
					if e.what != setsOption {
						continue
					}
					o, err := Find(e.target)
					require.NoError(t, err, "%s: %s", table.name, name)
					switch {
					case strings.Contains(e.text, "@"):
						what, other, _ := strings.Cut(e.text, "@")
						require.Contains(t, table.rules, other)
						if what == "" {
							continue
						}
						values := [2]any{[]any{"sigmoid", "robust", "sft"}, []any{1., .5, .2}}
						if what == "$smoothing" {
							values = [2]any{.1, values[0]}
						}
						text, err := sumEffect(what, values[0], values[1])
						require.NoError(t, err, e.text)
						_, err = o.Parse(text)
						require.NoError(t, err, e.text)
					case strings.HasPrefix(e.text, "$"), e.text == "1-$":
						for _, p := range r.pattern {
							texts := []string{p}
							if isClass(p) {
								texts = []string{"2", "0.5", "-1", "-1,1", "true"}
							}
							require.True(t, slices.ContainsFunc(texts, func(s string) bool { _, err := o.Parse(s); return err == nil }), "%s: %s=%s sets %s", table.name, name, p, e.target)
						}
					default:
						v, err := o.Parse(e.text)
						require.NoError(t, err, "%s: %s", table.name, name)
						require.True(t, v.Known())
					}
				}
				if slices.Contains(r.pattern, "absent") {
					require.Len(t, r.pattern, 1)
					require.True(t, strings.HasPrefix(r.effects[0].text, "@"), "%s: %s", table.name, name)
				}
			}
		}
		for _, fact := range FactNames() { // under TRL's names, whatever the framework
			full, ok := table.find(fact)
			require.True(t, ok, "%s does not know the fact %s", table.name, fact)
			require.True(t, slices.ContainsFunc(table.rules[full], func(r nativeRule) bool {
				return slices.ContainsFunc(r.effects, func(e nativeEffect) bool { return e.what == keepsFact && e.target == fact })
			}), "%s keeps %s under another name", table.name, fact)
		}
		for form := range table.short { // a name that is an option means that option
			if _, isOption := index().at[form]; isOption && form != "align" {
				r := table.rules[table.short[form]][0]
				require.True(t, slices.ContainsFunc(r.effects, func(e nativeEffect) bool { return e.target == form && e.text == "$" }), "%s: %s", table.name, form)
			}
		}
	}
}

// The defaults of the pinned releases, restated, mean what the profiles say that the releases do. Where they do not, the
// profile has a value that only other settings bring about.
func TestNativeDefaultsAgreeWithProfiles(t *testing.T) {
	for _, c := range []struct{ table, profile, defaults, but string }{
		{"trl-grpo", "trl-grpo@1.16", `{"learning_rate":1e-6,"disable_dropout":false,"num_generations":8,"max_completion_length":512,"temperature":1.0,"use_vllm":false,"beta":0.0,
			"num_iterations":1,"epsilon":0.2,"delta":null,"epsilon_high":null,"sapo_temperature_neg":1.05,"sapo_temperature_pos":1.0,"importance_sampling_level":"token",
			"multi_objective_aggregation":"sum_then_normalize","scale_rewards":"group","loss_type":"dapo","top_entropy_quantile":1.0,"entropy_coef":0.0,"use_adaptive_entropy":false,
			"vllm_importance_sampling_correction":true,"vllm_importance_sampling_mode":"sequence_mask","vllm_importance_sampling_clip_max":3.0,"vllm_importance_sampling_clip_min":null,
			"use_bias_correction_kl":true,"max_grad_norm":1.0}`, "tis.level "},
		{"trl-grpo", "trl-grpo@1.16", `{"use_vllm":true,"vllm_importance_sampling_correction":true,"vllm_importance_sampling_mode":"sequence_mask","vllm_importance_sampling_clip_max":3.0}`, ""},
		{"trl-rloo", "trl-rloo@1.16", `{"learning_rate":1e-6,"disable_dropout":false,"temperature":1.0,"beta":0.05,"num_iterations":1,"epsilon":0.2,"epsilon_high":null,
			"normalize_advantages":false,"reward_clip_range":null}`, "reward.clip "},
		{"trl-rloo", "trl-rloo@1.16", `{"reward_clip_range":[-3,3]}`, ""},
		{"trl-ppo", "trl-ppo@1.12", `{"learning_rate":3e-6,"num_mini_batches":1,"response_length":53,"temperature":0.7,"missing_eos_penalty":null,"num_ppo_epochs":4,"whiten_rewards":false,
			"kl_coef":0.05,"kl_estimator":"k1","cliprange":0.2,"vf_coef":0.1,"cliprange_value":0.2,"gamma":1.0,"lam":0.95,"max_grad_norm":1.0}`, ""},
		{"verl", "verl-ppo@0.9", `{"algorithm":{"gamma":1.0,"lam":1.0,"adv_estimator":"gae","norm_adv_by_std_in_grpo":true,"use_kl_in_reward":false,"kl_penalty":"kl","kl_ctrl":{"type":"fixed","kl_coef":0.001},
			"rollout_correction":{"rollout_is":null,"rollout_is_threshold":2.0,"rollout_rs":null,"bypass_mode":false,"loss_type":"ppo_clip","rollout_is_batch_normalize":false}},
			"actor_rollout_ref":{"actor":{"clip_ratio":0.2,"clip_ratio_low":0.2,"clip_ratio_high":0.2,"tau_pos":1.0,"tau_neg":1.05,"policy_loss":{"loss_mode":"vanilla","clip_cov_lb":1.0,
			"clip_cov_ub":5.0,"ppo_kl_coef":0.1,"dro_beta":null},"clip_ratio_c":3.0,"loss_agg_mode":"token-mean","loss_scale_factor":null,"entropy_coeff":0,"use_kl_loss":false,
			"kl_loss_coef":0.001,"kl_loss_type":"low_var_kl","ppo_epochs":1,"optim":{"lr":1e-6,"clip_grad":1.0}},"rollout":{"temperature":1.0,"n":1,"logprobs_mode":"processed_logprobs"}},
			"critic":{"cliprange_value":0.5,"loss_agg_mode":"token-mean"}}`, "kl.beta "},
		{"verl", "verl-grpo@0.9", `{"adv_estimator":"grpo","norm_adv_by_std_in_grpo":true,"use_kl_loss":true,"kl_loss_coef":0.001,"kl_loss_type":"low_var_kl","clip_ratio_c":3.0,"loss_agg_mode":"token-mean"}`, ""},
		{"openrlhf", "openrlhf-ppo@0.11", `{"algo.advantage.estimator":"gae","algo.advantage.lambd":1,"algo.advantage.gamma":1,"algo.advantage.is_correction_level":"off","algo.advantage.is_correction_mode":"mask",
			"algo.advantage.is_correction_gating":"ratio","algo.advantage.is_correction_threshold":[0.5,5.0],"algo.advantage.no_std_norm":false,"actor.eps_clip":0.2,"actor.eps_clip_low_high":null,
			"actor.dual_clip":null,"critic.value_clip":0.5,"actor.policy_loss_type":"ppo","actor.loss_agg_mode":"token-mean","algo.kl.estimator":"k1","algo.kl.init_coef":0.01,"algo.kl.target":null,
			"algo.kl.use_loss":false,"algo.kl.unbiased_gradient":false,"actor.entropy_coef":null,"actor.aux_loss_coef":0,"reward.clip_range":[-10,10],"reward.stop_properly_penalty_coef":null,
			"rollout.temperature":1.0,"train.max_epochs":1,"actor.max_norm":1.0}`, ""},
		{"openrlhf", "openrlhf-group@0.11", `{"algo.advantage.estimator":"group_norm","algo.kl.use_loss":true,"algo.kl.estimator":"k3","algo.kl.init_coef":0.01,"algo.kl.unbiased_gradient":false}`, ""},
	} {
		p, _, err := Lookup(c.profile)
		require.NoError(t, err)
		d := declare(t, c.table, c.defaults)
		require.NotEmpty(t, d.Set.Names())
		require.Equal(t, c.but, contradicted(p, d.Set), "%s against %s", c.table, c.profile)
		require.Empty(t, d.Unknown, c.table)
		require.Empty(t, d.Beyond, c.table)
		require.Empty(t, d.Overrides, c.table)
	}
}

func TestKnownNative(t *testing.T) {
	grpo := KnownNative("trl-grpo")
	require.Equal(t, "loss_type", grpo[0])
	require.Contains(t, grpo, "gradient_accumulation_steps")
	require.NotContains(t, grpo, "cliprange_value")
	require.Contains(t, KnownNative("trl"), "cliprange_value")
	require.Contains(t, KnownNative(""), "actor.eps_clip")
	require.NotContains(t, KnownNative("nemo-rl"), "beta")
	require.Contains(t, FactNames(), "num_items_in_batch")
	require.NotContains(t, FactNames(), "seed")
}

func TestReadNativeRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"table t t 1\nbeta number kl.betta=$":                         "t, line 2: no option \"kl.betta\"",
		"table t t 1\nbeta 0 kl.kind=k9":                              "is no legal value",
		"table t t 1\nbeta number":                                    "is no name, pattern and effect",
		"table t t 1\nbeta number kl.beta=$ if":                       "want one word after if",
		"table t t 1\nbeta number kl.beta=$ if x":                     "has no =",
		"table t t 1\nbeta number kl.beta=$ if gamma=true":            "there is no name gamma",
		"table t t 1\nbeta number kl.beta=@gamma":                     "there is no name gamma",
		"table t t 1\nbeta number beyond=kl":                          "a note belongs to beyond",
		"table t t 1\nbeta number beyond | why":                       "want stages",
		"table t t 1\nbeta number kl.beta=$ | why":                    "a note belongs to beyond",
		"table t t 1\nalias a b":                                      "alias of a name that is not there",
		"table t t 1\nunder a\nx any ignored\nunder\nalias y b.x":     "alias of a name",
		"table t t 1\nunder a.b\nx any fact\ny any ignored if c.x=1":  "there is no name c.x",
		"table t t 1\nunder a.b\nx any fact\ny any ignored if b.x=1#": "",
	} {
		_, err := readNative(text)
		if want == "" {
			require.NoError(t, err, text)
			continue
		}
		require.ErrorContains(t, err, want, text)
	}
}

// The later line of a table speaks last, whatever the order of its names and of the declaration.
func TestLaterLinesSpeakLast(t *testing.T) {
	table, err := readNative("table test none 1\nfirst true kl.beta=1\nsecond true kl.beta=2\nfirst false kl.beta=3\n")
	require.NoError(t, err)
	for _, declared := range [][]NameValue{{{"first", false}, {"second", true}}, {{"second", true}, {"first", false}}} {
		r, err := table.translate(declared, "test")
		require.NoError(t, err)
		require.Equal(t, "kl.beta=3", valuesOf(r.set))
	}
	r, err := table.translate([]NameValue{{"first", true}, {"second", true}}, "test")
	require.NoError(t, err)
	require.Equal(t, "kl.beta=2", valuesOf(r.set))
}
