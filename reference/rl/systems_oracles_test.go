package rl

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Worked numbers and demands of the systems document, chapters B (masked-language-model GRPO) and C (the PPO tutorial), that
// no test next to a function has.

// TestSystemCStatistics: x = [[1,2,3],[4,5,6]] without the cell 2: mean 3.6, variance 3.44, or 4.30 with ddof 1 (C.7).
func TestSystemCStatistics(t *testing.T) {
	x, mask := []float64{1, 2, 3, 4, 5, 6}, []bool{true, true, false, true, true, true}
	require.InDelta(t, 3.6, must(MaskedMean(x, mask, tutorialMean)), 1e-8) // 18/(5 + 1e-8)
	require.InDelta(t, 3.44, must(MaskedVar(x, mask, VarOptions{})), 1e-14)
	require.InDelta(t, 4.30, must(MaskedVar(x, mask, VarOptions{DDof: 1})), 1e-14)
	require.Zero(t, must(MaskedMean(x, make([]bool, 6), tutorialMean)), "an empty mask gives 0")
	require.InDelta(t, 3.5, must(MaskedMean(x, nil, MeanOptions{})), 1e-15, "no mask is the plain mean")
	for i, m := range mask {
		if !m {
			x[i] = math.NaN()
		}
	}
	require.InDelta(t, 3.6, must(MaskedMean(x, mask, tutorialMean)), 1e-8, "selected, not multiplied")
}

// TestSystemCGAE has the second worked rollout under the tutorial's own function; its advantages come whitened.
func TestSystemCGAE(t *testing.T) {
	mask := []bool{true, true, true, false}
	kl, value := []float64{.005, -.01, .02, 0}, []float64{.2, .1, .4, 0}
	adv, ret, err := ComputeGAEAdvantages([]float64{1}, kl, value, mask, 1, 4, .99, .95)
	require.NoError(t, err)
	require.NoError(t, off(ret, []float64{.894826345, .95149, .98, 0}, 1e-12))
	raw := []float64{.694826345, .85149, .58, 0}
	white := must(Whiten(nil, raw, mask, 1, 4, WhitenOptions{Scope: ScopeGlobal, Eps: 1e-8, Remask: true, Var: VarOptions{Mean: tutorialMean}}))
	require.NoError(t, off(adv, white, 1e-9)) // raw is printed to nine digits
	require.Zero(t, adv[3])
	// Rows with an empty mask get no reward: changing their score changes nothing.
	two := append(slices.Clone(mask), make([]bool, 4)...)
	a, r, err := ComputeGAEAdvantages([]float64{1, 1e6}, append(slices.Clone(kl), kl...), append(slices.Clone(value), value...), two, 2, 4, .99, .95)
	require.NoError(t, err)
	require.True(t, sameBits(a[:4], adv) && sameBits(r[:4], ret))
	require.Equal(t, make([]float64, 4), r[4:])
}

// TestSystemCMask: the reward goes to the last true cell, Σm − 1 on the contiguous masks of the system (C.3, E4).
func TestSystemCMask(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const cols = 5
		n := rapid.IntRange(0, cols).Draw(t, "Σm")
		mask := make([]bool, cols)
		for i := range n {
			mask[i] = true
		}
		r := TokenRewards(nil, []float64{7}, make([]float64, cols), mask, nil, 1, cols, RewardOptions{Beta: 1})
		for i, v := range r {
			if want := map[bool]float64{true: 7}[i == n-1]; v != want {
				t.Fatalf("%v: cell %d holds %v", mask, i, v)
			}
		}
	})
}

// TestSystemCShapes: lengths that do not fit are refused before anything is computed (E1: A.shape ≠ old.shape).
func TestSystemCShapes(t *testing.T) {
	two, three, mask := []float64{1, 2}, []float64{1, 2, 3}, []bool{true, true}
	for name, f := range map[string]func(){
		"advantages":  func() { _, _ = ComputePolicyLoss(two, two, three, mask, 1, 2, .2) },
		"old":         func() { _, _ = ComputePolicyLoss(two, three, two, mask, 1, 2, .2) },
		"policy mask": func() { _, _ = ComputePolicyLoss(two, two, two, mask[:1], 1, 2, .2) },
		"returns":     func() { _, _ = ComputeValueLoss(two, two, three, mask, 1, 2, .2) },
		"logits":      func() { _, _, _ = ComputeEntropyLoss(three, mask, 1, 2, 2) },
		"values":      func() { _, _, _ = ComputeGAEAdvantages([]float64{1}, two, three, mask, 1, 2, .9, .9) },
		"scores":      func() { _, _, _ = ComputeGAEAdvantages(two, two, two, mask, 1, 2, .9, .9) },
		"entropy": func() {
			_, _ = RunPPOUpdateEpoch([]UpdateBatch{{Rows: 1, Cols: 2, LogpNew: two, LogpOld: two, ValuesNew: two, ValuesOld: two, Returns: two,
				Advantages: two, Entropy: three, Mask: mask}}, updOptions)
		},
	} {
		require.PanicsWithValue(t, badLength, f, name)
	}
}

// TestSystemCContamination: changing every masked cell leaves losses, gradients and metrics as they are, bit by bit (row 15).
func TestSystemCContamination(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old, mask, rows, cols := drawBatch(t, 0)
		draw := func(label string) []float64 { return drawCells(t, label, len(old)) }
		b := UpdateBatch{Rows: rows, Cols: cols, LogpNew: draw("new"), LogpOld: old, ValuesNew: draw("v"), ValuesOld: draw("V"), Returns: draw("R"),
			Advantages: draw("A"), Entropy: draw("H"), Mask: mask}
		d := UpdateBatch{Rows: rows, Cols: cols, LogpNew: poison(b.LogpNew, mask), LogpOld: poison(b.LogpOld, mask), ValuesNew: poison(b.ValuesNew, mask),
			ValuesOld: poison(b.ValuesOld, mask), Returns: poison(b.Returns, mask), Advantages: poison(b.Advantages, mask), Entropy: poison(b.Entropy, mask), Mask: mask}
		clean, dirty := rightUpdate([]UpdateBatch{b}, updOptions).Micro[0], rightUpdate([]UpdateBatch{d}, updOptions).Micro[0]
		numbers := func(u MicroUpdate) []float64 {
			return append(join(u.DLogp, u.DValue, u.DEntropy), u.PolicyLoss, u.ValueLoss, u.EntropyLoss, u.TotalLoss, u.PolicyClipFrac, u.ValueClipFrac, u.ApproxKL)
		}
		if !sameBits(numbers(clean), numbers(dirty)) {
			t.Fatalf("%+v, want %+v", dirty, clean)
		}
	})
}

// TestSystemCAblations: each of the mechanisms can be switched off alone, and then is what its absence says (row 5).
func TestSystemCAblations(t *testing.T) {
	b := UpdateBatch{Rows: 1, Cols: 2, LogpNew: []float64{-1, -1}, LogpOld: []float64{-2, -.5}, ValuesNew: []float64{2, 1}, ValuesOld: []float64{1, 1},
		Returns: []float64{3, 0}, Advantages: []float64{1, -2}, Entropy: []float64{.5, .25}}
	const n = 2 + 1e-8
	run := func(f func(o *UpdateOptions)) MicroUpdate {
		o := updOptions
		f(&o)
		return rightUpdate([]UpdateBatch{b}, o).Micro[0]
	}
	free := run(func(o *UpdateOptions) { o.ClipRatio = math.Inf(1) })
	require.InDelta(t, -(math.E-2*math.Exp(-.5))/n, free.PolicyLoss, 1e-15)
	require.Zero(t, free.PolicyClipFrac)
	value := run(func(o *UpdateOptions) { o.ClipRangeValue = math.Inf(1) })
	require.InDelta(t, .5*(1+1)/n, value.ValueLoss, 1e-15)
	require.Zero(t, value.ValueClipFrac)
	alone := run(func(o *UpdateOptions) { o.VFCoeff, o.EntropyCoeff = 0, 0 })
	require.Equal(t, alone.PolicyLoss, alone.TotalLoss)
	require.Equal(t, []float64{0, 0}, alone.DValue)
	require.Equal(t, []float64{0, 0}, []float64{alone.DEntropy[0] + 0, alone.DEntropy[1] + 0})
}

// TestMonteCarloVariance enumerates the eight outcomes of three fair rewards of ±1: under λ = 1 the advantage of the first
// token has the variance of a sum of three, under λ = 0 that of one (row 7), and in between it grows with λ.
func TestMonteCarloVariance(t *testing.T) {
	variance := func(lambda float64) float64 {
		var adv []float64
		for k := range 8 {
			r := make([]float64, 3)
			for t := range r {
				r[t] = float64(2*(k>>t&1) - 1)
			}
			adv = append(adv, gaeOf(Rollout{Rows: 1, Cols: 3, Reward: r, Value: make([]float64, 3)}, GAEOptions{Gamma: 1, Lambda: lambda, Hole: HoleCutNext})[0])
		}
		return must(MaskedVar(adv, nil, VarOptions{}))
	}
	require.Equal(t, 1.0, variance(0))
	require.Equal(t, 3.0, variance(1))
	require.InDelta(t, 1+.25+.0625, variance(.5), 1e-15)
}

// TestSystemBLoss has the worked losses of B.5, and what its root cause would have printed.
func TestSystemBLoss(t *testing.T) {
	adv, flat, err := SequenceAdvantage(nil, []float64{.2, .4, .6, .8}, 4, AdvBatch)
	require.NoError(t, err)
	require.False(t, flat)
	s, ref := []float64{-10, -12, -9, -14}, []float64{-10.5, -12.5, -9.5, -14.5}
	k1 := SequenceLoss(nil, s, ref, adv, nil, 4, 1, SequenceOptions{Beta: .1})
	require.Positive(t, k1.Policy, "the sign says nothing")
	require.InDelta(t, .921421, k1.Loss, 5e-7)
	k3 := SequenceLoss(nil, s, ref, adv, nil, 4, 1, SequenceOptions{Beta: .1, KL: KLOptions{Kind: KLK3}})
	require.InDelta(t, .0106530660, k3.KL, 5e-11)
	require.InDelta(t, .1065306597, k3.KL/.1, 5e-11) // e^d − 1 − d at d = ref − new = −.5
	require.InDelta(t, .05, k1.KL, 1e-15)

	// At iteration 0 the policy is the reference: the KL term is exactly 0 under every estimator.
	for _, kind := range []KLKind{KLK1, KLK2, KLK3} {
		require.Zero(t, SequenceLoss(nil, s, s, adv, nil, 4, 1, SequenceOptions{Beta: .1, KL: KLOptions{Kind: kind}}).KL)
	}

	// The root cause: logits of one position only. The sum covers column 0, so that the loss is 0 exactly when that is no action.
	lp := []float64{-1, -2, -3, -4, -5, -6, -7, -8}
	for _, first := range []bool{true, false} {
		mask := []bool{first, true, first, true, first, true, first, true}
		cut, cutMask := make([]float64, 4), make([]bool, 4)
		for i := range 4 {
			cut[i], cutMask[i] = lp[2*i], mask[2*i]
		}
		res := SequenceLoss(nil, cut, cut, adv, cutMask, 4, 1, SequenceOptions{Beta: .1})
		require.Equal(t, !first, res.Loss == 0)
		require.Equal(t, !first, res.SilentLogProbs)
		require.NotZero(t, SequenceLoss(nil, lp, lp, adv, mask, 4, 2, SequenceOptions{Beta: .1}).Loss, "all columns")
	}
}

// TestGroupPaths: samples of groups that are neighbours, and the same groups under other numbers, which take another path
// through GroupAdvantage, have the same advantages, bit by bit, in place, too.
func TestGroupPaths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "n")
		r := drawCells(t, "r", n)
		for i := range r {
			if rapid.IntRange(0, 5).Draw(t, "special") == 0 {
				r[i] = rapid.SampledFrom([]float64{math.NaN(), 1, 1, 1}).Draw(t, "value")
			}
		}
		group, other := make([]int, n), make([]int, n)
		for i := 1; i < n; i++ {
			group[i] = group[i-1] + rapid.IntRange(0, 1).Draw(t, "next")
		}
		for i, g := range group {
			other[i] = n - 1 - g // decreasing
		}
		o := GroupOptions{Center: Center(rapid.IntRange(0, 2).Draw(t, "center")), Scale: Scale(rapid.IntRange(0, 3).Draw(t, "scale")),
			DDof: rapid.IntRange(0, 1).Draw(t, "ddof"), Eps: 1e-6, ZeroStd: ZeroStd(rapid.IntRange(0, 2).Draw(t, "zero")),
			Singleton: Singleton(rapid.IntRange(0, 3).Draw(t, "one")), BatchCentred: rapid.Bool().Draw(t, "centred"), SkipNaN: rapid.Bool().Draw(t, "skip")}
		a, err := GroupAdvantage(nil, r, group, o)
		b, err2 := GroupAdvantage(nil, r, other, o)
		if err != err2 || !sameBits(a, b) {
			t.Fatalf("%v %v, %v %v", a, err, b, err2)
		}
		if err == nil {
			in := slices.Clone(r)
			c, err := GroupAdvantage(in, in, group, o)
			if err != nil || !sameBits(a, c) {
				t.Fatalf("in place %v, want %v", c, a)
			}
		}
	})
}
