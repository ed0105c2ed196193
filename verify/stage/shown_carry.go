package stage

import (
	"math"

	"plumbline/internal/format/dump"
)

// beyond reports whether w = (g − k, k) of R_t − r_t = (g − k)·V_{t+1} + k·R_{t+1} is that of a recursion whose k is no γλ. With A = R − V it is
//
//	A_t = r_t + g·V_{t+1} − V_t + k·A_{t+1}
//
// where g is γ and k is γλ of a λ in [0, 1] (Schulman et al. 2016, Eq. 16). A k over g is none; one of two digits whose quotient by a g of three has
// more than four is the λ that people write, by itself.
func beyond(w []float64) bool {
	g, k := w[0]+w[1], w[1]
	if !(g > 0 && k > 0 && k <= 1.001) {
		return false
	}
	return k > 1.005*g || hasDigits(k, 2, 1e-6) && hasDigits(g, 3, 1e-5) && !hasDigits(k/g, 4, 1e-5)
}

// CarriedBeyond reports whether returns are those of a recursion that carries the next advantage by what is no γλ: what is left of them is no more
// than 1e-5 of their size.
func CarriedBeyond(b *dump.Batch) bool {
	r, v, ret := b.Token("token_rewards"), b.Token("values"), b.Token("returns")
	if r == nil || v == nil || ret == nil || b.Token("dones") != nil {
		return false
	}
	o := observations{n: 2}
	for i := range b.Mask {
		if (i+1)%b.Cols != 0 && b.Mask[i] && b.Mask[i+1] {
			o.add(v[i+1], ret[i+1], ret[i]-r[i])
		}
	}
	w, left := o.solve()
	return w != nil && beyond(w) && left <= 1e-5*rms(ret, func(i int) bool { return b.Mask[i] && !math.IsNaN(ret[i]) })
}
