package fault

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A baseline over rows that are no group is found whichever rows they are; one number of every row has no name.
func TestBaselineOfOtherRows(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	spread := func(r []float64, group []int) float64 {
		var mean, sum float64
		for _, j := range group {
			mean += r[j] / float64(len(group))
		}
		for _, j := range group {
			sum += (r[j] - mean) * (r[j] - mean)
		}
		return math.Sqrt(sum/float64(len(group)-1)) + 1e-4
	}
	part := func(i int) int { return (7*i + 3) % 16 / 4 } // of four rows each, across the groups
	judged := func(base func(r []float64, i int) float64) *stage.Outcome {
		return stage.Judge(stage.Find("advantage/group"), rewarded(func(r []float64, group []int, i int) float64 { return (r[i] - base(r, i)) / spread(r, group) }), set)
	}
	requireName(t, judged(func(r []float64, i int) (mean float64) {
		for j := range r {
			if part(j) == part(i) {
				mean += r[j] / 4
			}
		}
		return mean
	}), "ADV-WRONG-GROUPS", "the mean of rows of other groups")
	requireNoName(t, judged(func(r []float64, i int) float64 { return 0.3 * float64(part(i)*part(i)) }))
}

// Scores that are all held at one number leave no slope to tell a baseline by, and the search for one ends.
func TestScoresHeldAtOneNumberHaveNoBaseline(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for option, text := range map[string]string{"reward.clip": "before_baseline", "reward.clip_range": "50,60"} {
		v, err := convention.Parse(option, text)
		require.NoError(t, err)
		set = set.With(option, v, "test")
	}
	o := stage.Judge(stage.Find("advantage/group"), rewarded(func(r []float64, _ []int, i int) float64 { return r[i] }), set)
	require.Equal(t, check.Fail, o.Verdict)
	require.Nil(t, otherPartition(o.Case, o.Check))
}

// Sequence ratios whose log-ratios of padding are summed, too.
func TestSequenceRatioWithPadding(t *testing.T) {
	set := clippedLoss(t, "ratio.level", "seq_mean")
	c := stage.Find("token_loss/policy")
	judged := func(pads bool) *stage.Outcome {
		b := updated(func(float64, float64) float64 { return 0 })
		for i := range b.Mask {
			b.Mask[i] = i%b.Cols < 3+i/b.Cols%4
		}
		lp, old := b.Token("logp_new"), b.Token("logp_old")
		i := -1
		return stage.Judge(c, perTokenOf(b, "token_loss", func(_, _, a float64) float64 {
			i++
			var sum, n float64
			for j := i / b.Cols * b.Cols; j < (i/b.Cols+1)*b.Cols; j++ {
				if b.Mask[j] {
					n++
				}
				if b.Mask[j] || pads {
					sum += lp[j] - old[j]
				}
			}
			r := math.Exp(sum / n)
			return math.Max(-a*r, -a*math.Max(0.8, math.Min(r, 1.28)))
		}), set)
	}
	require.Equal(t, check.Pass, judged(false).Verdict)
	requireName(t, judged(true), "RATIO-MEAN-PADS", "of padding are in the sum")
}

// Weights of other old log-probs than those of the dump, which are the engine's.
func TestWeightsOfOtherOldLogProbs(t *testing.T) {
	set := clippedLoss(t, "tis.level", "token", "tis.rule", "truncate_upper", "tis.high", "2", "tis.low", "none", "tis.log_clamp", "none", "tis.normalize", "false")
	b := updated(func(float64, float64) float64 { return 0 })
	g := rand.New(rand.NewPCG(3, 3))
	w := make([]float64, len(b.Mask))
	for i := range w {
		w[i] = float64(float32(math.Exp(0.1 * g.NormFloat64())))
	}
	b.Tensors["is_weights"] = &dump.Tensor{Name: "is_weights", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: w, Type: format.F32}
	b.Tensors["logp_gen"] = &dump.Tensor{Name: "logp_gen", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: b.Token("logp_old"), Type: format.F32}
	requireName(t, stage.Judge(stage.Find("ratio/is_weights"), b, set), "OLD-IS-GEN", "every weight is 1")
}

// A probability in place of its logarithm under a detached ratio.
func TestRatioTimesProbability(t *testing.T) {
	set := clippedLoss(t, "loss.kind", "cispo", "clip.high", "0.2", "clip.high_is_absolute", "false")
	b := perTokenOf(updated(func(float64, float64) float64 { return 0 }), "token_loss", func(lp, old, a float64) float64 {
		return -a * math.Max(0.8, math.Min(math.Exp(lp-old), 1.2)) * math.Exp(lp)
	})
	requireName(t, stage.Judge(stage.Find("token_loss/policy"), b, set), "LOSS-KIND", "of the probability")
}
