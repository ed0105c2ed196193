//go:build !purego

package block

// turnI8Quads stores 8 rows of src, 32·n codes each, as 8 columns of a panel of 16 columns: dst[16·l+r] are the codes 4·l … 4·l+3 of row r.
//
//go:noescape
func turnI8Quads(dst *Quad, src *int8, ld, n int)

// offsetI8 stores n codes plus 128.
//
//go:noescape
func offsetI8(dst *Quad, src *int8, n int)

// sumQuads stores −128 times the sums of the 16 columns of a panel of n rows, as int32.
//
//go:noescape
func sumQuads(dst *Quad, panel *Quad, n int)

// dotsVNNI stores the products of k codes of a with four rows of b, ldb apart, less excess, which is 128·Σa.
//
//go:noescape
func dotsVNNI(k int, a *int8, b *int8, ldb int, c *int32, excess int32)

// QuadRows stores rows [i, i+rows) of the codes a [M, length] as rows of quads, ld apart, each code plus 128.
// What stands after the last code is left as it was.
func QuadRows(dst []Quad, ld int, a []int8, lda, length, i, rows int) {
	for r := range rows {
		offsetI8(&dst[r*ld], &a[(i+r)*lda], length)
	}
}

// TurnI8Quads packs a panel of [VNNI], nr columns, or of [VNNIHalf] from the codes b [N, length]; k and depth count quads.
func TurnI8Quads(dst []Quad, nr int, b []int8, ldb, length, k, depth, j, cols int) {
	Panels(nr, columns, func(dst []Quad, k, depth, j, cols int) {
		whole := min(depth, length/4-k) // quads that are complete
		turn(dst, b, ldb, k, whole, j, cols, 4, turnI8Quads, func(row []int8, l int) Quad { return Quad(row[4*l:]) })
		if whole < depth {
			last := dst[whole*columns:][:columns]
			clear(last) // zeros meet whatever stands after the last code of a
			for r := range cols {
				copy(last[r][:], b[(j+r)*ldb+4*(k+whole):][:length%4])
			}
		}
	})(dst, k, depth, j, cols)
	for half := 0; half < nr; half += columns {
		sumQuads(&dst[nr*depth+half], &dst[half*depth], depth)
	}
}

// DotI8 stores in c the products of a with the rows [j0, j1) of b [N, K], ldb apart: c_j = Σ a_k·b_jk modulo 2³². K is the length of a and
// not 0.
func DotI8(c []int32, a, b []int8, ldb, j0, j1 int) {
	var sum int32
	for _, v := range a {
		sum += int32(v)
	}
	j := j0
	for ; j+4 <= j1; j += 4 {
		dotsVNNI(len(a), &a[0], &b[j*ldb], ldb, &c[j], 128*sum)
	}
	for ; j < j1; j++ {
		var four [4]int32
		dotsVNNI(len(a), &a[0], &b[j*ldb], 0, &four[0], 128*sum)
		c[j] = four[0]
	}
}
