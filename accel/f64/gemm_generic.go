package f64

import (
	"math"

	"plumbline/accel/cpu"
)

// gemmGeneric is what every variant of Gemm computes: one chain of fused multiply-adds per element.
func gemmGeneric(c []float64, ldc int, a []float64, lda int, b []float64, ldb int, m, n, k int, transA, transB, accumulate bool) {
	aRow, aCol, bRow, bCol := lda, 1, ldb, 1
	if transA {
		aRow, aCol = 1, lda
	}
	if transB {
		bRow, bCol = 1, ldb
	}
	cpu.Run(m, func(i int) {
		for j := range n {
			var s float64
			if accumulate {
				s = c[i*ldc+j]
			}
			for l := range k {
				s = math.FMA(a[i*aRow+l*aCol], b[l*bRow+j*bCol], s)
			}
			c[i*ldc+j] = s
		}
	})
}
