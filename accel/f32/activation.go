package f32

import (
	"fmt"
	"math"
)

// Activation is an elementwise function with its derivative, in float64: the argument is a float32 number, the result is rounded to one
// by who calls it.
type Activation struct {
	Name  string
	Value func(x float64) float64
	Slope func(x float64) float64
}

// FindActivation returns the function that a config.json of transformers names: gelu, gelu_new, gelu_pytorch_tanh, relu, silu, swish. The
// slope of relu at 0 is 0. Another name is an error.
//
//	silu      x·σ(x)                                    slope σ + x·σ·(1 − σ)
//	gelu      x·Φ(x)                                    slope Φ + x·φ(x)
//	gelu_new  x·σ(2z), z = √(2/π)·(x + 0.044715·x³)     slope σ + x·σ·(1 − σ)·2·√(2/π)·(1 + 3·0.044715·x²)
//
// where gelu_new is x·(1 + tanh z)/2 written without the cancellation at negative x. Sources: Hendrycks and Gimpel 2016; transformers'
// activations.
func FindActivation(name string) (Activation, error) {
	switch name {
	case "silu", "swish":
		return Activation{name, silu, siluSlope}, nil
	case "gelu":
		return Activation{name, gelu, geluSlope}, nil
	case "gelu_new", "gelu_pytorch_tanh":
		return Activation{name, geluTanh, geluTanhSlope}, nil
	case "relu":
		return Activation{name, relu, reluSlope}, nil
	}
	return Activation{}, fmt.Errorf("f32: activation %q is not one of gelu, gelu_new, gelu_pytorch_tanh, relu, silu, swish", name)
}

func silu(x float64) float64 {
	if x < -100 { // so that −Inf gives 0, as the limit is
		return 0
	}
	return x * sigmoid(x)
}

func siluSlope(x float64) float64 {
	if x < -100 {
		return 0
	}
	if x > 100 {
		return 1
	}
	e := exp(-x)
	s := 1 / (1 + e)
	return s + float64(float64(x*s)*float64(e*s)) // e·s is 1 − s without cancellation
}

func gelu(x float64) float64 {
	if x < -40 {
		return 0
	}
	return float64(x*0.5) * math.Erfc(-x/math.Sqrt2)
}

func geluSlope(x float64) float64 {
	if x < -40 {
		return 0
	}
	if x > 40 {
		return 1
	}
	return float64(0.5*math.Erfc(-x/math.Sqrt2)) + float64(x*math.Exp(-float64(0.5*float64(x*x)))/math.Sqrt(2*math.Pi))
}

// geluRate is 2·√(2/π).
const geluRate = 2 * 0.7978845608028653558798921198687637369517172623298693153318516593

func geluTanh(x float64) float64 {
	if x < -40 {
		return 0
	}
	return x * sigmoid(geluRate*(x+float64(0.044715*float64(x*float64(x*x)))))
}

func geluTanhSlope(x float64) float64 {
	if x < -40 {
		return 0
	}
	if x > 40 {
		return 1
	}
	e := exp(-float64(geluRate * (x + float64(0.044715*float64(x*float64(x*x))))))
	if e > 1e300 { // the slope is below what float32 holds, and e·s would be ∞·0
		return 0
	}
	s := 1 / (1 + e)
	return s + float64(float64(x*s)*float64(e*s)*float64(geluRate*(1+float64(3*0.044715*float64(x*x)))))
}

func relu(x float64) float64 {
	if x > 0 || x != x {
		return x
	}
	return 0
}

func reluSlope(x float64) float64 {
	if x > 0 {
		return 1
	}
	return 0
}

// Apply stores in y the function of every element of x. y may be x. It panics if the lengths differ.
func (a Activation) Apply(y, x []float32) {
	same("activation", len(y), len(x))
	for i, v := range x {
		y[i] = float32(a.Value(float64(v)))
	}
}

// Backward stores in dx the gradient by x from dy, the gradient by y: dy·f'(x). dx may be dy.
func (a Activation) Backward(dx, dy, x []float32) {
	same("activation", len(dy), len(x))
	same("activation", len(dx), len(x))
	for i, v := range x {
		dx[i] = float32(float64(dy[i]) * a.Slope(float64(v)))
	}
}

// Gated stores in y the gated unit f(gate)·up, elementwise: with silu the SwiGLU of Shazeer 2020. y may be gate or up.
func (a Activation) Gated(y, gate, up []float32) {
	same("gated unit", len(y), len(gate))
	same("gated unit", len(up), len(gate))
	if a.Name == "silu" || a.Name == "swish" {
		swiGLU.Func()(y, gate, up)
		return
	}
	for i, g := range gate {
		y[i] = float32(a.Value(float64(g)) * float64(up[i]))
	}
}

// GatedBackward stores in dgate and dup the gradients of [Activation.Gated] from dy: dy·up·f'(gate) and dy·f(gate). They may be gate and
// up, or one of them dy.
func (a Activation) GatedBackward(dgate, dup, dy, gate, up []float32) {
	same("gated unit", len(dgate), len(gate))
	same("gated unit", len(dup), len(gate))
	same("gated unit", len(dy), len(gate))
	same("gated unit", len(up), len(gate))
	if a.Name == "silu" || a.Name == "swish" {
		swiGLUBack.Func()(dgate, dup, dy, gate, up)
		return
	}
	for i, g := range gate {
		d, u := float64(dy[i]), float64(up[i])
		dgate[i], dup[i] = float32(float64(d*u)*a.Slope(float64(g))), float32(d*a.Value(float64(g)))
	}
}
