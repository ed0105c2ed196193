package train

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/dataset"
	"plumbline/internal/rng"
	"plumbline/reference/ad"
)

// What a solver is told of a pair does not depend on its target, only on the grid and the other pairs (H10); and what the cache goes
// by is exactly that: two tasks share an entry only if all of it is the same (H12).
func TestArcSeesNoTarget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tasks := dataset.GeneratedArc(rng.New(rapid.Uint64().Draw(t, "seed"), 1), 3)
		of := func(list []dataset.ArcTask) []arcSample {
			train, test, unsolved := samples(list)
			require.Zero(t, unsolved)
			return slices.Concat(train, test)
		}
		before := of(tasks)
		require.Len(t, before, 30)
		k := rapid.IntRange(0, len(before)-1).Draw(t, "pair")
		task := &tasks[[]int{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 0, 0, 1, 1, 2, 2}[k]]
		list, at := &task.Train, k%8
		if k >= 24 {
			list, at = &task.Test, k%2
		}
		*list = slices.Clone(*list)
		(*list)[at].Output = dataset.Grid{H: 1, W: 2, Cells: []int{9, 8}}
		after := of(tasks)
		require.Equal(t, before[k].sentence(), after[k].sentence())
		require.Equal(t, before[k].control(40), after[k].control(40))
		require.Equal(t, before[k].features(40), after[k].features(40))
		require.Equal(t, before[k].key(), after[k].key())
		require.NotEqual(t, before[k].output, after[k].output)
		for i, s := range before {
			changed := k < 24 && i != k && s.task == before[k].task // it is an example of these
			require.Equal(t, changed, s.key() != after[i].key(), "pair %d", i)
			require.Equal(t, changed, s.sentence() != after[i].sentence(), "pair %d", i)
			for j := range i {
				require.NotEqual(t, s.key(), before[j].key())
			}
		}
	})
}

func TestArcSentences(t *testing.T) {
	grid := func(w int, cells ...int) dataset.Grid {
		return dataset.Grid{H: len(cells) / w, W: w, Cells: cells}
	}
	in := grid(2, 1, 2, 3, 4)
	for _, c := range []struct {
		examples []dataset.ArcPair
		want     string
	}{
		{nil, "no examples in 2x2"},
		{[]dataset.ArcPair{{Input: in, Output: in}}, "all cells stay in 2x2"},
		{[]dataset.ArcPair{{Input: in, Output: grid(2, 2, 1, 4, 3)}}, "left and right swap, 1 becomes 2, 2 becomes 1, 3 becomes 4, 4 becomes 3 in 2x2"},
		{[]dataset.ArcPair{{Input: in, Output: grid(2, 2, 1, 4, 3)}, {Input: grid(1, 1, 4), Output: grid(1, 1, 4)}}, "left and right swap, 2 becomes 1, 3 becomes 4 in 2x2"},
		{[]dataset.ArcPair{{Input: in, Output: grid(2, 3, 4, 1, 2)}, {Input: grid(3, 1, 2, 3), Output: grid(3, 1, 2, 3)}}, "top and bottom swap, 4 becomes 2 in 2x2"},
		{[]dataset.ArcPair{{Input: in, Output: grid(2, 1, 2, 7, 4)}}, "3 becomes 7 in 2x2"},
		{[]dataset.ArcPair{{Input: in, Output: grid(3, 1, 2, 7)}}, "becomes 1x3 in 2x2"},
		{[]dataset.ArcPair{{Input: grid(2, 1, 1, 2, 2), Output: grid(2, 1, 2, 1, 2)}}, "cells move in 2x2"},
	} {
		require.Equal(t, c.want, arcSample{input: in, pairs: c.examples}.sentence())
	}
	s := arcSample{input: grid(2, 1, 2, 1, 1)}
	require.Equal(t, []float64{0, .75, .25, 0, 0, 0, 0, 0, 0, 0, 2. / 30, 2. / 30, 0}, s.control(13))
	require.Equal(t, []float64{0, .75}, s.control(2))
	s.pairs = []dataset.ArcPair{{Input: in, Output: grid(2, 1, 2, 7, 4)}}
	require.Equal(t, []float64{1, 1, .75, 0, 0, 2. / 30, 2. / 30, 0, 0, 0, 0, 0, 0, 1, .7, 0, 0}, s.features(17))
	_, test, unsolved := samples([]dataset.ArcTask{{Train: []dataset.ArcPair{{Input: in, Output: in}}, Test: []dataset.ArcPair{{Input: in}, {Input: in}}}})
	require.Empty(t, test)
	require.Equal(t, 2, unsolved)
}

// flags are those that are not OK.
func flags(list []finding) (all []string) {
	for _, f := range list {
		if f.verdict == "WARN" || f.verdict == "FAIL" {
			all = append(all, f.verdict+" "+f.text)
		}
	}
	return all
}

// healthyRun is one of the given number of batches, of which every tenth makes its prompt.
func healthyRun(batches int) (list []arcLine) {
	for i := range batches {
		x := float64(i) / float64(batches)
		l := arcLine{Step: i + 1, Fresh: i%10 == 0, Mask: 1 - x/2, EFE: 6 - 2*x, Curriculum: .6, Hard: 1 - x/4, Reward: .1 * float64(i%3), Encoder: 1, Time: 10}
		if l.Fresh {
			l.Qwen, l.Time, l.Encoder = 5e-5, 30, 10
		}
		l.Loss = .7*l.Curriculum*l.Hard*l.EFE - .3*l.Reward
		list = append(list, l)
	}
	return list
}

// The summary names each red flag of the document where it is, and nothing where it is not.
func TestArcRedFlags(t *testing.T) {
	rising := []arcLine{{Accuracy: .2}, {Accuracy: .1}, {Accuracy: .3}, {Accuracy: .4}}
	require.Empty(t, flags(redFlags(healthyRun(400), rising, false)))
	for _, c := range []struct {
		name   string
		change func(l *arcLine)
		says   string
	}{
		{"no gradient", func(l *arcLine) { l.Qwen = 0 }, "FAIL Qwen_grad: 0.00e+00 for 390 batches (D2, D14)"},
		{"no gradient for a while", func(l *arcLine) {
			if l.Step > 100 && l.Step < 250 {
				l.Qwen = 0
			}
		}, "FAIL Qwen_grad: 0.00e+00 for 140 batches"},
		{"a huge gradient", func(l *arcLine) { l.Qwen *= 1e8 }, "WARN Qwen_grad: from 5.00e+03 to 5.00e+03, the source's healthy range is 1e-6 to 1e-4 (D8)"},
		{"a flat loss", func(l *arcLine) { l.Loss = .7*l.Curriculum*l.Hard*5 - .3*l.Reward }, "WARN Loss: slope"},
		{"a loss that rises", func(l *arcLine) { l.Loss = .7*l.Curriculum*l.Hard*(5+.001*float64(l.Step)) - .3*l.Reward }, "WARN Loss: slope 1.00e-03 a batch over the last 200 (D9)"},
		{"a mask that stays", func(l *arcLine) { l.Mask = 1 }, "(D12)"},
		{"no reward", func(l *arcLine) { l.Loss, l.Reward = l.Loss+.3*l.Reward, 0 }, "WARN Reward: exactly 0 for 400 batches (D11)"},
		{"no curriculum", func(l *arcLine) {
			l.Curriculum = 1
			l.Loss = .7*l.Hard*l.EFE - .3*l.Reward
		}, "WARN Loss: 4.2000 in the first batch with reward 0 and mask_ratio 1 (D7)"},
	} {
		run := healthyRun(400)
		for i := range run {
			if c.name != "a huge gradient" || run[i].Fresh {
				c.change(&run[i])
			}
		}
		found := flags(redFlags(run, rising, false))
		require.Len(t, found, 1, c.name)
		require.Contains(t, found[0], c.says, c.name)
	}
	// The loss that is logged falls by its weights alone, and the one without them says so.
	falling := healthyRun(400)
	for i := range falling {
		l := &falling[i]
		l.Hard, l.Mask = .5+.5*l.Mask, 2*l.Hard-1
		l.Loss = .7*l.Curriculum*l.Hard*5 - .3*l.Reward
	}
	require.Less(t, falling[399].Loss, falling[0].Loss)
	require.Contains(t, flags(redFlags(falling, rising, false))[0], "(D9)")

	require.Contains(t, flags(redFlags(healthyRun(400), []arcLine{{Accuracy: .3}, {Accuracy: .4}, {Accuracy: .2}, {Accuracy: .3}, {Accuracy: .9}}, false))[0],
		"WARN Val accuracy: 0.3000 in epoch 0, 0.3000 by epoch 2 or 3 (D13)")
	require.Empty(t, flags(redFlags(healthyRun(5), nil, false)), "too few batches for a trend")
	small := healthyRun(400)
	for i := range small {
		small[i].Loss += .3 * (small[i].Reward - 1e-4)
		small[i].Reward = 1e-4
	}
	require.Contains(t, redFlags(small, rising, false), finding{"NOTE", "Reward: below 1e-3 everywhere (D5): is it scaled by 5?"})

	// The four lines of the source: one warning, that the curriculum is not applied, and no failure.
	source := []arcLine{{Step: 1, Loss: 4.7448, Mask: 1}, {Step: 51, Reward: .0001, Loss: 3.2145, Qwen: 2.34e-5, Mask: .85}, {Step: 101, Reward: .0003, Loss: 2.8901, Qwen: 5.67e-5, Mask: .72},
		{Step: 151, Reward: .0008, Loss: 2.4123, Qwen: 7.89e-5, Mask: .61}}
	for i := range source {
		source[i].Fresh, source[i].Curriculum, source[i].Hard = true, .6, .5+.5*source[i].Mask
	}
	found := flags(redFlags(source, nil, false))
	require.Len(t, found, 1)
	require.Contains(t, found[0], "(D7)")
}

// The speed of a cache: a batch of 30 ms without it, 12 ms with it; the encoder's part of 2/3 allows 1/(1 − 0.6).
func TestArcCacheSpeed(t *testing.T) {
	f := cacheFinding(healthyRun(100))
	require.Equal(t, finding{"OK", "Cache: 90 of 100 prompts were used again; 12.0 ms a batch, 30.0 ms without it: 2.50 times the speed. The encoder takes 67%, which allows 1/(1 - 0.9f) = 2.50"}, f)
	slow := []arcLine{{Fresh: true, Encoder: 6, Time: 10}}
	require.Equal(t, finding{"NOTE", "Cache: no prompt was used again; the encoder's forward pass takes 60% of a batch (D6): cache_every=10 gives 2 to 3 times the speed"}, cacheFinding(slow))
	require.InDelta(t, 2., 1/(1-.9*.556), 2e-3) // systems D.4: what 2, 3 and 10 times the speed need
	require.InDelta(t, 3., 1/(1-.9*.741), 4e-3)
	require.InDelta(t, 10., 1/(1-.9*1.), 1e-12)
}

func TestSlope(t *testing.T) {
	require.InDelta(t, 3, slope([]float64{1, 4, 7, 10}), 1e-12)
	require.InDelta(t, 0, slope([]float64{1, -1, -1, 1}), 1e-12)
	require.True(t, math.IsNaN(slope([]float64{1, math.NaN(), 2})))
}

// The mean probability of the right colours, by the last planning step: two steps of 1×2 cells.
func TestCertainty(t *testing.T) {
	logits := (&ad.Tape{}).Const([]float64{
		9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0,
		0, math.Log(3), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 2, 1, 2, 10)
	require.InDelta(t, (3./12+1./10)/2, certainty(logits, dataset.Grid{H: 1, W: 2, Cells: []int{1, 7}}), 1e-15)
}

// The error of the change of the accuracy is that of a ratio of sums over pairs.
func TestDeltaError(t *testing.T) {
	same := validation{right: 7, before: 1, cells: 60, pairs: 3, changes: [][2]float64{{1, 10}, {2, 20}, {3, 30}}}
	require.InDelta(t, 0, same.deltaError(), 1e-17, "the same share of every pair")
	apart := validation{right: 9, before: 9, cells: 30, pairs: 3, changes: [][2]float64{{2, 10}, {-2, 10}, {0, 10}}}
	require.InDelta(t, math.Sqrt(3./2*(2*2+2*2))/30, apart.deltaError(), 1e-15)
}
