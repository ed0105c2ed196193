package projection

import (
	"plumbline/internal/format"
	"plumbline/verify/check"
)

// Suite is the checks of verify projection, in the order of the report.
var Suite = check.Suite[*Input]{
	Shape, DType, Finite, Orthonormal, Rank,
	Fit, VectorsFinite, Flow,
	NoOp, Formula, Norm,
	GradientComponent, UpdateComponent, AdapterDrift,
}

// CheckBasis judges a basis held in memory, q[i*k+j] with d rows and k orthonormal columns, as verify projection --basis
// does. tol 0 is [DefaultTol].
func CheckBasis(q []float64, d, k int, tol float64) ([]check.Result, error) {
	return Suite.Run(&Input{Basis: DenseBasis(q, d, k, format.F64), Tol: tol}, check.Selection{Select: []string{"basis"}})
}
