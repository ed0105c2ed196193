package fault

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A program that takes every column for an action puts the score into the last column, and its recursion runs from there on; its KL is that of the response.
func TestEveryColumnIsAnAction(t *testing.T) {
	p, _, err := convention.Lookup("openrlhf-ppo@0.11")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9", "gae.hole": "carry",
		"kl.beta": "0.1", "kl.place": "token_reward", "kl.kind": "k1", "reward.clip": "none", "eos.rule": "none"} {
		set = set.With(name, parsed(name, x), "test")
	}
	g := rand.New(rand.NewPCG(3, 5))
	const rows, cols = 8, 12
	kl, score := make([]float64, rows*cols), make([]float64, rows)
	row := -1
	returns := func(all bool) func(r, v, m, d []float64, next float64) []float64 {
		return func(_, v, m, _ []float64, _ float64) []float64 {
			row++
			a, next, behind := make([]float64, cols), 0.0, 0.0
			score[row] = float64(float32(g.NormFloat64()))
			last := cols - 1
			for ; !all && m[last] == 0; last-- {
			}
			for t := last; t >= 0; t-- {
				kl[row*cols+t] = float64(float32(g.NormFloat64()))
				r := -0.1 * kl[row*cols+t] * m[t]
				if t == last {
					r += score[row]
				}
				if all || m[t] > 0 {
					behind = r + 0.97*next - v[t] + 0.97*0.9*behind
					next = v[t]
				}
				a[t] = behind
			}
			return a
		}
	}
	for _, all := range []bool{false, true} {
		row = -1
		b := rolledOut(true, returns(all))
		b.Tensors = maps.Clone(b.Tensors)
		delete(b.Tensors, "token_rewards")
		b.Tensors["kl"] = &dump.Tensor{Name: "kl", Layout: dump.PerToken, Width: 1, Shape: []int{rows, cols}, Data: kl, Type: format.F32}
		b.Tensors["scores"] = &dump.Tensor{Name: "scores", Layout: dump.PerRow, Width: 1, Shape: []int{rows}, Data: score, Type: format.F32}
		o := stage.Judge(stage.Find("gae/returns"), b, set)
		if !all {
			require.Equal(t, check.Pass, o.Verdict, o.Lacking())
			continue
		}
		requireName(t, o, "GAE-PADS", "the score stands in the last column")
	}
}
