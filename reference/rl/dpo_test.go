package rl

import (
	"math"
	"slices"
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
			{Beta: .2, Divergence: DPOAlpha}, {Kind: DPOHinge, Beta: .3, Divergence: DPOForwardKL}, {Kind: DPORobust, Beta: .4, LabelSmoothing: .1}, {Kind: DPORobust, Beta: 1, LabelSmoothing: .6, Divergence: DPOJS},
			{Kind: DPOEXO, Beta: .3, LabelSmoothing: 1e-3}, {Kind: DPOEXO, Beta: 1, LabelSmoothing: .3, Divergence: DPOJS}, {Kind: DPONCA, Beta: .3}, {Kind: DPOBCO, Beta: .7},
			{Kind: DPOSPPO, Beta: .5}, {Kind: DPOAPOZero, Beta: .4}, {Kind: DPOAPODown, Beta: .6}, {Kind: DPODiscoPOP, Beta: .2, Tau: .5}, {Kind: DPODiscoPOP, Beta: .1, Tau: .05}} {
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
	case DPOForwardKL:
		h = ad.Sub(ad.Exp(ad.Neg(v)), ad.Exp(ad.Neg(u)))
	}
	z, cz, rz := ad.Scale(h, o.Beta), ad.Scale(u, o.Beta), ad.Scale(v, o.Beta)
	minus := func(w float64, x *ad.Var) *ad.Var { return ad.Scale(ad.Log(ad.Sigmoid(x)), -w) } // −w·ln σ(x)
	switch e := o.LabelSmoothing; o.Kind {
	case DPORobust:
		return ad.Scale(ad.Sub(minus(1-e, z), minus(e, ad.Neg(z))), 1/(1-2*e))
	case DPOEXO:
		kl := func(x *ad.Var, p float64) *ad.Var {
			return ad.Mul(ad.Sigmoid(x), ad.AddScalar(ad.Log(ad.Sigmoid(x)), -math.Log(p)))
		}
		return ad.Add(kl(z, 1-e), kl(ad.Neg(z), e))
	case DPONCA:
		return ad.Add(ad.Add(minus(1, cz), minus(.5, ad.Neg(cz))), minus(.5, ad.Neg(rz)))
	case DPOBCO:
		return ad.Add(minus(1, cz), minus(1, ad.Neg(rz)))
	case DPOSPPO:
		x, y := ad.AddScalar(u, -.5/o.Beta), ad.AddScalar(v, .5/o.Beta)
		return ad.Add(ad.Mul(x, x), ad.Mul(y, y))
	case DPOAPOZero:
		return ad.Add(ad.AddScalar(ad.Neg(ad.Sigmoid(cz)), 1), ad.Sigmoid(rz))
	case DPOAPODown:
		return ad.Add(ad.Sigmoid(cz), ad.AddScalar(ad.Neg(ad.Sigmoid(ad.Sub(cz, rz))), 1))
	case DPODiscoPOP:
		m := ad.Sigmoid(ad.Scale(z, 1/o.Tau))
		return ad.Add(ad.Mul(minus(1, z), ad.AddScalar(ad.Neg(m), 1)), ad.Mul(ad.Exp(ad.Neg(z)), m))
	case DPOHinge:
		return ad.Clamp(ad.AddScalar(ad.Neg(z), 1), 0, math.Inf(1))
	case DPOIPO:
		d := ad.AddScalar(h, -1/(2*o.Beta))
		return ad.Mul(d, d)
	}
	return ad.Add(ad.Scale(ad.Log(ad.Sigmoid(z)), o.LabelSmoothing-1), ad.Scale(ad.Log(ad.Sigmoid(ad.Neg(z))), -o.LabelSmoothing))
}

// TestDPOSorted: the losses that sort are those of the sigmoid of ranks, whatever order the rows and the reference's rows have, and a
// gradient goes back to the rows: differences of the sum of the losses show it.
func TestDPOSorted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 6
		x := [4][]float64{drawCells(t, "chosen", n), drawCells(t, "rejected", n), drawCells(t, "refChosen", n), drawCells(t, "refRejected", n)}
		for _, kind := range []DPOKind{DPOAOT, DPOAOTUnpaired} {
			o := DPOOptions{Kind: kind, Beta: .4, LabelSmoothing: .1}
			sum := func(x [4][]float64) float64 {
				var a, b []float64
				for i := range n {
					if kind == DPOAOT {
						a, b = append(a, x[0][i]-x[1][i]), append(b, x[2][i]-x[3][i])
					} else {
						a, b = append(a, x[0][i]-x[2][i]), append(b, x[1][i]-x[3][i])
					}
				}
				slices.Sort(a)
				slices.Sort(b)
				var s float64
				for i := range n {
					z := o.Beta * (a[i] - b[i])
					s += .9*math.Log1p(math.Exp(-z)) + .1*math.Log1p(math.Exp(z))
				}
				return s
			}
			loss, dc, dr := DPO(nil, nil, nil, x[0], x[1], x[2], x[3], o)
			var total float64
			for _, l := range loss {
				total += l
			}
			require.InEpsilon(t, sum(x), total, 1e-9)
			apart := func(side []float64, i int) bool { // a step changes no rank
				return !slices.ContainsFunc(slices.Delete(slices.Clone(side), i, i+1), func(v float64) bool { return math.Abs(v-side[i]) < 4e-4 })
			}
			for i := range n {
				for k, want := range [2][]float64{dc, dr} {
					side := make([]float64, n)
					for j := range n {
						if side[j] = x[0][j] - x[1][j]; kind == DPOAOTUnpaired {
							side[j] = x[k][j] - x[k+2][j]
						}
					}
					if !apart(side, i) {
						continue
					}
					up, down := x, x
					up[k], down[k] = slices.Clone(x[k]), slices.Clone(x[k])
					up[k][i] += 1e-4
					down[k][i] -= 1e-4
					require.InDelta(t, (sum(up)-sum(down))/2e-4, want[i], 1e-6)
				}
			}
		}
	})
	s := DPOSorted([]float64{3, 1, 2}, []float64{0, 0, 0}, []float64{5, 7, 6}, []float64{0, 0, 0}, DPOAOT)
	require.Equal(t, []float64{1, 2, 3}, s.Chosen)
	require.Equal(t, []float64{5, 6, 7}, s.RefChosen)
	require.Equal(t, []int{1, 2, 0}, s.ChosenRow)
}

// TestDPOLaws: what the papers say of their losses.
func TestDPOLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := rapid.Float64Range(-20, 20).Draw(t, "h")
		e := rapid.Float64Range(.01, .49).Draw(t, "ε")
		beta := rapid.Float64Range(.05, 2).Draw(t, "β")
		of := func(kind DPOKind, c, r float64) float64 {
			l, _, _ := DPO(nil, nil, nil, []float64{c}, []float64{r}, nil, nil, DPOOptions{Kind: kind, Beta: beta, LabelSmoothing: e, Tau: .05})
			return l[0]
		}
		clean, _, _ := DPO(nil, nil, nil, []float64{h}, []float64{0}, nil, nil, DPOOptions{Beta: beta})
		require.InDelta(t, clean[0], (1-e)*of(DPORobust, h, 0)+e*of(DPORobust, 0, h), 1e-9*(1+math.Abs(h)), "labels that are wrong with probability ε: no bias")
		require.GreaterOrEqual(t, of(DPOEXO, h, 0), -1e-15, "a Kullback-Leibler divergence")
		require.InDelta(t, 0, of(DPOEXO, math.Log((1-e)/e)/beta, 0), 1e-12, "which is 0 at q = 1 − ε")
		require.InDelta(t, 0, of(DPOSPPO, .5/beta, -.5/beta), 1e-15)
		require.Equal(t, of(DPOAOT, h, 0), of(DPOSigmoid, h, 0), "one pair")
		require.Less(t, of(DPOAPOZero, h+.1, 0), of(DPOAPOZero, h, 0)+1e-15)
		require.Less(t, of(DPOAPODown, h, 0), of(DPOAPODown, h+1, 1)+1e-15, "both answers fall")
	})
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

func TestDPOSums(t *testing.T) {
	sum, err := ParseDPOSum("0.8*sigmoid+0.2*bco_pair+-1*ipo_norm")
	require.NoError(t, err)
	require.Equal(t, DPOSum{{.8, DPOSigmoid, false}, {.2, DPOBCO, false}, {-1, DPOIPO, true}}, sum)
	require.Equal(t, "0.8*sigmoid+0.2*bco_pair+-1*ipo_norm", sum.String())
	for _, wrong := range []string{"", "sigmoid", "1*", "x*sigmoid", "1*orpo", "NaN*hinge", "1*sigmoid+", "1*none"} {
		_, err := ParseDPOSum(wrong)
		require.Error(t, err, wrong)
	}
}
