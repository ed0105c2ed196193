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

// A row whose advantages are one number reads the same of its neighbours: a cell that rounding has put wrong, and that a rolled tensor says
// nothing of, is no sign of one.
func TestRolledTensorThatIsTheSame(t *testing.T) {
	set := clippedLoss(t)
	b := updated(func(d, a float64) float64 { return 0 })
	delete(b.Tensors, "token_loss")
	for r := range b.Rows {
		b.Mask[(r+1)*b.Cols-1], b.Mask[(r+1)*b.Cols-2] = false, false
	}
	b.Meta.DLogpScale = 1
	lp, old, adv, n := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages"), count(b.Mask)
	a, g := make([]float64, len(lp)), make([]float64, len(lp))
	for i, m := range b.Mask {
		if !m {
			continue
		}
		d := lp[i] - old[i]
		if a[i] = adv[i/b.Cols]; !(-a[i]*math.Max(0.8, math.Min(math.Exp(d), 1.28)) > -a[i]*math.Exp(d)) {
			g[i] = format.Round(-a[i]*math.Exp(d)/n, format.BF16)
		}
	}
	b.Tensors["advantages"] = &dump.Tensor{Name: "advantages", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: a, Type: format.F32}
	b.Tensors["dlogp"] = &dump.Tensor{Name: "dlogp", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: g, Type: format.BF16}
	c := stage.Find("gradient/dlogp")
	require.Equal(t, check.Pass, stage.Judge(c, b, set).Verdict)
	for r := range b.Rows { // the last token of a response, behind which nothing is known
		if i := (r+1)*b.Cols - 3; g[i] != 0 {
			g[i] = format.Round(1.03*g[i], format.BF16)
			break
		}
	}
	requireNoName(t, stage.Judge(c, b, set))
}
