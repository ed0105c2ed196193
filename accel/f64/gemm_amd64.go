//go:build !purego

package f64

import (
	"plumbline/accel/block"
	"plumbline/accel/cpu"
)

func init() {
	gemm.Add("avx2", cpu.AVX2, gemmAVX2)
	gemm.Add("avx512", cpu.AVX512, gemmAVX512)
}

// gemmAVX2 works like gemmGeneric.
func gemmAVX2(c []float64, ldc int, a []float64, lda int, b []float64, ldb int, m, n, k int, transA, transB, accumulate bool) {
	gemmTiles(block.F64, c, ldc, a, lda, b, ldb, m, n, k, transA, transB, accumulate)
}

// gemmAVX512 works like gemmGeneric.
func gemmAVX512(c []float64, ldc int, a []float64, lda int, b []float64, ldb int, m, n, k int, transA, transB, accumulate bool) {
	gemmTiles(block.TileF64(m, n), c, ldc, a, lda, b, ldb, m, n, k, transA, transB, accumulate)
}

// gemmTiles works like gemmGeneric, with a tile whose panels are made of such of 8 columns.
func gemmTiles(tile block.Tile[float64, float64], c []float64, ldc int, a []float64, lda int, b []float64, ldb int, m, n, k int, transA, transB, accumulate bool) {
	if k == 0 {
		gemmGeneric(c, ldc, a, lda, b, ldb, m, n, k, transA, transB, accumulate)
		return
	}
	p := &block.Product[float64, float64]{Tile: tile, M: m, N: n, K: k, A: a, LDA: lda, C: c, LDC: ldc, Add: accumulate}
	if transA {
		p.A = nil
		p.PackA = func(dst []float64, ld, i, rows int) { block.Columns(dst, ld, a, lda, k, i, rows) }
	}
	pack := func(dst []float64, k, depth, j, cols int) { block.Rows(dst, 8, b, ldb, k, depth, j, cols) }
	if transB {
		pack = func(dst []float64, k, depth, j, cols int) { block.TurnF64(dst, b, ldb, k, depth, j, cols) }
	}
	p.PackB = block.Panels(tile.NR, 8, pack)
	block.Run(p)
}
