package stage

import (
	"math"
	mathbits "math/bits"

	"plumbline/verify/tol"
)

// cascade is how many terms a float32 accumulator takes one after the other. Every library of tensors sums long vectors in
// parts and adds the parts pairwise (torch's cascade sum, numpy's pairwise sum, reductions on a GPU); without this, the
// bound of the mean of a million tokens would be 6 % of it.
const cascade = 4096

// sumError returns the relative error, with respect to Σ|terms|, of a sum of n terms: n·u in any order up to [cascade] of them,
// beyond that [cascade] plus one addition for every doubling. The reference's own error, n·2⁻⁵³ for its plain loop, is added.
func sumError(n int, u float64) float64 {
	terms := float64(n)
	if n > cascade {
		terms = cascade + math.Log2(terms/cascade)
	}
	return terms*u + float64(n)*tol.U64
}

// moments are mean and variance of some numbers with the errors of a computation in two passes, or in one by updating both
// (Welford, torch.std):
//
//	e_μ = (n+1)·u·mean|x| + mean e
//	e_v = (n+5)·u·v + f·(n·u·mean|x|·Σ|c| + 2Σ|c|·e + 2e_μ·|Σc| + Σ(e + e_μ)²),   c = x − μ, f = 1/(n − ddof)
//
// where e is the error of each x. Since Σc = 0 up to mean.eps, an error of μ enters v squared; the second term is that of
// Welford's running mean, which moves while the squares are summed.
type moments struct {
	n           int
	mean, eMean float64
	v, eV       float64
}

// momentsOf takes the moments of x, with the errors e (nil: none).
func momentsOf(x, e []float64, ddof int, eps, unit float64) moments {
	u := unit + tol.U64
	m := moments{n: len(x)}
	n := float64(m.n)
	var sum, size, err float64
	for i, v := range x {
		sum += v
		size += math.Abs(v)
		if e != nil {
			err += e[i]
		}
	}
	m.mean = sum / (n + eps)
	m.eMean = (foldError(m.n+1, unit)*size + err) / n
	if exactSum(x, unit) || err == 0 && fewEqual(x) {
		m.eMean = 2*u*math.Abs(m.mean) + err/n
		if err == 0 && equal(x) && exactMean(sum, n) {
			m.mean, m.eMean = x[0], 0
			return m
		}
	}
	var ss, sumC, absC, cross, square float64
	for i, v := range x {
		c, a := v-m.mean, m.eMean
		ss += float64(c * c)
		sumC += c
		absC += math.Abs(c)
		if e != nil {
			cross += float64(math.Abs(c) * e[i])
			a += e[i]
		}
		square += float64(a * a)
	}
	f := 1 / (n - float64(ddof))
	m.v = ss / (n + eps)
	if ddof == 1 {
		m.v *= n / (n - 1)
	}
	m.eV = (foldError(m.n, unit)+5*u)*m.v + f*(foldError(m.n, unit)*size/n*absC+2*cross+2*m.eMean*math.Abs(sumC)+square)
	return m
}

// exactSum reports whether every sum of some of x is a number of the format of unit roundoff u, so that adding them up makes
// no error: they are multiples of one power of two, and Σ|x| is at most 1/u times that. Rewards of 0 and 1 are.
func exactSum(x []float64, u float64) bool {
	low, size := math.Inf(1), 0.0
	for _, v := range x {
		if v == 0 {
			continue
		}
		fraction, exponent := math.Frexp(v)
		bits := uint64(int64(math.Abs(fraction) * (1 << 53)))
		low = min(low, math.Ldexp(1, exponent-53+mathbits.TrailingZeros64(bits)))
		if size += math.Abs(v); !(size*u <= low) {
			return false
		}
	}
	return true
}

// fewEqual reports whether x are two or four equal numbers, whose sum has no rounding error in any order: of 2x there is none, and that of 3x
// is at most half a step of 4x, a tie only where the even neighbour is 4x itself.
func fewEqual(x []float64) bool { return (len(x) == 2 || len(x) == 4) && equal(x) }

// exactMean reports whether the mean of n equal numbers with that exact sum is each of them, by division and by
// multiplication with a rounded 1/n.
func exactMean(sum, n float64) bool {
	return float64(float32(sum)*float32(1/n)) == sum/n && sum*(1/n) == sum/n
}

// rate returns r(v), a falling function of the variance such as 1/(√v + ε), and its error: its change over the interval
// v ± e_v, which holds where v vanishes too, and e_rsqrt + 2u relative.
func (m *moments) rate(r func(v float64) float64, unit float64) (rate, err float64) {
	rate = r(m.v)
	err = max(r(max(m.v-m.eV, 0))-rate, rate-r(m.v+m.eV))
	return rate, err + (elementaryError(unit)+2*(unit+tol.U64))*rate
}

// scaled bounds c·r, where c = x − μ has the error eC: e_c·(r + e_r) + |c|·e_r + 2u·|c|·r.
func scaled(c, eC, r, eR, unit float64) float64 {
	if c == 0 && eC == 0 {
		return 0
	}
	return eC*(r+eR) + math.Abs(c)*(eR+2*(unit+tol.U64)*r)
}

// standard returns v ↦ 1/(√v + eps).
func standard(eps float64) func(float64) float64 {
	return func(v float64) float64 { return 1 / (math.Sqrt(v) + eps) }
}
