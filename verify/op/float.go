package op

import "math"

// unit roundoffs and the smallest positive numbers.
const (
	u32, u64     = 0x1p-24, 0x1p-53
	eta32, eta64 = 0x1p-149, 0x1p-1074
)

// fma32 returns a·b + c rounded once to float32. The product is exact in float64; the sum is rounded there to odd, which keeps on
// which side of a half of float32 the exact sum lies (Boldo and Melquiond 2008).
func fma32(a, b, c float32) float32 {
	p, x := float64(a)*float64(b), float64(c)
	s := p + x
	t := s - p
	e := (p - (s - t)) + (x - t) // what rounding left off; NaN where the sum is no finite number
	if bits := math.Float64bits(s); e != 0 && e == e && bits&1 == 0 {
		if (e > 0) == (s > 0) {
			bits++
		} else {
			bits--
		}
		s = math.Float64frombits(bits)
	}
	return float32(s)
}

// roundBF16 returns x rounded to bfloat16, half to even, by arithmetic: adding and taking off a number 2¹⁶ times as large as the
// distance of neighbours rounds to that distance.
func roundBF16(x float32) float32 {
	v := float64(x)
	if v == 0 || v-v != 0 {
		return x
	}
	_, e := math.Frexp(v)
	step := math.Ldexp(1, max(e-8, -133))
	v = math.RoundToEven(v/step) * step
	if math.Abs(v) > 0x1.FEp127 {
		return float32(math.Inf(int(math.Copysign(1, v))))
	}
	return float32(v)
}

// double is an unevaluated sum of two float64 numbers: a sum in twice the precision (Dekker 1971).
type double struct{ hi, lo float64 }

// addProduct returns d + x·y; the relative error is about 2⁻¹⁰⁴. Where something is not finite hi alone is of meaning.
func (d double) addProduct(x, y float64) double {
	p := float64(x * y)
	low := math.FMA(x, y, -p)
	s := d.hi + p
	t := s - d.hi
	low += (d.hi - (s - t)) + (p - t)
	return double{s, d.lo + low}
}

// value is the sum rounded.
func (d double) value() float64 {
	if d.hi-d.hi != 0 || d.lo-d.lo != 0 {
		return d.hi
	}
	return d.hi + d.lo
}
