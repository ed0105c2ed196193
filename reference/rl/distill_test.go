package rl

import (
	"math"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestJSD compares the divergence and its gradient with the tape.
func TestJSD(t *testing.T) {
	const rows, vocab = 3, 7
	rapid.Check(t, func(t *rapid.T) {
		student, teacher := drawCells(t, "student", rows*vocab), drawCells(t, "teacher", rows*vocab)
		for _, o := range []JSDOptions{{Beta: .5}, {Beta: .1, Temperature: .9}, {Beta: .9, Temperature: 2}, {Beta: 0, Temperature: .7}, {Beta: 1}} {
			loss, grad := JSD(nil, nil, student, teacher, vocab, o)
			temperature := o.Temperature
			if temperature == 0 {
				temperature = 1
			}
			var tape ad.Tape
			z := tape.Param(append([]float64{}, student...), rows, vocab)
			lp := ad.LogSoftmax(ad.Scale(z, 1/temperature), 1)
			lq := ad.LogSoftmax(ad.Scale(tape.Const(teacher, rows, vocab), 1/temperature), 1)
			p, q := ad.Exp(lp), ad.Exp(lq)
			kl := func(x, lx, ly *ad.Var) *ad.Var { return ad.Sum(ad.Mul(x, ad.Sub(lx, ly)), false, 1) }
			var y *ad.Var
			switch o.Beta {
			case 0:
				y = kl(q, lq, lp)
			case 1:
				y = kl(p, lp, lq)
			default:
				m := ad.Log(ad.Add(ad.Scale(q, o.Beta), ad.Scale(p, 1-o.Beta)))
				y = ad.Add(ad.Scale(kl(q, lq, m), o.Beta), ad.Scale(kl(p, lp, m), 1-o.Beta))
			}
			ad.Backward(y, []float64{1, 1, 1})
			if closeTo(loss, y.Data()) != nil || closeTo(grad, z.Grad()) != nil {
				t.Fatalf("%+v: %v %v, want %v %v", o, loss, grad, y.Data(), z.Grad())
			}
		}
	})
	// Disjoint distributions: β·ln 1/β + (1 − β)·ln 1/(1 − β), and no NaN where a probability is 0.
	inf := math.Inf(-1)
	loss, grad := JSD(nil, nil, []float64{0, inf}, []float64{inf, 0}, 2, JSDOptions{Beta: .25})
	require.NoError(t, off(loss, []float64{.25*math.Log(4) + .75*math.Log(4./3)}, 1e-15))
	require.NoError(t, off(grad, []float64{0, 0}, 1e-15))
	// The same distribution: 0. It is symmetric where student, teacher and β are exchanged.
	x, y := []float64{1, -2, .5}, []float64{-1, 0, 3}
	loss, _ = JSD(nil, nil, x, x, 3, JSDOptions{Beta: .3})
	require.NoError(t, off(loss, []float64{0}, 1e-15))
	a, _ := JSD(nil, nil, x, y, 3, JSDOptions{Beta: .3})
	b, _ := JSD(nil, nil, y, x, 3, JSDOptions{Beta: .7})
	require.NoError(t, off(a, b, 1e-15))
}
