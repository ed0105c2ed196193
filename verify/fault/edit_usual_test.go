package fault

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// An epsilon that is another number that people write, or stands under the root, is named with both numbers.
func TestEpsilons(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p).WithFact("num_generations", 4).With("adv.eps", convention.NumberValue(0.01), "test")
	judge := func(over func(variance float64) float64) *stage.Outcome {
		return stage.Judge(stage.Find("advantage/group"), rewarded(func(r []float64, group []int, i int) float64 {
			var mean, square float64
			for _, j := range group {
				mean += r[j] / float64(len(group))
			}
			for _, j := range group {
				square += (r[j] - mean) * (r[j] - mean)
			}
			return (r[i] - mean) / over(square/float64(len(group)-1))
		}), set)
	}
	require.Equal(t, check.Pass, judge(func(v float64) float64 { return math.Sqrt(v) + 0.01 }).Verdict)
	requireName(t, judge(func(v float64) float64 { return math.Sqrt(v) + 0.1 }), "ADV-EPS", "the epsilon is 0.1 where it should be 0.01")
	requireName(t, judge(func(v float64) float64 { return math.Sqrt(v + 0.01) }), "ADV-EPS", "under the root")
}

// A term of the loss that enters squared, a side of the clip without its advantage, a factor that people write.
func TestUsualSlips(t *testing.T) {
	set := clippedLoss(t, "entropy.coef", "0.02", "entropy.agg", "same", "mean.eps", "0", "kl.place", "none", "tis.level", "none")
	clipped := func(d float64) float64 { return math.Max(0.8, math.Min(math.Exp(d), 1.28)) }
	right := func(d, a float64) float64 { return math.Max(-a*math.Exp(d), -a*clipped(d)) }
	judge := func(of func(policy, entropy float64) float64) *stage.Outcome {
		b := updated(right)
		h, n := make([]float64, len(b.Mask)), float64(len(b.Mask))
		var policy, entropy float64
		for i, l := range b.Token("token_loss") {
			h[i] = float64(float32(1 + math.Abs(math.Sin(float64(i)))))
			policy, entropy = policy+l/n, entropy+h[i]/n
		}
		b.Tensors["entropy"] = &dump.Tensor{Name: "entropy", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: h, Type: format.F32}
		b.Tensors["loss"] = &dump.Tensor{Name: "loss", Layout: dump.PerFile, Width: 1, Shape: []int{1}, Data: []float64{float64(float32(of(policy, entropy)))}, Type: format.F32}
		return stage.Judge(stage.Find("aggregate/loss"), b, set)
	}
	require.Equal(t, check.Pass, judge(func(p, h float64) float64 { return p - 0.02*h }).Verdict)
	requireName(t, judge(func(p, h float64) float64 { return p - 0.02*h*h }), "OTHER-FORM", "the entropy term enters the loss squared")
	loss := stage.Find("token_loss/policy")
	requireName(t, stage.Judge(loss, updated(func(d, a float64) float64 { return math.Max(-a*math.Exp(d), 0) }), set), "ADV-FORM", "the clipped side")
	requireName(t, stage.Judge(loss, updated(func(d, a float64) float64 { return math.Abs(right(d, a)) }), set), "OTHER-FORM", "|x|")
}
