//go:build !purego

package block

// The packing is assembly because it touches every weight once per product: in Go it would take a fifth of an int8 product of 512
// rows. Each routine turns what whole vectors cover; Go code does the rest.

// turnF32 stores 8 rows of src, 8·n elements each, as 8 columns of a panel of 16 columns: dst[16·l+r] = src[r·ld+l].
//
//go:noescape
func turnF32(dst *float32, src *float32, ld, n int)

// turnF64 stores 8 rows of src, 4·n elements each, as a panel of 8 columns: dst[8·l+r] = src[r·ld+l].
//
//go:noescape
func turnF64(dst *float64, src *float64, ld, n int)

// turnI8F32 is turnF32 of codes, each converted to float32.
//
//go:noescape
func turnI8F32(dst *float32, src *int8, ld, n int)

// turnI8Pairs is turnF32 of pairs of codes, each code widened to int16; a row has 16·n codes.
//
//go:noescape
func turnI8Pairs(dst *Pair, src *int8, ld, n int)

// widenI8F32 stores n rows of 16 codes as a panel of 16 columns: dst[16·l+j] = src[l·ld+j].
//
//go:noescape
func widenI8F32(dst *float32, src *int8, ld, n int)

// widenI8I16 widens 16·n codes.
//
//go:noescape
func widenI8I16(dst *int16, src *int8, n int)

// flipF32 stores 8 rows of src, 8·n elements each, as columns: dst[l·ldd+r] = src[r·ld+l].
//
//go:noescape
func flipF32(dst *float32, ldd int, src *float32, ld, n int)

// rowsF32 stores n rows of 16 elements one after the other.
//
//go:noescape
func rowsF32(dst, src *float32, ld, n int)

const columns = 16 // of a panel of F32 and I16

// turn packs rows of src, its columns [k, k+depth), as a panel: groups of 8 rows by vector where they are full, the rest one by one.
func turn[T, S any](dst []T, src []S, ld, k, depth, j, cols, per int, vector func(dst *T, src *S, ld, n int), at func(row []S, l int) T) {
	done := depth / 8 * 8
	for r0 := 0; r0 < columns; r0 += 8 {
		from := 0
		if r0+8 <= cols && done > 0 {
			vector(&dst[r0], &src[(j+r0)*ld+k*per], ld, done/8)
			from = done
		}
		for r := r0; r < r0+8; r++ {
			if r >= cols {
				for l := range depth {
					var zero T
					dst[l*columns+r] = zero
				}
				continue
			}
			row := src[(j+r)*ld:]
			for l := from; l < depth; l++ {
				dst[l*columns+r] = at(row, k+l)
			}
		}
	}
}

// TurnF32 packs columns [j, j+cols) of the transpose of b, rows [k, k+depth) of it: PackB of [F32] for b [N, K].
func TurnF32(dst, b []float32, ldb, k, depth, j, cols int) {
	turn(dst, b, ldb, k, depth, j, cols, 1, turnF32, func(row []float32, l int) float32 { return row[l] })
}

// RowsF32 packs columns [j, j+cols) of rows [k, k+depth) of b [K, N] for [F32].
func RowsF32(dst, b []float32, ldb, k, depth, j, cols int) {
	if cols == columns && depth > 0 {
		rowsF32(&dst[0], &b[k*ldb+j], ldb, depth)
		return
	}
	Rows(dst, columns, b, ldb, k, depth, j, cols)
}

// ColumnsF32 is [Columns] of float32.
func ColumnsF32(dst []float32, ld int, a []float32, lda, k, i, rows int) {
	across, down := rows/8*8, k/8*8
	if across > 0 {
		for l := 0; l < down; l += 8 {
			flipF32(&dst[l], ld, &a[l*lda+i], lda, across/8)
		}
	}
	if down < k && across > 0 {
		Columns(dst[down:], ld, a[down*lda:], lda, k-down, i, across)
	}
	if across < rows {
		Columns(dst[across*ld:], ld, a, lda, k, i+across, rows-across)
	}
}

// TurnF64 is [TurnF32] for panels of [F64].
func TurnF64(dst, b []float64, ldb, k, depth, j, cols int) {
	const nr = 8
	done := depth / 4 * 4
	if cols == nr && done > 0 {
		turnF64(&dst[0], &b[j*ldb+k], ldb, done/4)
	} else {
		done = 0
		clear(dst[:nr*depth])
	}
	for r := range cols {
		for l := done; l < depth; l++ {
			dst[l*nr+r] = b[(j+r)*ldb+k+l]
		}
	}
}

// TurnI8F32 is [TurnF32] of codes.
func TurnI8F32(dst []float32, b []int8, ldb, k, depth, j, cols int) {
	turn(dst, b, ldb, k, depth, j, cols, 1, turnI8F32, func(row []int8, l int) float32 { return float32(row[l]) })
}

// TurnI8Pairs is [TurnF32] of the pairs of codes of b [N, length]: k and depth count pairs. What
// stands after an odd last code is left as it was.
func TurnI8Pairs(dst []Pair, b []int8, ldb, length, k, depth, j, cols int) {
	whole := min(depth, length/2-k) // pairs that are complete
	turn(dst, b, ldb, k, whole, j, cols, 2, turnI8Pairs, func(row []int8, l int) Pair {
		return Pair{int16(row[2*l]), int16(row[2*l+1])}
	})
	if whole < depth {
		for r := range cols { // the other half of a pair meets the 0 of PairRows
			dst[whole*columns+r][0] = int16(b[(j+r)*ldb+length-1])
		}
	}
}

// WidenI8F32 packs columns [j, j+cols) of rows [k, k+depth) of the codes b [K, N] for [F32].
func WidenI8F32(dst []float32, b []int8, ldb, k, depth, j, cols int) {
	if cols == columns {
		widenI8F32(&dst[0], &b[k*ldb+j], ldb, depth)
		return
	}
	clear(dst)
	for l := range depth {
		for c, v := range b[(k+l)*ldb+j:][:cols] {
			dst[l*columns+c] = float32(v)
		}
	}
}

// PairRows stores rows [i, i+rows) of the codes a [M, length] as rows of pairs, ld apart.
func PairRows(dst []Pair, ld int, a []int8, lda, length, i, rows int) {
	for r := range rows {
		row, out := a[(i+r)*lda:][:length], dst[r*ld:][:(length+1)/2]
		n := length / 16
		if n > 0 {
			widenI8I16(&out[0][0], &row[0], n)
		}
		if length%2 == 1 {
			out[length/2][1] = 0
		}
		for l := n * 16; l < length; l++ {
			out[l/2][l%2] = int16(row[l])
		}
	}
}
