package op

import (
	"math"
	"unsafe"
)

// i8Dot is a sum of products with a mistake.
type i8Dot = func(a, b []int8) int64

func plainDot(a, b []int8) (s int64) {
	for l, v := range a {
		s += int64(v) * int64(b[l])
	}
	return s
}

func i8Product(dot i8Dot) I8GemmFunc {
	return func(c []int32, ldc int, a []int8, lda int, b []int8, ldb int, m, n, k int) {
		for i := range m {
			for j := range n {
				c[i*ldc+j] = 0
				if k > 0 {
					c[i*ldc+j] = int32(dot(a[i*lda:][:k], b[j*ldb:][:k]))
				}
			}
		}
	}
}

// saturate16 keeps a sum in int16, as VPMADDUBSW and VPACKSSDW do.
func saturate16(v int64) int64 { return max(math.MinInt16, min(math.MaxInt16, v)) }

func i8GemmFaults() []Fault[I8GemmFunc] {
	return []Fault[I8GemmFunc]{
		{"MaddubsSaturation", "pairs of products of an unsigned and a signed byte saturate in int16", i8Product(func(a, b []int8) (s int64) {
			for l := 0; l < len(a); l += 2 {
				pair := (int64(a[l]) + 128) * int64(b[l])
				s -= 128 * int64(b[l])
				if l+1 < len(a) {
					pair += (int64(a[l+1]) + 128) * int64(b[l+1])
					s -= 128 * int64(b[l+1])
				}
				s += saturate16(pair)
			}
			return s
		})},
		{"TailMod64", "the last k mod 64 products are left out", i8Product(func(a, b []int8) int64 {
			if n := len(a) / 64 * 64; n > 0 {
				return plainDot(a[:n], b[:n])
			}
			return plainDot(a, b)
		})},
		{"OddTail", "the last product of an odd number is left out", i8Product(func(a, b []int8) int64 {
			n := len(a) / 2 * 2
			return plainDot(a[:n], b[:n])
		})},
		{"Int8AccLimit", "the sum is kept in float32, which holds 24 bits", i8Product(func(a, b []int8) int64 {
			var s float32
			for l, v := range a {
				s += float32(v) * float32(b[l])
			}
			return int64(s)
		})},
		{"ZeroExtended", "codes of the second operand are read as unsigned", i8Product(func(a, b []int8) (s int64) {
			for l, v := range a {
				s += int64(v) * int64(uint8(b[l]))
			}
			return s
		})},
		{"OneShort", "a code of 127 is taken for 126", i8Product(func(a, b []int8) (s int64) {
			for l, v := range a {
				s += int64(min(v, 126)) * int64(b[l])
			}
			return s
		})},
		{"OutOfBoundsWrite", "one element after the output is written", func(c []int32, ldc int, a []int8, lda int, b []int8, ldb int, m, n, k int) {
			i8Product(plainDot)(c, ldc, a, lda, b, ldb, m, n, k)
			if m > 0 && n > 0 {
				*(*int32)(unsafe.Add(unsafe.Pointer(&c[0]), ((m-1)*ldc+n)*4)) = 0
			}
		}},
		{"UninitialisedRead", "where k is 0 the output keeps what it held", func(c []int32, ldc int, a []int8, lda int, b []int8, ldb int, m, n, k int) {
			if k > 0 {
				i8Product(plainDot)(c, ldc, a, lda, b, ldb, m, n, k)
			}
		}},
	}
}

func i8ScaledFaults() []Fault[I8ScaledFunc] {
	with := func(scale func(sum int64, sa, sb []float32, i, j int) float32, biased bool) I8ScaledFunc {
		return func(y []float32, ldy int, a []int8, lda int, sa []float32, b []int8, ldb int, sb, bias []float32, m, n, k int) {
			for i := range m {
				for j := range n {
					var sum int64
					if k > 0 {
						sum = plainDot(a[i*lda:][:k], b[j*ldb:][:k])
					}
					v := scale(sum, sa, sb, i, j)
					if bias != nil && biased {
						v += bias[j]
					}
					y[i*ldy+j] = v
				}
			}
		}
	}
	right := func(sum int64, sa, sb float32) float32 { return float32(float32(float32(sum)*sa) * sb) }
	return []Fault[I8ScaledFunc]{
		{"WrongScaleRow", "the scale of another column is taken", with(func(sum int64, sa, sb []float32, i, j int) float32 {
			return right(sum, sa[i], sb[max(j-1, 0)])
		}, true)},
		{"ScalesSwapped", "the scales of rows and columns are exchanged", with(func(sum int64, sa, sb []float32, i, j int) float32 {
			return right(sum, sa[min(j, len(sa)-1)], sb[min(i, len(sb)-1)])
		}, true)},
		{"FirstScale", "the scale of the first row is taken for all", with(func(sum int64, sa, sb []float32, i, j int) float32 {
			return right(sum, sa[0], sb[j])
		}, true)},
		{"BiasForgotten", "the bias is not added", with(func(sum int64, sa, sb []float32, i, j int) float32 { return right(sum, sa[i], sb[j]) }, false)},
		{"Saturated", "the sum is cut to 16 bits", with(func(sum int64, sa, sb []float32, i, j int) float32 {
			return right(saturate16(sum), sa[i], sb[j])
		}, true)},
		{"ScaleProduct", "the scales are multiplied by each other first", with(func(sum int64, sa, sb []float32, i, j int) float32 {
			return float32(float32(sum) * float32(sa[i]*sb[j]))
		}, true)},
	}
}

func quantizeFaults() []Fault[QuantizeFunc] {
	with := func(scale func(absmax float32) float32, code func(v float32) float64, size func(v float32) float32) QuantizeFunc {
		return func(codes []int8, ldc int, absmax []float32, x []float32, ldx int, rows, cols int) {
			for i := range rows {
				absmax[i] = 0
				if cols == 0 {
					continue
				}
				for _, v := range x[i*ldx:][:cols] {
					absmax[i] = max(absmax[i], size(v))
				}
				s := scale(absmax[i])
				for j, v := range x[i*ldx:][:cols] {
					c := code(float32(v * s))
					if c-c != 0 {
						c = 0
					}
					codes[i*ldc+j] = int8(max(-128, min(127, c)))
				}
			}
		}
	}
	abs := func(v float32) float32 { return float32(math.Abs(float64(v))) }
	scale := func(m float32) float32 {
		if m == 0 {
			return 0
		}
		return float32(float32(1/m) * 127)
	}
	even := func(v float32) float64 { return math.RoundToEven(float64(v)) }
	return []Fault[QuantizeFunc]{
		{"RoundTie", "halves are rounded away from zero", with(scale, func(v float32) float64 { return math.Round(float64(v)) }, abs)},
		{"Truncate", "codes are cut, not rounded", with(scale, func(v float32) float64 { return math.Trunc(float64(v)) }, abs)},
		{"Divide", "x is divided by absmax/127: other codes near a half", with(func(m float32) float32 {
			if m == 0 {
				return 0
			}
			return 127 / m
		}, even, abs)},
		{"Scale128", "the largest element becomes 128", with(func(m float32) float32 {
			if m == 0 {
				return 0
			}
			return float32(float32(1/m) * 128)
		}, even, abs)},
		{"SignedMax", "the largest element is searched without its sign", with(scale, even, func(v float32) float32 { return v })},
		{"NaNLost", "a NaN does not reach absmax", with(scale, even, func(v float32) float32 {
			if v != v {
				return 0
			}
			return abs(v)
		})},
	}
}
