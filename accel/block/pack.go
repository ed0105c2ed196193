package block

// Rows packs columns [j, j+cols) of rows [k, k+depth) of b [K, N] into panels of nr columns.
func Rows[T any](dst []T, nr int, b []T, ldb, k, depth, j, cols int) {
	for l := range depth {
		out := dst[l*nr:][:nr]
		copy(out, b[(k+l)*ldb+j:][:cols])
		clear(out[cols:])
	}
}

// Columns stores columns [i, i+rows) of a [K, M] as rows of K elements, ld apart: the rows of its transpose.
func Columns[T any](dst []T, ld int, a []T, lda, k, i, rows int) {
	const side = 16 // squares whose rows and columns both stay in the first-level cache
	for l0 := 0; l0 < k; l0 += side {
		l1 := min(k, l0+side)
		for r := range rows {
			out := dst[r*ld:]
			for l := l0; l < l1; l++ {
				out[l] = a[l*lda+i+r]
			}
		}
	}
}
