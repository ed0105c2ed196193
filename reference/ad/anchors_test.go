package ad

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Gradients worked out by hand. Every number below comes from fewer than ten
// operations on numbers of at most 3, so that 1e-15·10 holds any rounding.
const byHand = 1e-14

// Logits (0, ln 3) have the probabilities (1/4, 3/4). For target 0 the
// cross-entropy is ln 4, its gradient p − onehot = (−3/4, 3/4).
func TestCrossEntropyByHand(t *testing.T) {
	ce := func(x []*Var) *Var { return Neg(Sum(Gather(LogSoftmax(x[0], -1), 1, []int{0}), false)) }
	in := Tensor{[]int{1, 2}, []float64{0, math.Log(3)}}
	require.InDelta(t, math.Log(4), evaluate(ce, []Tensor{in}).Item(), byHand)
	g := gradient(ce, []float64{1}, in)[0]
	require.InDelta(t, -0.75, g[0], byHand)
	require.InDelta(t, 0.75, g[1], byHand)
}

// The clipped term max(−A·ρ, −A·clip(ρ, 0.8, 1.2)) with ρ = e^{lp − old}.
// ∂/∂lp is −A·ρ where the first is larger or ρ is inside, and 0 where the clip
// binds. Exactly on a bound the two tie: half of −A·ρ from the first, and
// nothing from the second, since Clamp is flat there.
func TestClippedTermByHand(t *testing.T) {
	for _, c := range []struct{ ratio, a, loss, grad float64 }{
		{1.5, 2, -2.4, 0},
		{1.5, -2, 3, 3},
		{0.5, 2, -1, -1},
		{0.5, -2, 1.6, 0},
		{1, 2, -2, -2},
		{1.1, -2, 2.2, 2.2},
		{1.5, 0, 0, 0},
	} {
		f := func(x []*Var) *Var {
			ratio, a := Exp(x[0]), x[0].tape.Scalar(c.a)
			return Max(Neg(Mul(a, ratio)), Neg(Mul(a, Clamp(ratio, 0.8, 1.2))))
		}
		in := Tensor{nil, []float64{math.Log(c.ratio)}}
		require.InDelta(t, c.loss, evaluate(f, []Tensor{in}).Item(), byHand, "ρ %g, A %g", c.ratio, c.a)
		require.InDelta(t, c.grad, gradient(f, []float64{1}, in)[0][0], byHand, "ρ %g, A %g", c.ratio, c.a)
	}
	onBound := func(x []*Var) *Var { return Max(Neg(x[0]), Neg(Clamp(x[0], 0.8, 1.2))) }
	require.Equal(t, -0.5, gradient(onBound, []float64{1}, Tensor{nil, []float64{1.2}})[0][0])
}

// k3 = e^d − 1 − d with d = ref − lp, so ∂k3/∂lp = 1 − e^d. At d = ln 2: 1 − ln 2
// and −1. At d = 0 both are 0.
func TestK3ByHand(t *testing.T) {
	k3 := func(x []*Var) *Var {
		d := Sub(x[0].tape.Scalar(-1), x[0])
		return Sub(Expm1(d), d)
	}
	in := Tensor{nil, []float64{-1 - math.Log(2)}}
	require.InDelta(t, 1-math.Log(2), evaluate(k3, []Tensor{in}).Item(), byHand)
	require.InDelta(t, -1, gradient(k3, []float64{1}, in)[0][0], byHand)
	in.Data[0] = -1
	require.Zero(t, evaluate(k3, []Tensor{in}).Item())
	require.Zero(t, gradient(k3, []float64{1}, in)[0][0])
}

// A masked mean, whitening and entropy, which the losses are made of, pass the
// checks as composites.
func TestComposites(t *testing.T) {
	mask := Mask{[]int{2, 3}, []bool{true, true, false, true, false, true}}
	masked := func(x *Var) *Var { return Where(mask, x, x.tape.Scalar(0)) }
	mean := func(x *Var) *Var { return Scale(Sum(masked(x), false), 1.0/4) }
	for name, f := range map[string]Func{
		"masked mean": unaryFunc(mean),
		"whitening": unaryFunc(func(x *Var) *Var {
			c := masked(Sub(x, mean(x)))
			return Mul(c, Pow(AddScalar(mean(Mul(c, c)), 1e-8), -0.5))
		}),
		"entropy": unaryFunc(func(x *Var) *Var {
			return Neg(Sum(Mul(Softmax(x, -1), LogSoftmax(x, -1)), false, -1))
		}),
		"gelu": unaryFunc(func(x *Var) *Var {
			return Mul(Scale(x, 0.5), AddScalar(Erf(Scale(x, 1/math.Sqrt2)), 1))
		}),
		"causal attention": func(x []*Var) *Var {
			causal := Mask{[]int{3, 3}, []bool{true, false, false, true, true, false, true, true, true}}
			s := MatMul(x[0], x[1], false, true)
			return MatMul(Softmax(Where(causal, s, s.tape.Scalar(-inf)), -1), x[2], false, false)
		},
	} {
		in := []Tensor{wide}
		if name == "causal attention" {
			in = []Tensor{tall, {tall.Shape, pos.Data}, {tall.Shape, wide.Data}}
		}
		require.NoError(t, CheckGrad(name, f, in, fixed()))
	}
}
