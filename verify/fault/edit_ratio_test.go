package fault

import (
	"fmt"
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

// A ratio that is another function of its log-ratio, or reads another tensor, is named as such, in the loss and in its gradient, and of two
// bounds the one that was used.
func TestRatioEdits(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"clip.low": "0.2", "clip.high": "0.28", "kl.beta": "0", "agg.kind": "token", "agg.denominator": "micro", "agg.div_ga": "false"} {
		set = set.With(name, parsed(name, x), "test")
	}
	const low, high = 0.2, 0.28
	clamp := func(x, lo, hi float64) float64 { return math.Max(lo, math.Min(x, hi)) }
	loss := func(x, a float64) float64 { return math.Max(-a*x, -a*clamp(x, 1-low, 1+high)) }
	// the slope of the loss by the log-ratio, by differences of the formula
	slope := func(ratio func(d float64) float64, d, a float64) float64 {
		const h = 1e-6
		return (loss(ratio(d+h), a) - loss(ratio(d-h), a)) / (2 * h)
	}
	right := updated(func(d, a float64) float64 { return loss(math.Exp(d), a) })
	require.Equal(t, check.Pass, stage.Judge(stage.Find("token_loss/policy"), right, set).Verdict)
	for _, c := range []struct {
		words string
		of    func(d float64) float64
	}{
		{"held within ±0.3,", func(d float64) float64 { return math.Exp(clamp(d, -0.3, 0.3)) }},
		{"of at most 0.1,", func(d float64) float64 { return math.Exp(math.Min(d, 0.1)) }},
		{"of at least −0.2,", func(d float64) float64 { return math.Exp(math.Max(d, -0.2)) }},
		{"e to the 3·d", func(d float64) float64 { return math.Exp(3 * d) }},
		{"d²/2", func(d float64) float64 { return 1 + d + d*d/2 }},
		{"4·σ(1·", func(d float64) float64 { return 4 / (1 + math.Exp(1-math.Exp(d))) }},
		{"of at least 0,", func(d float64) float64 { return math.Exp(math.Max(d, 0)) }},
	} {
		t.Run(c.words, func(t *testing.T) {
			b := updated(func(d, a float64) float64 { return loss(c.of(d), a) })
			requireName(t, stage.Judge(stage.Find("token_loss/policy"), b, set), "RATIO-FORM", c.words)
			b.Meta.DLogpScale = 1
			b.Tensors["dlogp"] = sloped(b, func(d, a float64) float64 { return slope(c.of, d, a) })
			o := stage.Judge(stage.Find("gradient/dlogp"), b, set)
			require.Equal(t, check.Fail, o.Verdict, o.Lacking())
			requireName(t, o, "RATIO-FORM", c.words)
		})
	}
	for _, operand := range []string{"logp_new", "logp_old"} {
		t.Run("reversed "+operand, func(t *testing.T) {
			b := updated(func(d, a float64) float64 { return 0 })
			lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
			y := make([]float64, len(lp))
			for i := range lp {
				j := (b.Rows-1-i/b.Cols)*b.Cols + i%b.Cols
				d := lp[j] - old[i]
				if operand == "logp_old" {
					d = lp[i] - old[j]
				}
				y[i] = float64(float32(loss(math.Exp(d), adv[i/b.Cols])))
			}
			b.Tensors["token_loss"].Data = y
			o := stage.Judge(stage.Find("token_loss/policy"), b, set)
			require.Equal(t, check.Fail, o.Verdict)
			found := Explain(o)
			require.NotEmpty(t, found)
			require.Contains(t, found[0].Hypothesis.Title, operand)
			require.Contains(t, found[0].Hypothesis.Title, "reversed")
		})
	}
	for _, back := range []bool{false, true} {
		t.Run(fmt.Sprintf("carried, back %v", back), func(t *testing.T) {
			b := updated(func(d, a float64) float64 { return 0 })
			lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
			for i := range lp {
				d := 0.0
				for j := i - i%b.Cols; j < i-i%b.Cols+b.Cols; j++ {
					if b.Mask[j] && (j == i || (j > i) == back) {
						d += lp[j] - old[j]
					}
				}
				b.Token("token_loss")[i] = float64(float32(loss(math.Exp(d), adv[i/b.Cols])))
			}
			requireName(t, stage.Judge(stage.Find("token_loss/policy"), b, set), "RATIO-FORM", map[bool]string{true: "from it on", false: "up to it"}[back])
		})
	}
	t.Run("a bound between those that people write", func(t *testing.T) {
		requireNoName(t, stage.Judge(stage.Find("token_loss/policy"), updated(func(d, a float64) float64 { return loss(math.Exp(clamp(d, -0.23, 0.31)), a) }), set))
	})
	noise := rand.New(rand.NewPCG(5, 6))
	t.Run("noise", func(t *testing.T) {
		requireNoName(t, stage.Judge(stage.Find("token_loss/policy"), updated(func(float64, float64) float64 { return noise.NormFloat64() }), set))
	})
}

// sloped returns the gradient of the mean over all tokens of losses whose slope by the log-ratio is given.
func sloped(b *dump.Batch, slope func(d, a float64) float64) *dump.Tensor {
	lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
	g := make([]float64, len(lp))
	for i := range g {
		g[i] = float64(float32(slope(lp[i]-old[i], adv[i/b.Cols]) / float64(len(lp))))
	}
	return &dump.Tensor{Name: "dlogp", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: g, Type: format.F32}
}
