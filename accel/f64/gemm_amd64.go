//go:build !purego

package f64

import (
	"plumbline/accel/block"
	"plumbline/accel/cpu"
)

func init() {
	gemm.Add("avx2", cpu.AVX2, gemmTiles(block.Always(block.F64)))
	gemm.Add("avx512", cpu.AVX512, gemmTiles(block.TileF64))
}

// gemmTiles returns what works like gemmGeneric, with tiles whose panels are made of such of 8 columns.
func gemmTiles(tileOf func(m, n int) block.Tile[float64, float64]) GemmFunc {
	return func(c []float64, ldc int, a []float64, lda int, b []float64, ldb int, m, n, k int, transA, transB, accumulate bool) {
		if k == 0 {
			gemmGeneric(c, ldc, a, lda, b, ldb, m, n, k, transA, transB, accumulate)
			return
		}
		tile := tileOf(m, n)
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
}
