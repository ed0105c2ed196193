//go:build !purego

package i8

import (
	"math"

	"plumbline/accel/cpu"
)

// Assembly because quantising the activations would else take as long as a product of 500 columns: see BenchmarkQuantizeRows.

func init() { quantize.Add("avx2", cpu.AVX2, quantizeAVX2) }

// absmaxAVX2 returns the largest |x| of 8·n elements as bits: NaN has larger ones than an infinity.
//
//go:noescape
func absmaxAVX2(x *float32, n int) uint32

// codesAVX2 stores the codes of 8·n elements, round(x·s) half to even. |x·s| must be at most 127.5.
//
//go:noescape
func codesAVX2(codes *int8, x *float32, s float32, n int)

// quantizeAVX2 works like quantizeGeneric.
func quantizeAVX2(codes []int8, ldc int, absmax []float32, x []float32, ldx int, rows, cols int) {
	vectors := cols / 8
	if vectors == 0 {
		quantizeGeneric(codes, ldc, absmax, x, ldx, rows, cols)
		return
	}
	cpu.Split(rows, rowGrain, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row, out := x[i*ldx:][:cols], codes[i*ldc:][:cols]
			m := absmaxAVX2(&row[0], vectors)
			for _, v := range row[vectors*8:] {
				m = max(m, math.Float32bits(v)&^(1<<31))
			}
			absmax[i] = math.Float32frombits(m)
			s, ok := rowScale(absmax[i])
			if !ok {
				clear(out)
				continue
			}
			codesAVX2(&out[0], &row[0], s, vectors)
			for j, v := range row[vectors*8:] {
				out[vectors*8+j] = int8(math.RoundToEven(float64(float32(v * s))))
			}
		}
	})
}
