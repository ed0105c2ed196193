package bf16

import (
	"math"

	"plumbline/accel/cpu"
	"plumbline/accel/f32"
)

// step is how many products of a sum an instruction of AMX takes.
const step = 32

// forwardTwin is W8A16 as the variant amx computes it, in portable Go.
func forwardTwin(y []float32, ldy int, x []float32, ldx int, w []int8, ldw int, scale, bias []float32, m, n, k int) {
	cpu.Run(m, func(i int) {
		row := x[i*ldx:][:k]
		if anyTiny(row, tinyFactor) {
			forwardGeneric(y[i*ldy:], ldy, row, ldx, w, ldw, scale, bias, 1, n, k)
			return
		}
		a, b := make([]float32, k), make([]float32, k)
		for l, v := range row {
			a[l] = Round(v)
		}
		for j := range n {
			for l, code := range w[j*ldw:][:k] {
				b[l] = float32(code)
			}
			s := float32(tiled(0, a, b) * scale[j])
			if bias != nil {
				s += bias[j]
			}
			y[i*ldy+j] = s
		}
	})
}

// backwardTwin is W8A16DX as the variant amx computes it, in portable Go.
func backwardTwin(dx []float32, lddx int, dy []float32, lddy int, w []int8, ldw int, scale []float32, m, n, k int, accumulate bool) {
	cpu.Run(m, func(i int) {
		a, b, out := make([]float32, n), make([]float32, n), dx[i*lddx:][:k]
		for j := range n {
			a[j] = float32(dy[i*lddy+j] * scale[j])
		}
		if anyTiny(a, tinyFactor) || accumulate && anyTiny(out, tinySum) {
			backwardGeneric(out, lddx, dy[i*lddy:][:n], lddy, w, ldw, scale, 1, n, k, accumulate)
			return
		}
		for j := range n {
			a[j] = Round(a[j])
		}
		for l := range k {
			for j := range n {
				b[j] = float32(w[j*ldw+l])
			}
			if !accumulate {
				out[l] = 0
			}
			out[l] = tiled(out[l], a, b)
		}
	})
}

// tiled returns c + Σ a_l·b_l in the order of TDPBF16PS, for numbers that leave no subnormal sum.
func tiled(c float32, a, b []float32) float32 {
	for from := 0; from < len(a); from += step {
		var even, odd float32
		for l := from; l < min(len(a), from+step); l += 2 {
			even = f32.FMA(a[l], b[l], even)
			if l+1 < len(a) {
				odd = f32.FMA(a[l+1], b[l+1], odd)
			}
		}
		c += even + odd
	}
	return c
}

// What a row of activations and what a sum begins with must not hold for subnormal numbers to be out of the question: 8 bits from 2⁻¹¹⁹ on end at
// 2⁻¹²⁶, the smallest normal number, and so do 24 bits from 2⁻¹⁰³ on; so do their products with whole numbers, and their sums.
const tinyFactor, tinySum = 0x1p-119, 0x1p-103

func anyTiny(x []float32, limit float64) bool {
	for _, v := range x {
		if v != 0 && math.Abs(float64(v)) < limit {
			return true
		}
	}
	return false
}

func testForwardTiles(f ForwardFunc) error { return testForwardAs(f, forwardTwin) }

func testBackwardTiles(f BackwardFunc) error { return testBackwardAs(f, backwardTwin) }
