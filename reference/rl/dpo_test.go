package rl

import (
	"math"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestDPO compares the preference losses with the tape.
func TestDPO(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := 5
		c, r := drawCells(t, "chosen", n), drawCells(t, "rejected", n)
		rc, rr := drawCells(t, "refChosen", n), drawCells(t, "refRejected", n)
		for _, o := range []DPOOptions{{Beta: .1}, {Beta: 2, LabelSmoothing: .1}, {Kind: DPOHinge, Beta: 1}, {Kind: DPOIPO, Beta: .25}} {
			loss, grad := DPO(nil, nil, c, r, rc, rr, o)
			var tape ad.Tape
			x := tape.Param(append([]float64{}, c...), n)
			h := ad.Sub(ad.Sub(x, tape.Const(r, n)), ad.Sub(tape.Const(rc, n), tape.Const(rr, n)))
			z := ad.Scale(h, o.Beta)
			y := ad.Add(ad.Scale(ad.Log(ad.Sigmoid(z)), o.LabelSmoothing-1), ad.Scale(ad.Log(ad.Sigmoid(ad.Neg(z))), -o.LabelSmoothing))
			switch o.Kind {
			case DPOHinge:
				y = ad.Clamp(ad.AddScalar(ad.Neg(z), 1), 0, math.Inf(1))
			case DPOIPO:
				d := ad.AddScalar(h, -1/(2*o.Beta))
				y = ad.Mul(d, d)
			}
			ones := []float64{1, 1, 1, 1, 1}
			ad.Backward(y, ones)
			if closeTo(loss, y.Data()) != nil || closeTo(grad, x.Grad()) != nil {
				t.Fatalf("%+v: %v %v, want %v %v", o, loss, grad, y.Data(), x.Grad())
			}
		}
	})
	// At h = 0: ln 2, slope −β/2. Far out: no overflow.
	loss, grad := DPO(nil, nil, []float64{0, 1e5, -1e5}, []float64{0, 0, 0}, nil, nil, DPOOptions{Beta: .1})
	require.NoError(t, off(loss, []float64{math.Ln2, 0, 1e4}, 1e-12))
	require.NoError(t, off(grad, []float64{-.05, 0, -.1}, 1e-15))
	loss, grad = DPO(nil, nil, []float64{1}, []float64{0}, nil, nil, DPOOptions{Kind: DPOHinge, Beta: 1})
	require.Equal(t, []float64{0, 0}, []float64{loss[0], grad[0]}, "the kink of the hinge")
}
