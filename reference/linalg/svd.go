package linalg

import "gonum.org/v1/gonum/mat"

// RightSingular returns the thin singular value decomposition A = U·S·Vᵀ of the matrix a [n, d] without U: the right singular
// vectors v [d, m], one in each column, and the singular values s [m], largest first, m = min(n, d). The columns of v are
// orthonormal and span the rows of A; their signs are arbitrary. ok is false if the decomposition fails. It panics if the length of a
// is no multiple of d.
func RightSingular(a []float64, d int) (v, s []float64, ok bool) {
	n := rows(a, d)
	if n == 0 {
		return nil, nil, false
	}
	var svd mat.SVD
	if !svd.Factorize(mat.NewDense(n, d, append([]float64(nil), a...)), mat.SVDThin) {
		return nil, nil, false
	}
	var right mat.Dense
	svd.VTo(&right)
	s = svd.Values(nil)
	for i := range d {
		v = append(v, right.RawRowView(i)[:len(s)]...)
	}
	return v, s, true
}
