package fault

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// longRows returns a step of groups of four responses of 3 to 10 tokens on two ranks, with the advantages that a program makes of right ones,
// (r − mean)/(std + 1e-4) of the group.
func longRows(finish func(b *dump.Batch, right []float64) []float64) *dump.Batch {
	right := make([]float64, 16)
	b := rewarded(func(r []float64, group []int, i int) float64 {
		x := make([]float64, len(r))
		copy(x, r)
		right[i] = (r[i] - centreOf("mean", x, group, i)) / (spreadOf("std1", x, group) + 1e-4)
		return 0
	})
	b.Cols, b.Mask = 10, make([]bool, b.Rows*10)
	b.Files = []dump.FileInfo{{Lo: 0, Hi: 4, Cols: 10}, {Lo: 4, Hi: 8, Cols: 10}, {Lo: 8, Hi: 12, Cols: 10, Rank: 1}, {Lo: 12, Hi: 16, Cols: 10, Rank: 1}}
	b.Meta.WorldSize = 2
	for i := range b.Origin {
		b.Origin[i] = dump.Origin{File: i / 4, Cols: 10}
	}
	for i := range b.Mask {
		b.Mask[i] = i%10 < 3+i/10*5%8
	}
	adv := finish(b, right)
	for i := range adv {
		adv[i] = float64(float32(adv[i]))
	}
	b.Tensors["advantages"].Data = adv
	return b
}

// What is done to advantages that are finished is named by that.
func TestAfterEdits(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p).WithFact("num_generations", 4)
	judge := func(finish func(b *dump.Batch, right []float64) []float64) *stage.Outcome {
		return stage.Judge(stage.Find("advantage/group"), longRows(finish), set)
	}
	require.Equal(t, check.Pass, judge(func(_ *dump.Batch, a []float64) []float64 { return a }).Verdict)
	whole := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	penalty := func(most float64) func(b *dump.Batch, a []float64) []float64 {
		return func(b *dump.Batch, a []float64) []float64 {
			n, y := tokensOf(b, b.Mask), make([]float64, len(a))
			for i := range a {
				y[i] = a[i] - math.Min(math.Max(n[i]-5, 0)/4, most)
			}
			return y
		}
	}
	for _, c := range []struct {
		id, words string
		of        func(b *dump.Batch, a []float64) []float64
	}{
		{"ADV-NORMALISED-TWICE", "all rows of the step: the mean is subtracted", func(_ *dump.Batch, a []float64) []float64 {
			s := spreadOf("std1", a, whole)
			return mapped(a, func(x float64) float64 { return (x - centreOf("mean", a, whole, 0)) / (s + 1e-6) })
		}},
		{"ADV-NORMALISED-TWICE", "over the tokens of the rows of its rank", func(b *dump.Batch, a []float64) []float64 {
			n, y := tokensOf(b, b.Mask), make([]float64, len(a))
			for lo := 0; lo < 16; lo += 8 {
				var x []float64
				for i := lo; i < lo+8; i++ {
					for range int(n[i]) {
						x = append(x, a[i])
					}
				}
				for i := lo; i < lo+8; i++ {
					y[i] = (a[i] - meanOf(x)) / (deviationOf(x, 0) + 1e-8)
				}
			}
			return y
		}},
		{"PENALTY-AFTER-BASELINE", "-0.25 for each token beyond 5", penalty(9)},
		{"PENALTY-AFTER-BASELINE", "-0.25 for each token beyond 5", penalty(1)},
	} {
		t.Run(c.words, func(t *testing.T) { requireName(t, judge(c.of), c.id, c.words) })
	}
	t.Run("the same of every length", func(t *testing.T) {
		require.Empty(t, lengthPenalty(judge(func(_ *dump.Batch, a []float64) []float64 {
			return mapped(a, func(x float64) float64 { return x - 0.3 })
		})))
	})
	t.Run("without EOS", func(t *testing.T) {
		b := longRows(func(b *dump.Batch, a []float64) []float64 {
			ids := make([]float64, len(b.Mask))
			for i := range ids {
				if ids[i] = 7; i == lastOf(b, i/b.Cols) && i/b.Cols%3 > 0 {
					ids[i] = 2
				}
			}
			b.Tensors["response_ids"] = &dump.Tensor{Name: "response_ids", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: ids, Type: format.F32}
			y := mapped(a, func(x float64) float64 { return x })
			for i := 0; i < len(y); i += 3 {
				y[i] -= 0.4
			}
			return y
		})
		requireName(t, stage.Judge(stage.Find("advantage/group"), b, set.WithFact("eos_token_id", 2.0)), "PENALTY-AFTER-BASELINE", "-0.4 is added to finished advantages of responses without EOS")
	})
	noise := rand.New(rand.NewPCG(5, 6))
	t.Run("noise", func(t *testing.T) {
		requireNoName(t, judge(func(_ *dump.Batch, a []float64) []float64 {
			return mapped(a, func(x float64) float64 { return x + noise.NormFloat64() })
		}))
	})
	t.Run("a penalty that is in the reward", func(t *testing.T) {
		b := longRows(func(_ *dump.Batch, a []float64) []float64 { return a })
		require.Empty(t, lengthPenalty(stage.Judge(stage.Find("advantage/group"), b, set)))
	})
}

// A group that ranks share out is found where a rank has one row of it, which has no deviation.
func TestGroupsOfOneRow(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p).WithFact("num_generations", 4)
	for _, alone := range []string{"0", "the reward"} {
		b := longRows(func(b *dump.Batch, _ []float64) []float64 {
			id, r := b.Row("group_id"), b.Row("scores")
			for i := range id {
				id[i] = float64(i * 7 % 16 % 4)
			}
			id[0], id[9] = id[9], id[0]
			y := make([]float64, len(r))
			for i := range y {
				var own []int
				for j := range id {
					if id[j] == id[i] && j/8 == i/8 {
						own = append(own, j)
					}
				}
				switch {
				case len(own) > 1:
					y[i] = (r[i] - centreOf("mean", r, own, i)) / (spreadOf("std1", r, own) + 1e-4)
				case alone != "0":
					y[i] = r[i] / (1 + 1e-4)
				}
			}
			return y
		})
		requireName(t, stage.Judge(stage.Find("advantage/group"), b, set), "ADV-GROUPS-PER-RANK", "rank")
	}
}

// A KL that is not in the dump is recomputed where it may stand after the baseline, and a baseline that is subtracted twice shows before the whitening.
func TestKLAndBaselineAfter(t *testing.T) {
	const beta = 0.2
	p, _, err := convention.Lookup("trl-rloo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p).WithFact("num_generations", 4).With("kl.beta", parsed("kl.beta", "0.2"), "test").With("reward.clip", parsed("reward.clip", "none"), "test")
	r := rand.New(rand.NewPCG(2, 9))
	of := func(after bool) *dump.Batch {
		return longRows(func(b *dump.Batch, _ []float64) []float64 {
			old, ref, score := make([]float64, len(b.Mask)), make([]float64, len(b.Mask)), b.Row("scores")
			kl, y := make([]float64, b.Rows), make([]float64, b.Rows)
			for i := range old {
				old[i] = float64(float32(-1 - r.Float64()))
				ref[i] = float64(float32(old[i] + 0.3*r.NormFloat64()))
				if b.Mask[i] {
					kl[i/b.Cols] += beta * (old[i] - ref[i])
				}
			}
			for name, x := range map[string][]float64{"logp_old": old, "logp_new": old, "logp_ref": ref} {
				b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
			}
			reward := func(i int) float64 {
				if after {
					return score[i]
				}
				return score[i] - kl[i]
			}
			for i := range y {
				for j := i / 4 * 4; j < i/4*4+4; j++ {
					y[i] -= reward(j) / 3
				}
				if y[i] += reward(i) * 4 / 3; after {
					y[i] -= kl[i]
				}
			}
			return y
		})
	}
	ch := stage.Find("advantage/group")
	require.Equal(t, check.Pass, stage.Judge(ch, of(false), set).Verdict, stage.Judge(ch, of(false), set).Lacking())
	requireName(t, stage.Judge(ch, of(true), set), "KL-AFTER-BASELINE", "after the baseline")
}

// The baseline of a group that is in the last reward of a response and is subtracted from its returns once more shows before the whitening.
func TestBaselineTwice(t *testing.T) {
	p, _, err := convention.Lookup("openrlhf-group@0.11")
	require.NoError(t, err)
	set := convention.FromProfile(p).WithFact("num_generations", 4)
	for name, x := range map[string]string{"adv.kind": "group", "adv.center": "mean", "adv.scale": "none", "kl.beta": "0", "kl.place": "sequence_reward_after", "gae.gamma": "1", "whiten.scope": "global",
		"whiten.ddof": "0", "whiten.eps_place": "floor_var", "whiten.eps": "1e-8", "whiten.mask": "response", "whiten.shift_mean": "true", "rfpp.mode": "return_to_go", "reward.clip": "none"} {
		set = set.With(name, parsed(name, x), "test")
	}
	of := func(again float64) *dump.Batch {
		b := longRows(func(_ *dump.Batch, a []float64) []float64 { return a })
		score := b.Row("scores")
		reward, ret, adv := make([]float64, len(b.Mask)), make([]float64, len(b.Mask)), make([]float64, len(b.Mask))
		var x []float64
		for i, in := range b.Mask {
			r := i / b.Cols
			mean := meanOf(score[r/4*4 : r/4*4+4])
			if ret[i] = score[r] - mean - again*mean; in {
				x = append(x, ret[i])
			}
			if i == lastOf(b, r) {
				reward[i] = float64(float32(score[r] - mean))
			}
		}
		for i, in := range b.Mask {
			if in {
				adv[i] = float64(float32((ret[i] - meanOf(x)) / deviationOf(x, 0)))
			}
		}
		for name, x := range map[string][]float64{"token_rewards": reward, "advantages": adv, "kl": make([]float64, len(adv))} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
		}
		return b
	}
	ch := stage.Find("advantage/group")
	require.Equal(t, check.Pass, stage.Judge(ch, of(0), set).Verdict, stage.Judge(ch, of(0), set).Lacking())
	requireName(t, stage.Judge(ch, of(1), set), "ADV-BASELINE-TWICE", "the return of every token, which has the baseline in it")
}

// Advantages whose mean over the step is subtracted, once: of normalised ones that is a bug whatever is configured; those that have a baseline alone may be whitened.
func TestAfterEditsOfWhatIsNotNormalised(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	for scale, relative := range map[string]bool{"none": true, "group_std": false} {
		set := convention.FromProfile(p).WithFact("num_generations", 4).With("adv.scale", parsed("adv.scale", scale), "test")
		b := longRows(func(b *dump.Batch, right []float64) []float64 { return make([]float64, len(right)) })
		right, n := stage.Judge(stage.Find("advantage/group"), b, set).Pred.Want, tokensOf(b, b.Mask)
		var sum, all float64
		for i, x := range right {
			sum, all = sum+x*n[i], all+n[i]
		}
		for i, x := range right {
			b.Tensors["advantages"].Data[i] = float64(float32(x - sum/all))
		}
		found := Explain(stage.Judge(stage.Find("advantage/group"), b, set))
		i := slices.IndexFunc(found, func(e Explanation) bool { return e.Hypothesis != nil && e.Hypothesis.ID == "ADV-NORMALISED-TWICE" })
		require.GreaterOrEqual(t, i, 0, scale)
		require.Equal(t, relative, found[i].Hypothesis.Relative, scale)
	}
}
