package stage_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

func TestISWeightsOfAnotherImplementation(t *testing.T) {
	log := ratioLog{}
	for _, level := range []string{"token", "seq_sum", "seq_geo"} {
		for _, rule := range []string{"truncate_upper", "clamp", "zero_outside", "seq_filter"} {
			for seed := range cases(250) {
				tr := newTrainer(uint64(seed))
				tr.logprobs(1)
				b := tr.b
				old, gen := b.Token("logp_old"), b.Token("logp_gen")
				low, high, normalize := float32(0.7), float32(1.25), seed%3 == 0
				w := make([]float32, len(old))
				var all []float32
				for r := range b.Rows {
					var d []float32
					for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
						if b.Mask[i] {
							d = append(d, float32(old[i])-float32(gen[i]))
						}
					}
					s := sum32(d)
					if level == "seq_geo" {
						s /= max(float32(len(d)), 1)
					}
					whole := tr.exp32(s)
					for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
						if !b.Mask[i] {
							continue
						}
						token := tr.exp32(float32(old[i]) - float32(gen[i]))
						x := whole
						if level == "token" {
							x = token
						}
						switch inside := low <= x && x <= high; {
						case rule == "truncate_upper":
							w[i] = min(x, high)
						case rule == "clamp":
							w[i] = max(min(x, high), low)
						case inside && rule == "seq_filter":
							w[i] = token
						case inside:
							w[i] = x
						}
						all = append(all, w[i])
					}
				}
				mean := sum32(all) / float32(len(all))
				if level != "token" {
					mean = meanOfRows(b, w)
				}
				if normalize && !(mean > 0) {
					continue
				}
				tr.grid("is_weights", func(i int) float64 {
					if normalize {
						return float64(w[i] / mean)
					}
					return float64(w[i])
				})
				set := options(t, "tis.level="+level, "tis.rule="+rule, "tis.gate=ratio", "tis.low=0.7", "tis.high=1.25", "tis.log_clamp=none")
				set = set.With("tis.normalize", must(convention.Parse("tis.normalize", map[bool]string{true: "true", false: "false"}[normalize])), "test")
				o := judged32(t, "ratio/is_weights", b, set)
				log.pass(t, level+" "+rule, o, seed)
				planted(t, "ratio/is_weights", "is_weights", b, set, slices.Index(b.Mask, true))
			}
		}
	}
	log.report(t)
}

// meanOfRows is the mean over rows with a token of the mean of w over their tokens, in float32.
func meanOfRows(b *dump.Batch, w []float32) float32 {
	var rows []float32
	for r := range b.Rows {
		var own []float32
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if b.Mask[i] {
				own = append(own, w[i])
			}
		}
		if len(own) > 0 {
			rows = append(rows, sum32(own)/float32(len(own)))
		}
	}
	return sum32(rows) / float32(len(rows))
}

func TestISWeightsOnAThreshold(t *testing.T) {
	tr := newTrainer(2)
	b := tr.b
	tr.grid("logp_gen", func(int) float64 { return -1 })
	tr.grid("logp_old", func(int) float64 { return -0.5 })
	set := options(t, "tis.level=token", "tis.rule=zero_outside", "tis.low=0", "tis.high="+short(math.Exp(.5)*(1+1e-8)))
	for value, want := range map[float64]check.Verdict{math.Exp(.5): check.Pass, 0: check.Pass, 1: check.Fail} {
		tr.grid("is_weights", func(int) float64 { return value })
		require.Equal(t, want, judged32(t, "ratio/is_weights", b, set).Verdict, "%v", value)
	}
}

func TestISWeightsWithoutAnUpperBoundHaveNoStraddle(t *testing.T) {
	tr := newTrainer(2)
	tr.logprobs(0.1)
	tr.grid("is_weights", func(int) float64 { return 0 })
	set := options(t, "tis.level=token", "tis.rule=zero_outside", "tis.low=0.5", "tis.high=none")
	require.Equal(t, check.Fail, judged32(t, "ratio/is_weights", tr.b, set).Verdict)
	tr.grid("token_loss", func(int) float64 { return 0 })
	set = options(t, "loss.kind=dppo_tv", "ratio.level=token", "ratio.log_clamp=none", "clip.low=none", "clip.high=none", "dppo.limit=3", "kl.place=none", "tis.level=none")
	require.Equal(t, check.Fail, judged32(t, "token_loss/policy", tr.b, set).Verdict)
}

func TestISWeightsPerRow(t *testing.T) {
	tr := newTrainer(8)
	tr.logprobs(1)
	b := tr.b
	old, gen := b.Token("logp_old"), b.Token("logp_gen")
	tr.perRow("is_weights", func(r int) float64 {
		var s float64
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if b.Mask[i] {
				s += old[i] - gen[i]
			}
		}
		return min(math.Exp(s), 2)
	})
	set := options(t, "tis.level=seq_sum", "tis.rule=truncate_upper", "tis.high=2")
	require.Equal(t, check.Pass, judged32(t, "ratio/is_weights", b, set).Verdict)
	mean := set.With("tis.level", must(convention.Parse("tis.level", "seq_geo")), "test")
	require.Equal(t, check.Fail, judged32(t, "ratio/is_weights", b, mean).Verdict, "a sum where the options say mean (trl#5814)")
	token := set.With("tis.level", must(convention.Parse("tis.level", "token")), "test")
	require.Equal(t, check.Undetermined, judged32(t, "ratio/is_weights", b, token).Verdict)
}

func TestWeightsOfAProfileAreThoseOfTheDump(t *testing.T) {
	// A profile's default says how weights come about, not that an engine sampled; a declared level does.
	f := families()[0]
	tr := newTrainer(4)
	tr.logprobs(0.3)
	f.level = "token"
	tr.losses(&f)
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p).With("clip.high", convention.NumberValue(.28), "test")
	require.Equal(t, check.Pass, judged32(t, "token_loss/policy", tr.b, set).Verdict)
	declared := set.With("tis.level", set.Value("tis.level"), "the dump")
	require.NotEqual(t, check.Pass, judged32(t, "token_loss/policy", tr.b, declared).Verdict)
}

func TestRatioOfADetachedCopyIsOne(t *testing.T) {
	f := families()[0]
	tr := newTrainer(6)
	tr.logprobs(0.3)
	copy(tr.b.Token("logp_old"), tr.b.Token("logp_new"))
	f.level = "token"
	tr.losses(&f)
	b := tr.b.Without("logp_old")
	set := f.set(t)
	o := judged32(t, "token_loss/policy", b, set)
	require.Equal(t, []string{"logp_old"}, o.Case.Absent)
	set = set.With("ratio.old", must(convention.Parse("ratio.old", "stopgrad_new")), "test")
	o = judged32(t, "token_loss/policy", b, set)
	require.Equal(t, check.Pass, o.Verdict)
	require.Less(t, o.Tally.Resolution(), 2.1*tol.U32, "a ratio that is 1 has no error")
	unknown := set.With("ratio.old", convention.Value{}, "")
	require.Equal(t, []string{"ratio.old"}, stage.JudgeAs(stage.Find("token_loss/policy"), b, unknown, stage.Arithmetic{Unit: tol.U32}).Case.Unknown)
}

// GRPOTrainer has no old log-probs where every step is the first of its generation: the ratio is that to a detached copy.
func TestOnPolicyStepOfTRL(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	for seed := range uint64(20) {
		tr := newTrainer(seed)
		tr.b.Meta.Framework, tr.b.Meta.Algorithm = "trl", "grpo"
		tr.grid("logp_new", func(int) float64 { return -tr.r.ExpFloat64() })
		adv := tr.perRow("advantages", func(int) float64 { return tr.r.NormFloat64() })
		tr.grid("token_loss", func(i int) float64 { return -adv[i/tr.b.Cols] })
		set, _ := convention.FromProfile(p).Over(options(t, "kl.beta=0", "tis.level=none", "clip.low=0.2", "clip.high=0.2"))
		verdict := func(set *convention.Set) check.Verdict { return judged32(t, "token_loss/policy", tr.b, set).Verdict }
		require.Equal(t, check.Pass, verdict(set))
		require.Equal(t, check.Pass, verdict(set.WithFact("num_iterations", 1.0)))
		require.Equal(t, check.Undetermined, verdict(set.WithFact("num_iterations", float64(tr.micro+1))), "the old log-probs are those of an earlier step")
		tr.grid("token_loss", func(i int) float64 { return -1.01 * adv[i/tr.b.Cols] })
		require.Equal(t, check.Fail, verdict(set))
		tr.grid("logp_gen", func(int) float64 { return -1 })
		require.Equal(t, check.Undetermined, verdict(set), "beside an engine they are computed")
	}
}
