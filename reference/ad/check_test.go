package ad

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The checks themselves must fail where nothing can be told.
func TestChecksRefuse(t *testing.T) {
	for _, c := range []struct {
		name string
		f    Func
		in   []Tensor
		want string
	}{
		{"no inputs", func([]*Var) *Var { return new(Tape).Scalar(1) }, nil, "nothing to compare"},
		{"empty input", unaryFunc(Exp), []Tensor{{[]int{0, 3}, nil}}, "nothing to compare"},
		{"empty output", unaryFunc(func(x *Var) *Var { return Slice(x, 0, 1, 1) }), []Tensor{row}, "nothing to compare"},
		{"NaN input", unaryFunc(Exp), []Tensor{{nil, []float64{math.NaN()}}}, "not finite"},
		{"Inf output", unaryFunc(Exp), []Tensor{{nil, []float64{1e3}}}, "not finite"},
		{"kink within the step", unaryFunc(Abs), []Tensor{{[]int{2}, []float64{1, 1e-7}}}, "input 0 [2] element 1"},
		{"lost in rounding", unaryFunc(func(x *Var) *Var { return AddScalar(AddScalar(x, 1e12), -1e12) }),
			[]Tensor{row}, "undetermined"},
		{"at a jump", unaryFunc(func(x *Var) *Var {
			on := make([]bool, x.Size())
			for i, v := range x.Data() {
				on[i] = v > 0.6
			}
			return Where(Mask{x.Shape(), on}, x, x.Tape().Scalar(0))
		}), []Tensor{row}, "input 0 [3] element 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.ErrorContains(t, CheckVJP(c.name, c.f, c.in, fixed()), c.want)
		})
	}
}

// An input that f does not use has the gradient 0.
func TestUnusedInputs(t *testing.T) {
	require.NoError(t, CheckGrad("first of two", func(x []*Var) *Var { return x[0] }, []Tensor{row, wide}, fixed()))
	require.NoError(t, CheckGrad("constant", func(x []*Var) *Var { return x[0].Tape().Scalar(3) }, []Tensor{row}, fixed()))
}

func TestRootMeanSquare(t *testing.T) {
	require.Equal(t, 5.0, rootMeanSquare([]float64{7, -1}))
	require.Equal(t, 1.0, rootMeanSquare([]float64{0, 0}))
	require.Equal(t, 1.0, rootMeanSquare(nil))
}
