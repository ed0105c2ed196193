package rl

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestUpdateGradients has what one micro-batch gives, cell by cell, from the formulas.
func TestUpdateGradients(t *testing.T) {
	// Cell 0: inside; cell 1: clipped by the policy, value square held; cell 2: masked.
	b := UpdateBatch{Rows: 1, Cols: 3, LogpNew: []float64{-1, -1, nan}, LogpOld: []float64{-1, -2, nan}, Advantages: []float64{2, 3, nan},
		ValuesNew: []float64{.1, 2, nan}, ValuesOld: []float64{0, 1, nan}, Returns: []float64{1, 3, nan}, Entropy: []float64{.5, .7, nan},
		Mask: []bool{true, true, false}}
	o := UpdateOptions{ClipRatio: .2, ClipRangeValue: .2, VFCoeff: .1, EntropyCoeff: .01, Accumulation: 8}
	e, err := RunPPOUpdateEpoch([]UpdateBatch{b, b}, o)
	require.NoError(t, err)
	require.Equal(t, []UpdateStep{{0, 2, 2}}, e.Steps)
	const n = 2 + 1e-8
	u := e.Micro[1]
	require.InDelta(t, -(2+1.2*3)/n, u.PolicyLoss, 1e-15)
	require.InDelta(t, .5*(.81+1.8*1.8)/n, u.ValueLoss, 1e-15)
	require.InDelta(t, -1.2/n, u.EntropyLoss, 1e-15)
	require.InDelta(t, u.PolicyLoss+.1*u.ValueLoss+.01*u.EntropyLoss, u.TotalLoss, 1e-15)
	require.NoError(t, off(u.DLogp, []float64{-2 / n / 2, 0, 0}, 1e-15))
	require.NoError(t, off(u.DValue, []float64{.1 * -.9 / n / 2, 0, 0}, 1e-15))
	require.NoError(t, off(u.DEntropy, []float64{-.01 / n / 2, -.01 / n / 2, 0}, 1e-15))
	for i, want := range []Metric{{"loss/policy", u.PolicyLoss}, {"loss/value", u.ValueLoss}, {"loss/entropy", u.EntropyLoss}, {"loss/total", u.TotalLoss},
		{"policy/entropy", 1.2 / n}, {"params/policy_clip_frac", 1 / n}, {"params/value_clip_frac", 1 / n}, {"params/approx_kl", -1 / n}, {"params/grad_norm", 7}} {
		got := e.Metrics([]float64{7})[i]
		require.Equal(t, want.Name, got.Name)
		require.InDelta(t, want.Value, got.Value, 1e-15, got.Name)
	}
	require.Len(t, e.Metrics(nil), 8)
	require.Panics(t, func() { e.Metrics([]float64{1, 2}) })

	// The first mini-batch of an epoch has new = old: approx_kl and clip_frac are exactly 0.
	b.LogpOld = b.LogpNew
	e, err = RunPPOUpdateEpoch([]UpdateBatch{b}, o)
	require.NoError(t, err)
	require.Zero(t, e.Micro[0].ApproxKL)
	require.Zero(t, e.Micro[0].PolicyClipFrac)

	// All rewards 0 is an update all the same: values and the entropy have a gradient (C.0, 22).
	b.Advantages = make([]float64, 3)
	e, err = RunPPOUpdateEpoch([]UpdateBatch{b}, o)
	require.NoError(t, err)
	require.Equal(t, []float64{0, 0, 0}, e.Micro[0].DLogp)
	require.NotZero(t, e.Micro[0].DValue[0])
	require.NotZero(t, e.Micro[0].DEntropy[0])

	// Nothing to learn from: zeros, not NaN. No micro-batch at all: no step.
	b.Mask = make([]bool, 3)
	e, err = RunPPOUpdateEpoch([]UpdateBatch{b}, o)
	require.NoError(t, err)
	require.Zero(t, e.Micro[0].TotalLoss)
	require.Equal(t, make([]float64, 3), e.Micro[0].DValue)
	e, err = RunPPOUpdateEpoch(nil, o)
	require.NoError(t, err)
	require.Empty(t, e.Steps)
	require.True(t, math.IsNaN(e.Metrics(nil)[0].Value))
	o.Accumulation = 0
	require.PanicsWithValue(t, badOption, func() { _, _ = RunPPOUpdateEpoch(nil, o) })
}

// TestUpdateAccumulation: micro-batches with equally many tokens add up to the batch, others do not.
func TestUpdateAccumulation(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	const rows, cols = 4, 4
	draw := func() []float64 {
		x := make([]float64, rows*cols)
		for i := range x {
			x[i] = r.NormFloat64()
		}
		return x
	}
	whole := UpdateBatch{Rows: rows, Cols: cols, LogpNew: draw(), LogpOld: draw(), ValuesNew: draw(), ValuesOld: draw(), Returns: draw(),
		Advantages: draw(), Entropy: draw()}
	split := func(b UpdateBatch) (parts []UpdateBatch) {
		for i := range rows {
			c := func(x []float64) []float64 { return row(x, i, cols) }
			parts = append(parts, UpdateBatch{Rows: 1, Cols: cols, LogpNew: c(b.LogpNew), LogpOld: c(b.LogpOld), ValuesNew: c(b.ValuesNew),
				ValuesOld: c(b.ValuesOld), Returns: c(b.Returns), Advantages: c(b.Advantages), Entropy: c(b.Entropy), Mask: row(b.Mask, i, cols)})
		}
		return parts
	}
	gradients := func(e UpdateEpoch) (g []float64) {
		for _, pick := range []func(u MicroUpdate) []float64{
			func(u MicroUpdate) []float64 { return u.DLogp }, func(u MicroUpdate) []float64 { return u.DValue },
			func(u MicroUpdate) []float64 { return u.DEntropy }} {
			for _, u := range e.Micro {
				g = append(g, pick(u)...)
			}
		}
		return g
	}
	o := updOptions
	o.Accumulation = rows
	const masked = 1e-8 // beside Σm = 3 it counts once for the batch, four times less for a part
	same := func(lengths ...int) error {
		whole.Mask = nil
		for _, l := range lengths {
			for t := range cols {
				whole.Mask = append(whole.Mask, t < l)
			}
		}
		return off(gradients(rightUpdate(split(whole), o)), gradients(rightUpdate([]UpdateBatch{whole}, o)), masked)
	}
	require.NoError(t, same(3, 3, 3, 3))
	require.NoError(t, same(4, 4, 4, 4))
	require.Error(t, same(4, 3, 3, 4), "a token mean weighs the rows by their length, a mean of micro-batches does not")
	require.Error(t, same(4, 4, 4, 0), "a micro-batch without tokens counts in the divisor")
}

// TestPlanUpdates has the numbers of the tutorial's configuration, and left-over micro-batches.
func TestPlanUpdates(t *testing.T) {
	const rollouts, mini, gas, epochs, total = 512, 2, 8, 2, 100
	steps := PlanUpdates(rollouts/mini, gas, nil)
	require.Len(t, steps, 32)
	require.Equal(t, 64, epochs*len(steps))
	require.Equal(t, 6400, epochs*len(steps)*total) // the length of the schedule
	for k, s := range steps {
		require.Equal(t, UpdateStep{gas * k, gas * (k + 1), gas}, s)
	}
	require.Equal(t, []UpdateStep{{0, 2, 2}, {2, 4, 2}, {4, 5, 1}}, PlanUpdates(5, 2, nil))
	require.Equal(t, []UpdateStep{{0, 3, 3}}, PlanUpdates(3, 8, nil), "fewer than one step has")
	require.Empty(t, PlanUpdates(0, 2, nil))
	// The other system skips micro-steps: they do not count, and where all are skipped there is no update.
	require.Equal(t, []UpdateStep{{0, 2, 1}, {2, 4, 0}, {4, 5, 1}}, PlanUpdates(5, 2, []bool{true, false, false, false, true}))
	require.PanicsWithValue(t, badOption, func() { PlanUpdates(1, 0, nil) })
	require.PanicsWithValue(t, badLength, func() { PlanUpdates(1, 1, []bool{}) })
}

func ExampleAlign_ResponseRange() {
	from, to := AlignShifted.ResponseRange(5, 3, 8)
	fmt.Printf("logits[:, %d:%d]\n", from, to)
	// Output: logits[:, 4:7]
}

func TestSliceResponse(t *testing.T) {
	options(t, ParseAlign, "response_only", "full_shifted", "full_unshifted")
	const p, r = 3, 2
	// Each entry holds the index of the token that it is about.
	shifted := []float64{1, 2, 3, 4, 5} // logits of p+r tokens; the last is about the token after the end
	unshifted := []float64{nan, 1, 2, 3, 4}
	for _, c := range []struct {
		full []float64
		a    Align
	}{{shifted, AlignShifted}, {shifted[:4], AlignShifted}, {unshifted, AlignUnshifted}, {shifted[2:4], AlignResponse}} {
		require.Equal(t, []float64{3, 4}, SliceResponse(nil, c.full, 1, len(c.full), 1, c.a, p, r), c.a)
	}
	require.NotEqual(t, []float64{3, 4}, SliceResponse(nil, shifted, 1, 5, 1, AlignUnshifted, p, r), "off by one")
	// Python's clamped slices are refused.
	for _, bad := range []func(){
		func() { AlignShifted.ResponseRange(0, 2, 2) },   // [−1 : 1]
		func() { AlignShifted.ResponseRange(3, 2, 3) },   // cut by one
		func() { AlignShifted.ResponseRange(3, 2, 6) },   // longer than prompt and response
		func() { AlignUnshifted.ResponseRange(3, 2, 4) }, // log-probs without the first column are shifted
		func() { AlignResponse.ResponseRange(3, 2, 5) },
		func() { AlignShifted.ResponseRange(-1, 2, 1) },
		func() { AlignUnshifted.ResponseRange(-1, 3, 2) },
		func() { AlignUnshifted.ResponseRange(3, -1, 2) },
		func() { AlignResponse.ResponseRange(-1, 2, 2) },
		func() { Align(3).ResponseRange(3, 2, 5) },
		func() { SliceResponse(nil, shifted, 2, 5, 1, AlignShifted, p, r) },
		func() { SliceResponseBackward(nil, shifted, 1, 5, 1, AlignShifted, p, r) },
	} {
		require.Panics(t, bad)
	}

	// ⟨d, S·x⟩ = ⟨Sᵀ·d, x⟩ exactly: a slice moves numbers, and what is not in it gets no gradient.
	rapid.Check(t, func(t *rapid.T) {
		a := Align(rapid.IntRange(0, 2).Draw(t, "align"))
		rows, p, r, width := rapid.IntRange(0, 3).Draw(t, "rows"), rapid.IntRange(1, 3).Draw(t, "p"), rapid.IntRange(0, 3).Draw(t, "r"), rapid.IntRange(1, 3).Draw(t, "width")
		cols := map[Align]int{AlignResponse: r, AlignShifted: p + r - rapid.IntRange(0, 1).Draw(t, "log-probs"), AlignUnshifted: p + r}[a]
		x, d := drawCells(t, "x", rows*cols*width), drawCells(t, "d", rows*r*width)
		y := SliceResponse(nil, x, rows, cols, width, a, p, r)
		dx := SliceResponseBackward(nil, d, rows, cols, width, a, p, r)
		var left, right float64
		for i := range y {
			left += y[i] * d[i]
		}
		for i := range x {
			right += dx[i] * x[i]
		}
		if left != right {
			t.Fatalf("%v and %v", left, right)
		}
		if more := SliceResponseBackward(slices.Clone(dx), d, rows, cols, width, a, p, r); slices.ContainsFunc(more, math.IsNaN) {
			t.Fatal("does not add")
		} else {
			for i := range more {
				if more[i] != 2*dx[i] {
					t.Fatal("does not add")
				}
			}
		}
	})
}

// TestValueClipZero: a clip range of 0 holds the value where it was, as the formula has it.
func TestValueClipZero(t *testing.T) {
	v, old, ret := []float64{1, 2}, []float64{0, 1}, []float64{5, 1.8}
	w, err := ComputeValueLoss(v, old, ret, nil, 1, 2, 0)
	require.NoError(t, err)
	require.InDelta(t, .5*(25+.8*.8)/(2+1e-8), w.Loss, 1e-15)
	require.InDelta(t, 2/(2+1e-8), w.ClipFrac, 1e-15)
	require.Equal(t, []float64{0, 0}, w.DValue)
	free, err := ComputeValueLoss(v, old, ret, nil, 1, 2, math.Inf(1))
	require.NoError(t, err)
	require.InDelta(t, .5*(16+.2*.2)/(2+1e-8), free.Loss, 1e-15)
	require.Zero(t, free.ClipFrac)
}
