//go:build !purego

package block

import "unsafe"

// AMXI8 is the tile of quads of codes with AMX: both operands are signed. A panel is two of 16 columns, one after the other.
var AMXI8 = Tile[Quad, int32]{MR: 16, NR: 32, Step: 16, Rows: tilesI8,
	Run: func(k int, a *Quad, lda int, b *Quad, c *int32, ldc int, load bool) {
		tilesI8(1, k, a, lda, b, c, ldc, load)
	}}

// AMXBF16 is the tile of pairs of bfloat16 with AMX. An instruction takes 16 pairs: it adds the products of their earlier halves in one chain of fused
// multiply-adds that starts with 0 and those of their later halves in another, the two sums, and that to c. Subnormal numbers are
// taken for 0, and become 0.
var AMXBF16 = Tile[PairBF16, float32]{MR: 16, NR: 32, Step: 16, Rows: tilesBF16,
	Run: func(k int, a *PairBF16, lda int, b *PairBF16, c *float32, ldc int, load bool) {
		tilesBF16(1, k, a, lda, b, c, ldc, load)
	}}

// tilesI8 is the Rows of AMXI8. Sums are modulo 2³².
//
//go:noescape
func tilesI8(tiles, k int, a *Quad, lda int, b *Quad, c *int32, ldc int, load bool)

// tilesBF16 is the Rows of AMXBF16.
//
//go:noescape
func tilesBF16(tiles, k int, a *PairBF16, lda int, b *PairBF16, c *float32, ldc int, load bool)

// turnQuads16 stores 16 rows of src, 16·n codes each, as a panel of 16 columns: dst[16·l+r] are the codes 4·l … 4·l+3 of row r.
//
//go:noescape
func turnQuads16(dst *Quad, src *int8, ld, n int)

// ahead fetches so many cache lines of some rows, ld apart, into the second-level cache. They need not exist.
//
//go:noescape
func ahead(p *int8, ld, rows, lines int)

// CodeRows stores rows [i, i+rows) of the codes a [M, length] as rows of quads, ld apart, filled up with zeros to whole steps.
func CodeRows(dst []Quad, ld int, a []int8, lda, length, i, rows int) {
	for r := range rows {
		row := unsafe.Slice(&dst[r*ld][0], 4*AMXI8.Steps((length+3)/4))
		clear(row[copy(row, a[(i+r)*lda:][:length]):])
	}
}

// TurnI8Codes packs a panel of [AMXI8] from the codes b [N, length] for a product with its transpose; k and depth count quads.
func TurnI8Codes(dst []Quad, b []int8, ldb, length, k, depth, j, cols int) {
	Panels(AMXI8.NR, columns, func(dst []Quad, k, depth, j, cols int) {
		if next := 4 * (k + depth); next < length { // what the block after this one packs
			ahead(&b[j*ldb+next], ldb, cols, (min(4*depth, length-next)+63)/64)
		}
		if done := min(depth, length/4-k) / 4 * 4; cols == columns && done > 0 {
			turnQuads16(&dst[0], &b[j*ldb+4*k], ldb, done/4)
			dst, k, depth = dst[done*columns:], k+done, depth-done
		}
		whole := min(depth, length/4-k) // quads that are complete
		turn(dst, b, ldb, k, whole, j, cols, 4, turnI8Quads, func(row []int8, l int) Quad { return Quad(row[4*l:]) })
		if whole == depth {
			return
		}
		clear(dst[whole*columns : depth*columns])
		for r := range cols {
			copy(dst[whole*columns+r][:], b[(j+r)*ldb+4*(k+whole):][:length%4])
		}
	})(dst, k, depth, j, cols)
}
