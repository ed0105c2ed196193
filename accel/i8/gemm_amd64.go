//go:build !purego

package i8

import (
	"unsafe"

	"plumbline/accel/block"
	"plumbline/accel/cpu"
)

func init() {
	gemm.Add("avx2", cpu.AVX2, gemmAVX2)
	scaled.Add("avx2", cpu.AVX2, scaledAVX2)
	gemm.Add("avx512vnni", cpu.AVX512VNNI, gemmVNNI)
	scaled.Add("avx512vnni", cpu.AVX512VNNI, scaledVNNI)
}

// product is c = a·bᵀ for a tile of pairs.
func product(c []int32, ldc int, a []int8, lda int, b []int8, ldb int, m, n, k int) *block.Product[block.Pair, int32] {
	return &block.Product[block.Pair, int32]{
		Tile: block.I16, M: m, N: n, K: (k + 1) / 2, C: c, LDC: ldc,
		PackA: func(dst []block.Pair, ld, i, rows int) { block.PairRows(dst, ld, a, lda, k, i, rows) },
		PackB: func(dst []block.Pair, pair, depth, j, cols int) {
			block.TurnI8Pairs(dst, b, ldb, k, pair, depth, j, cols)
		},
	}
}

// gemmAVX2 works like gemmGeneric.
func gemmAVX2(c []int32, ldc int, a []int8, lda int, b []int8, ldb int, m, n, k int) {
	if k == 0 {
		gemmGeneric(c, ldc, a, lda, b, ldb, m, n, k)
		return
	}
	block.Run(product(c, ldc, a, lda, b, ldb, m, n, k))
}

// scaledAVX2 works like scaledGeneric.
func scaledAVX2(y []float32, ldy int, a []int8, lda int, scaleA []float32, b []int8, ldb int, scaleB, bias []float32, m, n, k int) {
	if k == 0 {
		scaledGeneric(y, ldy, a, lda, scaleA, b, ldb, scaleB, bias, m, n, k)
		return
	}
	sums := sumsIn(y)
	p := product(sums, ldy, a, lda, b, ldb, m, n, k)
	p.Finish = func(i0, i1, j0, j1 int) {
		scaleSums(y, ldy, sums, ldy, scaleA, scaleB, bias, i0, i1, j0, j1)
	}
	block.Run(p)
}

// sumsIn is the memory of y for the sums that become its elements.
func sumsIn(y []float32) []int32 { return unsafe.Slice((*int32)(unsafe.Pointer(&y[0])), len(y)) }

// scaleSums is the epilogue of GemmScaled for rows [i0, i1) and columns [j0, j1). The sums may stand where the elements of y go.
func scaleSums(y []float32, ldy int, sums []int32, ld int, scaleA, scaleB, bias []float32, i0, i1, j0, j1 int) {
	sb := scaleB[j0:j1]
	for i := i0; i < i1; i++ {
		sa, row, out := scaleA[i], sums[i*ld:][j0:j1], y[i*ldy:][j0:j1]
		done := len(row) / 8 * 8
		if done > 0 {
			scaleAVX2(&out[0], &row[0], sa, &sb[0], done/8)
		}
		for j := done; j < len(row); j++ {
			out[j] = float32(float32(float32(row[j])*sa) * sb[j])
		}
		if bias != nil {
			for j, v := range bias[j0:j1] {
				out[j] += v
			}
		}
	}
}

// scaleAVX2 stores 8·n sums times sa times those of sb, each rounded to float32.
//
//go:noescape
func scaleAVX2(y *float32, sums *int32, sa float32, sb *float32, n int)
