package i8

import "plumbline/accel/cpu"

func gemmGeneric(c []int32, ldc int, a []int8, lda int, b []int8, ldb int, m, n, k int) {
	cpu.Run(m, func(i int) {
		for j := range n {
			c[i*ldc+j] = dot(a[i*lda:][:k], b[j*ldb:][:k])
		}
	})
}

func dot(a, b []int8) (s int32) {
	for l, v := range a {
		s += int32(v) * int32(b[l])
	}
	return s
}

func scaledGeneric(y []float32, ldy int, a []int8, lda int, scaleA []float32, b []int8, ldb int, scaleB, bias []float32, m, n, k int) {
	cpu.Run(m, func(i int) {
		for j := range n {
			var add float32
			if bias != nil {
				add = bias[j]
			}
			y[i*ldy+j] = scaleSum(dot(a[i*lda:][:k], b[j*ldb:][:k]), scaleA[i], scaleB[j], add, bias != nil)
		}
	})
}

// scaleSum is the epilogue of GemmScaled.
func scaleSum(sum int32, scaleA, scaleB, bias float32, biased bool) float32 {
	y := float32(float32(float32(sum)*scaleA) * scaleB)
	if biased {
		y += bias
	}
	return y
}
