package tol

import "math"

// Unit roundoffs of the formats that computations run in.
const (
	U64 = 0x1p-53
	U32 = 0x1p-24
	U16 = 0x1p-11 // binary16
	UB  = 0x1p-8  // bfloat16

	Eta32 = 0x1p-149 // smallest positive float32, with subnormals
)

// slack is the factor (1 + 8u) kept on every bound for the second-order terms its derivation drops.
func slack(u float64) float64 { return 1 + 8*u }

// Dot bounds the error of a sum of n products accumulated in any order in a format of unit roundoff u and underflow unit
// eta, where s = Σ|a_k·b_k|:
//
//	B = n·u·s + n·eta
//
// In round to nearest n·u·s holds for any length and order (Jeannerod and Rump 2013) without the factor 1/(1 − nu). The
// reference's own rounding, the same formula in float64, is added.
func Dot(n int, u, eta, s float64) float64 {
	return (float64(n)*u*s+float64(n)*eta)*slack(u) + float64(n)*U64*s
}

// Projection bounds element j of y = g − Q(Qᵀg), d rows and K columns, computed in a format of unit roundoff u:
//
//	e_c,k = Dot(d, u, eta, Σ_i|q_ik·g_i|)              error of component k, given as ec
//	B_j   = Σ_k |q_jk|·e_c,k + (K+1)·u·(Σ_k |q_jk|·|c_k| + |g_j|)
//
// qj is row j of Q, c = Qᵀg. It panics if the lengths differ.
func Projection(qj, c, ec []float64, gj, u float64) float64 {
	if len(c) != len(qj) || len(ec) != len(qj) {
		panic("tol: Projection: lengths differ")
	}
	var fromC, size float64
	for k, q := range qj {
		fromC += float64(math.Abs(q) * ec[k])
		size += math.Abs(float64(q * c[k]))
	}
	return (fromC + ProjectionRow(len(qj), u, size, gj)) * slack(u)
}

// ProjectionRow is the part of [Projection] that rounding in row j alone can make: (K+1)·u·(size + |g_j|), where
// size = Σ_k |q_jk|·|c_k|. It is what remains when the error of the components, which lies in span(Q), is judged apart.
func ProjectionRow(k int, u, size, gj float64) float64 {
	return float64(k+1) * (u + U64) * (size + math.Abs(gj)) * slack(u)
}

// Storage bounds the error of rounding v to a format of unit roundoff u and smallest positive number eta.
func Storage(v, u, eta float64) float64 { return max(u*math.Abs(v), eta/2) }
