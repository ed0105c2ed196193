// Package linalg says what is right about a basis and a projection, in float64.
//
// A basis Q is d×K, stored row by row: q[i*K+k]. Its columns are meant to be orthonormal, QᵀQ = I. The projection that
// leaves span(Q) untouched is
//
//	P v = v − Q(Qᵀv)
//
// which costs 4·d·K flops; the d×d matrix QQᵀ is never formed. The functions that add to a result take any run of rows,
// so that a basis larger than memory is summed block by block with the same code.
package linalg

import (
	"math"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
	"gonum.org/v1/gonum/lapack/lapack64"
	"gonum.org/v1/gonum/mat"
)

const (
	badBasis  = "linalg: length of the basis is not a multiple of its columns"
	badLength = "linalg: lengths do not fit"
)

func rows(q []float64, k int) int {
	if k <= 0 || len(q)%k != 0 {
		panic(badBasis)
	}
	return len(q) / k
}

func general(x []float64, rows, cols int) blas64.General {
	return blas64.General{Rows: rows, Cols: cols, Stride: max(1, cols), Data: x}
}

// AddGram adds QᵀQ of the rows in q to the upper triangle of the K×K matrix dst. The lower triangle is not touched:
// see [Symmetrise].
func AddGram(dst, q []float64, k int) {
	n := rows(q, k)
	if len(dst) != k*k {
		panic(badLength)
	}
	blas64.Syrk(blas.Trans, 1, general(q, n, k), 1, blas64.Symmetric{N: k, Stride: k, Data: dst, Uplo: blas.Upper})
}

// Symmetrise copies the upper triangle of the K×K matrix a to the lower.
func Symmetrise(a []float64, k int) {
	if len(a) != k*k {
		panic(badLength)
	}
	for i := range k {
		for j := range i {
			a[i*k+j] = a[j*k+i]
		}
	}
}

// Gram returns QᵀQ, K×K.
func Gram(q []float64, k int) []float64 {
	g := make([]float64, k*k)
	AddGram(g, q, k)
	Symmetrise(g, k)
	return g
}

// AddComponents adds QᵀV of the rows in q and v to dst. V has c columns, v[i*c+j]; dst is K×c.
func AddComponents(dst, q []float64, k int, v []float64, c int) {
	n := rows(q, k)
	if len(v) != n*c || len(dst) != k*c {
		panic(badLength)
	}
	if c == 1 {
		blas64.Gemv(blas.Trans, 1, general(q, n, k), blas64.Vector{N: n, Inc: 1, Data: v}, 1, blas64.Vector{N: k, Inc: 1, Data: dst})
		return
	}
	blas64.Gemm(blas.Trans, blas.NoTrans, 1, general(q, n, k), general(v, n, c), 1, general(dst, k, c))
}

// Components returns QᵀV, K×c.
func Components(q []float64, k int, v []float64, c int) []float64 {
	dst := make([]float64, k*c)
	AddComponents(dst, q, k, v, c)
	return dst
}

// Remove stores V − Q·C in dst, for the rows in q: C holds the components of the whole of V, K×c. dst and v may alias.
func Remove(dst, q []float64, k int, v, comp []float64, c int) {
	n := rows(q, k)
	if len(v) != n*c || len(dst) != n*c || len(comp) != k*c {
		panic(badLength)
	}
	copy(dst, v)
	if c == 1 {
		blas64.Gemv(blas.NoTrans, -1, general(q, n, k), blas64.Vector{N: k, Inc: 1, Data: comp}, 1, blas64.Vector{N: n, Inc: 1, Data: dst})
		return
	}
	blas64.Gemm(blas.NoTrans, blas.NoTrans, -1, general(q, n, k), general(comp, k, c), 1, general(dst, n, c))
}

// Project returns P V = V − Q(QᵀV), applied passes times. V is d×c. Twice is enough for any norm: the second pass
// removes what rounding and a small defect of orthonormality have left (Kahan and Parlett; Giraud et al. 2005).
//
// With Q not orthonormal this is still the formula, not the orthogonal projection. With K = 0 it is the identity.
func Project(q []float64, k int, v []float64, c, passes int) []float64 {
	out := append([]float64(nil), v...)
	if k == 0 {
		return out
	}
	for range passes {
		Remove(out, q, k, out, Components(q, k, out, c), c)
	}
	return out
}

// Defect returns max|G − I| of a Gram matrix and its row and column, i <= j. A NaN in G wins.
func Defect(gram []float64, k int) (defect float64, i, j int) {
	if len(gram) != k*k {
		panic(badLength)
	}
	for a := range k {
		for b := a; b < k; b++ {
			e := gram[a*k+b]
			if a == b {
				e--
			}
			if e = math.Abs(e); !(e <= defect) {
				defect, i, j = e, a, b
				if math.IsNaN(e) {
					return defect, i, j
				}
			}
		}
	}
	return defect, i, j
}

// RankTolerance is the share of the largest singular value below which one counts as zero.
const RankTolerance = 1e-6

// Rank returns the rank of Q from its Gram matrix, and bounds min <= σ <= max on its singular values.
//
// Where G is so close to I that Gershgorin's discs around 1 exclude 0, the rank is K without a decomposition and the
// bounds are theirs. Otherwise they are the square roots of the singular values of G, to about 1e-8·σ_max. ok is false
// if G is not finite or the decomposition fails.
func Rank(gram []float64, k int) (rank int, min, max float64, ok bool) {
	if len(gram) != k*k {
		panic(badLength)
	}
	var radius float64
	for i := range k {
		var s float64
		for j := range k {
			e := gram[i*k+j]
			if i == j {
				e--
			}
			s += math.Abs(e)
		}
		if !(s <= radius) {
			radius = s
		}
	}
	if math.IsNaN(radius) || math.IsInf(radius, 0) {
		return 0, math.NaN(), math.NaN(), false
	}
	if radius < 0.5 {
		return k, math.Sqrt(1 - radius), math.Sqrt(1 + radius), true
	}
	var svd mat.SVD
	if !svd.Factorize(mat.NewDense(k, k, append([]float64(nil), gram...)), mat.SVDNone) {
		return 0, math.NaN(), math.NaN(), false
	}
	s := svd.Values(nil)
	for _, v := range s {
		if math.Sqrt(v) > RankTolerance*math.Sqrt(s[0]) {
			rank++
		}
	}
	return rank, math.Sqrt(s[k-1]), math.Sqrt(s[0]), true
}

// Orthonormalise returns an orthonormal basis of the space that the columns of Q span, d×rank. With full rank it is the
// Q of the Householder QR decomposition, with the signs that make R's diagonal positive, so that a basis which was
// orthonormal already comes back as itself. Otherwise it is the leading left singular vectors, σ > RankTolerance·σ_max.
// ok is false if Q is wider than high, not finite or of rank 0.
func Orthonormalise(q []float64, k int) (out []float64, rank int, ok bool) {
	d := rows(q, k)
	if k > d {
		return nil, 0, false
	}
	rank, _, _, ok = Rank(Gram(q, k), k)
	if !ok || rank == 0 {
		return nil, 0, false
	}
	a := mat.NewDense(d, k, append([]float64(nil), q...))
	if rank == k {
		return householder(a, d, k), k, true
	}
	var svd mat.SVD
	if !svd.Factorize(a, mat.SVDThin) {
		return nil, 0, false
	}
	var u mat.Dense
	svd.UTo(&u)
	out = make([]float64, 0, d*rank)
	for i := range d {
		out = append(out, u.RawRowView(i)[:rank]...)
	}
	return out, rank, true
}

// householder returns the thin Q of a QR decomposition of the d×k matrix a, which it overwrites.
func householder(a *mat.Dense, d, k int) []float64 {
	raw := a.RawMatrix()
	tau := make([]float64, k)
	work := make([]float64, 64*k)
	lapack64.Geqrf(raw, tau, work, len(work)) // mat.QR would form the full d×d factor
	sign := make([]float64, k)
	for j := range k {
		sign[j] = 1
		if raw.Data[j*raw.Stride+j] < 0 {
			sign[j] = -1
		}
	}
	lapack64.Orgqr(raw, tau, work, len(work))
	for i := range d {
		for j := range k {
			raw.Data[i*raw.Stride+j] *= sign[j]
		}
	}
	return raw.Data
}
