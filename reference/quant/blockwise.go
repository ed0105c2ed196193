package quant

import (
	"math"
	"slices"
)

// BlockSize is how many elements share a scale in the 8-bit states of bitsandbytes' optimisers.
const BlockSize = 256

// Blocks is a vector in 8 bits: element i is about code[Codes[i]]·AbsMax[i/BlockSize] for a code book of 256 numbers.
type Blocks struct {
	Codes  []uint8
	AbsMax []float32 // of each block, the last one shorter
}

// DynamicMap returns the code book of 256 numbers of float32 in [−1, 1], in increasing order, that bitsandbytes calls dynamic:
// for e from 0 to 6 the 2ᵉ (unsigned 2ᵉ⁺¹) middles between equally spaced points of [0.1, 1], times 10ᵉ⁻⁶, with both signs or
// with one, and 0 and 1. Small numbers have fewer digits, as in a float with an exponent of varying length.
//
// It is Dettmers et al. 2022 (8-bit Optimizers via Block-wise Quantization, https://arxiv.org/abs/2110.02861), Section 2.2, in
// the arithmetic of bitsandbytes@0.50.2, functional.create_dynamic_map, to the bit.
func DynamicMap(signed bool) []float64 {
	code := []float64{0, 1}
	for e := range 7 {
		items := 1 << e
		if !signed {
			items *= 2
		}
		scale := float32(math.Pow(10, float64(e-6)))
		for i := range items {
			x := float64(float32(scale * ((point(i, items) + point(i+1, items)) / 2)))
			code = append(code, x)
			if signed {
				code = append(code, -x)
			}
		}
	}
	slices.Sort(code)
	return code
}

// point is element i of torch.linspace(0.1, 1, n+1) in float32, which counts from the nearer end.
func point(i, n int) float32 {
	const from, to = float32(0.1), float32(1)
	step := (to - from) / float32(n)
	if i < (n+1)/2 {
		return float32(float64(from) + float64(float64(step)*float64(i)))
	}
	return float32(float64(to) - float64(float64(step)*float64(n-i)))
}

// QuantizeBlockwise returns the nearest number of a code book, in increasing order, for every element of x over the largest
// magnitude of its block of BlockSize; halfway between two the smaller one. x are numbers of float32 and finite.
//
// The arithmetic is float32, in the order of bitsandbytes@0.50.2's kernel in Python: a whole block is multiplied by the reciprocal
// of its scale, what is left at the end is divided by it, and no scale is below 1e-38. Its native library for CPUs looks codes up
// in a table of some 2¹⁶ entries instead, so that near zero it returns codes that are not the nearest (golden adam8bit, native).
//
// It panics if the code book has not 256 numbers.
func QuantizeBlockwise(x, code []float64) Blocks {
	if len(code) != 256 {
		panic(badLength)
	}
	middles := make([]float32, 255)
	for i := range middles {
		middles[i] = (float32(code[i]) + float32(code[i+1])) / 2
	}
	b := Blocks{Codes: make([]uint8, len(x))}
	for from := 0; from < len(x); from += BlockSize {
		block := x[from:min(from+BlockSize, len(x))]
		var absmax float32
		for _, v := range block {
			absmax = max(absmax, float32(math.Abs(v)))
		}
		scale := max(absmax, 1e-38)
		if len(block) < BlockSize {
			absmax = scale
		}
		b.AbsMax = append(b.AbsMax, absmax)
		inverse := 1 / scale
		for i, v := range block {
			y := float32(v) * inverse
			if len(block) < BlockSize {
				y = float32(v) / scale
			}
			y = min(max(y, -1), 1)
			at, _ := slices.BinarySearch(middles, y)
			b.Codes[from+i] = uint8(at)
		}
	}
	return b
}

// Dequantize stores the numbers of b in x: products in float32. It panics if the lengths do not fit.
func (b Blocks) Dequantize(x, code []float64) {
	if len(code) != 256 || len(x) != len(b.Codes) || len(b.AbsMax) != (len(x)+BlockSize-1)/BlockSize {
		panic(badLength)
	}
	for i, c := range b.Codes {
		x[i] = float64(float32(code[c]) * b.AbsMax[i/BlockSize])
	}
}
