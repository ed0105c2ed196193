// Package f32 holds the kernels of float32 tensors.
package f32

import "math"

// FMA returns a·b + c rounded once, to nearest even, as the instruction VFMADD does. (float32(math.FMA(…)) rounds twice.)
func FMA(a, b, c float32) float32 {
	p, x := float64(a)*float64(b), float64(c) // p is exact
	s := p + x
	// s rounds to the same float32 as the exact sum unless it lies halfway between two of them, or among the subnormal ones,
	// whose halves lie elsewhere.
	if u := math.Float64bits(s); u&(1<<29-1) != 1<<28 && u&^(1<<63) >= 0x381<<52 {
		return float32(s)
	}
	return roundOdd(p, x)
}

// roundOdd returns p + x rounded once to float32: the float64 sum is first rounded to odd, which keeps on which side of a half
// the exact sum lies.
func roundOdd(p, x float64) float32 {
	s := p + x
	t := s - p
	e := (p - (s - t)) + (x - t) // the exact error of s
	if u := math.Float64bits(s); e != 0 && u&1 == 0 {
		if (e > 0) == (s > 0) {
			u++
		} else {
			u--
		}
		s = math.Float64frombits(u)
	}
	return float32(s)
}
