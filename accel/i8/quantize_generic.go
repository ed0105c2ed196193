package i8

import (
	"math"

	"plumbline/accel/cpu"
)

// rowGrain is how many rows a task quantises.
const rowGrain = 16

func quantizeGeneric(codes []int8, ldc int, absmax []float32, x []float32, ldx int, rows, cols int) {
	cpu.Split(rows, rowGrain, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row, out := x[i*ldx:][:cols], codes[i*ldc:][:cols]
			var m float32
			for _, v := range row {
				m = max(m, float32(math.Abs(float64(v)))) // NaN if any is
			}
			absmax[i] = m
			s, ok := rowScale(m)
			if !ok {
				clear(out)
				continue
			}
			for j, v := range row {
				out[j] = int8(math.RoundToEven(float64(float32(v * s))))
			}
		}
	})
}

// rowScale returns what the elements of a row are multiplied by, and false if its codes are 0: |x·s| ≤ 127 holds for a finite s.
func rowScale(absmax float32) (float32, bool) {
	if !(absmax > 0 && absmax <= math.MaxFloat32) {
		return 0, false
	}
	inv := 1 / absmax
	s := float32(inv * 127)
	return s, s <= math.MaxFloat32
}
