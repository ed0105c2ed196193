package golden

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/reference/quant"
	"plumbline/verify/check"
)

// outcomes judges the entries of a section one by one.
func outcomes(t testing.TB, s *Set, sec *section) []*outcome {
	t.Helper()
	var list []*outcome
	for _, e := range s.Sections[sec.name].Entries {
		f := sec.functions[e.Peer+" "+e.Function]
		require.NotNil(t, f, "%s: not compared", e.Name())
		o, err := judge(e, f)
		require.NoError(t, err, e.Name())
		require.Empty(t, o.unknown, e.Name())
		require.Zero(t, o.failed, "%s: %s", e.Name(), o.first.String())
		list = append(list, o)
	}
	return list
}

// Every entry of the embedded set is compared: none is skipped, none undetermined.
func TestEmbedded(t *testing.T) {
	s := embedded(t)
	results, err := Suite.Run(s, check.Selection{})
	require.NoError(t, err)
	for _, r := range results {
		require.Equal(t, check.Pass, r.Verdict, "%s %s: %s %s", r.Check, r.Subject, r.Reason, r.Where)
	}
	require.Len(t, results, len(Suite))
	require.Equal(t, "1448 entries: 1448 agree, 0 differ, 0 undetermined (0.0 %)", Summary(results))
	want := map[string]int{"gae": 118, "masked_stats": 197, "group_advantages": 171, "kl": 72, "policy_loss": 396, "value_loss": 48, "logprob_entropy": 180, "adamw": 9,
		"int8": 25, "int8_layers": 53, "lora_linear": 3, "models": 26, "tokenizer": 150}
	for _, r := range results {
		if n, ok := want[strings.TrimPrefix(r.Check, "golden/")]; ok {
			require.Equal(t, n, r.Compared, r.Check)
			require.Greater(t, fact(r, "numbers"), float64(n), r.Check)
		}
	}
}

// Which functions the entries are of, which leaks their numbers need, which exceptions are refused here, and which outputs
// have no number.
func TestWhatIsCompared(t *testing.T) {
	s := embedded(t)
	functions, excluded, leaked, refusals, numbers := map[string]int{}, map[string]int{}, map[Leak]int{}, 0, 0
	for _, sec := range sections {
		for _, o := range outcomes(t, s, sec) {
			functions[o.entry.Peer+" "+o.entry.Function]++
			for _, name := range o.excluded {
				if sec == models {
					name = o.entry.ID
				}
				excluded[o.entry.Peer+" "+name]++
			}
			for leak, n := range o.leaked {
				leaked[leak] += n
			}
			refusals += o.refused
			if sec != models { // the producers of models decide how many there are
				numbers += o.numbers
			}
		}
	}
	require.Equal(t, map[string]int{
		"verl compute_gae_advantage_return": 26, "openrlhf RemoteExperienceMaker.get_advantages_and_returns": 13,
		"openrlhf RemoteExperienceMaker.get_cumulative_returns": 13, "openrlhf RemoteExperienceMaker.compute_advantages_and_returns": 48,
		"trl-ppo PPOTrainer.train (rollout statements)": 9, "trl-ppo PPOTrainer.train (minibatch statements)": 9,
		"verl masked_mean": 22, "verl masked_var": 22, "verl masked_whiten": 22, "trl-ppo masked_mean": 22, "trl-ppo masked_var": 22,
		"trl-ppo masked_whiten": 22, "verl masked_sum": 22, "openrlhf masked_mean": 22, "openrlhf masked_normalize": 11, "trl nanstd": 10,
		trlGRPO: 20, trlRLOO: 15, "verl compute_grpo_outcome_advantage": 16, "verl compute_grpo_vectorized_outcome_advantage": 16,
		"verl compute_grpo_passk_outcome_advantage": 16, "verl compute_gdpo_outcome_advantage": 16, "verl compute_reinforce_plus_plus_outcome_advantage": 16,
		"verl compute_reinforce_plus_plus_baseline_outcome_advantage": 8, "verl compute_rloo_outcome_advantage": 8,
		"verl compute_rloo_vectorized_outcome_advantage": 8, "verl compute_opo_outcome_advantage": 8, "verl compute_gpg_outcome_advantage": 8,
		"verl compute_remax_outcome_advantage": 8, "verl compute_optimal_token_baseline_advantage": 8,
		"verl kl_penalty": 39, "openrlhf compute_approx_kl": 27, "liger k3_loss_fn(ref, logp)": 3, "openrlhf compute_reward": 3,
		"verl agg_loss": 44, "openrlhf aggregate_loss": 16, "verl compute_policy_loss_vanilla": 56,
		"verl compute_policy_loss_gspo": 16, "verl compute_policy_loss_dppo_tv": 4, "verl compute_policy_loss_dppo_kl": 4,
		"verl compute_policy_loss_sapo": 8, "verl compute_policy_loss_gpg": 4, "verl compute_policy_loss_cispo": 4,
		"verl compute_policy_loss_dro": 8, "verl compute_policy_loss_clip_cov": 4, "verl compute_policy_loss_kl_cov": 4,
		"verl compute_policy_loss_geo_mean": 4, "verl compute_policy_loss_reinforce": 4, "openrlhf PolicyLoss": 60,
		"trl GRPOTrainer._compute_loss": 92, "trl RLOOTrainer._compute_loss": 4,
		"liger LigerFusedLinearGRPOFunction.ppo_loss_fn": 56, "liger LigerFusedLinearGRPOLoss": 4,
		"verl compute_value_loss": 30, "openrlhf ValueLoss": 18,
		"verl logprobs_from_logits": 15, "verl logprobs_from_logits_naive": 15, "openrlhf log_probs_from_logits": 30,
		"trl selective_log_softmax": 30, "verl entropy_from_logits": 15, "verl entropy_from_logits_with_chunking": 15,
		"openrlhf compute_entropy": 15, "trl entropy_from_logits": 15, "verl calculate_sum_pi_squared_from_logits": 15,
		"trl selective_log_softmax_and_entropy": 15, "torch optim.AdamW": 6, "torch optim.AdamW after clip_grad_norm_": 3,
		"bitsandbytes functional.int8_vectorwise_quant / int8_vectorwise_dequant": 47, "bitsandbytes functional.int8_linear_matmul / int8_mm_dequant": 3,
		"bitsandbytes nn.Linear8bitLt": 24, "bitsandbytes nn.Linear8bitLt forward on cpu": 1, "peft tuners.lora.bnb.Linear8bitLt merge, unmerge": 3,
		"peft LoraConfig/get_peft_model on one layer": 3, "transformers GPT2LMHeadModel": 4, "transformers GPTJForCausalLM": 4,
		"transformers LlamaForCausalLM": 4, "transformers Qwen2ForCausalLM": 8, "torch arcagent": 2, "torch maskedgpt": 4,
		"transformers tokenizer(text, add_special_tokens=False)": 150,
	}, functions)
	require.Equal(t, map[string]int{"openrlhf is_filter_ratio": 40, "trl vespo_phi_seq_mean": 4, "trl entropy": 4,
		"transformers models/qwen2/hf_double": 17}, excluded, "of a batch with a row of NaN, the mean and its gradients")
	require.Equal(t, 16, refusals)
	require.Equal(t, 69741, numbers)
	require.NotContains(t, leaked, Conditioning, "no entry needs more than a named leak")
	for _, leak := range Leaks {
		if leak != Conditioning && leak != LeakQuantile && leak != LeakModel { // no token of the set lies on its quantile; models agree to 1e-12
			require.NotZero(t, leaked[leak], leak)
		}
	}
}

// A bound far above every error would say nothing: of each output and type the closest element uses 2 % of its bound.
func TestBoundsAreUsed(t *testing.T) {
	s := embedded(t)
	worst := map[string]float64{}
	for _, sec := range []*section{logProbEntropy, kl, adamW, policyLoss, int8Layers} {
		for _, e := range s.Sections[sec.name].Entries {
			c := &call{e: e, given: e, used: map[string]bool{}}
			for _, a := range sec.functions[e.Peer+" "+e.Function](c) {
				v := e.Out[a.output]
				if a.bound == nil || !a.tight || v == nil || v.Raises != "" {
					continue
				}
				dtype, _ := e.Options["dtype"].(string)
				key := strings.Join([]string{sec.name, a.output, dtype}, " ")
				for i, want := range v.Data {
					if off := math.Abs(a.got[i] - want); off > 0 && a.got[i] != want {
						worst[key] = max(worst[key], off/a.bound[i])
					}
				}
			}
		}
	}
	require.Len(t, worst, 27)
	for _, o := range outcomes(t, s, models) {
		if o.leaked[LeakFloat32Model] > 0 {
			worst[o.entry.ID] = o.worst
		}
	}
	require.Len(t, worst, 27+12)
	for what, w := range worst {
		least := 0.02
		if strings.HasPrefix(what, "policy_loss") { // sums over cells, whose errors cancel while their bounds add up
			least = 0.005
		}
		require.Greater(t, w, least, what)
		require.LessOrEqual(t, w, 1.0, what)
	}
}

// comparedWith judges an entry whose only output is want, with the answer a.
func comparedWith(want []float64, a answer) *outcome {
	a.output = "x"
	e := &Entry{ID: "t/0", Out: map[string]*Value{"x": {Tensor: "x", Shape: []int{len(want)}, Data: want}}}
	o, err := judge(e, func(*call) []answer { return []answer{a} })
	if err != nil {
		return &outcome{unknown: err.Error()}
	}
	return o
}

func TestCompare(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	require.Zero(t, comparedWith([]float64{1, nan, inf, 1e9, -inf}, plain("", 1, nan, inf, 1e9+1e-4, -inf)).failed)
	for _, c := range [][2]float64{{nan, 1}, {1, nan}, {inf, 1}, {1, inf}, {-inf, inf}, {nan, inf}, {inf, nan}, {1 + 2e-12, 1}, {1e-11, 0}} {
		require.Equal(t, 1, comparedWith([]float64{c[1]}, plain("", c[0])).failed, "%v", c)
		require.Equal(t, 1, comparedWith([]float64{c[1]}, leaking("", []float64{c[0]}, []float64{c[0]}, LeakTau)).failed, "%v", c)
	}
	require.NotEmpty(t, comparedWith(nil, plain("")).unknown, "nothing to compare")
	require.NotEmpty(t, comparedWith([]float64{1, 2}, plain("", 1)).unknown, "lengths")

	// A leak allows its own effect and no more, in either direction.
	leak := leaking("", []float64{1}, []float64{1 + 1e-7}, LeakBessel)
	require.Zero(t, comparedWith([]float64{1 + 1e-7}, leak).failed)
	require.Equal(t, 1, comparedWith([]float64{1 + 1.1e-7}, leak).failed)
	require.Equal(t, map[Leak]int{LeakBessel: 1}, comparedWith([]float64{1 + 1e-7}, leak).leaked)
	require.Empty(t, comparedWith([]float64{1}, leak).leaked)

	// A tight bound stands alone; one that is no number decides nothing.
	require.Equal(t, 1, comparedWith([]float64{1 + 1e-13}, bounded("", []float64{1}, []float64{1e-14}, LeakDType)).failed)
	require.NotEmpty(t, comparedWith([]float64{2}, bounded("", []float64{1}, []float64{inf}, LeakDType)).unknown)
	require.NotEmpty(t, comparedWith([]float64{2}, bounded("", []float64{1}, []float64{nan}, LeakDType)).unknown)
	require.Zero(t, comparedWith([]float64{2, 1}, answer{got: []float64{1, 1}, only: []bool{false, true}}).failed)
}

// The largest float64 that is right and the smallest that is wrong differ by where they stand to the bound.
func TestWorstElement(t *testing.T) {
	o := comparedWith([]float64{1, 1, 1}, plain("", 1+9e-13, 1, 1+3e-13))
	require.InDelta(t, 0.9, o.worst, 1e-3)
	require.Equal(t, 0, o.at.index)
	o = comparedWith([]float64{1, 1, 1}, plain("", 1+9e-12, math.NaN(), 1+3e-12))
	require.Equal(t, 3, o.failed)
	require.Equal(t, 1, o.first.index, "NaN is the furthest")
	m := miss{index: 7, shape: []int{2, 2, 3}}
	require.Equal(t, "[1 0 1]", m.place())
}

// What is ill-conditioned in float64 is accepted, by name, where two programs may differ, and not beyond.
func TestConditioning(t *testing.T) {
	x := []float64{1e8 + .25, 1e8 + .5, 1e8 - .75}
	mean := func(c *call) []answer {
		d := c.e.In["x"].Data
		m := (d[0] + d[1] + d[2]) / 3
		return []answer{plain("y", d[0]-m)}
	}
	judged := func(want float64, n int) *outcome {
		e := &Entry{ID: "t/0", In: map[string]*Value{"x": {Tensor: "x", DType: 13, Shape: []int{3}, Data: x}}, Out: map[string]*Value{"y": {Data: []float64{want}}}}
		o, err := judge(e, mean)
		require.NoError(t, err)
		require.Equal(t, n, o.failed, "%v", want)
		return o
	}
	require.Equal(t, map[Leak]int{Conditioning: 1}, judged(.25+2e-8, 0).leaked)
	judged(.25+1e-6, 1)
	judged(math.NaN(), 1)

	// At a discontinuity nothing is allowed.
	sign := func(c *call) []answer { return []answer{plain("y", math.Copysign(1, c.e.In["x"].Data[0]-x[0]))} }
	e := &Entry{ID: "t/0", In: map[string]*Value{"x": {Tensor: "x", DType: 13, Shape: []int{3}, Data: x}}, Out: map[string]*Value{"y": {Data: []float64{1 + 1e-9}}}}
	o, err := judge(e, sign)
	require.NoError(t, err)
	require.Equal(t, 1, o.failed)
}

// An entry of another release that differs says nothing about this one's conventions.
func TestOtherRelease(t *testing.T) {
	s := embedded(t)
	run := func(version string, off float64) check.Result {
		results, err := maskedStats.run(s.with("masked_stats", func(x *Section) {
			e := x.Entries[0].copied()
			e.Version = version
			e.edit("mean", func(x []float64) { x[0] += off })
			x.Entries = []*Entry{e}
		}))
		require.NoError(t, err)
		require.Len(t, results, 1)
		return results[0]
	}
	require.Equal(t, check.Pass, run("0.8.0", 0).Verdict)
	require.Equal(t, check.Undetermined, run("0.8.0", 1e-3).Verdict)
	require.Equal(t, check.Fail, run("0.9.1", 1e-3).Verdict)
}

// A finding tells everything that is needed to look at it, and how to repeat it.
func TestFailureSaysWhere(t *testing.T) {
	s := embedded(t)
	results, err := gae.run(s.with("gae", func(x *Section) {
		for i := range 30 {
			e := x.Entries[i].copied()
			if v := e.Out["returns"]; v != nil {
				e.edit("returns", func(x []float64) { x[len(x)-1] += 0.5 })
			}
			x.Entries[i] = e
		}
	}))
	require.NoError(t, err)
	require.Equal(t, check.Pass, results[0].Verdict)
	require.Equal(t, 88, results[0].Compared)
	require.Len(t, results, 1+maxListed+1, "the rest is counted")
	f := results[1]
	require.Equal(t, check.Fail, f.Verdict)
	require.Contains(t, f.Subject, "gae/0000")
	require.Contains(t, f.Subject, "verl@0.9.1 compute_gae_advantage_return")
	require.Contains(t, f.Subject, "contiguous_sparse_score")
	require.Contains(t, f.Reason, "whiten false")
	require.Contains(t, f.Where, "returns[4 6]: got ")
	require.Contains(t, f.Where, "allowed")
	require.Equal(t, "--select golden/gae --entry gae/0000", f.Repeat)
	require.Equal(t, 0.5, math.Round(f.Measured*1e6)/1e6)
	require.Equal(t, "10 more entries differ, of 30", results[len(results)-1].Reason)
	require.Equal(t, "118 entries: 88 agree, 30 differ, 0 undetermined (0.0 %)", Summary(results))
}

func TestEntryPattern(t *testing.T) {
	s := embedded(t)
	for pattern, n := range map[string]int{"gae/0012": 1, "kl/*": 72, "PolicyLoss": 60, "trl-ppo": 84, "models/gptj/*": 4, "no such": 0, "": 1448, "[": 0} {
		s.Pattern = pattern
		require.Equal(t, n, s.Selected(), pattern)
	}
	s.Pattern = "trl-ppo"
	results, err := Suite.Run(s, check.Selection{Ignore: []string{"golden/manifest"}})
	require.NoError(t, err)
	require.Len(t, results, 2, "sections without such an entry have nothing to say")
	require.Equal(t, "84 entries: 84 agree, 0 differ, 0 undetermined (0.0 %)", Summary(results))
	require.True(t, slices.Contains(s.IDs(), "adamw/0008"))
}

// The walks are different ones, and each goes up as often as down.
func TestWalks(t *testing.T) {
	x := make([]float64, 4000)
	for i := range x {
		x[i] = 3
	}
	x[0], x[1], x[2] = 0, 1, math.NaN()
	var ups [walks][]bool
	for w := range walks {
		y := moved(x, uint64(w))
		require.Equal(t, []float64{0, 1}, y[:2])
		n := 0
		for _, v := range y[3:] {
			require.Contains(t, []float64{math.Nextafter(3, 4), math.Nextafter(3, 2)}, v)
			ups[w] = append(ups[w], v > 3)
			if v > 3 {
				n++
			}
		}
		require.InDelta(t, 2000, n, 200)
		for v := range w {
			same := 0
			for i := range ups[w] {
				if ups[w][i] == ups[v][i] {
					same++
				}
			}
			require.InDelta(t, 2000, same, 200)
		}
	}
}

// Settings that the embedded set leaves out, made by the same producer: DoRA, trained biases, adapters on every layer, an
// untied head, one head of keys and values, ranks wider than the layer, other thresholds, rows of one element.
func TestVariants(t *testing.T) {
	s, err := Open(context.Background(), "../../golden/variants")
	require.NoError(t, err)
	defer s.Close()
	results, err := Suite.Run(s, check.Selection{})
	require.NoError(t, err)
	for _, r := range results {
		require.Equal(t, check.Pass, r.Verdict, "%s %s: %s %s", r.Check, r.Subject, r.Reason, r.Where)
	}
	require.Equal(t, "39 entries: 39 agree, 0 differ, 0 undetermined (0.0 %)", Summary(results))

	// What only these entries show.
	dora := entryOf(s.Sections["lora_linear"].Entries, "lora_linear/0000")
	for name, change := range map[string]func(e *Entry){
		"no magnitudes":            func(e *Entry) { e.Options["dora"] = false },
		"magnitudes of other rows": func(e *Entry) { v := e.In["magnitude"]; v.Data = slices.Clone(v.Data); slices.Reverse(v.Data) },
	} {
		e := dora.copied()
		change(e)
		o, err := judge(e, loraLayer)
		require.NoError(t, err)
		require.NotZero(t, o.failed, name)
	}
	trained := entryOf(s.Sections["models"].Entries, "models/gpt2/float64").copied()
	trained.edit("grad/transformer.h.0.ln_1.bias", func(x []float64) { x[0] += 1e-7 })
	o, err := judge(trained, causalModel)
	require.NoError(t, err)
	require.Equal(t, 1, o.failed)
}

// entryOf returns the entry of that id.
func entryOf(entries []*Entry, id string) *Entry {
	return entries[slices.IndexFunc(entries, func(e *Entry) bool { return e.ID == id })]
}

// The states of a masked model at padding mean nothing, and are not compared; those of every token are.
func TestPaddingOfAMaskedModel(t *testing.T) {
	s, n := embedded(t), 0
	for _, e := range s.Sections[models.name].Entries {
		mask := e.In["attention_mask"]
		if e.Function != "maskedgpt" || mask == nil || e.Out["hidden"] == nil || !slices.Contains(mask.Data, 0) {
			continue
		}
		n++
		for token, want := range map[float64]bool{0: false, 1: true} {
			f := e.copied()
			f.edit("hidden", func(x []float64) {
				for i := range x {
					if mask.Data[i/(len(x)/len(mask.Data))] == token {
						x[i]++
					}
				}
			})
			o, err := judge(f, models.functions[e.Peer+" "+e.Function])
			require.NoError(t, err)
			require.Equal(t, want, o.failed > 0, "%s, mask %g", e.Name(), token)
		}
	}
	require.GreaterOrEqual(t, n, 2, "a language model and a judge")
}

// Where the products of a sum cancel, its K + 5 roundings in float32 are still of their sizes.
func TestBoundOfACancellingSum(t *testing.T) {
	const x = 4096
	l := newInt8Layer([]float64{1, -1, 1, -1}, 1, 4, nil, quant.Float32, u32, 1)
	a := l.forward([]float64{x, x, x, x})
	require.Zero(t, a.got[0])
	require.InEpsilon(t, (4+5)*u32*4*x, a.bound[0], 1e-3)
}
