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
		for _, o := range []DPOOptions{{Beta: .1}, {Beta: 2, LabelSmoothing: .1}, {Kind: DPOHinge, Beta: 1}, {Kind: DPOIPO, Beta: .25},
			{Beta: .1, Divergence: DPOJS}, {Beta: .5, Divergence: DPOAlpha, Alpha: .5}, {Kind: DPOHinge, Beta: .3, Divergence: DPOJS}, {Kind: DPOIPO, Beta: .5, Divergence: DPOAlpha, Alpha: 1}, {Beta: .2, Divergence: DPOAlpha, Alpha: -.7},
			{Beta: .2, Divergence: DPOAlpha}} {
			loss, dc, dr := DPO(nil, nil, nil, c, r, rc, rr, o)
			var tape ad.Tape
			x, y := tape.Param(append([]float64{}, c...), n), tape.Param(append([]float64{}, r...), n)
			z, g := tapePairs(x, y, tape.Const(rc, n), tape.Const(rr, n), o), []float64{1, 1, 1, 1, 1}
			ad.Backward(z, g)
			if closeTo(loss, z.Data()) != nil || closeTo(dc, x.Grad()) != nil || closeTo(dr, y.Grad()) != nil {
				t.Fatalf("%+v: %v %v %v, want %v %v %v", o, loss, dc, dr, z.Data(), x.Grad(), y.Grad())
			}
		}
	})
	// At h = 0: ln 2, slope −β/2. Far out: no overflow.
	loss, grad, _ := DPO(nil, nil, nil, []float64{0, 1e5, -1e5}, []float64{0, 0, 0}, nil, nil, DPOOptions{Beta: .1})
	require.NoError(t, off(loss, []float64{math.Ln2, 0, 1e4}, 1e-12))
	require.NoError(t, off(grad, []float64{-.05, 0, -.1}, 1e-15))
	loss, grad, _ = DPO(nil, nil, nil, []float64{1}, []float64{0}, nil, nil, DPOOptions{Kind: DPOHinge, Beta: 1})
	require.Equal(t, []float64{0, 0}, []float64{loss[0], grad[0]}, "the kink of the hinge")
}

// tapePairs writes the preference loss of every pair on the tape.
func tapePairs(c, r, rc, rr *ad.Var, o DPOOptions) *ad.Var {
	u, v := ad.Sub(c, rc), ad.Sub(r, rr)
	h := ad.Sub(ad.Sub(c, r), ad.Sub(rc, rr)) // in the order of DPO: rounding decides at the kink of the hinge
	one := func(x *ad.Var) *ad.Var { return ad.Log(ad.AddScalar(ad.Exp(x), 1)) }
	switch o.Divergence {
	case DPOJS:
		h = ad.Sub(ad.Sub(u, v), ad.Sub(one(u), one(v)))
	case DPOAlpha:
		if o.Alpha == 0 {
			break
		}
		h = ad.Scale(ad.Sub(ad.Exp(ad.Scale(v, -o.Alpha)), ad.Exp(ad.Scale(u, -o.Alpha))), 1/o.Alpha)
	}
	z := ad.Scale(h, o.Beta)
	switch o.Kind {
	case DPOHinge:
		return ad.Clamp(ad.AddScalar(ad.Neg(z), 1), 0, math.Inf(1))
	case DPOIPO:
		d := ad.AddScalar(h, -1/(2*o.Beta))
		return ad.Mul(d, d)
	}
	return ad.Add(ad.Scale(ad.Log(ad.Sigmoid(z)), o.LabelSmoothing-1), ad.Scale(ad.Log(ad.Sigmoid(ad.Neg(z))), -o.LabelSmoothing))
}

// TestORPO compares the loss of the ratio of odds with the tape.
func TestORPO(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 4
		c, r := drawCells(t, "chosen", n), drawCells(t, "rejected", n)
		for i := range n { // means of log-probs
			c[i], r[i] = -.01-math.Abs(c[i]), -.01-math.Abs(r[i])
		}
		loss, dc, dr := DPO(nil, nil, nil, c, r, nil, nil, DPOOptions{Kind: DPOORPO, Beta: .2})
		var tape ad.Tape
		x, y := tape.Param(append([]float64{}, c...), n), tape.Param(append([]float64{}, r...), n)
		odds := func(x *ad.Var) *ad.Var { return ad.Sub(x, ad.Log(ad.AddScalar(ad.Neg(ad.Exp(x)), 1))) }
		z := ad.Scale(ad.Log(ad.Sigmoid(ad.Sub(odds(x), odds(y)))), -.2)
		ad.Backward(z, []float64{1, 1, 1, 1})
		if off(loss, z.Data(), 1e-11) != nil || off(dc, x.Grad(), 1e-10) != nil || off(dr, y.Grad(), 1e-10) != nil { // 1 − eˣ loses 7 bits near 0
			t.Fatalf("%v %v %v, want %v %v %v", loss, dc, dr, z.Data(), x.Grad(), y.Grad())
		}
	})
}

// TestUnpaired compares the losses of labelled answers with the tape.
func TestUnpaired(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 4
		p, q := drawCells(t, "policy", n), drawCells(t, "reference", n)
		good := []bool{true, false, true, false}
		z := rapid.Float64Range(0, 3).Draw(t, "z")
		for _, o := range []UnpairedOptions{{UnpairedKTO, .1, 1, 1}, {UnpairedKTO, 2, 1.33, .7}, {UnpairedBCO, .1, 1, 1}, {UnpairedBCO, 1, 1, .5}} {
			loss, grad := Unpaired(nil, nil, p, q, good, z, o)
			var tape ad.Tape
			x := tape.Param(append([]float64{}, p...), n)
			sign := tape.Const([]float64{1, -1, 1, -1}, n)
			w := tape.Const([]float64{o.Desirable, o.Undesirable, o.Desirable, o.Undesirable}, n)
			g := ad.Sub(x, tape.Const(q, n))
			var y *ad.Var
			if o.Kind == UnpairedKTO {
				y = ad.AddScalar(ad.Neg(ad.Sigmoid(ad.Mul(sign, ad.Scale(ad.AddScalar(g, -z), o.Beta)))), 1)
			} else {
				y = ad.Neg(ad.Log(ad.Sigmoid(ad.Mul(sign, ad.AddScalar(ad.Scale(g, o.Beta), -z)))))
			}
			y = ad.Mul(w, y)
			ad.Backward(y, []float64{1, 1, 1, 1})
			if closeTo(loss, y.Data()) != nil || closeTo(grad, x.Grad()) != nil {
				t.Fatalf("%+v: %v %v, want %v %v", o, loss, grad, y.Data(), x.Grad())
			}
		}
	})
	// At g = z both are in the middle: ½, and ln 2.
	loss, grad := Unpaired(nil, nil, []float64{2}, []float64{1}, []bool{true}, 1, UnpairedOptions{UnpairedKTO, .4, 1, 1})
	require.Equal(t, []float64{.5, -.1}, []float64{loss[0], grad[0]})
	loss, grad = Unpaired(nil, nil, []float64{2}, []float64{1}, []bool{false}, .5, UnpairedOptions{UnpairedBCO, .5, 1, 1})
	require.NoError(t, off([]float64{loss[0], grad[0]}, []float64{math.Ln2, .25}, 1e-15))
}
