package rng

import "math"

// Normal returns the i-th number of the standard normal distribution, by the
// method of Box and Muller 1958. Elements 2p and 2p+1 share the uniform numbers
// 2p and 2p+1:
//
//	r = √(−2·ln(1 − uniform(2p))),  θ = 2π·uniform(2p+1)
//	normal(2p) = r·cos θ,  normal(2p+1) = r·sin θ
//
// The largest magnitude is √(−2·ln 2⁻⁵³), about 8.57.
//
// Logarithm, sine and cosine are written out here, since those of package math
// differ in the last place between processors and compiler settings. Against
// exact arithmetic the result is wrong by less than 1e-15 times its magnitude.
// Uniform and Normal of one stream are not independent of each other.
func (s Stream) Normal(i uint64) float64 {
	p := i &^ 1
	r := math.Sqrt(float64(-2 * ln(1-s.Uniform(p))))
	cos, sin := cosSin(s.Uniform(p + 1))
	if i == p {
		return r * cos
	}
	return r * sin
}

// ln returns the natural logarithm of x, finite and positive. With
// x = m·2^e, √½ ≤ m < √2 and t = (m−1)/(m+1),
//
//	ln x = e·ln 2 + 2·(t + t³/3 + t⁵/5 + …),  |t| < 0.172
//
// of which the terms up to t²³ are taken; the next is below 2⁻⁶⁷. ln 2 is split
// so that e times its upper part, 2^−32 being its last bit, is exact.
func ln(x float64) float64 {
	const (
		ln2hi = 2977044471.0 / (1 << 32)
		ln2lo = math.Ln2 - ln2hi
	)
	m, exp := math.Frexp(x) // ½ ≤ m < 1
	if m < math.Sqrt2/2 {
		m, exp = 2*m, exp-1
	}
	e, t := float64(exp), (m-1)/(m+1)
	z := float64(t * t)
	sum := 0.0 // z/3 + z²/5 + …
	for _, c := range atanh {
		sum = float64((sum + c) * z)
	}
	tail := float64(e*ln2lo) + float64(2*float64(t*sum))
	return float64(e*ln2hi) + (float64(2*t) + tail)
}

// cosSin returns cos 2πu and sin 2πu for 0 ≤ u < 1. With q the integer nearest
// to 4u and x = (4u − q)·π/2, the difference exact and |x| ≤ π/4, the Taylor
// series at 0 give cos x up to x¹⁶ and sin x up to x¹⁷, with remainders below
// 2⁻⁵⁸ and 2⁻⁶²; q turns them by quarters.
func cosSin(u float64) (cos, sin float64) {
	q := math.Floor(float64(4*u) + 0.5)
	x := float64((float64(4*u) - q) * (math.Pi / 2))
	z := float64(x * x)
	c, s := 0.0, 0.0 // −z/2! + z²/4! − …, −z/3! + z²/5! − …
	for k := range cosine {
		c = float64((c + cosine[k]) * z)
		s = float64((s + sine[k]) * z)
	}
	c, s = 1+c, x+float64(x*s)
	switch int(q) & 3 {
	case 1:
		return -s, c
	case 2:
		return -c, -s
	case 3:
		return s, -c
	}
	return c, s
}

// The coefficients of the series, highest power first.
var (
	atanh = [...]float64{
		1. / 23, 1. / 21, 1. / 19, 1. / 17, 1. / 15, 1. / 13, 1. / 11, 1. / 9, 1. / 7, 1. / 5, 1. / 3,
	}
	cosine = [...]float64{ // ±1/16! … −1/2!
		1. / 20922789888000, -1. / 87178291200, 1. / 479001600, -1. / 3628800,
		1. / 40320, -1. / 720, 1. / 24, -1. / 2,
	}
	sine = [...]float64{ // ±1/17! … −1/3!
		1. / 355687428096000, -1. / 1307674368000, 1. / 6227020800, -1. / 39916800,
		1. / 362880, -1. / 5040, 1. / 120, -1. / 6,
	}
)
