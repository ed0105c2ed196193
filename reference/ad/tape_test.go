package ad

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBackwardAccumulates(t *testing.T) {
	var tape Tape
	x := tape.Param([]float64{2, 3}, 2)
	c := tape.Const([]float64{5, 7}, 2)
	unused := tape.Param([]float64{1})
	y := Mul(Mul(x, x), c)

	Backward(y, []float64{1, 10})
	require.Equal(t, []float64{2 * 2 * 5, 2 * 3 * 7 * 10}, x.Grad())
	Backward(y, []float64{1, 0})
	require.Equal(t, []float64{40, 420}, x.Grad(), "gradients add up")
	Backward(Sum(x, false), []float64{1})
	require.Equal(t, []float64{41, 421}, x.Grad(), "over several outputs")
	require.Equal(t, []float64{0}, unused.Grad())
	x.ZeroGrad()
	require.Equal(t, []float64{0, 0}, x.Grad())
}

func TestOnlyWhatDependsOnAParameterIsRecorded(t *testing.T) {
	var tape Tape
	x, c := tape.Param([]float64{2}), tape.Const([]float64{3})
	require.False(t, Exp(c).NeedsGrad())
	require.False(t, Detach(Exp(x)).NeedsGrad())
	require.True(t, Mul(x, c).NeedsGrad())
	require.Len(t, tape.nodes, 3, "x, Exp(x) and the product")
	require.Same(t, &tape, c.Tape())
}

// A view is the data, not a copy, and has no gradient.
func TestView(t *testing.T) {
	var tape Tape
	w := []float64{2, 3, 5, 7}
	v, x := tape.View(w, 2, 2), tape.Param(w, 2, 2)
	require.Same(t, &w[0], &v.Data()[0])
	require.NotSame(t, &w[0], &x.Data()[0])
	require.False(t, v.NeedsGrad())
	Backward(Mul(x, v), []float64{1, 1, 1, 1})
	require.Equal(t, w, x.Grad())
	require.PanicsWithValue(t, "ad: view: shape [3] holds 3 elements, not 4", func() { tape.View(w, 3) })
	require.Panics(t, func() { v.Grad() })
}

func TestDetachStopsBothWays(t *testing.T) {
	var tape Tape
	x := tape.Param([]float64{3})
	y := Mul(x, Detach(Mul(x, x)))
	Backward(y, []float64{1})
	require.Equal(t, []float64{9}, x.Grad(), "x² as a constant")
	require.Equal(t, []float64{9}, JVP(y, []*Var{x}, [][]float64{{1}}))
}

func TestJVPOfSomeParameters(t *testing.T) {
	var tape Tape
	x, z := tape.Param([]float64{2}), tape.Param([]float64{5})
	y := Mul(x, z)
	late := tape.Param([]float64{1})
	require.Equal(t, []float64{5}, JVP(y, []*Var{x}, [][]float64{{1}}))
	require.Equal(t, []float64{2}, JVP(y, []*Var{z}, [][]float64{{1}}))
	require.Equal(t, []float64{5 + 20}, JVP(y, []*Var{x, z}, [][]float64{{1}, {10}}))
	require.Equal(t, []float64{10}, JVP(y, []*Var{x, x}, [][]float64{{1}, {1}}), "linear in each mention")
	require.Equal(t, []float64{0}, JVP(y, nil, nil))
	require.Equal(t, []float64{0}, JVP(y, []*Var{late}, [][]float64{{1}}))
	require.Equal(t, []float64{0}, JVP(tape.Scalar(1), []*Var{x}, [][]float64{{1}}))
	require.Equal(t, []float64{0, 0}, append(x.Grad(), z.Grad()...), "no trace")
}

// The tape holds copies: neither the caller's slices nor those that Shape
// returns reach it.
func TestLeavesAreCopies(t *testing.T) {
	var tape Tape
	data, shape := []float64{1, 2}, []int{2}
	x := tape.Param(data, shape...)
	data[0], shape[0] = 9, 9
	require.Equal(t, []float64{1, 2}, x.Data())
	x.Shape()[0] = 9
	require.Equal(t, []int{2}, x.Shape())
	ids := []int{1, 0}
	y := Embedding(Reshape(x, 2, 1), ids, 2)
	ids[0] = 0
	Backward(y, []float64{1, 10})
	require.Equal(t, []float64{10, 1}, x.Grad())
}

// Sums of a path that comes back have one order: the tape's.
func TestBackwardIsDeterministic(t *testing.T) {
	run := func() []float64 {
		var tape Tape
		x := tape.Param(wide.Data, 2, 3)
		y := x
		for range 5 {
			y = Add(Mul(y, Tanh(x)), Mul(Sigmoid(y), x))
		}
		Backward(y, pos.Data)
		return x.Grad()
	}
	first := run()
	for range 5 {
		requireSame(t, first, run())
	}
}

func TestPanics(t *testing.T) {
	var tape, other Tape
	x := tape.Param([]float64{1, 2, 3, 4, 5, 6}, 2, 3)
	c := tape.Const([]float64{1, 2}, 2)
	for _, p := range []struct {
		want string
		f    func()
	}{
		{"ad: param: shape [2] holds 2 elements, not 3", func() { tape.Param(make([]float64, 3), 2) }},
		{"ad: const: shape [] holds 1 elements, not 0", func() { tape.Const(nil) }},
		{"ad: negative axis in shape [-1]", func() { tape.Const(nil, -1) }},
		{"ad: item: shape [2 3] holds 6 elements", func() { x.Item() }},
		{"ad: grad: const is not a parameter", func() { c.Grad() }},
		{"ad: backward: a cotangent of 1 elements for shape [2 3]", func() { Backward(x, []float64{1}) }},
		{"ad: backward: const depends on no parameter", func() { Backward(c, []float64{1, 1}) }},
		{"ad: jvp: 1 parameters, 0 tangents", func() { JVP(x, []*Var{x}, nil) }},
		{"ad: jvp: argument 0 is not a parameter of this tape", func() { JVP(x, []*Var{c}, [][]float64{{1, 1}}) }},
		{"ad: jvp: argument 0 is not a parameter of this tape", func() { JVP(x, []*Var{other.Param(nil, 0)}, [][]float64{nil}) }},
		{"ad: jvp: a tangent of 1 elements for shape [2 3]", func() { JVP(x, []*Var{x}, [][]float64{{1}}) }},
		{"ad: add: operands of two tapes", func() { Add(x, other.Param(make([]float64, 6), 2, 3)) }},
		{"ad: mul: shapes [2 3] and [2] do not broadcast", func() { Mul(x, c) }},
		{"ad: where: the mask does not fill its shape", func() { Where(Mask{[]int{2}, []bool{true}}, x, x) }},
		{"ad: where: shapes [2 3] and [2] do not broadcast", func() { Where(Mask{[]int{2}, []bool{true, true}}, x, x) }},
		{"ad: broadcast: shape [2 3] does not broadcast to [3]", func() { BroadcastTo(x, 3) }},
		{"ad: broadcast: shape [2 3] does not broadcast to [2 1]", func() { BroadcastTo(x, 2, 1) }},
		{"ad: clamp: bounds out of order", func() { Clamp(x, 1, -1) }},
		{"ad: clamp: bounds out of order", func() { Clamp(x, math.NaN(), 1) }},
		{"ad: sum: axis 2 of a tensor with 2 axes", func() { Sum(x, false, 2) }},
		{"ad: sum: an axis is given twice", func() { Sum(x, false, 1, -1) }},
		{"ad: maxreduce: axis 0 of a tensor with 0 axes", func() { MaxReduce(tape.Scalar(1), false, 0) }},
		{"ad: cumsum: axis -3 of a tensor with 2 axes", func() { CumSum(x, -3) }},
		{"ad: reshape: shape [2 3] does not fit [4 1]", func() { Reshape(x, 4, -1) }},
		{"ad: permute: 1 axes for shape [2 3]", func() { Permute(x, 0) }},
		{"ad: permute: an axis is given twice", func() { Permute(x, 1, -1) }},
		{"ad: transpose: axis 2 of a tensor with 2 axes", func() { Transpose(x, 0, 2) }},
		{"ad: slice: [1:4] of axis 1 of shape [2 3]", func() { Slice(x, 1, 1, 4) }},
		{"ad: slice: [2:1] of axis 1 of shape [2 3]", func() { Slice(x, 1, 2, 1) }},
		{"ad: concat: nothing to join", func() { Concat(0) }},
		{"ad: concat: shapes [2 3] and [2]", func() { Concat(0, x, c) }},
		{"ad: concat: shapes [2 3] and [3 2] along axis 0", func() { Concat(0, x, Transpose(x, 0, 1)) }},
		{"ad: gather: 1 indices for 1 of each row of shape [2 3]", func() { Gather(x, 1, []int{0}) }},
		{"ad: gather: index 3 of an axis of 3", func() { Gather(x, 1, []int{0, 3}) }},
		{"ad: gather: index -1 of an axis of 3", func() { Gather(x, 1, []int{0, -1}) }},
		{"ad: embedding: a table of shape [2]", func() { Embedding(c, []int{0}, 1) }},
		{"ad: embedding: 1 ids for shape [2]", func() { Embedding(x, []int{0}, 2) }},
		{"ad: embedding: id 2 of 2 rows", func() { Embedding(x, []int{2}, 1) }},
		{"ad: matmul: shapes [2 3] and [2]", func() { MatMul(x, c, false, false) }},
		{"ad: matmul: inner sizes 3 and 2 of shapes [2 3] and [2 3]", func() { MatMul(x, x, false, false) }},
	} {
		require.PanicsWithValue(t, p.want, p.f)
	}
}
