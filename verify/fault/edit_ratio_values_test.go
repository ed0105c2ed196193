package fault

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A gradient of values that is multiplied by a number says nothing of ratios, whatever log-probs the dump has beside it.
func TestGradientsOfValuesHaveNoRatio(t *testing.T) {
	p, _, err := convention.Lookup("trl-ppo@1.12")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"value.coef": "0.1", "value.clip": "none", "value.mask": "response"} {
		set = set.With(name, parsed(name, x), "test")
	}
	r := rand.New(rand.NewPCG(5, 6))
	b := updated(func(float64, float64) float64 { return 0 })
	n := len(b.Mask)
	v, ret, g := make([]float64, n), make([]float64, n), make([]float64, n)
	for i := range n {
		v[i], ret[i] = float64(float32(r.NormFloat64())), float64(float32(r.NormFloat64()))
		g[i] = float64(float32(1.5 * 0.1 * (v[i] - ret[i]) / float64(n)))
	}
	for name, x := range map[string][]float64{"values": v, "values_new": v, "returns": ret, "dvalues": g} {
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
	}
	o := stage.Judge(stage.Find("gradient/dvalues"), b, set)
	require.Equal(t, check.Fail, o.Verdict)
	for _, e := range Explain(o) {
		require.NotEqual(t, "RATIO-FORM", e.Hypothesis.ID, e.Hypothesis.Title)
	}
	for _, e := range inputEdits(o) {
		require.NotEqual(t, "RATIO-FORM", e.id, e.title)
	}
}

// Token losses that were not dumped cannot be weighted here: advantages in the place of the mask are no hypothesis then, and were the plain mean of
// tokens before.
func TestAdvantagesAsMaskOfLossesThatWereNotDumped(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"clip.low": "0.2", "clip.high": "0.28", "kl.beta": "0", "entropy.coef": "0"} {
		set = set.With(name, parsed(name, x), "test")
	}
	b := updated(func(d, a float64) float64 { return a * d })
	spread := make([]float64, len(b.Mask))
	for i := range spread {
		spread[i] = b.Tensors["advantages"].Data[i/b.Cols]
	}
	b.Tensors["advantages"] = &dump.Tensor{Name: "advantages", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: spread, Type: format.F32}
	ch := stage.Find("aggregate/loss")
	for _, h := range asMask() {
		require.NotNil(t, h.Predict(stage.NewCase(b, set, 0), ch))
		bare := *b
		bare.Tensors = map[string]*dump.Tensor{}
		for name, x := range b.Tensors {
			if name != "token_loss" {
				bare.Tensors[name] = x
			}
		}
		require.Nil(t, h.Predict(stage.NewCase(&bare, set, 0), ch))
	}
}
