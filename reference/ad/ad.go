// Package ad is a reverse-mode tape over float64 tensors.
//
// It is the second, independent derivation of every gradient in this module:
// models and losses are written here as formulas, differentiated by the tape,
// and compared with gradients that were derived by hand. It is therefore built
// to be reviewed. A primitive is one function that states and holds its three
// rules side by side:
//
//	value  y = f(x)
//	JVP    ẏ = J·ẋ      tangents, forwards
//	VJP    x̄ = Jᵀ·ȳ     cotangents, backwards
//
// The two derivative rules are written down separately. [CheckGrad] compares
// both with central differences and with each other.
//
// Conventions. Tensors are dense and row-major; a shape of no axes is a scalar.
// Axes count from 0, or from −1 at the end. Sums run in index order, one
// accumulator each, and every product that feeds a sum is written
// float64(a*b) + c, which forbids a fused multiply-add: values made of
// + − × ÷ √ and comparisons have the same bits under GOAMD64=v1 and v3. The
// functions of package math do not promise that, see [Exp].
// A NaN or Inf is a value like any other, carried along and never replaced.
// Shapes, axes and indices that do not fit panic with "ad: …".
//
// A Tape and its Vars may be used by one goroutine at a time.
package ad

import (
	"fmt"
	"slices"
)

// A Tape records the operations that depend on a parameter, in the order in
// which they were made. The zero Tape is ready to use.
type Tape struct {
	nodes []*Var // parameters and everything computed from one
}

// A Var is a tensor that a tape knows: a parameter, a constant, or the result
// of an operation. Its value never changes.
type Var struct {
	tape  *Tape
	op    string // the primitive that made it; "param" or "const" for a leaf
	shape []int
	data  []float64
	grad  []float64 // of a parameter: what Backward has accumulated

	// The rest is set only if needs is.
	needs bool
	id    int // index in tape.nodes
	in    []*Var
	jvp   func(dx [][]float64, dy []float64)
	vjp   func(dy []float64, dx [][]float64)
	mag   func() []float64 // see roundoff in check.go; nil means 4·|data|

	// inside returns what a node that stands for several is made of, with the parameters that stand for its inputs, nil for those that have no gradient.
	inside func() (x []*Var, y *Var)
}

// Param returns a leaf of the given shape whose gradient [Backward]
// accumulates. The data are copied. It panics if they do not fill the shape.
func (t *Tape) Param(data []float64, shape ...int) *Var {
	v := t.leaf("param", data, shape)
	v.grad = make([]float64, len(data))
	v.needs = true
	t.push(v)
	return v
}

// Const returns a leaf of the given shape that has no gradient. The data are
// copied. It panics if they do not fill the shape.
func (t *Tape) Const(data []float64, shape ...int) *Var {
	return t.leaf("const", data, shape)
}

// View returns a leaf of the given shape that has no gradient and is the data
// themselves, not a copy: the weights of a model may be larger than the rest of
// a tape. They must not change while the tape is in use. It panics if they do
// not fill the shape.
func (t *Tape) View(data []float64, shape ...int) *Var {
	if n := size(shape); n != len(data) {
		panic(fmt.Sprintf("ad: view: shape %v holds %d elements, not %d", shape, n, len(data)))
	}
	return &Var{tape: t, op: "const", shape: slices.Clone(shape), data: data}
}

// Scalar returns the constant c as a tensor of no axes.
func (t *Tape) Scalar(c float64) *Var { return t.Const([]float64{c}) }

func (t *Tape) leaf(op string, data []float64, shape []int) *Var {
	if n := size(shape); n != len(data) {
		panic(fmt.Sprintf("ad: %s: shape %v holds %d elements, not %d", op, shape, n, len(data)))
	}
	return &Var{tape: t, op: op, shape: slices.Clone(shape), data: slices.Clone(data)}
}

func (t *Tape) push(v *Var) {
	v.id = len(t.nodes)
	t.nodes = append(t.nodes, v)
}

// record returns the result of a primitive. The rules are kept only if an
// input depends on a parameter: everything else is a constant.
//
// jvp adds to dy, which starts at 0, what the tangents dx of the inputs
// contribute; dx[k] is nil where input k has no tangent. vjp adds to the
// cotangents dx of the inputs what dy contributes; dx[k] is nil where input k
// needs none. Two inputs may be the same Var and then share one dx, so a vjp
// only ever adds to it and never reads it.
func record(op string, shape []int, data []float64, in []*Var,
	jvp func(dx [][]float64, dy []float64),
	vjp func(dy []float64, dx [][]float64),
) *Var {
	y := &Var{tape: in[0].tape, op: op, shape: shape, data: data}
	for _, x := range in {
		if x.tape != y.tape {
			panic("ad: " + op + ": operands of two tapes")
		}
		y.needs = y.needs || x.needs
	}
	if y.needs {
		y.in, y.jvp, y.vjp = in, jvp, vjp
		y.tape.push(y)
	}
	return y
}

// Tape returns the tape that v belongs to.
func (v *Var) Tape() *Tape { return v.tape }

// Shape returns a copy of the shape of v.
func (v *Var) Shape() []int { return slices.Clone(v.shape) }

// Size returns the number of elements of v.
func (v *Var) Size() int { return len(v.data) }

// Data returns the elements of v in row-major order. The caller must not
// change them.
func (v *Var) Data() []float64 { return v.data }

// Item returns the only element of v. It panics if v has another size.
func (v *Var) Item() float64 {
	if len(v.data) != 1 {
		panic(fmt.Sprintf("ad: item: shape %v holds %d elements", v.shape, len(v.data)))
	}
	return v.data[0]
}

// NeedsGrad reports whether v is a parameter or depends on one.
func (v *Var) NeedsGrad() bool { return v.needs }

// Grad returns the gradient that [Backward] has accumulated in the parameter v,
// zeros if none has arrived. It panics if v is not a parameter.
func (v *Var) Grad() []float64 {
	if v.op != "param" {
		panic("ad: grad: " + v.op + " is not a parameter")
	}
	return v.grad
}

// ZeroGrad forgets the gradient accumulated in the parameter v. It panics if v
// is not a parameter.
func (v *Var) ZeroGrad() { clear(v.Grad()) }

// Detach returns x as a constant: no tangent passes forwards, no cotangent
// backwards.
func Detach(x *Var) *Var {
	return &Var{tape: x.tape, op: "const", shape: x.shape, data: x.data}
}
