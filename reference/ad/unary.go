package ad

import "math"

// unary records y = f(x) elementwise. jvp returns ẏ and vjp returns x̄ for one
// element.
func unary(op string, x *Var, f func(x float64) float64,
	jvp func(x, y, dx float64) float64,
	vjp func(x, y, dy float64) float64,
) *Var {
	y := make([]float64, len(x.data))
	for i, v := range x.data {
		y[i] = f(v)
	}
	return record(op, x.shape, y, []*Var{x},
		func(dx [][]float64, dy []float64) {
			for i, d := range dx[0] {
				dy[i] = jvp(x.data[i], y[i], d)
			}
		},
		func(dy []float64, dx [][]float64) {
			for i, d := range dy {
				dx[0][i] += float64(vjp(x.data[i], y[i], d))
			}
		})
}

// Neg returns y = −x elementwise.
//
//	JVP  ẏ = −ẋ
//	VJP  x̄ = −ȳ
func Neg(x *Var) *Var {
	return unary("neg", x,
		func(x float64) float64 { return -x },
		func(_, _, dx float64) float64 { return -dx },
		func(_, _, dy float64) float64 { return -dy })
}

// Scale returns y = c·x elementwise.
//
//	JVP  ẏ = c·ẋ
//	VJP  x̄ = c·ȳ
func Scale(x *Var, c float64) *Var {
	return unary("scale", x,
		func(x float64) float64 { return c * x },
		func(_, _, dx float64) float64 { return c * dx },
		func(_, _, dy float64) float64 { return c * dy })
}

// AddScalar returns y = x + c elementwise.
//
//	JVP  ẏ = ẋ
//	VJP  x̄ = ȳ
func AddScalar(x *Var, c float64) *Var {
	return unary("addscalar", x,
		func(x float64) float64 { return x + c },
		func(_, _, dx float64) float64 { return dx },
		func(_, _, dy float64) float64 { return dy })
}

// Exp returns y = eˣ elementwise.
//
//	JVP  ẏ = eˣ·ẋ
//	VJP  x̄ = ȳ·y
//
// This and the other functions that call package math are as accurate as that
// package, within 2 units in the last place, but the last place may depend on
// the machine: on amd64 math.Exp picks FMA at run time, and with GOAMD64=v3 some
// others, math.Erf and math.Log1p among them, are compiled to it.
func Exp(x *Var) *Var {
	return unary("exp", x, math.Exp,
		func(x, _, dx float64) float64 { return math.Exp(x) * dx },
		func(_, y, dy float64) float64 { return dy * y })
}

// Expm1 returns y = eˣ − 1 elementwise, accurate near 0.
//
//	JVP  ẏ = eˣ·ẋ
//	VJP  x̄ = ȳ·eˣ
//
// The rules do not use y + 1, which cancels for x far below 0.
func Expm1(x *Var) *Var {
	return unary("expm1", x, math.Expm1,
		func(x, _, dx float64) float64 { return math.Exp(x) * dx },
		func(x, _, dy float64) float64 { return dy * math.Exp(x) })
}

// Log returns y = ln x elementwise: −Inf at 0, NaN below.
//
//	JVP  ẏ = ẋ/x
//	VJP  x̄ = ȳ/x
func Log(x *Var) *Var {
	return unary("log", x, math.Log,
		func(x, _, dx float64) float64 { return dx / x },
		func(x, _, dy float64) float64 { return dy / x })
}

// Log1p returns y = ln(1 + x) elementwise, accurate near 0.
//
//	JVP  ẏ = ẋ/(1 + x)
//	VJP  x̄ = ȳ/(1 + x)
func Log1p(x *Var) *Var {
	return unary("log1p", x, math.Log1p,
		func(x, _, dx float64) float64 { return dx / (1 + x) },
		func(x, _, dy float64) float64 { return dy / (1 + x) })
}

// Sqrt returns y = √x elementwise: NaN below 0, slope +Inf at 0.
//
//	JVP  ẏ = ẋ/(2y)
//	VJP  x̄ = ȳ·(1/2)/y
func Sqrt(x *Var) *Var {
	return unary("sqrt", x, math.Sqrt,
		func(_, y, dx float64) float64 { return dx / (2 * y) },
		func(_, y, dy float64) float64 { return dy * 0.5 / y })
}

// Tanh returns y = tanh x elementwise.
//
//	JVP  ẏ = ẋ/cosh²x
//	VJP  x̄ = ȳ·4t/(1 + t)², t = e^{−2|x|}
//
// The rules do not use 1 − y², which cancels where y is near ±1.
func Tanh(x *Var) *Var {
	return unary("tanh", x, math.Tanh,
		func(x, _, dx float64) float64 {
			c := math.Cosh(x)
			return dx / c / c
		},
		func(x, _, dy float64) float64 {
			t := math.Exp(-2 * math.Abs(x))
			return dy * (4 * t / ((1 + t) * (1 + t)))
		})
}

// Erf returns y = erf x = 2/√π ∫₀ˣ e^{−s²} ds elementwise.
//
//	JVP  ẏ = 2/√π·e^{−x²}·ẋ
//	VJP  x̄ = ȳ·e^{−x²}/(√π/2)
func Erf(x *Var) *Var {
	return unary("erf", x, math.Erf,
		func(x, _, dx float64) float64 { return 2 / math.SqrtPi * math.Exp(-x*x) * dx },
		func(x, _, dy float64) float64 { return dy * math.Exp(-x*x) / (math.SqrtPi / 2) })
}

// Sigmoid returns y = σ(x) = 1/(1 + e^{−x}) elementwise.
//
//	JVP  ẏ = ẋ·t/(1 + t)², t = e^{−|x|}
//	VJP  x̄ = ȳ·σ(x)·σ(−x)
//
// The rules do not use 1 − y, which cancels where y is near 1.
func Sigmoid(x *Var) *Var {
	return unary("sigmoid", x, sigmoid,
		func(x, _, dx float64) float64 {
			t := math.Exp(-math.Abs(x))
			return dx * (t / ((1 + t) * (1 + t)))
		},
		func(x, y, dy float64) float64 { return dy * (y * sigmoid(-x)) })
}

// sigmoid returns 1/(1 + e^{−x}) without overflow, accurate in both tails.
func sigmoid(x float64) float64 {
	if x < 0 {
		t := math.Exp(x)
		return t / (1 + t)
	}
	return 1 / (1 + math.Exp(-x))
}

// Pow returns y = x^c elementwise for a constant c; NaN for x < 0 unless c is an
// integer.
//
//	JVP  ẏ = c·x^{c−1}·ẋ
//	VJP  x̄ = ȳ·c·x^{c−1}
//
// For c = 0 both are exactly 0, also at x = 0.
func Pow(x *Var, c float64) *Var {
	slope := func(x float64) float64 {
		if c == 0 {
			return 0
		}
		return c * math.Pow(x, c-1)
	}
	return unary("pow", x,
		func(x float64) float64 { return math.Pow(x, c) },
		func(x, _, dx float64) float64 { return slope(x) * dx },
		func(x, _, dy float64) float64 { return dy * slope(x) })
}

// Abs returns y = |x| elementwise.
//
//	JVP  ẏ = sign(x)·ẋ
//	VJP  x̄ = ȳ·sign(x)
//
// sign(0) is 0, as in torch, and sign(NaN) is NaN.
func Abs(x *Var) *Var {
	sign := func(x float64) float64 {
		switch {
		case x > 0:
			return 1
		case x < 0:
			return -1
		}
		return x // 0 or NaN
	}
	return unary("abs", x, math.Abs,
		func(x, _, dx float64) float64 { return sign(x) * dx },
		func(x, _, dy float64) float64 { return dy * sign(x) })
}

// Clamp returns y = min(max(x, lo), hi) elementwise, NaN where x is.
// It panics unless lo ≤ hi.
//
//	JVP  ẏ = ẋ if lo < x < hi, else 0
//	VJP  x̄ = ȳ if lo < x < hi, else 0
//
// Exactly on a bound the derivative is not defined. The rules take 0, the
// subgradient of least norm, as torch 2.15 does for bounds that are numbers and
// as relu and hardtanh always did. Older releases of torch take 1 there (since
// pytorch#7049); [Where] with the mask lo ≤ x ≤ hi gives that. torch.maximum
// and torch.minimum split the tie instead, see [Max].
func Clamp(x *Var, lo, hi float64) *Var {
	if !(lo <= hi) {
		panic("ad: clamp: bounds out of order")
	}
	pass := func(x, d float64) float64 {
		if lo < x && x < hi {
			return d
		}
		return 0
	}
	return unary("clamp", x,
		func(x float64) float64 { return min(max(x, lo), hi) },
		func(x, _, dx float64) float64 { return pass(x, dx) },
		func(x, _, dy float64) float64 { return pass(x, dy) })
}
