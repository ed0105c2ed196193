//go:build !purego

package bf16

import (
	"plumbline/accel/block"
	"plumbline/accel/cpu"
)

func init() {
	forward.Add("avx2", cpu.AVX2, forwardAVX2)
	backward.Add("avx2", cpu.AVX2, backwardAVX2)
	forward.Add("avx512", cpu.AVX512, forwardAVX512)
	backward.Add("avx512", cpu.AVX512, backwardAVX512)
}

// roundAVX2 stores 8·n elements rounded to bfloat16.
//
//go:noescape
func roundAVX2(dst, x *float32, n int)

// roundScaledAVX2 stores 8·n elements x·scale rounded to bfloat16.
//
//go:noescape
func roundScaledAVX2(dst, x, scale *float32, n int)

// scaleAVX2 multiplies 8·n elements of y by those of scale.
//
//go:noescape
func scaleAVX2(y, scale *float32, n int)

// forwardAVX2 works like forwardGeneric.
func forwardAVX2(y []float32, ldy int, x []float32, ldx int, w []int8, ldw int, scale, bias []float32, m, n, k int) {
	forwardTiles(block.F32, y, ldy, x, ldx, w, ldw, scale, bias, m, n, k)
}

// forwardAVX512 works like forwardGeneric.
func forwardAVX512(y []float32, ldy int, x []float32, ldx int, w []int8, ldw int, scale, bias []float32, m, n, k int) {
	forwardTiles(block.TileF32(m, n), y, ldy, x, ldx, w, ldw, scale, bias, m, n, k)
}

// forwardTiles works like forwardGeneric. The codes become float32 in panels that stay in the caches while all rows of x meet them.
func forwardTiles(tile block.Tile[float32, float32], y []float32, ldy int, x []float32, ldx int, w []int8, ldw int, scale, bias []float32, m, n, k int) {
	if k == 0 {
		forwardGeneric(y, ldy, x, ldx, w, ldw, scale, bias, m, n, k)
		return
	}
	block.Run(&block.Product[float32, float32]{
		Tile: tile, M: m, N: n, K: k, C: y, LDC: ldy,
		PackA: func(dst []float32, ld, i, rows int) {
			for r := range rows {
				row, out := x[(i+r)*ldx:][:k], dst[r*ld:][:k]
				done := k / 8 * 8
				if done > 0 {
					roundAVX2(&out[0], &row[0], done/8)
				}
				for l := done; l < k; l++ {
					out[l] = Round(row[l])
				}
			}
		},
		PackB:  block.Panels(tile.NR, 16, func(dst []float32, k, depth, j, cols int) { block.TurnI8F32(dst, w, ldw, k, depth, j, cols) }),
		Finish: func(i0, i1, j0, j1 int) { finish(y, ldy, scale, bias, i0, i1, j0, j1) },
	})
}

// finish is the epilogue of W8A16 for rows [i0, i1) and columns [j0, j1): the scales and the bias.
func finish(y []float32, ldy int, scale, bias []float32, i0, i1, j0, j1 int) {
	for i := i0; i < i1; i++ {
		row, by := y[i*ldy:][j0:j1], scale[j0:j1]
		done := len(row) / 8 * 8
		if done > 0 {
			scaleAVX2(&row[0], &by[0], done/8)
		}
		for j := done; j < len(row); j++ {
			row[j] = float32(row[j] * by[j])
		}
		if bias != nil {
			for j, v := range bias[j0:j1] {
				row[j] += v
			}
		}
	}
}

// backwardAVX2 works like backwardGeneric.
func backwardAVX2(dx []float32, lddx int, dy []float32, lddy int, w []int8, ldw int, scale []float32, m, n, k int, accumulate bool) {
	backwardTiles(block.F32, dx, lddx, dy, lddy, w, ldw, scale, m, n, k, accumulate)
}

// backwardAVX512 works like backwardGeneric.
func backwardAVX512(dx []float32, lddx int, dy []float32, lddy int, w []int8, ldw int, scale []float32, m, n, k int, accumulate bool) {
	backwardTiles(block.TileF32(m, k), dx, lddx, dy, lddy, w, ldw, scale, m, n, k, accumulate)
}

// backwardTiles works like backwardGeneric.
func backwardTiles(tile block.Tile[float32, float32], dx []float32, lddx int, dy []float32, lddy int, w []int8, ldw int, scale []float32, m, n, k int, accumulate bool) {
	if n == 0 {
		backwardGeneric(dx, lddx, dy, lddy, w, ldw, scale, m, n, k, accumulate)
		return
	}
	block.Run(&block.Product[float32, float32]{
		Tile: tile, M: m, N: k, K: n, C: dx, LDC: lddx, Add: accumulate,
		PackA: func(dst []float32, ld, i, rows int) {
			for r := range rows {
				row, out := dy[(i+r)*lddy:][:n], dst[r*ld:][:n]
				done := n / 8 * 8
				if done > 0 {
					roundScaledAVX2(&out[0], &row[0], &scale[0], done/8)
				}
				for j := done; j < n; j++ {
					out[j] = Round(float32(row[j] * scale[j]))
				}
			}
		},
		PackB: block.Panels(tile.NR, 16, func(dst []float32, j, depth, l, cols int) { block.WidenI8F32(dst, w, ldw, j, depth, l, cols) }),
	})
}
