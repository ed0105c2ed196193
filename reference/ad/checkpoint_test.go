package ad

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// What is run again has the bits of what is kept, values and gradients; of the tape two layers leave two nodes.
func TestCheckpointKeepsBits(t *testing.T) {
	layer := func(x []*Var) *Var { return Add(x[0], Tanh(MatMul(x[0], x[1], false, true))) }
	run := func(apply func(in []*Var, f func([]*Var) *Var) *Var) (nodes int, out [][]float64) {
		tape, numbers := &Tape{}, func(n int, from float64) []float64 {
			x := make([]float64, n)
			for i := range x {
				x[i] = from + float64(i%7)/3
			}
			return x
		}
		x, w, v := tape.Param(numbers(6, -1), 2, 3), tape.Param(numbers(9, -.9), 3, 3), tape.Param(numbers(9, .2), 3, 3)
		fixed := tape.Const(numbers(9, .4), 3, 3)
		y := apply([]*Var{apply([]*Var{apply([]*Var{x, w}, layer), fixed}, layer), v}, layer)
		Backward(y, numbers(6, 1))
		return len(tape.nodes), [][]float64{y.Data(), x.Grad(), w.Grad(), v.Grad()}
	}
	kept, want := run(func(in []*Var, f func([]*Var) *Var) *Var { return f(in) })
	nodes, got := run(Checkpoint)
	require.Equal(t, want, got)
	require.Equal(t, 3+3, nodes)
	require.Equal(t, 3+9, kept)
}

// Of constants there is nothing to run again.
func TestCheckpointOfConstants(t *testing.T) {
	tape, runs := &Tape{}, 0
	y := Checkpoint([]*Var{tape.Scalar(3)}, func(x []*Var) *Var { runs++; return Mul(x[0], x[0]) })
	require.False(t, y.NeedsGrad())
	require.Equal(t, 9., y.Item())
	require.Equal(t, 1, runs)
	// A function that reads none of its parameters has no gradient to give.
	p := tape.Param([]float64{2})
	z := Add(Checkpoint([]*Var{p}, func(x []*Var) *Var { return x[0].Tape().Scalar(1) }), p)
	Backward(z, []float64{1})
	require.Equal(t, []float64{1}, p.Grad())
}

// What cancels inside of a checkpoint is in its bound: near tanh(s) = −a·(1 − tanh²(s)), s = a + b, the two terms of its derivative by a leave
// next to nothing, and their roundings stay.
func TestCheckpointThatCancels(t *testing.T) {
	f := func(x []*Var) *Var {
		return Checkpoint(x, func(x []*Var) *Var { return Mul(Tanh(Add(x[0], x[1])), x[0]) })
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		s := 0.2 + rng.Float64()
		a := -math.Tanh(s) / (1 - math.Tanh(s)*math.Tanh(s)) * (1 + 1e-7*rng.NormFloat64())
		p, err := newTrial("Checkpoint", f, []Tensor{{nil, []float64{a}}, {nil, []float64{s - a}}})
		require.NoError(t, err)
		require.NoError(t, p.adjoint([][]float64{{1}, {1e-9 * rng.NormFloat64()}}, []float64{rng.NormFloat64()}))
		require.LessOrEqual(t, p.worst, 1.0)
	}
}
