package bf16

import (
	"plumbline/accel/cpu"
	"plumbline/accel/f32"
)

func forwardGeneric(y []float32, ldy int, x []float32, ldx int, w []int8, ldw int, scale, bias []float32, m, n, k int) {
	cpu.Run(m, func(i int) {
		row := make([]float32, k)
		for l, v := range x[i*ldx:][:k] {
			row[l] = Round(v)
		}
		for j := range n {
			var s float32
			for l, code := range w[j*ldw:][:k] {
				s = f32.FMA(row[l], float32(code), s)
			}
			s = float32(s * scale[j])
			if bias != nil {
				s += bias[j]
			}
			y[i*ldy+j] = s
		}
	})
}

func backwardGeneric(dx []float32, lddx int, dy []float32, lddy int, w []int8, ldw int, scale []float32, m, n, k int, accumulate bool) {
	cpu.Run(m, func(i int) {
		out := dx[i*lddx:][:k]
		if !accumulate {
			clear(out)
		}
		for j := range n {
			g := Round(float32(dy[i*lddy+j] * scale[j]))
			for l, code := range w[j*ldw:][:k] {
				out[l] = f32.FMA(g, float32(code), out[l])
			}
		}
	})
}
