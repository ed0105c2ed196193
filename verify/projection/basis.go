package projection

import (
	"fmt"
	"math"

	"plumbline/reference/linalg"
	"plumbline/verify/check"
)

const (
	source    = "shielded PPO, Projection Not Working"
	validates = source + ""
)

func skip(reason string) []check.Result { return []check.Result{{Verdict: check.Skip, Reason: reason}} }

// finite returns the facts of a basis that can be computed with, or why there are none.
func (in *Input) finite() (*facts, []check.Result, error) {
	if !in.Basis.usable() {
		return nil, skip("the basis is no floating-point matrix with 0 < K < d"), nil
	}
	f, err := in.measure()
	if err != nil {
		return nil, nil, err
	}
	if !f.finite {
		return nil, skip("the basis is not finite"), nil
	}
	return f, nil, nil
}

// Shape checks that Q is a matrix with fewer columns than rows.
var Shape = &check.Check[*Input]{
	Name: "basis/shape",
	Doc: `the basis is d×K with 0 < K < d

Q is two-dimensional and has fewer columns than rows. With K = d the projection g − Q(Qᵀg) erases every gradient.
A wide matrix is read as its transpose unless a gradient fits its rows; both that and Fortran order are said.`,
	Source: validates + "; fault H4b",
	Fix:    "save Q as a d×K matrix with K at most d/4 (drop singular vectors of small singular values)",
	Run: func(in *Input) ([]check.Result, error) {
		b := in.Basis
		r := check.Result{Subject: b.Name, Verdict: check.Pass, Metric: "K < d", Compared: 1}
		var out []check.Result
		switch {
		case len(b.Stored) != 2:
			r.Metric, r.Verdict = "", check.Fail
			r.Reason = fmt.Sprintf("the basis is %d-dimensional, shape %s; want two dimensions, d×K", len(b.Stored), shapeString(b.Stored))
			r.Explanations = []check.Explanation{{Fault: "BASIS-1D", Title: "not a matrix: flattened on saving, or one vector only"}}
		default:
			r.Measured, r.Limit = float64(b.K), float64(b.D-1)
			r.Reason = fmt.Sprintf("d = %d rows, K = %d columns", b.D, b.K)
			switch {
			case b.K == 0 || b.D == 0:
				r.Verdict, r.Reason = check.Fail, fmt.Sprintf("the basis is empty, shape %s", shapeString(b.Stored))
			case b.K == b.D:
				r.Verdict = check.Fail
				r.Reason = fmt.Sprintf("K = d = %d: the basis spans the whole space, every gradient becomes 0", b.D)
				r.Explanations = []check.Explanation{{Fault: "H4b", Title: "basis spans the whole space", Evidence: "as many columns as rows"}}
			case b.K > b.D:
				r.Verdict = check.Fail
				r.Reason = fmt.Sprintf("K = %d columns, but only d = %d rows: K ≥ d spans the whole space", b.K, b.D)
				r.Explanations = []check.Explanation{{Fault: "H4b", Title: "basis spans the whole space", Evidence: fmt.Sprintf("stored shape %s, and a vector of %d elements fits its rows", shapeString(b.Stored), b.D)}}
			}
		}
		out = append(out, r)
		if b.Transposed {
			out = append(out, check.Result{Subject: b.Name, Verdict: check.Warn,
				Reason: fmt.Sprintf("stored as %s and read as its transpose, d = %d, K = %d: a basis has fewer columns than rows", shapeString(b.Stored), b.D, b.K),
				Fix:    "save Q as d×K: a program that computes g − Q(Qᵀg) with the stored matrix fails or is wrong"})
		}
		if b.ColumnMajor {
			out = append(out, check.Result{Subject: b.Name, Verdict: check.Note,
				Reason: "stored in Fortran order and transposed on reading: a reader that takes it for C order gets other numbers"})
		}
		for _, n := range b.Notes {
			out = append(out, check.Result{Subject: b.Name, Verdict: check.Note, Reason: n})
		}
		return out, nil
	},
}

// DType checks that Q holds floating-point numbers of enough precision.
var DType = &check.Check[*Input]{
	Name: "basis/dtype",
	Doc: `the basis is floating point, better 32 or 64 bits

Integers cannot be orthonormal columns. In bfloat16 or float16 every product of two columns is off by up to 2u, and a
projection in one pass leaves components of 2e-5 to 8e-5 of the norm of the gradient.`,
	Source: validates + "; fault H3c",
	Fix:    "keep Q in float32 or float64, and project twice",
	Run: func(in *Input) ([]check.Result, error) {
		b := in.Basis
		r := check.Result{Subject: b.Name, Verdict: check.Pass, Reason: "stored as " + b.Type, Compared: 1}
		switch {
		case !b.DType.Float():
			r.Verdict, r.Reason = check.Fail, fmt.Sprintf("stored as %s (%s), want a floating-point type", b.Type, b.DType)
			r.Explanations = []check.Explanation{{Fault: "BASIS-INT", Title: "not a basis: indices, codes or a mask"}}
		case low16(b.DType):
			r.Verdict, r.Reason = check.Warn, fmt.Sprintf("stored as %s: too coarse for the limit %g in one pass", b.DType, in.tol())
			r.Explanations = []check.Explanation{{Fault: "H3c", Title: "Q stored in low precision"}}
		}
		return []check.Result{r}, nil
	},
}

// Finite checks that Q holds no NaN or infinity.
var Finite = &check.Check[*Input]{
	Name:   "basis/finite",
	Doc:    "the basis has no NaN and no infinity\n\nEvery element of Q is looked at; the first bad one is named by row and column.",
	Source: validates,
	Fix:    "recompute the basis; look at the data it was made from for the same value",
	Run: func(in *Input) ([]check.Result, error) {
		b := in.Basis
		if !b.usable() {
			return skip("the basis is no floating-point matrix with 0 < K < d"), nil
		}
		f, err := in.measure()
		if err != nil {
			return nil, err
		}
		r := check.Result{Subject: b.Name, Verdict: check.Pass, Metric: "elements that are not finite", Measured: float64(f.badCount), Compared: b.D * b.K}
		if !f.finite {
			r.Verdict = check.Fail
			r.Reason = fmt.Sprintf("%d elements are not finite", f.badCount)
			r.Where = fmt.Sprintf("%s row %d, column %d: %g", b.Name, f.firstBad[0], f.firstBad[1], f.badValue)
			e := check.Explanation{Fault: "BASIS-INF", Title: "an overflow"}
			if math.IsNaN(f.badValue) {
				e = check.Explanation{Fault: "BASIS-NAN", Title: "0/0 or Inf − Inf when the basis was made"}
			}
			r.Explanations = []check.Explanation{e}
		}
		return []check.Result{r}, nil
	},
}

// Orthonormal checks QᵀQ = I.
var Orthonormal = &check.Check[*Input]{
	Name: "basis/orthonormal",
	Doc: `the columns of the basis are orthonormal: max|QᵀQ − I| < tol

QᵀQ is summed in float64 from the stored numbers. A basis stored in 16 bits may deviate by (2u + u²)·‖q_i‖·‖q_j‖, what
rounding its elements can do; between the limit and that bound the finding is a warning.`,
	Source: validates + "; fault A5",
	Fix:    "orthonormalise the basis (QR): verify projection --basis Q --orthonormalize OUT.npy writes one of the same space",
	Run: func(in *Input) ([]check.Result, error) {
		f, skipped, err := in.finite()
		if f == nil {
			return skipped, err
		}
		b := in.Basis
		r := check.Bound(b.Name, "max|QᵀQ − I|", f.defect, math.Nextafter(in.tol(), 0), b.K*(b.K+1)/2)
		r.Limit = max(in.tol(), f.storage) // the limit itself fails: the source says < 1e-5
		r.Where = fmt.Sprintf("%s column %d: norm² = %.9g", b.Name, f.di, f.gram[f.di*b.K+f.dj])
		if f.di != f.dj {
			r.Where = fmt.Sprintf("%s columns %d and %d: inner product %.9g", b.Name, f.di, f.dj, f.gram[f.di*b.K+f.dj])
		}
		if r.Verdict == check.Fail && f.defect <= f.storage {
			r.Verdict = check.Warn
			r.Reason = fmt.Sprintf("beyond %g, but no more than storing the elements as %s can do", in.tol(), b.DType)
			r.Explanations = []check.Explanation{{Fault: "H3c", Title: "Q stored in low precision"}}
		}
		if r.Verdict == check.Fail {
			if r.Explanations, err = in.explainDefect(f); err != nil {
				return nil, err
			}
		}
		return []check.Result{r}, nil
	},
}

// explainDefect looks for what makes a basis not orthonormal.
func (in *Input) explainDefect(f *facts) ([]check.Explanation, error) {
	b, k := in.Basis, in.Basis.K
	other := *b // the same numbers, read in the other order
	other.ColumnMajor = !b.ColumnMajor
	alt := &Input{Basis: &other, Tol: in.Tol, Reference: in.Reference, Threads: in.Threads, Context: in.Context}
	g, err := alt.measure()
	if err != nil {
		return nil, err
	}
	if g.defect < in.tol() {
		read := "rows"
		if b.byColumn() {
			read = "columns"
		}
		return []check.Explanation{{Fault: "BASIS-ORDER", Title: "the numbers of Q are in the other order (Fortran data in a C file, or a reshape in place of a transpose)",
			Evidence: fmt.Sprintf("taken the other way round than by %s, the same numbers are orthonormal to %.1e", read, g.defect)}}, nil
	}
	norm := func(i int) float64 { return math.Sqrt(f.gram[i*k+i]) }
	var off, wrongNorm int // columns that are not orthogonal to another; whose norm is wrong
	for i := range k {
		if !(math.Abs(f.gram[i*k+i]-1) < in.tol()) {
			wrongNorm++
		}
		for j := range k {
			if j != i && !(math.Abs(f.gram[i*k+j]) < in.tol()*max(1, norm(i)*norm(j))) {
				off++
				break
			}
		}
	}
	i, j := f.di, f.dj
	ci, cj, cos := f.closest(k)
	switch {
	case cos > 1-1e-6:
		return []check.Explanation{{Fault: "BASIS-EQUAL-COLUMNS", Title: fmt.Sprintf("columns %d and %d are parallel", ci, cj), Evidence: fmt.Sprintf("cosine %.9f", cos)}}, nil
	case wrongNorm > 0 && norm(i) == 0:
		return []check.Explanation{{Fault: "BASIS-ZERO-COLUMN", Title: fmt.Sprintf("column %d is zero", i), Evidence: "norm 0"}}, nil
	case off == 0 && wrongNorm == 1:
		return []check.Explanation{{Fault: "BASIS-COLUMN-SCALED", Title: fmt.Sprintf("column %d is not normalised", i), Evidence: fmt.Sprintf("its norm is %.9g, every other column is right", norm(i))}}, nil
	case off == 0:
		return []check.Explanation{{Fault: "BASIS-NOT-NORMALISED", Title: "the columns are orthogonal but not normalised", Evidence: fmt.Sprintf("%d of %d norms are not 1 (singular vectors times singular values?)", wrongNorm, k)}}, nil
	case off == k && k > 2:
		return []check.Explanation{{Fault: "BASIS-RAW-VECTORS", Title: "raw vectors in place of a basis (embeddings or gradients that were never orthonormalised), or another matrix altogether",
			Evidence: fmt.Sprintf("every column overlaps another one; norms of columns 0 and %d are %.4g and %.4g", k-1, norm(0), norm(k-1))}}, nil
	case i != j:
		return []check.Explanation{{Fault: "BASIS-SKEW", Title: fmt.Sprintf("columns %d and %d overlap", i, j), Evidence: fmt.Sprintf("cosine %.3g; %d of %d columns overlap another", f.gram[i*k+j]/(norm(i)*norm(j)), off, k)}}, nil
	}
	return nil, nil
}

// closest returns the two columns with the largest cosine, which tells more than the largest entry of QᵀQ where norms are
// wrong too.
func (f *facts) closest(k int) (i, j int, cos float64) {
	for x := range k {
		for y := x + 1; y < k; y++ {
			if c := math.Abs(f.gram[x*k+y]) / math.Sqrt(f.gram[x*k+x]*f.gram[y*k+y]); c > cos {
				i, j, cos = x, y, c
			}
		}
	}
	return i, j, cos
}

// Rank checks that the columns of Q are linearly independent.
var Rank = &check.Check[*Input]{
	Name: "basis/rank",
	Doc: `the columns of the basis are linearly independent

The singular values of Q are the roots of those of QᵀQ; one below 1e-6 of the largest counts as zero. Where QᵀQ is so
near I that Gershgorin's discs exclude 0, full rank follows without a decomposition.`,
	Source: validates,
	Fix:    "drop dependent columns: --orthonormalize keeps as many as the rank",
	Run: func(in *Input) ([]check.Result, error) {
		f, skipped, err := in.finite()
		if f == nil {
			return skipped, err
		}
		b := in.Basis
		r := check.Result{Subject: b.Name, Verdict: check.Pass, Metric: "K − rank(Q)", Measured: float64(b.K - f.rank), Compared: b.K,
			Facts: []check.Fact{{Name: "σ_min", Value: f.sigma[0]}, {Name: "σ_max", Value: f.sigma[1]}}}
		switch {
		case !f.rankKnown:
			r.Verdict, r.Reason = check.Undetermined, "the singular values of QᵀQ could not be computed"
		case f.rank < b.K:
			r.Verdict = check.Fail
			r.Reason = fmt.Sprintf("rank %d of %d columns: rank deficient, σ_min/σ_max = %.2g (below %g)", f.rank, b.K, f.sigma[0]/f.sigma[1], linalg.RankTolerance)
			e := check.Explanation{Fault: "BASIS-DEPENDENT", Title: "a column is a combination of the others"}
			if i, j, cos := f.closest(b.K); cos > 1-1e-6 {
				e = check.Explanation{Fault: "BASIS-EQUAL-COLUMNS", Title: fmt.Sprintf("columns %d and %d are parallel", i, j), Evidence: fmt.Sprintf("cosine %.9f", cos)}
			}
			r.Explanations = []check.Explanation{e}
		}
		return []check.Result{r}, nil
	},
}
