//go:build !purego

package i8

import (
	"plumbline/accel/block"
	"plumbline/accel/cpu"
)

// few is the number of rows up to which each is multiplied alone: packing b would take longer than the product.
const few = 4

// dotGrain is how many columns of such a row a task computes.
const dotGrain = 64

// productVNNI is c = a·bᵀ for a tile of quads.
func productVNNI(c []int32, ldc int, a []int8, lda int, b []int8, ldb int, m, n, k int) *block.Product[block.Quad, int32] {
	tile := block.VNNI
	if n <= block.VNNIHalf.NR {
		tile = block.VNNIHalf
	}
	return &block.Product[block.Quad, int32]{
		Tile: tile, M: m, N: n, K: (k + 3) / 4, C: c, LDC: ldc,
		PackA: func(dst []block.Quad, ld, i, rows int) { block.QuadRows(dst, ld, a, lda, k, i, rows) },
		PackB: func(dst []block.Quad, quad, depth, j, cols int) {
			block.TurnI8Quads(dst, tile.NR, b, ldb, k, quad, depth, j, cols)
		},
	}
}

// gemmVNNI works like gemmGeneric.
func gemmVNNI(c []int32, ldc int, a []int8, lda int, b []int8, ldb int, m, n, k int) {
	switch {
	case k == 0:
		gemmGeneric(c, ldc, a, lda, b, ldb, m, n, k)
	case m <= few:
		cpu.Split(n, dotGrain, func(j0, j1 int) {
			for i := range m {
				block.DotI8(c[i*ldc:], a[i*lda:][:k], b, ldb, j0, j1)
			}
		})
	default:
		block.Run(productVNNI(c, ldc, a, lda, b, ldb, m, n, k))
	}
}

// scaledVNNI works like scaledGeneric.
func scaledVNNI(y []float32, ldy int, a []int8, lda int, scaleA []float32, b []int8, ldb int, scaleB, bias []float32, m, n, k int) {
	if k == 0 {
		scaledGeneric(y, ldy, a, lda, scaleA, b, ldb, scaleB, bias, m, n, k)
		return
	}
	sums := sumsIn(y)
	finish := func(i0, i1, j0, j1 int) {
		scaleSums(y, ldy, sums, ldy, scaleA, scaleB, bias, i0, i1, j0, j1)
	}
	if m <= few {
		cpu.Split(n, dotGrain, func(j0, j1 int) {
			for i := range m {
				block.DotI8(sums[i*ldy:], a[i*lda:][:k], b, ldb, j0, j1)
			}
			finish(0, m, j0, j1)
		})
		return
	}
	p := productVNNI(sums, ldy, a, lda, b, ldb, m, n, k)
	p.Finish = finish
	block.Run(p)
}
