package fault_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/plant/trainer"
	"plumbline/verify/stage"
)

// A sum over tokens is divided by what one micro-batch has for itself, or by what importance weights keep.
func TestCountsOfOneMicroBatchAndOfKeptTokens(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := trainer.Complete(p, rand.New(rand.NewPCG(2, 7)))
	for option, value := range map[string]string{"agg.kind": "token", "agg.denominator": "global", "agg.div_ga": "false", "loss.kind": "ppo", "entropy.coef": "0", "kl.place": "none", "tis.level": "token",
		"tis.rule": "zero_outside", "tis.gate": "ratio", "tis.high": "1.02", "tis.low": "0.98", "tis.normalize": "false"} {
		v, err := convention.Parse(option, value)
		require.NoError(t, err)
		set = set.With(option, v, "test")
	}
	b, set := trainer.Healthy(trainer.Config{Set: set, Rows: 32, Cols: 12, Files: 2, Seed: 2})
	of, kept := make([]float64, 2), make([]float64, 2)
	for i, m := range b.Mask {
		if f := b.File(i / b.Cols); m {
			if of[f]++; b.Token("is_weights")[i] != 0 {
				kept[f]++
			}
		}
	}
	n := of[0] + of[1]
	require.Less(t, kept[0]+kept[1], n)
	right := append([]float64(nil), b.Token("dlogp")...)
	for words, by := range map[string][]float64{"": {1, 1}, "of the last micro-batch of a rank by its own": {1, n / of[1]}, "of the first micro-batch of a rank by its own": {n / of[0], 1},
		"the tokens of the step that importance weights keep": {n / (kept[0] + kept[1]), n / (kept[0] + kept[1])}, "times the share": {of[0] / kept[0], of[1] / kept[1]}} {
		for i, x := range right {
			b.Token("dlogp")[i] = float64(float32(x * by[b.File(i/b.Cols)]))
		}
		o := stage.Judge(stage.Find("gradient/dlogp"), b, set)
		require.Equal(t, map[bool]check.Verdict{true: check.Pass, false: check.Fail}[words == ""], o.Verdict, words)
		if words != "" {
			require.Contains(t, fault.Explain(o)[0].Hypothesis.Title, words)
		}
	}
}

// The tokens of all ranks are taken to be those of one of them, times the ranks or not.
func TestCountsOfOneRankForAll(t *testing.T) {
	const rows, cols = 8, 60
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for option, value := range map[string]string{"agg.kind": "token", "agg.denominator": "global", "agg.div_ga": "false", "loss.kind": "ppo", "entropy.coef": "0", "kl.beta": "0", "kl.place": "none", "mean.eps": "0", "tis.level": "none"} {
		v, err := convention.Parse(option, value)
		require.NoError(t, err)
		set = set.With(option, v, "test")
	}
	own := [2]float64{}
	step := func(divisor func() float64) *stage.Outcome {
		mask, x, loss := make([]bool, rows*cols), make([]float64, rows*cols), make([]float64, 2)
		own = [2]float64{}
		for i := range mask {
			if mask[i] = i%cols < 9+(i/cols*17+i/cols/4*5)%41; mask[i] {
				x[i] = noise(i)
				own[i/cols/4]++
			}
		}
		for i, v := range x {
			if mask[i] {
				loss[i/cols/4] += 2 * float64(float32(v)) / divisor() // the mean over the ranks is the sum
			}
		}
		b := written("grpo", rows, cols, mask, map[string][]float64{"token_loss": x, "loss": loss, "logp_new": slices.Clone(x), "logp_old": slices.Clone(x), "advantages": make([]float64, rows)})
		b.Files = []dump.FileInfo{{Hi: 4, Cols: cols, PromptCols: 1}, {Lo: 4, Hi: rows, Cols: cols, PromptCols: 1, Rank: 1}}
		for r := 4; r < rows; r++ {
			b.Origin[r].File = 1
		}
		b.Meta.WorldSize = 2
		return stage.Judge(stage.Find("aggregate/loss"), b, set)
	}
	o := step(func() float64 { return own[0] + own[1] })
	require.NotEqual(t, own[0], own[1])
	require.Equal(t, check.Pass, o.Verdict, o.Lacking())
	requireFirst(t, step(func() float64 { return 2 * own[0] }), "AGG-LOCAL-DENOMINATOR", "the tokens of the first rank, times the ranks")
	requireFirst(t, step(func() float64 { return 2 * own[1] }), "AGG-LOCAL-DENOMINATOR", "the tokens of the last rank, times the ranks")
	requireFirst(t, step(func() float64 { return own[0] }), "AGG-LOCAL-DENOMINATOR", "the tokens of the first rank,")
}
