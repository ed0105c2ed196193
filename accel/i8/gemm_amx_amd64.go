//go:build !purego

package i8

import (
	"plumbline/accel/block"
	"plumbline/accel/cpu"
)

func init() {
	gemm.Add("amx", cpu.AMX, gemmAMX)
	scaled.Add("amx", cpu.AMX, scaledAMX)
}

// productAMX is c = a·bᵀ for tiles of quads.
func productAMX(c []int32, ldc int, a []int8, lda int, b []int8, ldb int, m, n, k int) *block.Product[block.Quad, int32] {
	return &block.Product[block.Quad, int32]{
		Tile: block.AMXI8, M: m, N: n, K: block.AMXI8.Steps((k + 3) / 4), C: c, LDC: ldc,
		PackA: func(dst []block.Quad, ld, i, rows int) { block.CodeRows(dst, ld, a, lda, k, i, rows) },
		PackB: func(dst []block.Quad, quad, depth, j, cols int) {
			block.TurnI8Codes(dst, b, ldb, k, quad, depth, j, cols)
		},
	}
}

// gemmAMX works like gemmGeneric. Few rows are as fast without tiles, and have the same bits.
func gemmAMX(c []int32, ldc int, a []int8, lda int, b []int8, ldb int, m, n, k int) {
	if k == 0 || m <= few {
		gemmVNNI(c, ldc, a, lda, b, ldb, m, n, k)
		return
	}
	block.Run(productAMX(c, ldc, a, lda, b, ldb, m, n, k))
}

// scaledAMX works like scaledGeneric.
func scaledAMX(y []float32, ldy int, a []int8, lda int, scaleA []float32, b []int8, ldb int, scaleB, bias []float32, m, n, k int) {
	if k == 0 || m <= few {
		scaledVNNI(y, ldy, a, lda, scaleA, b, ldb, scaleB, bias, m, n, k)
		return
	}
	sums := sumsIn(y)
	p := productAMX(sums, ldy, a, lda, b, ldb, m, n, k)
	p.Finish = func(i0, i1, j0, j1 int) {
		scaleSums(y, ldy, sums, ldy, scaleA, scaleB, bias, i0, i1, j0, j1)
	}
	block.Run(p)
}
