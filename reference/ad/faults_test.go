package ad

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// A fault is a wrong derivative rule planted in one primitive of a healthy
// function. vjp and jvp replace that rule of every node of the primitive; they
// get the node and its own rule.
type fault struct {
	name string
	op   string
	f    Func
	in   []Tensor
	vjp  func(w *Var, own func(dy []float64, dx [][]float64), dy []float64, dx [][]float64)
	jvp  func(w *Var, own func(dx [][]float64, dy []float64), dx [][]float64, dy []float64)
}

// planted returns f with the fault.
func (c fault) planted() Func {
	return func(x []*Var) *Var {
		y := c.f(x)
		for _, w := range y.tape.nodes {
			if w.op != c.op {
				continue
			}
			if own := w.vjp; c.vjp != nil {
				w.vjp = func(dy []float64, dx [][]float64) { c.vjp(w, own, dy, dx) }
			}
			if own := w.jvp; c.jvp != nil {
				w.jvp = func(dx [][]float64, dy []float64) { c.jvp(w, own, dx, dy) }
			}
		}
		return y
	}
}

func unaryFunc(op func(*Var) *Var) Func { return func(x []*Var) *Var { return op(x[0]) } }

func binaryFunc(op func(a, b *Var) *Var) Func {
	return func(x []*Var) *Var { return op(x[0], x[1]) }
}

// backprop is a VJP of one input that adds f(i) to x̄[i].
func backprop(f func(w *Var, dy []float64, i int) float64) func(*Var, func([]float64, [][]float64), []float64, [][]float64) {
	return func(w *Var, _ func([]float64, [][]float64), dy []float64, dx [][]float64) {
		for i := range dx[0] {
			dx[0][i] += f(w, dy, i)
		}
	}
}

// softmaxRow is a softmax over the last axis with a hand-derived VJP, as a
// kernel would have it: x̄ = y·(ȳ − ⟨y, ȳ⟩).
func softmaxRow(x []*Var) *Var {
	p := Softmax(Detach(x[0]), -1).data
	n := x[0].shape[len(x[0].shape)-1]
	rule := func(out, in []float64) {
		for r := 0; r < len(p); r += n {
			d := dot(p[r:r+n], in[r:r+n])
			for i := r; i < r+n; i++ {
				out[i] += float64(p[i] * (in[i] - d))
			}
		}
	}
	return record("softmaxrow", x[0].shape, p, x,
		func(dx [][]float64, dy []float64) { rule(dy, dx[0]) },
		func(dy []float64, dx [][]float64) { rule(dx[0], dy) })
}

var (
	wide = Tensor{[]int{2, 3}, []float64{0.3, -1.1, 0.7, 1.9, -0.4, 0.8}}
	tall = Tensor{[]int{3, 2}, []float64{1.2, -0.6, 0.5, 1.4, -1.7, 0.9}}
	quad = Tensor{[]int{3, 3}, []float64{1.2, -0.6, 0.5, 1.4, -1.7, 0.9, 0.2, 0.8, -1.3}}
	pos  = Tensor{[]int{2, 3}, []float64{0.3, 1.1, 0.7, 1.9, 0.4, 0.8}}
	row  = Tensor{[]int{3}, []float64{0.6, -0.9, 1.3}}
	half = Mask{[]int{2, 3}, []bool{true, false, false, true, true, false}}
)

// wrongVJPs are faults of the backward pass. All are caught by the differences
// and by the adjoint identity.
var wrongVJPs = []fault{
	{name: "sign flipped", op: "neg", f: unaryFunc(Neg), in: []Tensor{wide},
		vjp: backprop(func(_ *Var, dy []float64, i int) float64 { return dy[i] })},
	{name: "broadcast is not summed back", op: "broadcast", f: binaryFunc(Mul), in: []Tensor{wide, row},
		vjp: backprop(func(_ *Var, dy []float64, i int) float64 { return dy[i] })},
	{name: "matmul takes B for Bᵀ", op: "matmul",
		f: func(x []*Var) *Var { return MatMul(x[0], x[1], false, false) }, in: []Tensor{quad, quad},
		vjp: func(w *Var, own func([]float64, [][]float64), dy []float64, dx [][]float64) {
			m := matrix{rows: 3, cols: 3}
			mulAdd(dx[0], m, dy, m, w.in[1].data, m)
			own(dy, [][]float64{nil, dx[1]})
		}},
	{name: "matmul gives B no gradient", op: "matmul",
		f: func(x []*Var) *Var { return MatMul(x[0], x[1], false, false) }, in: []Tensor{wide, tall},
		vjp: func(_ *Var, own func([]float64, [][]float64), dy []float64, dx [][]float64) {
			own(dy, [][]float64{dx[0], nil})
		}},
	{name: "softmax gradient is 0", op: "softmaxrow", f: softmaxRow, in: []Tensor{wide},
		vjp: backprop(func(*Var, []float64, int) float64 { return 0 })},
	{name: "softmax gradient times −1000", op: "softmaxrow", f: softmaxRow, in: []Tensor{wide},
		vjp: func(_ *Var, own func([]float64, [][]float64), dy []float64, dx [][]float64) {
			own(dy, dx)
			scaled(dx[0], -1000)
		}},
	{name: "softmax takes 1 for ⟨y, ȳ⟩", op: "softmaxrow", f: softmaxRow, in: []Tensor{wide},
		vjp: backprop(func(w *Var, dy []float64, i int) float64 { return w.data[i] * (dy[i] - 1) })},
	{name: "softmax without ⟨y, ȳ⟩", op: "softmaxrow", f: softmaxRow, in: []Tensor{wide},
		vjp: backprop(func(w *Var, dy []float64, i int) float64 { return w.data[i] * dy[i] })},
	{name: "exp without its factor", op: "exp", f: unaryFunc(Exp), in: []Tensor{wide},
		vjp: backprop(func(_ *Var, dy []float64, i int) float64 { return dy[i] })},
	{name: "exp wrong by 1e-7", op: "exp", f: unaryFunc(Exp), in: []Tensor{wide},
		vjp: backprop(func(w *Var, dy []float64, i int) float64 { return dy[i] * w.data[i] * (1 + 1e-7) })},
	{name: "last element left out", op: "exp", f: unaryFunc(Exp), in: []Tensor{wide},
		vjp: func(_ *Var, own func([]float64, [][]float64), dy []float64, dx [][]float64) {
			own(dy, dx)
			dx[0][len(dx[0])-1] = 0
		}},
	{name: "gather does not accumulate", op: "gather",
		f:  func(x []*Var) *Var { return Gather(x[0], 3, []int{1, 2, 1, 0, 0, 0}) },
		in: []Tensor{wide},
		vjp: func(_ *Var, _ func([]float64, [][]float64), dy []float64, dx [][]float64) {
			for i, v := range []int{1, 2, 1, 0, 0, 0} {
				dx[0][i/3*3+v] = dy[i]
			}
		}},
	{name: "embedding does not accumulate", op: "embedding",
		f:  func(x []*Var) *Var { return Embedding(x[0], []int{2, 0, 2}, 3) },
		in: []Tensor{tall},
		vjp: func(_ *Var, _ func([]float64, [][]float64), dy []float64, dx [][]float64) {
			for r, v := range []int{2, 0, 2} {
				copy(dx[0][v*2:v*2+2], dy[r*2:])
			}
		}},
	{name: "where passes to both branches", op: "where",
		f: func(x []*Var) *Var { return Where(half, x[0], x[1]) }, in: []Tensor{wide, pos},
		vjp: func(_ *Var, _ func([]float64, [][]float64), dy []float64, dx [][]float64) {
			for i := range dy {
				dx[0][i] += dy[i]
				dx[1][i] += dy[i]
			}
		}},
	{name: "where exchanges the branches", op: "where",
		f: func(x []*Var) *Var { return Where(half, x[0], x[1]) }, in: []Tensor{wide, pos},
		vjp: func(_ *Var, own func([]float64, [][]float64), dy []float64, dx [][]float64) {
			own(dy, [][]float64{dx[1], dx[0]})
		}},
	{name: "div without the square", op: "div", f: binaryFunc(Div), in: []Tensor{wide, pos},
		vjp: func(w *Var, own func([]float64, [][]float64), dy []float64, dx [][]float64) {
			own(dy, [][]float64{dx[0], nil})
			for i := range dy {
				dx[1][i] -= dy[i] * w.in[0].data[i] / w.in[1].data[i]
			}
		}},
	{name: "mul takes its own operand", op: "mul", f: binaryFunc(Mul), in: []Tensor{wide, pos},
		vjp: func(_ *Var, own func([]float64, [][]float64), dy []float64, dx [][]float64) {
			own(dy, [][]float64{dx[1], dx[0]})
		}},
	{name: "second use overwrites the first", op: "mul",
		f: func(x []*Var) *Var { return Mul(x[0], x[0]) }, in: []Tensor{wide},
		vjp: func(w *Var, _ func([]float64, [][]float64), dy []float64, dx [][]float64) {
			for k := range dx {
				for i := range dy {
					dx[k][i] = dy[i] * w.in[1-k].data[i]
				}
			}
		}},
	{name: "sqrt without 1/2", op: "sqrt", f: unaryFunc(Sqrt), in: []Tensor{pos},
		vjp: backprop(func(w *Var, dy []float64, i int) float64 { return dy[i] / w.data[i] })},
	{name: "tanh without the square", op: "tanh", f: unaryFunc(Tanh), in: []Tensor{wide},
		vjp: backprop(func(w *Var, dy []float64, i int) float64 { return dy[i] * (1 - w.data[i]) })},
	{name: "erf without 2/√π", op: "erf", f: unaryFunc(Erf), in: []Tensor{wide},
		vjp: backprop(func(w *Var, dy []float64, i int) float64 {
			return dy[i] * math.Exp(-w.in[0].data[i]*w.in[0].data[i])
		})},
	{name: "sigmoid takes y² for y(1−y)", op: "sigmoid", f: unaryFunc(Sigmoid), in: []Tensor{wide},
		vjp: backprop(func(w *Var, dy []float64, i int) float64 { return dy[i] * w.data[i] * w.data[i] })},
	{name: "log multiplies", op: "log", f: unaryFunc(Log), in: []Tensor{pos},
		vjp: backprop(func(w *Var, dy []float64, i int) float64 { return dy[i] * w.in[0].data[i] })},
	{name: "pow keeps the exponent", op: "pow",
		f: unaryFunc(func(x *Var) *Var { return Pow(x, 1.5) }), in: []Tensor{pos},
		vjp: backprop(func(w *Var, dy []float64, i int) float64 { return 1.5 * dy[i] * w.data[i] })},
	{name: "clamp passes outside", op: "clamp",
		f: unaryFunc(func(x *Var) *Var { return Clamp(x, -1, 1) }), in: []Tensor{wide},
		vjp: backprop(func(_ *Var, dy []float64, i int) float64 { return dy[i] })},
	{name: "max goes to the smaller", op: "max", f: binaryFunc(Max), in: []Tensor{wide, row},
		vjp: func(_ *Var, own func([]float64, [][]float64), dy []float64, dx [][]float64) {
			own(dy, [][]float64{dx[1], dx[0]})
		}},
	{name: "maxreduce goes to all", op: "maxreduce",
		f: unaryFunc(func(x *Var) *Var { return MaxReduce(x, false, -1) }), in: []Tensor{wide},
		vjp: backprop(func(_ *Var, dy []float64, i int) float64 { return dy[i/3] })},
	{name: "sum is averaged", op: "sum",
		f: unaryFunc(func(x *Var) *Var { return Sum(x, false, -1) }), in: []Tensor{wide},
		vjp: backprop(func(_ *Var, dy []float64, i int) float64 { return dy[i/3] / 3 })},
	{name: "sum along the other axis", op: "sum",
		f: unaryFunc(func(x *Var) *Var { return Sum(x, false, -1) }), in: []Tensor{quad},
		vjp: backprop(func(_ *Var, dy []float64, i int) float64 { return dy[i%3] })},
	{name: "cumsum runs forwards", op: "cumsum",
		f: unaryFunc(func(x *Var) *Var { return CumSum(x, 0) }), in: []Tensor{row},
		vjp: backprop(func(_ *Var, dy []float64, i int) float64 { return dot(dy[:i+1], []float64{1, 1, 1}) })},
	{name: "slice loses its offset", op: "slice",
		f: unaryFunc(func(x *Var) *Var { return Slice(x, 0, 1, 3) }), in: []Tensor{row},
		vjp: func(_ *Var, _ func([]float64, [][]float64), dy []float64, dx [][]float64) {
			dx[0][0] += dy[0]
			dx[0][1] += dy[1]
		}},
	{name: "concat exchanges the parts", op: "concat",
		f: func(x []*Var) *Var { return Concat(0, x...) }, in: []Tensor{wide, pos},
		vjp: func(_ *Var, own func([]float64, [][]float64), dy []float64, dx [][]float64) {
			own(dy, [][]float64{dx[1], dx[0]})
		}},
	{name: "permute is not inverted", op: "permute",
		f: unaryFunc(func(x *Var) *Var { return Permute(x, 1, 2, 0) }), in: []Tensor{{[]int{2, 1, 3}, wide.Data}},
		vjp: backprop(func(_ *Var, dy []float64, i int) float64 { return dy[i] })},
	{name: "NaN", op: "exp", f: unaryFunc(Exp), in: []Tensor{wide},
		vjp: backprop(func(*Var, []float64, int) float64 { return math.NaN() })},
	{name: "Inf", op: "exp", f: unaryFunc(Exp), in: []Tensor{wide},
		vjp: backprop(func(*Var, []float64, int) float64 { return math.Inf(1) })},
}

// wrongJVPs are faults of the forward tangents. All are caught by the adjoint
// identity and by the difference along a direction.
var wrongJVPs = []fault{
	{name: "exp without its factor", op: "exp", f: unaryFunc(Exp), in: []Tensor{wide},
		jvp: func(_ *Var, _ func([][]float64, []float64), dx [][]float64, dy []float64) { copy(dy, dx[0]) }},
	{name: "mul loses a·ḃ", op: "mul", f: binaryFunc(Mul), in: []Tensor{wide, pos},
		jvp: func(_ *Var, own func([][]float64, []float64), dx [][]float64, dy []float64) {
			own([][]float64{dx[0], nil}, dy)
		}},
	{name: "matmul loses Ȧ·B", op: "matmul",
		f: func(x []*Var) *Var { return MatMul(x[0], x[1], false, false) }, in: []Tensor{wide, tall},
		jvp: func(_ *Var, own func([][]float64, []float64), dx [][]float64, dy []float64) {
			own([][]float64{nil, dx[1]}, dy)
		}},
	{name: "div adds", op: "div", f: binaryFunc(Div), in: []Tensor{wide, pos},
		jvp: func(_ *Var, own func([][]float64, []float64), dx [][]float64, dy []float64) {
			own([][]float64{dx[0], scaled(append([]float64{}, dx[1]...), -1)}, dy)
		}},
	{name: "where exchanges the branches", op: "where",
		f: func(x []*Var) *Var { return Where(half, x[0], x[1]) }, in: []Tensor{wide, pos},
		jvp: func(_ *Var, own func([][]float64, []float64), dx [][]float64, dy []float64) {
			own([][]float64{dx[1], dx[0]}, dy)
		}},
	{name: "zero", op: "sum", f: unaryFunc(func(x *Var) *Var { return Sum(x, false) }), in: []Tensor{wide},
		jvp: func(*Var, func([][]float64, []float64), [][]float64, []float64) {}},
	{name: "NaN", op: "exp", f: unaryFunc(Exp), in: []Tensor{wide},
		jvp: func(_ *Var, _ func([][]float64, []float64), _ [][]float64, dy []float64) { dy[0] = math.NaN() }},
}

// wrongBoth are faults on which the two rules agree, so that the adjoint
// identity holds: only differences catch them.
var wrongBoth = []fault{
	{name: "detached by mistake", op: "mul", in: []Tensor{wide},
		f: unaryFunc(func(x *Var) *Var { return Mul(x, Detach(x)) })},
	{name: "scale by −c", op: "scale", in: []Tensor{wide},
		f: unaryFunc(func(x *Var) *Var { return Scale(x, 3) }),
		vjp: func(_ *Var, own func([]float64, [][]float64), dy []float64, dx [][]float64) {
			own(dy, dx)
			scaled(dx[0], -1)
		},
		jvp: func(_ *Var, own func([][]float64, []float64), dx [][]float64, dy []float64) {
			own(dx, dy)
			scaled(dy, -1)
		}},
	{name: "scale wrong by 1e-6", op: "scale", in: []Tensor{wide},
		f: unaryFunc(func(x *Var) *Var { return Scale(x, 0.1) }),
		vjp: func(_ *Var, own func([]float64, [][]float64), dy []float64, dx [][]float64) {
			own(dy, dx)
			scaled(dx[0], 1+1e-6)
		},
		jvp: func(_ *Var, own func([][]float64, []float64), dx [][]float64, dy []float64) {
			own(dx, dy)
			scaled(dy, 1+1e-6)
		}},
}

// tooFine is a fault that no difference can see. The adjoint identity, which has
// no truncation error, does.
var tooFine = []fault{
	{name: "exp wrong by 1e-12", op: "exp", f: unaryFunc(Exp), in: []Tensor{wide},
		vjp: backprop(func(w *Var, dy []float64, i int) float64 { return dy[i] * w.data[i] * (1 + 1e-12) })},
}

func fixed() *rand.Rand { return rand.New(rand.NewPCG(2, 3)) }

func TestFaultsAreCaught(t *testing.T) {
	type check struct {
		name string
		run  func(string, Func, []Tensor, *rand.Rand) error
	}
	vjp, adjoint, jvp := check{"CheckVJP", CheckVJP}, check{"CheckAdjoint", CheckAdjoint}, check{"CheckJVP", CheckJVP}
	all := check{"CheckGrad", CheckGrad}
	for _, kind := range []struct {
		name   string
		faults []fault
		catch  []check
		pass   []check
	}{
		{"VJP", wrongVJPs, []check{vjp, adjoint, all}, nil},
		{"JVP", wrongJVPs, []check{adjoint, jvp, all}, []check{vjp}},
		{"both", wrongBoth, []check{vjp, jvp, all}, []check{adjoint}},
		{"fine", tooFine, []check{adjoint, all}, []check{vjp, jvp}},
	} {
		for _, c := range kind.faults {
			t.Run(kind.name+"/"+c.name, func(t *testing.T) {
				if c.vjp != nil || c.jvp != nil { // so that the fault, and not the case, is what is caught
					require.NoError(t, CheckGrad(c.op, c.f, c.in, fixed()))
				}
				for _, k := range kind.catch {
					require.ErrorContains(t, k.run(c.op, c.planted(), c.in, fixed()), "ad: "+c.op, k.name)
				}
				for _, k := range kind.pass {
					require.NoError(t, k.run(c.op, c.planted(), c.in, fixed()), k.name)
				}
			})
		}
	}
}

// With a cotangent of ones the gradient of a softmax is 0, so three wrong ones
// pass the same differences with the same bound. That is why cotangents are
// drawn.
func TestOnesCotangentMissesSoftmaxFaults(t *testing.T) {
	ones := []float64{1, 1, 1, 1, 1, 1}
	missed := 0
	for _, c := range wrongVJPs {
		if c.op != "softmaxrow" {
			continue
		}
		p, err := newTrial(c.op, c.planted(), c.in)
		require.NoError(t, err)
		if p.differences(ones) == nil {
			missed++
		}
		require.Error(t, CheckVJP(c.op, c.planted(), c.in, fixed()), c.name)
	}
	require.Equal(t, 3, missed, "0, ×−1000 and ⟨y, ȳ⟩ = 1; only the missing ⟨y, ȳ⟩ shows")
}

// A mask that multiplies lets the poison of what it masks through; the checks
// refuse the function, and Where keeps it out.
func TestMaskByMultiplication(t *testing.T) {
	poison := []float64{math.NaN(), 1, math.Inf(1), math.NaN(), 2, 3}
	mask := Mask{[]int{2, 3}, []bool{false, true, false, false, true, true}}
	weight := []float64{0, 1, 0, 0, 1, 1}
	multiply := func(x []*Var) *Var {
		t := x[0].Tape()
		w := t.Const(weight, 2, 3)
		return Add(Mul(w, Mul(x[0], t.Const(poison, 2, 3))), Mul(Sub(t.Scalar(1), w), x[0]))
	}
	choose := func(x []*Var) *Var {
		return Where(mask, Mul(x[0], x[0].Tape().Const(poison, 2, 3)), x[0])
	}
	require.ErrorContains(t, CheckGrad("mask", multiply, []Tensor{wide}, fixed()), "not finite")
	require.Error(t, CheckGrad("where", choose, []Tensor{wide}, fixed()), "0·NaN in the rule of Mul")
	masked := func(x []*Var) *Var { // mask before the arithmetic
		t := x[0].Tape()
		return Where(mask, Mul(x[0], Where(mask, t.Const(poison, 2, 3), t.Scalar(0))), x[0])
	}
	require.NoError(t, CheckGrad("where", masked, []Tensor{wide}, fixed()))
}
