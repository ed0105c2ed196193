// Package quant says what 8-bit quantisation is: the codes and scales of bitsandbytes, and the linear layers that compute with
// them.
//
// A matrix is quantised row by row. A row has one scale, its absmax, and its elements are codes in [−127, 127]:
//
//	x ≈ code · absmax/127
//
// The codes are defined by float32 arithmetic, so they are computed in float32, bit for bit. Everything after the codes is
// float64: what a kernel rounds beyond that is its own error.
//
// It follows Dettmers et al. 2022 (LLM.int8(), https://arxiv.org/abs/2208.07339), Sections 2 and 3, where bitsandbytes@0.50.2
// differs from the paper that release; golden quant/int8 pins it.
package quant

import "math"

const (
	badLength    = "quant: lengths do not fit the shape"
	badShape     = "quant: a shape is negative"
	badType      = "quant: unknown type"
	badThreshold = "quant: a threshold must be a number of at least 0"
)

// Type is a floating-point format that tensors are stored in.
type Type int

const (
	// Float16 is IEEE binary16: 11 significant bits, quantum 2⁻²⁴, largest number 65504.
	Float16 Type = iota
	// BFloat16 has 8 significant bits, quantum 2⁻¹³³ and nearly the range of float32.
	BFloat16
	// Float32 is IEEE binary32.
	Float32
)

// Round returns x in the format t, half to even, an infinity beyond its largest number. A 16-bit number is rounded from
// float32, as torch converts: a float64 halfway between two of them only before that first rounding goes the way float32
// sends it.
func (t Type) Round(x float64) float64 {
	x = float64(float32(x))
	switch t {
	case Float16:
		return roundTo(x, 11, -24, 65504)
	case BFloat16:
		return roundTo(x, 8, -133, 0x1.FEp127)
	case Float32:
		return x
	}
	panic(badType)
}

// roundTo rounds x to the given number of significant bits, or to a multiple of 2^least where that is coarser.
func roundTo(x float64, bits, least int, largest float64) float64 {
	if x == 0 || x-x != 0 {
		return x
	}
	_, e := math.Frexp(x) // |x| < 2^e
	quantum := math.Ldexp(1, max(e-bits, least))
	y := math.RoundToEven(x/quantum) * quantum // both exact: quantum is a power of two
	if math.Abs(y) > largest {
		return math.Inf(int(math.Copysign(1, y)))
	}
	return y
}

// Reciprocals of 127 and 127² that dequantisation multiplies by. No two of them agree: a comparison has to name its own.
const (
	// Inv127 is 1/127.
	Inv127 = 1.0 / 127
	// Inv127Float32 is 1/127 rounded to float32, 3.7e-9 less. bitsandbytes int8_vectorwise_dequant, MatMul8bitLt.backward.
	Inv127Float32 = 7.874015718698502e-3
	// Inv127Squared is 1/127².
	Inv127Squared = 1.0 / (127 * 127)
	// Inv127SquaredCUDA is the constant of bitsandbytes' CUDA kernel of int8_mm_dequant, 6.5e-8 relative less than 1/127².
	Inv127SquaredCUDA = 6.200012e-05
	// Inv127SquaredTorch is the constant of bitsandbytes' int8_mm_dequant in PyTorch, which runs without CUDA: 1.8e-5
	// relative more than 1/127².
	Inv127SquaredTorch = 6.200124e-05
)

// shaped panics unless x is a matrix [rows, cols].
func shaped(x []float64, rows, cols int) {
	if rows < 0 || cols < 0 {
		panic(badShape)
	}
	if len(x) != rows*cols {
		panic(badLength)
	}
}
