package model

import (
	"math"
	"math/rand/v2"

	"plumbline/reference/ad"
)

// Rounding perturbs a forward and backward pass as much as a contract allows kernels to round: it models a fast implementation of the same
// model by the reference, and what a few perturbed passes differ in is what an implementation may (stochastic arithmetic; Parker 1997,
// Monte Carlo Arithmetic). Every perturbation has the full size that is allowed and a random sign:
//
//	what a linear layer reads        Activation·|x| + Code·max|x| + 8·Unit·(|x| + rms x)     norms, rotation, attention and residuals before it included
//	what an update reads             8·Unit·(|x| + rms x)                                    its own sum included; no format rounds it
//	what its weight gives            √Terms·Unit·(|y| + rms y)                               a sum of Terms products, in any order
//	the gradient by what it reads    8·Unit, relative
//	the gradient by what it gives    Gradient + √Terms·Unit, relative
//
// where max and rms are taken over the row of a token. Rand decides the signs and is used up in the order of the passes.
type Rounding struct {
	Rand       *rand.Rand
	Unit       float64 // unit roundoff of the arithmetic: 2⁻²⁴ of float32
	Activation float64 // and of the format that activations are rounded to: 2⁻⁸ of bfloat16
	Code       float64 // half a step between codes of activations, as a share of the largest of a row: 1/254 of int8
	Gradient   float64 // unit roundoff of the format that gradients are rounded to
	Terms      int     // of the longest sum
}

// Read is a [Trainable.Read].
func (r *Rounding) Read(_ string, x *ad.Var) *ad.Var {
	y := r.forward(x, func(v, top, rms float64) float64 {
		return float64(r.Activation*v) + float64(r.Code*top) + float64(8*r.Unit*(v+rms))
	})
	return r.backward(y, 8*r.Unit)
}

// Update is a [Trainable.Update].
func (r *Rounding) Update(_ string, x *ad.Var) *ad.Var {
	y := r.forward(x, func(v, _, rms float64) float64 { return float64(8 * r.Unit * (v + rms)) })
	return r.backward(y, 8*r.Unit)
}

// Give is a [Trainable.Give].
func (r *Rounding) Give(_ string, y *ad.Var) *ad.Var {
	sum := float64(math.Sqrt(float64(r.Terms)) * r.Unit)
	return r.backward(r.forward(y, func(v, _, rms float64) float64 { return sum * (v + rms) }), r.Gradient+sum)
}

func (r *Rounding) sign() float64 { return 1 - 2*float64(r.Rand.Uint64()&1) }

// forward adds to x what size gives for an element's magnitude, the largest of its row and the row's root mean square. The gradient passes.
func (r *Rounding) forward(x *ad.Var, size func(v, top, rms float64) float64) *ad.Var {
	shape, e := x.Shape(), make([]float64, x.Size())
	c := shape[len(shape)-1]
	for at := 0; at < len(e); at += c {
		row := x.Data()[at : at+c]
		var top, squares float64
		for _, v := range row {
			top = max(top, math.Abs(v))
			squares += float64(v * v)
		}
		rms := math.Sqrt(squares / float64(c))
		for i, v := range row {
			e[at+i] = float64(r.sign() * size(math.Abs(v), top, rms))
		}
	}
	return ad.Add(x, x.Tape().Const(e, shape...))
}

// backward returns x with a gradient that is multiplied by 1 ± e.
func (r *Rounding) backward(x *ad.Var, e float64) *ad.Var {
	scale, back := make([]float64, x.Size()), make([]float64, x.Size())
	for i, v := range x.Data() {
		d := float64(r.sign() * e)
		scale[i], back[i] = 1+d, -float64(d*v)
	}
	shape, t := x.Shape(), x.Tape()
	return ad.Add(ad.Mul(x, t.Const(scale, shape...)), t.Const(back, shape...))
}
