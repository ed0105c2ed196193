package trainer

import (
	"cmp"
	"math"
	"slices"
)

// unit is the arithmetic of a run: that of F, or bf16 with every result rounded, or what a caller makes of every result. An explicit
// conversion keeps the compiler from fusing a product into a sum.
type unit[F float32 | float64] struct {
	bf16 bool
	turn func(x, units float64) float64 // see Config.Round
}

// q rounds the result of an operation.
func (u unit[F]) q(x F) F { return u.off(x, 1) }

// off is q for a result that may be off by so many unit roundoffs.
func (u unit[F]) off(x F, units float64) F {
	if u.turn != nil && x == x {
		return F(u.turn(float64(x), units))
	}
	if !u.bf16 || x != x {
		return x
	}
	bits := math.Float32bits(float32(x))
	bits += 0x7fff + bits>>16&1
	return F(math.Float32frombits(bits &^ 0xffff))
}

// exact reports whether an adversary has no say: a factor is a power of two, or 0.
func (u unit[F]) exact(a, b F) bool {
	for _, x := range []F{a, b} {
		if fraction, _ := math.Frexp(float64(x)); fraction == 0 || math.Abs(fraction) == 0.5 {
			return true
		}
	}
	return false
}

func (u unit[F]) num(x float64) F {
	if u.turn != nil && float64(float32(x)) == x {
		return F(x)
	}
	return u.q(F(x))
}

func (u unit[F]) add(a, b F) F {
	if u.turn != nil && (a == 0 || b == 0) {
		return a + b
	}
	return u.q(F(a + b))
}

func (u unit[F]) sub(a, b F) F { return u.add(a, -b) }

func (u unit[F]) mul(a, b F) F {
	if u.turn != nil && u.exact(a, b) {
		return F(a * b)
	}
	return u.q(F(a * b))
}

func (u unit[F]) div(a, b F) F {
	if u.turn != nil && (a == 0 || u.exact(b, b)) {
		return F(a / b)
	}
	return u.q(F(a / b))
}

// elementary is the error of exp and log in unit roundoffs that an adversary may use: 2 ulp.
const elementary = 4

func (u unit[F]) exp(x F) F {
	if u.turn != nil && x == 0 {
		return 1
	}
	return u.off(F(math.Exp(float64(x))), elementary)
}

func (u unit[F]) log(x F) F  { return u.off(F(math.Log(float64(x))), elementary) }
func (u unit[F]) sqrt(x F) F { return u.q(F(math.Sqrt(float64(x)))) }

// sum adds pairwise: the halves first. Only the result is rounded to bf16, as by kernels that accumulate in float32. For an adversary it
// adds the largest term first, the order in which the roundings are the largest.
func (u unit[F]) sum(x []F) F {
	if u.turn == nil {
		return u.q(pairwise(x))
	}
	x = slices.Clone(x)
	slices.SortFunc(x, func(a, b F) int { return cmp.Compare(abs(b), abs(a)) })
	var s F
	for _, v := range x {
		s = u.add(s, v)
	}
	return s
}

func pairwise[F float32 | float64](x []F) F {
	if len(x) <= 4 {
		var s F
		for i := len(x) - 1; i >= 0; i-- {
			s += x[i]
		}
		return s
	}
	return pairwise(x[:len(x)/2]) + pairwise(x[len(x)/2:])
}

// clip bounds x to [lo, hi]; NaN stays NaN.
func clip[F float32 | float64](x, lo, hi F) F {
	if x < lo {
		return lo
	}
	if x > hi {
		return hi
	}
	return x
}

func inside[F float32 | float64](x, lo, hi F) bool { return lo < x && x < hi }

func abs[F float32 | float64](x F) F { return F(math.Abs(float64(x))) }

// picked returns the cells of x that a mask selects; a nil mask selects all.
func picked[F float32 | float64](x []F, mask []bool) []F {
	if mask == nil {
		return x
	}
	y := make([]F, 0, len(x))
	for i, m := range mask {
		if m {
			y = append(y, x[i])
		}
	}
	return y
}

// moments returns the mean of x and the sum of squared distances from it, in two passes.
func (u unit[F]) moments(x []F, eps F) (mean, squares F) {
	n := u.add(F(len(x)), eps)
	mean = u.div(u.sum(x), n)
	d := make([]F, len(x))
	for i, v := range x {
		d[i] = u.mul(u.sub(v, mean), u.sub(v, mean))
	}
	return mean, u.sum(d)
}

// std returns the standard deviation over n − ddof.
func (u unit[F]) std(x []F, ddof int) F {
	_, squares := u.moments(x, 0)
	return u.sqrt(u.div(squares, F(len(x)-ddof)))
}
