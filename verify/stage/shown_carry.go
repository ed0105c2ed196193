package stage

import (
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
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
	return k > 1.005*g || ofWritten(g, k)
}

// ofWritten reports whether k has two digits and g three, and their quotient is no number of four: of 0.95 and 0.99 it is near one.
func ofWritten(g, k float64) bool {
	return hasDigits(k, 2, 1e-6) && hasDigits(g, 3, 1e-5) && !hasDigits(short(k, 2)/short(g, 3), 4, 1e-6)
}

// CarriedBeyond reports whether returns are those of a recursion that carries the next advantage by what is no γλ: what is left of them is no more
// than 1e-5 of their size, between tokens behind which no episode ends.
func CarriedBeyond(b *dump.Batch) bool {
	r, v, ret := b.Token("token_rewards"), b.Token("values"), b.Token("returns")
	done := b.Token("dones")
	if r == nil || v == nil || ret == nil {
		return false
	}
	o := observations{n: 2}
	for i := range b.Mask {
		if (i+1)%b.Cols != 0 && b.Mask[i] && b.Mask[i+1] && (done == nil || done[i] == 0) {
			o.add(v[i+1], ret[i+1], ret[i]-r[i])
		}
	}
	w, left := o.solve()
	return w != nil && beyond(w) && left <= 1e-5*rms(ret, func(i int) bool { return b.Mask[i] && !math.IsNaN(ret[i]) })
}

// ofToken makes a number of the numbers of the tokens of a row for one of them.
type ofToken = func(x []float64, t int) float64

// DecaysUnder returns what advantages give of the options of a recursion that is another one than GAE's, A_t = r'_t + γ·V'_t − V°_t + γλ·A_{t+1} with r' what
// reward makes of the rewards, and V' and V° what next and own make of the values: γ and λ by least squares, and the whitening by returns, as [Shown] gives
// them of the right one; none where it leaves more than roundings.
func DecaysUnder(b *dump.Batch, set *convention.Set, next, own, reward ofToken) [][]Change {
	const near = 1e-5 // of the advantages
	r, v, ret, adv := b.Token("token_rewards"), b.Token("values"), b.Token("returns"), b.Token("advantages")
	if r == nil || v == nil || ret == nil && adv == nil {
		return nil
	}
	raw := adv
	if ret != nil {
		raw = make([]float64, len(ret))
		for i := range raw {
			raw[i] = ret[i] - v[i]
		}
	}
	var gs, ls []float64
	for _, f := range b.Files {
		o := observations{n: 4}
		if ret != nil {
			o.n = 2
		}
		for row := f.Lo; row < f.Hi; row++ {
			var a, rs, vs []float64
			for i := range b.TokensOf(row) {
				a, rs, vs = append(a, raw[i]), append(rs, r[i]), append(vs, v[i])
			}
			for t := range max(len(a)-1, 0) {
				if d := reward(rs, t) - own(vs, t); ret != nil {
					o.add(next(vs, t), a[t+1], a[t]-d)
				} else {
					o.add(d, next(vs, t), a[t+1], 1, a[t])
				}
			}
		}
		size := rms(raw[:f.Hi*b.Cols], func(i int) bool { return i >= f.Lo*b.Cols && b.Mask[i] })
		w, left := o.solve()
		if w == nil || !(left <= near*size) {
			continue
		}
		if ret == nil {
			if !(w[0] > 0) {
				continue
			}
			w = []float64{w[1] / w[0], w[2]}
		}
		gs, ls = append(gs, w[0]), append(ls, w[1]/w[0])
	}
	if 2*len(gs) <= len(b.Files) {
		return nil
	}
	g, l := middle(gs, 1), middle(ls, 1)
	const over = 1e-3
	if !(g > 0 && g <= 1+over && l >= -over && l <= 1+over) {
		return nil
	}
	var lists [][]assign
	for _, tol := range []float64{1e-5, 1e-3} {
		list := []assign{amount("gae.gamma", written(unit(g), tol)), amount("gae.lambda", written(unit(l), tol))}
		lists = append(lists, append(list, whitening(b)...))
	}
	return openOf(lists, set)
}
