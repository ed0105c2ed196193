//go:build !purego

package bf16

import (
	"slices"

	"plumbline/accel/block"
	"plumbline/accel/cpu"
)

func init() {
	worth := func() bool { return cpu.Faster("peak/bf16", "avx512bf16", "avx512") } // not on Sapphire Rapids
	forward.AddWhere("avx512bf16", cpu.AVX512BF16, worth, forwardBF16)
	backward.AddWhere("avx512bf16", cpu.AVX512BF16, worth, backwardBF16)
}

// Rows whose numbers are so near 0 that a sum could become subnormal are computed by the kernel of float32: VDPBF16PS and TDPBF16PS would give 0.

// forwardBF16 works like forwardGeneric.
func forwardBF16(y []float32, ldy int, x []float32, ldx int, w []int8, ldw int, scale, bias []float32, m, n, k int) {
	tile := block.BF16
	if n <= block.BF16Half.NR {
		tile = block.BF16Half
	}
	forwardPairs(tile, y, ldy, x, ldx, w, ldw, scale, bias, m, n, k)
}

// backwardBF16 works like backwardGeneric.
func backwardBF16(dx []float32, lddx int, dy []float32, lddy int, w []int8, ldw int, scale []float32, m, n, k int, accumulate bool) {
	tile := block.BF16
	if k <= block.BF16Half.NR {
		tile = block.BF16Half
	}
	backwardPairs(tile, dx, lddx, dy, lddy, w, ldw, scale, m, n, k, accumulate)
}

// forwardPairs is W8A16 with a tile of pairs.
func forwardPairs(tile block.Tile[block.PairBF16, float32], y []float32, ldy int, x []float32, ldx int, w []int8, ldw int, scale, bias []float32, m, n, k int) {
	if k == 0 {
		forwardGeneric(y, ldy, x, ldx, w, ldw, scale, bias, m, n, k)
		return
	}
	tiny := make([]bool, m)
	block.Run(&block.Product[block.PairBF16, float32]{
		Tile: tile, M: m, N: n, K: tile.Steps((k + 1) / 2), C: y, LDC: ldy,
		PackA: func(dst []block.PairBF16, ld, i, rows int) {
			for r := i; r < i+rows; r++ {
				tiny[r] = block.PairRow(dst[(r-i)*ld:], x[r*ldx:][:k], nil, Round)
				clear(dst[(r-i)*ld+(k+1)/2:][:tile.Steps((k+1)/2)-(k+1)/2])
			}
		},
		PackB: func(dst []block.PairBF16, pair, depth, j, cols int) {
			block.TurnI8BF16(dst, tile.NR, w, ldw, k, pair, depth, j, cols)
		},
		Finish: func(i0, i1, j0, j1 int) { finish(y, ldy, scale, bias, i0, i1, j0, j1) },
	})
	spans(tiny, func(i, rows int) {
		forwardAVX512(y[i*ldy:], ldy, x[i*ldx:], ldx, w, ldw, scale, bias, rows, n, k)
	})
}

// backwardPairs is W8A16DX with a tile of pairs.
func backwardPairs(tile block.Tile[block.PairBF16, float32], dx []float32, lddx int, dy []float32, lddy int, w []int8, ldw int, scale []float32, m, n, k int,
	accumulate bool) {
	if n == 0 {
		backwardGeneric(dx, lddx, dy, lddy, w, ldw, scale, m, n, k, accumulate)
		return
	}
	tiny, before := make([]bool, m), make([][]float32, m)
	block.Run(&block.Product[block.PairBF16, float32]{
		Tile: tile, M: m, N: k, K: tile.Steps((n + 1) / 2), C: dx, LDC: lddx, Add: accumulate,
		PackA: func(dst []block.PairBF16, ld, i, rows int) { // of all rows before any of dx changes
			for r := i; r < i+rows; r++ {
				tiny[r] = block.PairRow(dst[(r-i)*ld:], dy[r*lddy:][:n], scale, Round)
				clear(dst[(r-i)*ld+(n+1)/2:][:tile.Steps((n+1)/2)-(n+1)/2])
				if !accumulate {
					continue
				}
				row := dx[r*lddx:][:k]
				if tiny[r] = tiny[r] || block.AnyTiny(row, block.TinySum); tiny[r] {
					before[r] = slices.Clone(row)
				}
			}
		},
		PackB: func(dst []block.PairBF16, pair, depth, l, cols int) {
			block.WidenI8BF16(dst, tile.NR, w, ldw, n, pair, depth, l, cols)
		},
	})
	spans(tiny, func(i, rows int) {
		for r := i; r < i+rows; r++ {
			copy(dx[r*lddx:], before[r])
		}
		backwardAVX512(dx[i*lddx:], lddx, dy[i*lddy:], lddy, w, ldw, scale, rows, n, k, accumulate)
	})
}

// spans calls f for every run of rows that are marked.
func spans(marked []bool, f func(i, rows int)) {
	for i := 0; i < len(marked); i++ {
		from := i
		for i < len(marked) && marked[i] {
			i++
		}
		if i > from {
			f(from, i-from)
		}
	}
}
