package ad

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
)

// MatMul returns the matrix products Y = op(A)·op(B) over the last two axes,
// where op transposes its operand if transA or transB says so. With op applied,
// a is [..., M, K], b is [..., K, N] and y is [..., M, N]; the axes in front are
// broadcast. It panics if the shapes do not fit.
//
// For plain matrices, with A' = op(A) and B' = op(B):
//
//	JVP  Ẏ = Ȧ'·B' + A'·Ḃ'
//	VJP  Ā' = Ȳ·B'ᵀ, B̄' = A'ᵀ·Ȳ; Ā = Ā' or Ā'ᵀ, B̄ likewise
//
// Every element is the sum over k = 0, 1, … in this order, each product
// rounded: the same bits as the textbook loop, whatever the other sizes are.
func MatMul(a, b *Var, transA, transB bool) *Var {
	ra, rb := len(a.shape), len(b.shape)
	if ra < 2 || rb < 2 {
		panic(fmt.Sprintf("ad: matmul: shapes %v and %v", a.shape, b.shape))
	}
	m, ka := a.shape[ra-2], a.shape[ra-1]
	kb, n := b.shape[rb-2], b.shape[rb-1]
	if transA {
		m, ka = ka, m
	}
	if transB {
		kb, n = n, kb
	}
	if ka != kb {
		panic(fmt.Sprintf("ad: matmul: inner sizes %d and %d of shapes %v and %v", ka, kb, a.shape, b.shape))
	}
	lead := broadcastShape("matmul", a.shape[:ra-2], b.shape[:rb-2])
	shape := append(slices.Clone(lead), m, n)

	if rb == 2 && ra > 2 && !transA { // one matrix for all rows of a
		flat := Reshape(a, size(lead)*m, ka)
		return Reshape(matmul(flat, b, false, transB, []int{size(lead) * m, n}, ka), shape...)
	}
	a = BroadcastTo(a, append(slices.Clone(lead), a.shape[ra-2:]...)...)
	b = BroadcastTo(b, append(slices.Clone(lead), b.shape[rb-2:]...)...)
	return matmul(a, b, transA, transB, shape, ka)
}

// matmul records y [shape...], the products [M,k]·[k,N] that lie one after the
// other in a and b.
func matmul(a, b *Var, ta, tb bool, shape []int, k int) *Var {
	rank := len(shape)
	count, m, n := size(shape[:rank-2]), shape[rank-2], shape[rank-1]
	batch := func(f func(y, a, b matrix)) {
		for i := range count {
			f(matrix{at: i * m * n, rows: m, cols: n},
				matrix{at: i * m * k, rows: m, cols: k, trans: ta},
				matrix{at: i * k * n, rows: k, cols: n, trans: tb})
		}
	}
	y := make([]float64, count*m*n)
	batch(func(iy, ia, ib matrix) {
		mulAdd(y, iy, a.data, ia, b.data, ib)
	})
	v := record("matmul", shape, y, []*Var{a, b},
		func(dx [][]float64, dy []float64) {
			batch(func(iy, ia, ib matrix) {
				if dx[0] != nil {
					mulAdd(dy, iy, dx[0], ia, b.data, ib)
				}
				if dx[1] != nil {
					mulAdd(dy, iy, a.data, ia, dx[1], ib)
				}
			})
		},
		func(dy []float64, dx [][]float64) {
			batch(func(iy, ia, ib matrix) {
				if dx[0] != nil {
					mulAdd(dx[0], ia, dy, iy, b.data, ib.t())
				}
				if dx[1] != nil {
					mulAdd(dx[1], ib, a.data, ia.t(), dy, iy)
				}
			})
		})
	v.mag = func() []float64 { // k·Σ|a·b|
		s, x, z := make([]float64, len(y)), absolute(a.data), absolute(b.data)
		batch(func(iy, ia, ib matrix) { mulAdd(s, iy, x, ia, z, ib) })
		return scaled(s, float64(k))
	}
	return v
}

// matrix is a rows×cols matrix within a slice, starting at at. It is stored by
// rows, or by columns if trans is set.
type matrix struct {
	at, rows, cols int
	trans          bool
}

// t returns the transposed matrix.
func (m matrix) t() matrix { return matrix{m.at, m.cols, m.rows, !m.trans} }

// mulAdd adds the product of the matrices ia of a and ib of b to the matrix ic
// of c. Element (i,j) takes a[i,l]·b[l,j] for l = 0, 1, …, each rounded before
// it is added.
//
// The work is done by Dgemm with B stored by rows: then gonum adds multiples of
// rows of B to rows of C, in this order for every block size, with MULPD and
// ADDPD on amd64. Stored by columns, it would use dot products with several
// accumulators, cut at the block size. Dgemm leaves out the terms in which
// a[i,l] is 0. That is right for finite B only, since 0·NaN and 0·Inf are NaN,
// so any other B takes the plain loop.
//
// The weight of a linear layer is a B stored by columns and by far the largest
// matrix: it is not copied into rows. The result is computed transposed
// instead, with the weight in the place of A, or by dot products if it has one
// row.
func mulAdd(c []float64, ic matrix, a []float64, ia matrix, b []float64, ib matrix) {
	m, k, n := ia.rows, ia.cols, ib.cols
	if m == 0 || k == 0 || n == 0 {
		return
	}
	if ic.trans { // Cᵀ += Bᵀ·Aᵀ
		mulAdd(c, ic.t(), b, ib.t(), a, ia.t())
		return
	}
	c, a, b = c[ic.at:ic.at+m*n], a[ia.at:ia.at+m*k], b[ib.at:ib.at+k*n]
	if ib.trans && m == 1 { // a row times a matrix stored by columns, as in decoding
		for j := range n {
			sum := c[j]
			for l, w := range b[j*k : (j+1)*k] {
				sum += float64(a[l] * w)
			}
			c[j] = sum
		}
		return
	}
	if ib.trans && !ia.trans && m < n {
		ct := make([]float64, n*m)
		turn(ct, c, m, n)
		mulAdd(ct, matrix{rows: n, cols: m}, b, matrix{rows: n, cols: k}, a, matrix{rows: k, cols: m, trans: true})
		turn(c, ct, n, m)
		return
	}
	if ib.trans {
		byRows := make([]float64, k*n)
		turn(byRows, b, n, k)
		b = byRows
	}
	if !finite(b) {
		mulAddLoop(c, a, ia.trans, b, m, k, n)
		return
	}
	ta, ga := blas.NoTrans, blas64.General{Rows: m, Cols: k, Stride: k, Data: a}
	if ia.trans {
		ta, ga = blas.Trans, blas64.General{Rows: k, Cols: m, Stride: m, Data: a}
	}
	blas64.Gemm(ta, blas.NoTrans, 1, ga,
		blas64.General{Rows: k, Cols: n, Stride: n, Data: b}, 1,
		blas64.General{Rows: m, Cols: n, Stride: n, Data: c})
}

// turn stores in y [cols, rows] the transposed of x [rows, cols].
func turn(y, x []float64, rows, cols int) {
	for i := range rows {
		for j, v := range x[i*cols : (i+1)*cols] {
			y[j*rows+i] = v
		}
	}
}

// mulAddLoop is mulAdd by the textbook loop; only A may be stored by columns.
func mulAddLoop(c, a []float64, ta bool, b []float64, m, k, n int) {
	for i := range m {
		row := c[i*n : (i+1)*n]
		for l := range k {
			v := a[i*k+l]
			if ta {
				v = a[l*m+i]
			}
			for j, w := range b[l*n : (l+1)*n] {
				row[j] += float64(v * w)
			}
		}
	}
}

func finite(x []float64) bool {
	for _, v := range x {
		if math.IsInf(v, 0) || math.IsNaN(v) {
			return false
		}
	}
	return true
}

// absolute returns |x|.
func absolute(x []float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = math.Abs(v)
	}
	return y
}

// scaled multiplies x by c in place and returns it.
func scaled(x []float64, c float64) []float64 {
	for i := range x {
		x[i] *= c
	}
	return x
}
