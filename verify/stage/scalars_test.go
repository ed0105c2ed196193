package stage_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// log puts a scalar into every file.
func (t *trainer) log(name string, x func(f int) float64) {
	for f := range t.b.Files {
		file := &t.b.Files[f]
		file.Scalars = append(file.Scalars, dump.Scalar{Name: name, Value: x(f)})
	}
}

// single draws a batch of one rank in which every file has a token.
func single(seed uint64) *trainer {
	for ; ; seed += 1000 {
		tr := newTrainer(seed)
		full := tr.ranks == 1
		for _, f := range tr.b.Files {
			full = full && anyTrue(tr.b.Mask[f.Lo*tr.b.Cols:f.Hi*tr.b.Cols])
		}
		if full {
			return tr
		}
	}
}

// means32 returns the masked mean of x in every file, and its mean over the files, in float32.
func (t *trainer) means32(x func(i int) float32) (files []float32, step float32) {
	for _, f := range t.b.Files {
		var terms []float32
		for i := f.Lo * t.b.Cols; i < f.Hi*t.b.Cols; i++ {
			if t.b.Mask[i] {
				terms = append(terms, x(i))
			}
		}
		files = append(files, sum32(terms)/float32(len(terms)))
	}
	return files, sum32(files) / float32(len(files))
}

func TestScalarsOfAnotherImplementation(t *testing.T) {
	log := ratioLog{}
	set := options(t, "ratio.level=token", "ratio.log_clamp=none", "clip.low=0.2", "clip.high=0.2", "metric.clip_frac=binding")
	for seed := range cases(400) {
		tr := single(uint64(seed))
		tr.logprobs(0.4)
		b := tr.b
		kl := tr.grid("kl", func(int) float64 { return tr.r.ExpFloat64() })
		h := tr.grid("entropy", func(int) float64 { return tr.r.ExpFloat64() })
		lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Token("advantages")
		step := seed%2 == 0
		b.Meta.ScalarsScope = map[bool]string{true: "optimizer_step", false: "micro_batch"}[step]
		put := func(name string, x func(i int) float32) {
			files, all := tr.means32(x)
			tr.log(name, func(f int) float64 {
				if step {
					return float64(all)
				}
				return float64(files[f])
			})
		}
		d := func(i int) float32 { return float32(lp[i]) - float32(old[i]) }
		put("kl", func(i int) float32 { return float32(kl[i]) })
		put("entropy", func(i int) float32 { return float32(h[i]) })
		put("ppo_kl", func(i int) float32 { return -d(i) })
		put("approx_kl", func(i int) float32 {
			switch seed % 6 {
			case 0, 1:
				return .5 * d(i) * d(i)
			case 2, 3:
				return -d(i)
			}
			return tr.exp32(d(i)) - 1 - d(i)
		})
		put("clip_frac", func(i int) float32 {
			r := tr.exp32(d(i))
			if float32(-adv[i])*min(max(r, .8), 1.2) > float32(-adv[i])*r {
				return 1
			}
			return 0
		})
		for _, name := range []string{"kl", "entropy", "ppo_kl", "approx_kl", "clip_frac"} {
			o := judged32(t, "scalars/"+name, b, set)
			log.pass(t, name, o, seed)
			if name == "approx_kl" { // two formulas are as good, and may be near to one another
				continue
			}
			clean := o.Pred.Bound[0]
			b.Files[0].Scalars = append([]dump.Scalar{}, b.Files[0].Scalars...)
			for k := range b.Files[0].Scalars {
				if b.Files[0].Scalars[k].Name == name {
					b.Files[0].Scalars[k].Value += 3*clean + 1e-6
				}
			}
			require.Equal(t, check.Fail, judged32(t, "scalars/"+name, b, set).Verdict, name)
		}
	}
	log.report(t)
}

func TestLoggedLoss(t *testing.T) {
	tr := single(7)
	b := tr.b
	b.Meta.Framework = "trl"
	loss := make([]float64, len(b.Files))
	var sum float64
	for f := range loss {
		loss[f] = round32(0.1 + tr.r.Float64())
		sum += loss[f]
	}
	tr.perFile("loss", loss)
	verdict := func(x float64) check.Verdict {
		for f := range b.Files {
			b.Files[f].Scalars = []dump.Scalar{{Name: "loss", Value: x}}
		}
		return judged32(t, "scalars/loss", b, &convention.Set{}).Verdict
	}
	require.Equal(t, check.Pass, verdict(round32(sum)))
	require.Equal(t, check.Pass, verdict(math.Round(sum*1e4)/1e4), "the HF trainer rounds to four decimals")
	require.Equal(t, check.Fail, verdict(math.Round(sum*1e4)/1e4+1e-4))
	require.Equal(t, check.Fail, verdict(round32(sum*1.001)))
	require.Equal(t, check.Fail, verdict(math.NaN()), "null, where every loss is finite")
	b.Meta.ScalarsScope = ""
	if len(b.Files) > 1 {
		o := judged32(t, "scalars/loss", b, &convention.Set{})
		require.Equal(t, []string{"scalars_scope"}, o.Case.Absent)
	}
}

// A loop of nobody's may log the loss of a micro-batch before it is divided by the accumulation steps; TRL has one meaning of the name.
func TestLossesThatAreLoggedUndivided(t *testing.T) {
	tr := single(7)
	b := tr.b
	b.Meta.MicroBatches, b.Meta.ScalarsScope = 2, "micro_batch"
	loss := make([]float64, len(b.Files))
	for f := range loss {
		loss[f] = round32(0.1 + tr.r.Float64())
	}
	tr.perFile("value_loss", loss)
	divided, err := convention.Parse("agg.div_ga", "true")
	require.NoError(t, err)
	set := (&convention.Set{}).With("agg.div_ga", divided, "test").WithFact("gradient_accumulation_steps", 2.0)
	for framework, want := range map[string]check.Verdict{"mine": check.Pass, "": check.Pass, "trl": check.Fail} {
		b.Meta.Framework = framework
		for f := range b.Files {
			b.Files[f].Scalars = []dump.Scalar{{Name: "value_loss", Value: 2 * loss[f]}}
		}
		require.Equal(t, want, judged32(t, "scalars/value_loss", b, set).Verdict, framework)
	}
}

func TestScalarsBelongToFrameworks(t *testing.T) {
	tr := single(9)
	tr.log("actor/ppo_kl", func(int) float64 { return 0 })
	tr.log("clip_ratio/low_mean", func(int) float64 { return 0 })
	tr.log("kl", func(int) float64 { return 0 })
	for framework, want := range map[string][3]bool{"trl": {false, true, true}, "verl": {true, false, false}, "": {false, false, true}} {
		tr.b.Meta.Framework = framework
		for k, id := range []string{"scalars/actor_ppo_kl", "scalars/clip_ratio_low_mean", "scalars/kl"} {
			require.Equal(t, want[k], stage.Judge(stage.Find(id), tr.b, &convention.Set{}).Verdict != check.Skip, "%s %s", framework, id)
		}
	}
}

// Rows whose KL sums to 3 and 5 log 4, not the 8/3 of a token; what lies outside the mask does not count.
func TestLoggedKLOfRows(t *testing.T) {
	b := &dump.Batch{Rows: 2, Cols: 3, Tensors: map[string]*dump.Tensor{}, Mask: []bool{true, true, false, true, false, false},
		Origin: []dump.Origin{{Cols: 3}, {Cols: 3}}, Files: []dump.FileInfo{{Hi: 2, Cols: 3}},
		Meta: dump.Meta{Framework: "trl", WorldSize: 1, MicroBatches: 1, ScalarsScope: "optimizer_step", DLogpScale: 1}}
	(&trainer{b: b}).put("kl", []float64{1, 2, 9, 5, 9, 9})
	for logged, want := range map[float64]check.Verdict{4: check.Pass, 8. / 3: check.Fail, 17.5: check.Fail} {
		b.Files[0].Scalars = []dump.Scalar{{Name: "objective/kl", Value: logged}}
		require.Equal(t, want, stage.Judge(stage.Find("scalars/objective_kl"), b, &convention.Set{}).Verdict, "%v", logged)
		several := (&convention.Set{}).WithFact("num_mini_batches", 2.0)
		require.Equal(t, check.Skip, stage.Judge(stage.Find("scalars/objective_kl"), b, several).Verdict, "it is of the rows of other steps, too")
	}
}

func TestUpdateKLOfKLCov(t *testing.T) {
	// logp_old − logp_new = −1, 2, 0: the mean of the signed difference is 1/3, that of its size is 1.
	b := &dump.Batch{Rows: 1, Cols: 4, Tensors: map[string]*dump.Tensor{}, Mask: []bool{true, true, true, false},
		Origin: []dump.Origin{{Cols: 4}}, Files: []dump.FileInfo{{Hi: 1, Cols: 4}},
		Meta: dump.Meta{Framework: "verl", WorldSize: 1, MicroBatches: 1, ScalarsScope: "optimizer_step", DLogpScale: 1}}
	tr := &trainer{b: b}
	tr.put("logp_old", []float64{-3, -1, -2, 0})
	tr.put("logp_new", []float64{-2, -3, -2, 0})
	for _, c := range []struct {
		kind   string
		logged float64
		want   check.Verdict
	}{
		{"kl_cov", 1, check.Pass}, {"kl_cov", 1. / 3, check.Fail}, {"ppo", 1. / 3, check.Pass}, {"ppo", 1, check.Fail},
	} {
		b.Files[0].Scalars = []dump.Scalar{{Name: "actor/ppo_kl", Value: c.logged}}
		set := options(t, "loss.kind="+c.kind, "ratio.log_clamp=none")
		require.Equal(t, c.want, stage.Judge(stage.Find("scalars/actor_ppo_kl"), b, set).Verdict, "%s %v", c.kind, c.logged)
	}
}

func TestClipFractionOfVerlsLosses(t *testing.T) {
	// Ratios above, below, above and within the bounds, A > 0, > 0, < 0, > 0: the clipped term is the larger one in the first alone, the
	// ratio is beyond its bounds in three, and sapo has no bounds.
	b := &dump.Batch{Rows: 1, Cols: 4, Tensors: map[string]*dump.Tensor{}, Mask: []bool{true, true, true, true},
		Origin: []dump.Origin{{Cols: 4}}, Files: []dump.FileInfo{{Hi: 1, Cols: 4}},
		Meta: dump.Meta{Framework: "verl", WorldSize: 1, MicroBatches: 1, ScalarsScope: "optimizer_step", DLogpScale: 1}}
	tr := &trainer{b: b}
	tr.put("logp_old", make([]float64, 4))
	tr.put("logp_new", []float64{1, -1, 1, 0})
	tr.put("advantages", []float64{1, 1, -1, 1})
	right := map[string]float64{"ppo": .25, "gspo": .25, "cispo": .75, "sapo": 0, "gmpo": .5}
	for kind, want := range right {
		for _, logged := range []float64{0, .25, .5, .75} {
			b.Files[0].Scalars = []dump.Scalar{{Name: "actor/pg_clipfrac", Value: logged}}
			set := options(t, "loss.kind="+kind, "ratio.level=token", "ratio.log_clamp=none", "clip.low=0.2", "clip.high=0.2")
			verdict := check.Fail
			if logged == want {
				verdict = check.Pass
			}
			require.Equal(t, verdict, stage.Judge(stage.Find("scalars/actor_pg_clipfrac"), b, set).Verdict, "%s %v", kind, logged)
		}
	}
	// Under gmpo the other share is that of A < 0; the dual clip, which only ppo has, is on at A = −1, ρ = e > 2.
	lower := map[string]float64{"ppo": .25, "gspo": 0, "cispo": 0, "sapo": 0, "gmpo": .25}
	for kind, want := range lower {
		for _, logged := range []float64{0, .25, .5} {
			b.Files[0].Scalars = []dump.Scalar{{Name: "actor/pg_clipfrac_lower", Value: logged}}
			set := options(t, "loss.kind="+kind, "ratio.level=token", "ratio.log_clamp=none", "clip.low=0.2", "clip.high=0.2", "clip.dual=2")
			verdict := check.Fail
			if logged == want {
				verdict = check.Pass
			}
			require.Equal(t, verdict, stage.Judge(stage.Find("scalars/actor_pg_clipfrac_lower"), b, set).Verdict, "%s %v", kind, logged)
		}
	}
	set := options(t, "loss.kind=dppo_tv", "ratio.level=token", "ratio.log_clamp=none", "clip.low=0.2", "clip.high=0.2")
	require.Equal(t, check.Skip, stage.Judge(stage.Find("scalars/actor_pg_clipfrac"), b, set).Verdict, "tokens that dppo leaves out are another number")
}

// A clip fraction under a name without a definition is one of two shares, and no other.
func TestClipFractionOfAnyLoop(t *testing.T) {
	b := &dump.Batch{Rows: 1, Cols: 5, Tensors: map[string]*dump.Tensor{}, Mask: []bool{true, true, true, true, true},
		Origin: []dump.Origin{{Cols: 5}}, Files: []dump.FileInfo{{Hi: 1, Cols: 5}},
		Meta: dump.Meta{WorldSize: 1, MicroBatches: 1, ScalarsScope: "optimizer_step", DLogpScale: 1}}
	tr := &trainer{b: b}
	tr.put("logp_old", make([]float64, 5))
	tr.put("logp_new", []float64{1, -1, 1, 0, 0})
	tr.put("advantages", []float64{1, 1, -1, 1, 1})
	set := options(t, "loss.kind=ppo", "ratio.level=token", "ratio.log_clamp=none", "clip.low=0.2", "clip.high=0.2")
	for _, name := range []string{"clipfrac", "clip_fraction", "pg_clipfrac", "policy_clip_frac"} {
		for logged, want := range map[float64]check.Verdict{.2: check.Pass, .6: check.Pass, 0: check.Fail, .4: check.Fail, .8: check.Fail} {
			b.Files[0].Scalars = []dump.Scalar{{Name: name, Value: round32(logged)}}
			require.Equal(t, want, judged32(t, "scalars/clip_fraction", b, set).Verdict, "%s %v", name, logged)
		}
	}
}

func TestClipRatioOfTRL(t *testing.T) {
	// Two rows of four tokens: in the first two ratios are above the bound, in the second one below; A > 0, A < 0.
	b := &dump.Batch{Rows: 2, Cols: 4, Tensors: map[string]*dump.Tensor{}, Mask: []bool{true, true, true, true, true, true, true, false},
		Origin: []dump.Origin{{Cols: 4}, {Row: 1, Cols: 4}}, Files: []dump.FileInfo{{Hi: 2, Cols: 4}},
		Meta: dump.Meta{Framework: "trl", WorldSize: 1, MicroBatches: 1, ScalarsScope: "optimizer_step", DLogpScale: 1}}
	tr := &trainer{b: b}
	tr.put("logp_old", make([]float64, 8))
	tr.put("logp_new", []float64{1, 1, 0, -1, 1, -1, 0, -1})
	tr.put("advantages", []float64{1, 1, 1, 1, -1, -1, -1, -1})
	set := options(t, "ratio.level=token", "ratio.log_clamp=none", "clip.low=0.2", "clip.high=0.2")
	for name, want := range map[string]float64{"low_mean": 1. / 7, "low_min": 0, "high_mean": 2. / 7, "high_max": 2. / 4, "region_mean": 3. / 7} {
		b.Files[0].Scalars = []dump.Scalar{{Name: "clip_ratio/" + name, Value: round32(want)}}
		require.Equal(t, check.Pass, judged32(t, "scalars/clip_ratio_"+name, b, set).Verdict, name)
		b.Files[0].Scalars[0].Value += 1e-5
		require.Equal(t, check.Fail, judged32(t, "scalars/clip_ratio_"+name, b, set).Verdict, name)
	}
}

// TRL 1.16 counts from ratios that clip.delta has bounded: none is beyond a clip.high above it.
func TestClipRatioOfTRLUnderDelta(t *testing.T) {
	b := &dump.Batch{Rows: 1, Cols: 4, Tensors: map[string]*dump.Tensor{}, Mask: []bool{true, true, true, true},
		Origin: []dump.Origin{{Cols: 4}}, Files: []dump.FileInfo{{Hi: 1, Cols: 4}},
		Meta: dump.Meta{Framework: "trl", WorldSize: 1, MicroBatches: 1, ScalarsScope: "optimizer_step", DLogpScale: 1}}
	tr := &trainer{b: b}
	tr.put("logp_old", make([]float64, 4))
	tr.put("logp_new", []float64{1, 0, 0, 0})
	tr.put("advantages", []float64{1, 1, 1, 1})
	for delta, want := range map[string]float64{"none": .25, "1.3": .25, "1.1": 0} {
		for kind, want := range map[string]float64{"ppo": want, "sapo": .25} {
			set := options(t, "loss.kind="+kind, "ratio.level=token", "ratio.log_clamp=none", "clip.low=0.2", "clip.high=0.2", "clip.delta="+delta)
			for _, name := range []string{"high_mean", "high_max", "region_mean"} {
				b.Files[0].Scalars = []dump.Scalar{{Name: "clip_ratio/" + name, Value: want}}
				require.Equal(t, check.Pass, judged32(t, "scalars/clip_ratio_"+name, b, set).Verdict, "%s, delta %s, %s", name, delta, kind)
				b.Files[0].Scalars[0].Value = .25 - want
				require.Equal(t, check.Fail, judged32(t, "scalars/clip_ratio_"+name, b, set).Verdict, "%s, delta %s, %s", name, delta, kind)
			}
		}
	}
}

func TestNumbersOfAGenerationBatch(t *testing.T) {
	tr := single(13)
	b := tr.b
	b.Meta.Framework = "trl"
	scores := tr.perRow("scores", func(int) float64 { return tr.r.Float64() })
	var reward, mean float64
	low, high := math.Inf(1), 0.
	for r := range b.Rows {
		n := float64(length(b, r))
		reward += scores[r] / float64(b.Rows)
		mean += n / float64(b.Rows)
		low, high = min(low, n), max(high, n)
	}
	for name, x := range map[string]float64{"reward": reward, "completions/mean_length": mean, "completions/min_length": low, "completions/max_length": high} {
		tr.log(name, func(int) float64 { return round32(x) })
	}
	set := (&convention.Set{}).WithFact("steps_per_generation", float64(tr.micro))
	for _, id := range []string{"scalars/reward", "scalars/completions_mean_length", "scalars/completions_min_length", "scalars/completions_max_length"} {
		require.Equal(t, check.Pass, judged32(t, id, b, set).Verdict, id)
		larger := set.WithFact("generation_batch_size", float64(b.Rows+1))
		require.Equal(t, check.Undetermined, judged32(t, id, b, larger).Verdict, id)
	}
	require.Equal(t, check.Undetermined, judged32(t, "scalars/completions_mean_length", b, set.WithFact("mask_truncated_completions", true)).Verdict)
}

// verl logs the KL term as its loss adds it (losses.py: kl_loss = agg_loss(kld, …)), and the HF trainer logs the loss as train/loss:
// numbers under these names are read.
func TestLogNamesOfTheFrameworks(t *testing.T) {
	a := reduction{kind: "seq_mean_token_sum", where: "global"}
	tr := single(21)
	b := tr.b
	b.Meta.Framework = "verl"
	kl := tr.grid("kl", func(int) float64 { return tr.r.ExpFloat64() })
	h := tr.grid("entropy", func(int) float64 { return tr.r.ExpFloat64() })
	w := a.weights(b, tr.micro)
	sum := func(x []float64) (total float64) {
		for _, y := range fileSums(b, w, x) {
			total += y
		}
		return round32(total)
	}
	loss := make([]float64, len(b.Files))
	for f := range loss {
		loss[f] = round32(tr.r.NormFloat64())
	}
	tr.perFile("loss", loss)
	tr.perFile("pg_loss", loss)
	tr.log("actor/kl_loss", func(int) float64 { return sum(kl) })
	tr.log("actor/entropy_loss", func(int) float64 { return sum(h) })
	var total float64
	for _, x := range loss {
		total += x
	}
	tr.log("actor/pg_loss", func(int) float64 { return round32(total) })
	tr.log("train/loss", func(int) float64 { return round32(total) })
	set := a.set(t, options(t, "kl.place=loss", "kl.beta=0.1", "entropy.coef=0.01", "entropy.agg=same"))
	for _, id := range []string{"scalars/actor_kl_loss", "scalars/actor_entropy_loss", "scalars/pg_loss", "scalars/loss"} {
		require.Equal(t, check.Pass, judged32(t, id, b, set).Verdict, "%s: %s", id, judged32(t, id, b, set).Lacking())
	}
	for f := range b.Files {
		for k := range b.Files[f].Scalars {
			b.Files[f].Scalars[k].Value *= 1.01
		}
	}
	for _, id := range []string{"scalars/actor_kl_loss", "scalars/actor_entropy_loss", "scalars/pg_loss", "scalars/loss"} {
		require.Equal(t, check.Fail, judged32(t, id, b, set).Verdict, id)
	}
	b.Meta.Framework = "openrlhf"
	require.Equal(t, check.Skip, stage.Judge(stage.Find("scalars/pg_loss"), b, set).Verdict, "actor/pg_loss is verl's")
}
