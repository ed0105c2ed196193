//go:build !purego

package f32

import (
	"plumbline/accel/block"
	"plumbline/accel/cpu"
)

func init() {
	gemm.Add("avx2", cpu.AVX2, gemmTiles(block.Always(block.F32)))
	gemm.Add("avx512", cpu.AVX512, gemmTiles(block.TileF32))
}

// gemmTiles returns what works like gemmGeneric, with tiles whose panels are made of such of 16 columns.
func gemmTiles(tileOf func(m, n int) block.Tile[float32, float32]) GemmFunc {
	return func(c []float32, ldc int, a []float32, lda int, b []float32, ldb int, m, n, k int, transA, transB, accumulate bool) {
		if k == 0 {
			gemmGeneric(c, ldc, a, lda, b, ldb, m, n, k, transA, transB, accumulate)
			return
		}
		tile := tileOf(m, n)
		p := &block.Product[float32, float32]{Tile: tile, M: m, N: n, K: k, A: a, LDA: lda, C: c, LDC: ldc, Add: accumulate}
		if transA {
			p.A = nil
			p.PackA = func(dst []float32, ld, i, rows int) { block.ColumnsF32(dst, ld, a, lda, k, i, rows) }
		}
		pack := func(dst []float32, k, depth, j, cols int) { block.RowsF32(dst, b, ldb, k, depth, j, cols) }
		if transB {
			pack = func(dst []float32, k, depth, j, cols int) { block.TurnF32(dst, b, ldb, k, depth, j, cols) }
		}
		p.PackB = block.Panels(tile.NR, 16, pack)
		block.Run(p)
	}
}
