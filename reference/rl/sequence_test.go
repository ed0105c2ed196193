package rl

import (
	"math"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSequenceAdvantage(t *testing.T) {
	two := []float64{.2, .4, .6, .8, .5, .5, .5, .5}
	for _, c := range []struct {
		r     []float64
		scope AdvScope
		want  []float64
		flat  bool
	}{
		{two[:4], AdvBatch, []float64{-1.161895, -.387298, .387298, 1.161895}, false},
		{two, AdvBatch, []float64{-1.774824, -.591608, .591608, 1.774824, 0, 0, 0, 0}, false},
		{two, AdvGroup, []float64{-1.161895, -.387298, .387298, 1.161895, 0, 0, 0, 0}, false},
		{two[4:], AdvBatch, []float64{0, 0, 0, 0}, true},
		{[]float64{.5, .5 + 1e-9, .5, .5}, AdvGroup, []float64{0, 0, 0, 0}, true},
	} {
		got, flat, err := SequenceAdvantage(nil, c.r, 4, c.scope)
		require.NoError(t, err)
		require.Equal(t, c.flat, flat)
		require.NoError(t, off(got, c.want, 1e-6))
		for k, w := range c.want {
			require.Equal(t, w == 0, got[k] == 0, "exactly 0")
		}
	}
	_, _, err := SequenceAdvantage(nil, two, 1, AdvBatch)
	require.ErrorIs(t, err, ErrGroupOfOne)
	got, flat, err := SequenceAdvantage(nil, []float64{1, nan}, 2, AdvBatch)
	require.NoError(t, err)
	require.False(t, flat, "NaN is not near 0")
	require.True(t, math.IsNaN(got[0]))
	require.Equal(t, .5, ZeroStdRatio(two, 4))
	options(t, ParseAdvScope, "batch", "group")
}

// TestSequenceLoss has the worked numbers of the system.
func TestSequenceLoss(t *testing.T) {
	adv, _, err := SequenceAdvantage(nil, []float64{.2, .4, .6, .8}, 4, AdvBatch)
	require.NoError(t, err)
	s := []float64{-10, -12, -9, -14}
	ref := []float64{-10.5, -12.5, -9.5, -14.5}
	res := SequenceLoss(nil, s, ref, adv, nil, 4, 1, SequenceOptions{Beta: .1})
	require.InDelta(t, .871421, res.Policy, 1e-6)
	require.InDelta(t, .05, res.KL, 1e-15)
	require.InDelta(t, .921421, res.Loss, 1e-6)
	require.False(t, res.SilentLogProbs)
	require.Equal(t, 4, res.Tokens)
	res = SequenceLoss(nil, s, ref, adv, nil, 4, 1, SequenceOptions{Beta: .1, KL: KLOptions{Kind: KLK3}})
	require.InDelta(t, .0106530660, res.KL, 1e-10)

	// on-policy corrected k3: value k3, gradient d
	res = SequenceLoss(nil, s, ref, make([]float64, 4), nil, 4, 1, SequenceOptions{Beta: .4, KL: KLOptions{Kind: KLK3, Grad: KLISCorrected}})
	require.InDelta(t, .4*.1065306597, res.KL, 1e-10)
	require.NoError(t, off(res.DLogp, []float64{.05, .05, .05, .05}, 1e-15))

	// no masked positions: nothing to learn from, whatever the cells hold
	res = SequenceLoss(nil, []float64{nan, nan}, []float64{nan, nan}, []float64{1, -1}, make([]bool, 2), 2, 1, SequenceOptions{Beta: .1})
	require.True(t, res.SilentLogProbs)
	require.Equal(t, 0, res.Tokens)
	require.Equal(t, 0.0, res.Loss)
	require.Equal(t, []float64{0, 0}, res.DLogp)
	require.Panics(t, func() { SequenceLoss(nil, s, ref, adv[:3], nil, 4, 1, SequenceOptions{}) })
}

// tapeSequence is SequenceLoss for k3 and k1 on the tape.
func tapeSequence(lp, ref, adv []float64, mask []bool, rows, cols int, o SequenceOptions) (loss float64, grad []float64) {
	var tape ad.Tape
	x := tape.Param(append([]float64{}, lp...), rows, cols)
	weight := make([]float64, len(lp)) // of a cell in the sum of its row
	spread := make([]float64, len(lp))
	for k := range weight {
		n := count(cols, row(mask, k/cols, cols))
		if mask[k] {
			weight[k] = 1
			if o.Mean {
				weight[k] = 1 / n
			}
		}
		spread[k] = adv[k/cols]
	}
	w, a := tape.Const(weight, rows, cols), tape.Const(spread, rows, cols)
	d := ad.Sub(x, tape.Const(ref, rows, cols))
	kl := d
	if o.KL.Kind == KLK3 {
		kl = ad.Add(ad.Expm1(ad.Neg(d)), d)
	}
	y := ad.Sum(ad.Mul(w, ad.Sub(ad.Scale(kl, o.Beta), ad.Mul(x, a))), false)
	y = ad.Scale(y, 1/float64(rows))
	ad.Backward(y, []float64{1})
	return y.Data()[0], x.Grad()
}

func TestSequenceLossTape(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lp, mask, rows, cols := drawBatch(t, 1)
		ref, adv := drawCells(t, "ref", len(lp)), drawCells(t, "adv", rows)
		o := SequenceOptions{Beta: .3, KL: KLOptions{Kind: KLK3}, Mean: rapid.Bool().Draw(t, "mean")}
		if rapid.Bool().Draw(t, "k1") {
			o.KL.Kind = KLK1
		}
		loss, grad := tapeSequence(lp, ref, adv, mask, rows, cols, o)
		check := func(res SequenceResult) error {
			if err := off([]float64{res.Loss}, []float64{loss}, 1e-12*max(1, math.Abs(loss))); err != nil {
				return err
			}
			for k := range grad {
				if !(math.Abs(res.DLogp[k]-grad[k]) <= 1e-12*max(1, math.Abs(grad[k]))) {
					return off(res.DLogp, grad, 0)
				}
			}
			return nil
		}
		right := SequenceLoss(nil, poison(lp, mask), poison(ref, mask), adv, mask, rows, cols, o)
		if err := check(right); err != nil {
			t.Fatal(err)
		}
		// faults: the other sign of the KL, the other sign of the policy term
		wrong := o
		wrong.Beta = -o.Beta
		if res := SequenceLoss(nil, lp, ref, adv, mask, rows, cols, wrong); right.KL > 1e-6 && check(res) == nil {
			t.Fatal("the sign of the KL term is not seen")
		}
		minus := make([]float64, rows)
		for i, a := range adv {
			minus[i] = -a
		}
		if res := SequenceLoss(nil, lp, ref, minus, mask, rows, cols, o); math.Abs(right.Policy) > 1e-6 && check(res) == nil {
			t.Fatal("the sign of the policy term is not seen")
		}
	})
}
