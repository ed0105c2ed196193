package trainer

import "math"

// unit is the arithmetic of a run: that of F, or bf16 with every result rounded. An explicit conversion keeps the compiler
// from fusing a product into a sum.
type unit[F float32 | float64] struct{ bf16 bool }

// q rounds the result of an operation.
func (u unit[F]) q(x F) F {
	if !u.bf16 || x != x {
		return x
	}
	bits := math.Float32bits(float32(x))
	bits += 0x7fff + bits>>16&1
	return F(math.Float32frombits(bits &^ 0xffff))
}

func (u unit[F]) num(x float64) F { return u.q(F(x)) }
func (u unit[F]) add(a, b F) F    { return u.q(F(a + b)) }
func (u unit[F]) sub(a, b F) F    { return u.q(F(a - b)) }
func (u unit[F]) mul(a, b F) F    { return u.q(F(a * b)) }
func (u unit[F]) div(a, b F) F    { return u.q(F(a / b)) }
func (u unit[F]) exp(x F) F       { return u.q(F(math.Exp(float64(x)))) }
func (u unit[F]) log(x F) F       { return u.q(F(math.Log(float64(x)))) }
func (u unit[F]) sqrt(x F) F      { return u.q(F(math.Sqrt(float64(x)))) }

// sum adds pairwise: the halves first. Only the result is rounded to bf16, as by kernels that accumulate in float32.
func (u unit[F]) sum(x []F) F { return u.q(pairwise(x)) }

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
