package nn

import (
	"math"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Elementwise functions against other formulas of the same: Φ by the complementary error function, the logistic function by
// the hyperbolic tangent.
func TestActivations(t *testing.T) {
	var tape ad.Tape
	at := func(f func(*ad.Var) *ad.Var, x float64) float64 { return f(tape.Const([]float64{x}, 1)).Data()[0] }
	gap := 0.
	for x := -9.0; x <= 9; x += 1. / 64 {
		ulp := 1e-15 * max(1, math.Abs(x))
		require.InDelta(t, x*math.Erfc(-x/math.Sqrt2)/2, at(GELU, x), ulp)
		require.InDelta(t, x*(1+math.Tanh(x/2))/2, at(SiLU, x), ulp)
		require.InDelta(t, x/(1+math.Exp(-2*math.Sqrt(2/math.Pi)*(x+0.044715*math.Pow(x, 3)))), at(GELUTanh, x), 1e-14)
		gap = max(gap, math.Abs(at(GELU, x)-at(GELUTanh, x)))
	}
	require.InDelta(t, 4.8e-4, gap, 1e-5, "what the doc comment says")
	require.Zero(t, at(GELU, 0))
	swiglu := SwiGLU(tape.Const([]float64{2}, 1), tape.Const([]float64{-3}, 1)).Data()[0]
	require.InDelta(t, -3*2/(1+math.Exp(-2)), swiglu, 1e-15)
	for _, name := range []string{"", "gelu_fast", "quick_gelu", "mish"} {
		_, err := Activation(name)
		require.ErrorContains(t, err, "is not one of gelu,")
	}
}

func TestHeads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRand(t)
		b, n, c := size(t, "b", 3), size(t, "t", 3), size(t, "c", 5)
		in, w := random(r, b, n, c), random(r, 1, c)
		x := leaves(in, w)
		tape := x[0].Tape()
		scale, bias := r.NormFloat64(), r.NormFloat64()
		value := ValueHead(x[0], x[1], tape.Const([]float64{bias}, 1))
		score := SequenceScore(x[0], x[1], tape.Const([]float64{scale}, 1), tape.Scalar(bias))
		require.Equal(t, []int{b, n}, value.Shape())
		require.Equal(t, []int{b}, score.Shape())
		for i := range b {
			for j := range n {
				var dot float64
				for k := range c {
					dot += in.Data[(i*n+j)*c+k] * w.Data[k]
				}
				require.InDelta(t, dot+bias, value.Data()[i*n+j], 1e-13)
				if j == 0 {
					require.InDelta(t, 1/(1+math.Exp(-scale*dot-bias)), score.Data()[i], 1e-13)
				}
			}
		}
		require.Equal(t, in.Data, Join(Heads(x[0], 1)).Data())
		require.Equal(t, []int{b, n, c, 1}, Heads(x[0], c).Shape())
	})
}

func TestPanics(t *testing.T) {
	var tape ad.Tape
	zeros := func(shape ...int) *ad.Var {
		n := 1
		for _, d := range shape {
			n *= d
		}
		return tape.Const(make([]float64, n), shape...)
	}
	mask := ad.Mask{Shape: []int{1, 1, 1, 2}, On: make([]bool, 2)}
	for want, f := range map[string]func(){
		"nn: linear: a bias of shape [2] for 3 outputs": func() { Linear(zeros(1, 2), zeros(3, 2), zeros(2)) },
		"nn: conv1d: a bias of shape [2] for 3 outputs": func() { Conv1D(zeros(1, 2), zeros(2, 3), zeros(2)) },
		"nn: attention: queries of shape [1 1 3 2], keys of [1 2 2 2]": func() {
			Attention(zeros(1, 1, 3, 2), zeros(1, 2, 2, 2), zeros(1, 2, 2, 2), mask, 1)
		},
		"nn: attention: queries of shape [1 1 2 2], keys of [1 2 2 3]": func() {
			Attention(zeros(1, 1, 2, 2), zeros(1, 2, 2, 3), zeros(1, 2, 2, 3), mask, 1)
		},
		"nn: attention: keys of shape [1 2 2 2], values of [1 2 1 2]": func() {
			Attention(zeros(1, 1, 2, 2), zeros(1, 2, 2, 2), zeros(1, 2, 1, 2), mask, 1)
		},
		"nn: heads: 2 heads of shape [1 1 3]":                                       func() { Heads(zeros(1, 1, 3), 2) },
		"nn: join: heads of shape [1 1 3]":                                          func() { Join(zeros(1, 1, 3)) },
		"nn: mask: 1 rows of 3 queries and 2 keys, window 0":                        func() { Visible{Batch: 1, Queries: 3, Keys: 2}.Mask() },
		"nn: mask: lengths do not fit":                                              func() { Visible{Batch: 1, Queries: 1, Keys: 2, Real: make([]bool, 1)}.Mask() },
		"nn: positions: lengths do not fit":                                         func() { Positions(1, 2, make([]bool, 1), nil) },
		"nn: rope: 3 positions and 2 rotated channels for heads of shape [1 2 1 2]": func() { RoPE{Dim: 2, Theta: 2}.Apply(zeros(1, 2, 1, 2), make([]int, 3)) },
		"nn: rope: 2 positions and 4 rotated channels for heads of shape [1 2 1 2]": func() { RoPE{Dim: 4, Theta: 2}.Apply(zeros(1, 2, 1, 2), make([]int, 2)) },
		"nn: value head: a weight of shape [2 2]":                                   func() { ValueHead(zeros(1, 1, 2), zeros(2, 2), nil) },
		"nn: sequence score: hidden states of shape [1 0 2], scale [1], bias [1]": func() {
			SequenceScore(zeros(1, 0, 2), zeros(1, 2), zeros(1), zeros(1))
		},
	} {
		require.PanicsWithValue(t, want, f)
	}
}
