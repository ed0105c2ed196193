package convention

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// options reads a JSON object of options in its order.
func options(t require.TestingT, text string) []NameValue {
	dec := json.NewDecoder(strings.NewReader(text))
	_, err := dec.Token()
	require.NoError(t, err, text)
	var list []NameValue
	for dec.More() {
		name, err := dec.Token()
		require.NoError(t, err, text)
		var v any
		require.NoError(t, dec.Decode(&v), text)
		list = append(list, NameValue{name.(string), v})
	}
	return list
}

func declare(t require.TestingT, framework, text string) *Declared {
	d, err := Declare(framework, "", options(t, text), "")
	require.NoError(t, err, text)
	return d
}

// valuesOf are the options of a set, as "a=1 b=2".
func valuesOf(s *Set) string {
	var all []string
	for _, name := range s.Names() {
		all = append(all, name+"="+s.Value(name).String())
	}
	return strings.Join(all, " ")
}

// factsOf are those of a set, in the same form.
func factsOf(s *Set) string {
	var all []string
	for _, name := range s.Facts() {
		v, _ := s.Fact(name)
		all = append(all, name+"="+showValue(v))
	}
	return strings.Join(all, " ")
}

// sorted puts words in order, so that a test need not follow that of Options.
func sorted(text string) string {
	words := strings.Fields(text)
	slices.Sort(words)
	return strings.Join(words, " ")
}

// What a hook in TRL 1.16.0 wrote into the metadata of real dumps, restated.
const trlMetadata = `{"loss_type": "%s", "num_generations": 4, "beta": 0.04, "epsilon": 0.2, "epsilon_high": 0.28, "temperature": 0.9, "top_p": 1.0,
	"top_k": 0, "min_p": null, "scale_rewards": "group", "gradient_accumulation_steps": 2, "num_iterations": 2, "max_completion_length": 40,
	"importance_sampling_level": "token", "mask_truncated_completions": false, "per_device_train_batch_size": 4, "steps_per_generation": 2,
	"generation_batch_size": 8, "reward_weights": [1.0, 0.5], "multi_objective_aggregation": "sum_then_normalize", "max_grad_norm": 1.0,
	"learning_rate": 0.001, "delta": null, "use_bias_correction_kl": true, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": null,
	"entropy_coef": 0.0, "seed": 78, "reward_funcs": ["reward_correct", "reward_brevity"], "advantage_eps": 0.0001, "dtype": "float32",
	"padding_side_prompt": "left", "eos_token_id": [2], "pad_token_id": 2, "token_loss_includes_kl": true, "scalars_scope": "optimizer_step",
	"masked_fill": 0.0, "peft": "lora r=8 alpha=32 q_proj,v_proj", "num_items_in_batch": 159.0}`

func TestDeclareRealTRLMetadata(t *testing.T) {
	for loss, agg := range map[string]string{
		"dapo": "agg.kind=token agg.denominator=global agg.div_ga=false",
		"grpo": "agg.kind=seq_mean_token_mean agg.denominator=micro agg.empty_rows=counted agg.len_eps=0 agg.div_ga=true",
	} {
		d, err := Declare("trl", "1.16.0", options(t, fmt.Sprintf(trlMetadata, loss)), "step_1.safetensors")
		require.NoError(t, err)
		require.Equal(t, "trl-grpo 1.16.0", d.Table)
		require.Equal(t, sorted(`adv.scale=group_std adv.eps=1e-4 adv.multi=sum_then_normalize kl.beta=0.04 kl.place=loss kl.grad=is_corrected
			ratio.level=token loss.kind=ppo clip.low=0.2 clip.high=0.28 clip.delta=none entropy.coef=0 logp.temperature=0.9 optim.epochs=2
			optim.lr=1e-3 optim.clip_norm=1 `+agg), sorted(valuesOf(d.Set)))
		require.Equal(t, `eos_token_id=2 generation_batch_size=8 gradient_accumulation_steps=2 mask_truncated_completions=false masked_fill=0 `+
			`max_completion_length=40 num_generations=4 num_items_in_batch=159 num_iterations=2 pad_token_id=2 per_device_train_batch_size=4 `+
			`reward_weights=1,0.5 scalars_scope=optimizer_step steps_per_generation=2 token_loss_includes_kl=true top_k=0 top_p=1`, factsOf(d.Set))
		require.Equal(t, "min_p top_entropy_quantile off_policy_mask_threshold seed reward_funcs dtype padding_side_prompt peft", strings.Join(d.Ignored, " "))
		require.Equal(t, "loss_type="+loss+" (step_1.safetensors)", d.Set.Origin("agg.kind"))
		require.Equal(t, "beta=0.04 → kl.beta=0.04, kl.place=loss", d.Taken[2].String())
		require.Equal(t, "num_iterations=2 → optim.epochs=2, fact num_iterations", d.Taken[10].String())
		require.Empty(t, d.Unknown)
		require.Empty(t, d.Ambiguous)
		require.Empty(t, d.Beyond)
		require.Empty(t, d.Overrides)
		require.Empty(t, d.Warning)
		// the profile is of loss type dapo; this run set five options to values of its own
		p, _, err := Lookup("trl-grpo@1.16")
		require.NoError(t, err)
		require.Equal(t, map[string]string{"dapo": "", "grpo": "agg.kind agg.denominator agg.div_ga "}[loss],
			contradicted(p, d.Set, "kl.beta", "clip.high", "logp.temperature", "optim.epochs", "optim.lr"))
	}
}

// contradicted are the options of s that p excludes, without those named.
func contradicted(p *Profile, s *Set, without ...string) (names string) {
	for _, name := range s.Names() {
		if !slices.Contains(without, name) && !p.Allows(name, s.Value(name)) {
			names += name + " "
		}
	}
	return names
}

func TestDeclareErrors(t *testing.T) {
	for _, c := range []struct{ framework, text, want string }{
		{"trl", `{"loss_type":"dppo","beta":0}`, `loss_type=dppo is no legal value of trl-grpo; want grpo, bnpo, dr_grpo, dapo, cispo, sapo, vespo, luspo; did you mean "dapo"?`},
		{"trl-grpo", `{"epsilon":"0.2"}`, `epsilon=0.2 is no legal value of trl-grpo; want a number`},
		{"trl-grpo", `{"epsilon":null}`, `epsilon=null is no legal value`},
		{"trl-grpo", `{"epsilon":[0.2]}`, `want a number`},
		{"trl-grpo", `{"epsilon":-1}`, `epsilon=-1: clip.low: "-1" is no legal value; want a number ≥ 0, or none`},
		{"trl-grpo", `{"num_generations":2.5}`, `num_generations=2.5 is no legal value of trl-grpo; want a whole number ≥ 0`},
		{"trl-grpo", `{"use_bias_correction_kl":"true"}`, `use_bias_correction_kl=true is no legal value of trl-grpo; want true, false`},
		{"trl-grpo", `{"importance_sampling_level":"sequence_token"}`, `want token, sequence`},
		{"trl-grpo", `{"reward_weights":["a"]}`, `want null, a list of numbers`},
		{"trl-rloo", `{"reward_clip_range":[1]}`, `want null, two numbers`},
		{"trl-rloo", `{"reward_clip_range":[1,-1]}`, `reward.clip_range: "1,-1" is no legal value; want LOW,HIGH`},
		{"verl", `{"clip_ratio_low":0.2,"actor.clip_ratio_low":0.3}`, `clip_ratio_low=0.2 and actor.clip_ratio_low=0.3 are the same option of verl`},
		{"verl", `{"loss_agg_mode":"mean"}`, `did you mean`},
		{"verl", `{"rollout_is_threshold":"a_b"}`, `want a number, LOW_HIGH`},
		{"", `{"clip.low":0.1,"clip":{"low":0.2}}`, `clip.low is given twice: clip.low=0.1 and clip.low=0.2`},
		{"", `{"clip.lo":0.1}`, `no option "clip.lo"; did you mean "clip.low"?`},
		{"trl", `{"kl.betta":0.1}`, `no option "kl.betta"; did you mean "kl.beta"?`},
		{"", `{"clip":{"lwo":0.1}}`, `no option "clip.lwo"; did you mean "clip.low"?`},
		{"", `{"adv.ddof":2}`, `adv.ddof: "2" is no legal value; want 0, 1`},
		{"", `{"kl.kind":"k4"}`, `kl.kind: "k4" is no legal value; want k1, k2, k3, abs, ratio_d, seq_prob; did you mean "k1"?`},
		{"", `{"adv.ddof":null}`, `adv.ddof: null is no legal value; want 0, 1, or leave it out`},
		{"", `{"clip.low":[1,2]}`, `clip.low: "1,2" is no legal value`},
		{"", `{"clip.low":{}}`, `clip.low: "{}" is no legal value`},
	} {
		_, err := Declare(c.framework, "", options(t, c.text), "")
		require.ErrorContains(t, err, c.want, "%s %s", c.framework, c.text)
	}
	for _, x := range []float64{math.NaN(), math.Inf(1)} { // YAML has them
		for _, name := range []string{"epsilon", "clip.low"} {
			_, err := Declare("trl-grpo", "", []NameValue{{name, x}}, "")
			require.ErrorContains(t, err, "is no legal value")
		}
	}
}

func TestDeclareNeutralIsStronger(t *testing.T) {
	d, err := Declare("trl", "1.16.0", options(t, `{"agg.kind":"token","loss_type":"grpo","epsilon":0.2,"clip.low":0.2}`), "a.json")
	require.NoError(t, err)
	require.Equal(t, "token", d.Set.Value("agg.kind").Text())
	require.Equal(t, "agg.kind=token (a.json)", d.Set.Origin("agg.kind"))
	require.Equal(t, "clip.low=0.2 (a.json)", d.Set.Origin("clip.low"))
	require.Len(t, d.Overrides, 1, "equal values override nothing")
	o := d.Overrides[0]
	require.Equal(t, []string{"agg.kind", "seq_mean_token_mean", "token", "loss_type=grpo (a.json)", "agg.kind=token (a.json)"}, []string{o.Option, o.From.String(), o.To.String(), o.Was, o.Now})
	require.Equal(t, []string{"agg.kind=token", "loss_type=grpo", "epsilon=0.2", "clip.low=0.2"},
		[]string{d.Taken[0].Words, d.Taken[1].Words, d.Taken[2].Words, d.Taken[3].Words})
}

// Two native names may say different things; the framework reads the later one last.
func TestDeclareNativeContradiction(t *testing.T) {
	for _, text := range []string{`{"vllm_importance_sampling_clip_max":3,"vllm_importance_sampling_cap":2}`, `{"vllm_importance_sampling_cap":2,"vllm_importance_sampling_clip_max":3}`} {
		d := declare(t, "trl", text)
		require.Equal(t, "tis.high=2", valuesOf(d.Set))
		require.Len(t, d.Overrides, 1)
		require.Equal(t, "vllm_importance_sampling_clip_max=3", d.Overrides[0].Was)
	}
}

func TestDeclareSaysWhyNothingIsSet(t *testing.T) {
	for _, c := range []struct{ framework, text, want string }{
		{"verl", `{"use_kl_loss":false,"kl_loss_coef":0.001}`, "kl_loss_coef=1e-3 (has no effect with use_kl_loss=false)"},
		{"verl", `{"kl_loss_coef":0.001}`, "kl_loss_coef=1e-3 (decides nothing as long as actor_rollout_ref.actor.use_kl_loss is not declared)"},
		{"trl", `{"vllm_importance_sampling_mode":"token_mask"}`, "vllm_importance_sampling_mode=token_mask (decides nothing as long as use_vllm is not declared)"},
		{"trl-grpo", `{"epsilon_high":null}`, "epsilon_high=null (epsilon is not declared)"},
	} {
		d := declare(t, c.framework, c.text)
		require.Contains(t, fmt.Sprint(d.Taken), c.want)
	}
	d := declare(t, "trl", `{"loss_type":"grpo","top_entropy_quantile":0.2,"off_policy_mask_threshold":0.1,"use_adaptive_entropy":true}`)
	require.Equal(t, []string{"use_adaptive_entropy=true: entropy_coef moves from step to step"}, d.Beyond)
	require.Equal(t, []string{"use_adaptive_entropy"}, d.Set.Facts())
	require.Equal(t, "0.2 0.1", d.Set.Value("loss.top_entropy").String()+" "+d.Set.Value("loss.off_policy_max").String())
	d = declare(t, "verl", `{"use_kl_loss":true,"kl_loss_coef":0.1,"use_kl_in_reward":true,"kl_ctrl.kl_coef":0.2}`)
	require.Equal(t, "kl.beta=0.1 kl.place=loss", valuesOf(d.Set))
	require.Len(t, d.Beyond, 1)
}

func TestDeclareUnknown(t *testing.T) {
	d := declare(t, "trl", `{"loss_type":"grpo","loss_typ":"grpo","epsilonn":0.2,"weather":"fine","nested":{"a":1}}`)
	require.Equal(t, []string{"loss_typ (nearest: loss_type)", "epsilonn (nearest: epsilon)"}, d.Unknown[:2])
	require.Len(t, d.Unknown, 4)
	require.Contains(t, d.Unknown[3], "nested.a")

	var many []NameValue // of a hostile file
	for i := range 5000 {
		many = append(many, NameValue{fmt.Sprintf("%s%d", strings.Repeat("x", 1000), i), 1.0})
	}
	many = append(many, NameValue{strings.Repeat(".", 1<<20), 1.0})
	d, err := Declare("", "", many, "")
	require.NoError(t, err)
	require.Len(t, d.Unknown, 5001)

	// another framework is not read under names that happen to be the same
	d = declare(t, "nemo-rl", `{"beta":0.1,"clip.low":0.2}`)
	require.Len(t, d.Unknown, 1)
	require.Contains(t, d.Warning, `the option names of "nemo-rl" are not known; those of trl, verl, openrlhf, open-instruct, cleanrl are`)
	require.Empty(t, declare(t, "nemo-rl", `{"clip.low":0.2}`).Warning, "a neutral name is known whatever the framework")
	require.Empty(t, declare(t, "torch", `{"clip.low":0.2,"compute_dtype":"float32","num_generations":4,"seed":1}`).Warning, "and so is what plumbline's hooks write")
}

func TestDeclareTellsTrainersApart(t *testing.T) {
	for framework, want := range map[string]string{
		"trl": "trl-grpo 1.16.0, trl-rloo 1.16.0", "TRL 1.16 (GRPO)": "trl-grpo 1.16.0", "trl/rloo": "trl-rloo 1.16.0", "trl-gspo": "trl-grpo 1.16.0, trl-rloo 1.16.0",
		"trl-ppo@1.12": "trl-ppo 1.12.0", "": "trl-grpo 1.16.0, trl-rloo 1.16.0",
	} {
		text := `{"beta":0.1,"num_iterations":2,"epsilon":0.2}`
		if strings.Contains(framework, "ppo") {
			text = `{"kl_coef":0.1}`
		}
		require.Equal(t, want, declare(t, framework, text).Table, framework)
	}
	require.Equal(t, "trl-rloo 1.16.0", declare(t, "trl", `{"beta":0.1,"normalize_advantages":false}`).Table)
	require.Equal(t, "trl-ppo 1.12.0", declare(t, "", `{"cliprange_value":0.1,"vf_coef":0.1}`).Table)
	require.Equal(t, "verl 0.9.1", declare(t, "", `{"clip_ratio_high":0.28,"use_kl_loss":true}`).Table)
	require.Equal(t, "openrlhf 0.11.2", declare(t, "", `{"init_kl_coef":0.1,"eps_clip":0.2}`).Table)
	require.Equal(t, "", declare(t, "trl", `{"clip.low":0.1}`).Table)

	// what both agree on is taken
	d := declare(t, "trl", `{"beta":0.1,"epsilon":0.3}`)
	require.Equal(t, "kl.beta=0.1 clip.low=0.3 clip.high=0.3", valuesOf(d.Set))
	require.Equal(t, []string{"beta=0.1 (trl-grpo: kl.beta=0.1, kl.place=loss; trl-rloo: kl.beta=0.1, kl.place=sequence_reward_before_baseline)"}, d.Ambiguous)
	// a bad value is an error, even if a table that knows fewer of the names would not have seen it
	_, err := Declare("trl", "", options(t, `{"loss_type":"grppo","beta":0.1}`), "")
	require.ErrorContains(t, err, "loss_type=grppo")
}

func TestDeclareVersion(t *testing.T) {
	list := options(t, `{"loss_type":"grpo"}`)
	for version, warns := range map[string]bool{"1.16.0": false, "1.16.3": false, "": false, "1.9.0": true, "main": true} {
		d, err := Declare("trl", version, list, "")
		require.NoError(t, err)
		require.Equal(t, warns, d.Warning != "", version)
	}
	d, err := Declare("trl", "0.1", options(t, `{"clip.low":0.1,"vocab_size":7}`), "")
	require.NoError(t, err)
	require.Empty(t, d.Warning, "no name of the framework was read")
}

// What options say does not depend on their order, and a neutral name beside them always has its value.
func TestDeclareOrder(t *testing.T) {
	texts := []struct{ framework, text string }{
		{"trl", fmt.Sprintf(trlMetadata, "dr_grpo")},
		{"verl", `{"clip_ratio":0.3,"clip_ratio_low":null,"clip_ratio_high":null,"loss_mode":"gspo","loss_agg_mode":"token-mean","use_kl_loss":true,"kl_loss_coef":0.1,"rollout.n":4}`},
		{"openrlhf", `{"eps_clip":0.2,"eps_clip_low_high":[0.1,0.2],"advantage_estimator":"rloo","use_kl_loss":false,"policy_loss_type":"gspo","loss_agg_mode":"token-mean"}`},
	}
	rapid.Check(t, func(t *rapid.T) {
		c := rapid.SampledFrom(texts).Draw(t, "options")
		list := options(t, c.text)
		want, err := Declare(c.framework, "", list, "")
		require.NoError(t, err)
		got, err := Declare(c.framework, "", rapid.Permutation(list).Draw(t, "order"), "")
		require.NoError(t, err)
		require.Equal(t, want.Set, got.Set)

		o := rapid.SampledFrom(Options()).Draw(t, "option")
		v := rapid.SampledFrom((&Set{}).Among(o.Name)).Draw(t, "value")
		at := rapid.IntRange(0, len(list)).Draw(t, "at")
		got, err = Declare(c.framework, "", slices.Insert(list, at, NameValue{o.Name, v.String()}), "")
		require.NoError(t, err)
		require.Equal(t, v, got.Set.Value(o.Name))
	})
}

func BenchmarkDeclare(b *testing.B) {
	list := options(b, fmt.Sprintf(trlMetadata, "dapo"))
	unknown := append(slices.Clone(list), NameValue{"loss_typ", "x"}, NameValue{"epsilonn", 1.0}, NameValue{"weather", "fine"})
	for name, o := range map[string][]NameValue{"known": list, "unknown": unknown} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Declare("trl", "1.16.0", o, "the dump"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A run that names its estimator by its algorithm only says by norm_adv_by_std_in_grpo whether it scales.
func TestScaleWithoutAnEstimator(t *testing.T) {
	for _, name := range []string{"norm_adv_by_std_in_grpo", "algorithm.norm_adv_by_std_in_grpo"} {
		d := declare(t, "verl", `{"`+name+`":false}`)
		require.Equal(t, "none", d.Set.Value("adv.scale").String(), name)
		d = declare(t, "verl", `{"`+name+`":true}`)
		require.Empty(t, d.Set.Names(), name)
		require.Empty(t, d.Unknown, name)
	}
}
