package stage

import (
	"math"

	"plumbline/verify/tol"
)

// halfSpacing is half the distance η between neighbouring numbers below the normal range of a format of unit roundoff u: what an
// operation whose result underflows gradually is off by at most. In float64 no loss comes near it.
func halfSpacing(u float64) float64 {
	switch u {
	case tol.U32:
		return tol.Eta32 / 2
	case tol.UB:
		return 0x1p-134 // η is 2⁻¹³³: eight bits below 2⁻¹²⁶
	case tol.U16:
		return 0x1p-25
	}
	return 0
}

// underflow bounds what gradual underflow adds to the relative errors of a product of n factors taken in any order. Each of the n − 1
// products may be off by η/2, which the factors still to come multiply; none of them counts less than 1:
//
//	B = (n − 1)·η/2·Π max(1, |f|)
func underflow(u float64, factors ...float64) float64 {
	b := float64(len(factors)-1) * halfSpacing(u)
	for _, f := range factors {
		b *= max(1, math.Abs(f))
	}
	return b
}

// expUnderflow is the absolute error of an exponential that underflows, whose relative error e_exp counts units of η/2 there.
func expUnderflow(u float64) float64 { return elementary * halfSpacing(u) }
