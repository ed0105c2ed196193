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

// The square of a coefficient that stands for it is told as that, whatever the coefficient is in a step: it is the same bug where a controller moves it.
func TestSquareOfACoefficient(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"kl.place": "token_reward", "kl.kind": "k1", "kl.beta": "0.13", "kl.adaptive": "none"} {
		set = set.With(name, parsed(name, x), "test")
	}
	drift := func(i int) float64 { return 0.4 * math.Sin(float64(3*i)) } // of the reference
	of := func(penalty func(beta, kl float64) float64) *dump.Batch {
		b := updated(func(float64, float64) float64 { return 0 })
		old, n := b.Token("logp_old"), b.Rows*b.Cols
		ref, kl, reward, score := make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, b.Rows)
		for i, x := range old {
			ref[i] = float64(float32(x + drift(i)))
			kl[i] = float64(float32(x - ref[i]))
			if score[i/b.Cols] = float64(i/b.Cols%3) - 0.5; i%b.Cols == b.Cols-1 {
				reward[i] = score[i/b.Cols]
			}
			reward[i] = float64(float32(reward[i] - penalty(0.13, kl[i])))
		}
		for name, x := range map[string][]float64{"logp_ref": ref, "kl": kl, "token_rewards": reward} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
		}
		b.Tensors["scores"] = &dump.Tensor{Name: "scores", Layout: dump.PerRow, Width: 1, Shape: []int{b.Rows}, Data: score, Type: format.F32}
		return b
	}
	ch := stage.Find("reward/token")
	right := stage.Judge(ch, of(func(beta, kl float64) float64 { return beta * kl }), set)
	require.Equal(t, check.Pass, right.Verdict)
	squared := stage.Judge(ch, of(func(beta, kl float64) float64 { return beta * beta * kl }), set)
	require.Equal(t, check.Fail, squared.Verdict)
	found := newTrial(squared).fitting(numberFunctionEdits(squared))
	require.Len(t, found, 1)
	require.Equal(t, "the square of kl.beta stands where kl.beta should", found[0].Hypothesis.Title)

	// What a token of KL is summed up to is told, too.
	sums := func(beta float64) func(float64, float64) float64 {
		i, sum := 0, 0.0
		return func(_, kl float64) float64 {
			if i%6 == 0 {
				sum = 0
			}
			i++
			sum += kl
			return beta * sum
		}
	}
	requireName(t, stage.Judge(ch, of(sums(0.13)), set), "OTHER-FORM", "the sum over those up to it in its row")

	// Where no estimate is below 0, a function that halves what is above 0 is half of the coefficient.
	drift = func(i int) float64 { return -0.4 * math.Abs(math.Sin(float64(3*i))) }
	half := stage.Judge(ch, of(func(beta, kl float64) float64 { return beta * kl / 2 }), set)
	halved := newTrial(half).fitting(append(functionEdits(half), numberFunctionEdits(half)...))
	require.Len(t, halved, 1)
	require.Equal(t, "half of kl.beta stands where kl.beta should", halved[0].Hypothesis.Title)
}
