package fault_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// Answers of other pairs, and a margin that is the mean of the batch, are named in the losses of pairs.
func TestPairsOfOthers(t *testing.T) {
	const rows = 8
	x, list := drawnPairs(5, rows, .2, 0)
	set := pairOptions(t, "sigmoid", .2, 0)
	ch := stage.Find("preference/pair_loss")
	judge := func(list []pairOf, of scorer, set *convention.Set, more map[string][]float64) *stage.Outcome {
		y := map[string][]float64{}
		for name, v := range x {
			y[name] = slices.Clone(v)
		}
		for name, v := range more {
			y[name] = v
		}
		losses, mean := lossOf(list, of)
		y["loss"], y["pair_loss"] = []float64{mean}, losses
		return stage.Judge(ch, written("dpo", rows, 1, slices.Repeat([]bool{true}, rows), y), set)
	}
	require.Equal(t, check.Pass, judge(list, right["sigmoid"], set, nil).Verdict)
	policy, both, flat := slices.Clone(list), slices.Clone(list), slices.Clone(list)
	var mean float32
	for i := range list {
		before := list[(i+rows-1)%rows]
		policy[i].r = before.r
		both[i].c, both[i].rc = before.c, before.rc
		mean += list[i].h() / rows
	}
	for i := range flat {
		flat[i] = pairOf{c: mean, beta: .2}
	}
	for words, c := range map[string]struct {
		list []pairOf
		id   string
	}{
		"policy's log-probs of the rejected answers are those of the row before": {policy, "DPO-PAIR-ROWS"},
		"the chosen answers are those of the row before":                         {both, "DPO-PAIR-ROWS"},
		"the mean margin": {flat, "DPO-MEAN-INSIDE"},
	} {
		found := fault.Explain(judge(c.list, right["sigmoid"], set, nil))
		require.NotEmpty(t, found, words)
		require.Equal(t, c.id, found[0].Hypothesis.ID, found[0].Hypothesis.Title)
		require.Contains(t, found[0].Hypothesis.Title, words)
	}
}

// Log-probs per token that the width of the grid divides.
func TestPerPaddedToken(t *testing.T) {
	const rows, cols = 8, 30
	x, list := drawnPairs(6, rows, .5, 0)
	v, err := convention.Parse("dpo.per_token", "true")
	require.NoError(t, err)
	set := pairOptions(t, "sigmoid", .5, 0).With("dpo.per_token", v, "test")
	of := func(width bool) *dump.Batch {
		y := map[string][]float64{}
		for name, v := range x {
			y[name] = slices.Clone(v)
		}
		losses, mean := lossOf(list, func(p pairOf) float32 {
			n, m := p.nc, p.nr
			if width {
				n, m = cols, cols
			}
			return right["sigmoid"](pairOf{c: p.c / n, r: p.r / m, rc: p.rc / n, rr: p.rr / m, beta: p.beta})
		})
		y["loss"], y["pair_loss"] = []float64{mean}, losses
		return written("dpo", rows, cols, slices.Repeat([]bool{true}, rows*cols), y)
	}
	ch := stage.Find("preference/pair_loss")
	require.Equal(t, check.Pass, stage.Judge(ch, of(false), set).Verdict)
	found := fault.Explain(stage.Judge(ch, of(true), set))
	require.NotEmpty(t, found)
	require.Equal(t, "DPO-PER-TOKEN", found[0].Hypothesis.ID)
	require.Contains(t, found[0].Hypothesis.Title, "padded width")
}

// Log-probs that the width of each micro-batch divides, of 27 and of 31 columns of tokens, whose log-probs have one less.
func TestPerPaddedTokenOfMicroBatches(t *testing.T) {
	const rows, cols = 8, 32
	x, list := drawnPairs(8, rows, .5, 0)
	v, err := convention.Parse("dpo.per_token", "true")
	require.NoError(t, err)
	set := pairOptions(t, "sigmoid", .5, 0).With("dpo.per_token", v, "test")
	ends := []int{26, 30}
	of := func(width bool) *dump.Batch {
		y := map[string][]float64{"loss": {1, 1}, "chosen_mask": make([]float64, rows*cols), "rejected_mask": make([]float64, rows*cols)}
		for name, v := range x {
			y[name] = slices.Clone(v)
		}
		for i, p := range list {
			n, m := p.nc, p.nr
			if width {
				n, m = float32(ends[i/4]+1), float32(ends[i/4]+1)
			}
			y["pair_loss"] = append(y["pair_loss"], float64(right["sigmoid"](pairOf{c: p.c / n, r: p.r / m, rc: p.rc / n, rr: p.rr / m, beta: p.beta})))
			y["rejected_mask"][i*cols+ends[i/4]-1] = 1
		}
		b := written("dpo", rows, 1, slices.Repeat([]bool{true}, rows), y)
		b.Tensors["chosen_mask"].Width, b.Tensors["rejected_mask"].Width = cols, cols
		b.Files = []dump.FileInfo{{Lo: 0, Hi: 4}, {Lo: 4, Hi: 8}}
		return b
	}
	requireFault(t, "DPO-PER-TOKEN", "preference/pair_loss", of(true), set, of(false))
}

// Weights of a sum of losses that never reach it, are left out for one of them, or are in the other order.
func TestWeightsOfSummedLosses(t *testing.T) {
	x, list := drawnPairs(9, 6, .2, 0)
	set := pairOptions(t, "sigmoid", .2, 0)
	mix, err := convention.Parse("dpo.mix", "0.8*sigmoid+0.3*bco_pair")
	require.NoError(t, err)
	of := func(a, b float32) *dump.Batch {
		y := map[string][]float64{}
		for name, v := range x {
			y[name] = slices.Clone(v)
		}
		_, mean := lossOf(list, func(p pairOf) float32 {
			return a*right["sigmoid"](p) - b*(logSigmoid(p.beta*(p.c-p.rc))+logSigmoid(-p.beta*(p.r-p.rr)))
		})
		y["loss"] = []float64{mean}
		return written("dpo", 6, 1, slices.Repeat([]bool{true}, 6), y)
	}
	for words, w := range map[string][2]float32{"each counts 1": {1, 1}, "averaged": {.5, .5}, "reverse": {.3, .8}, "sigmoid has no weight": {1, .3}, "bco_pair is left out": {.8, 0}} {
		found := requireFault(t, "DPO-TERMS", "preference/dpo_loss", of(w[0], w[1]), set.With("dpo.mix", mix, "test"), of(.8, .3))
		require.Contains(t, found[0].Hypothesis.Title, words)
	}
}

// A margin that is held within ±½ before the loss, and means over the pairs that are divided by another number: of the accumulation steps twice or not at
// all, or of the pairs out of order.
func TestPairMeans(t *testing.T) {
	const rows = 8
	x, list := drawnPairs(7, rows, .2, 0)
	set := pairOptions(t, "sigmoid", .2, 0)
	of := func(held bool, by float64) *dump.Batch {
		y := map[string][]float64{}
		for name, v := range x {
			y[name] = slices.Clone(v)
		}
		losses, mean := lossOf(list, func(p pairOf) float32 {
			if held {
				return right["sigmoid"](pairOf{c: max(min(p.h()*p.beta, .5), -.5) / p.beta, beta: p.beta})
			}
			return right["sigmoid"](p)
		})
		y["loss"] = []float64{mean * by}
		if y["pair_loss"] = losses; by != 1 {
			delete(y, "pair_loss")
		}
		b := written("dpo", rows, 1, slices.Repeat([]bool{true}, rows), y)
		b.Meta.MicroBatches = 3
		return b
	}
	requireFault(t, "DPO-MARGIN-HELD", "preference/pair_loss", of(true, 1), set, of(false, 1))
	wrong := 0.0
	for _, p := range list {
		if p.h() < 0 {
			wrong++
		}
	}
	requireFault(t, "AGG-DENOMINATOR", "preference/dpo_loss", of(false, rows/wrong), set, of(false, 1))
	requireFault(t, "AGG-NO-BATCH", "preference/dpo_loss", of(false, rows+1e-9), set, of(false, 1))
	var sum, tokens float64
	for _, p := range list {
		sum, tokens = sum+float64(p.nc)*float64(right["sigmoid"](p)), tokens+float64(p.nc)
	}
	mean := of(false, 1+1e-9)
	byTokens := mean.With("loss", []float64{float64(float32(sum / tokens))})
	requireFault(t, "AGG-KIND", "preference/dpo_loss", byTokens, set, mean)
	v, err := convention.Parse("agg.div_ga", "true")
	require.NoError(t, err)
	set = set.With("agg.div_ga", v, "test")
	requireFault(t, "AGG-GA-TWICE", "preference/dpo_loss", of(false, 1./9), set, of(false, 1./3))
	requireFault(t, "AGG-GA-MISSING", "preference/dpo_loss", of(false, 1+1e-9), set, of(false, 1./3))
}

// Pairs in order that have no loss, a number beside the sigmoid, the length of answers in the margin, and sums of the other answer.
func TestMarginSlips(t *testing.T) {
	const rows = 8
	x, list := drawnPairs(9, rows, .2, 0)
	set := pairOptions(t, "sigmoid", .2, 0)
	of := func(loss scorer) *dump.Batch {
		y := map[string][]float64{}
		for name, v := range x {
			y[name] = slices.Clone(v)
		}
		losses, mean := lossOf(list, loss)
		y["loss"], y["pair_loss"] = []float64{mean}, losses
		return written("dpo", rows, 1, slices.Repeat([]bool{true}, rows), y)
	}
	healthy := of(right["sigmoid"])
	requireFault(t, "DPO-WEIGHTING", "preference/pair_loss", of(func(p pairOf) float32 {
		if p.h() > 0 {
			return 0
		}
		return right["sigmoid"](p)
	}), set, healthy)
	requireFault(t, "DPO-SIGMOID", "preference/pair_loss", of(func(p pairOf) float32 { return float32(-math.Log(float64(sigmoid32(p.beta*p.h()) + 0.01))) }), set, healthy)
	requireFault(t, "DPO-TERMS", "preference/pair_loss", of(func(p pairOf) float32 {
		return right["sigmoid"](pairOf{c: p.h() - 0.05*(p.nc-p.nr), beta: p.beta})
	}), set, healthy)
}
