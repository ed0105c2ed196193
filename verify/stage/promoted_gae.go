package stage

import (
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// step16 rounds a result x that may be off by e to the type of unit roundoff u, and returns what the rounded one may be off by. exact says
// that float32 has the result without an error where x has none: then a tie is one, and not open.
func step16(x, e, u float64, exact bool) (y, ye float64) {
	y, open := rounded(x, u)
	open = open && !exact
	if e > 0 {
		for _, s := range []float64{x - e, x + e} {
			other, near := rounded(s, u)
			ye = max(ye, math.Abs(other-y))
			open = open || near
		}
	}
	if open {
		ye += 2 * u * math.Abs(y)
	}
	return y, ye
}

// promoted16 replaces the recursion by that of a program whose values have a 16-bit type, as torch promotes it. The product of a number and
// a tensor of the type has the type, and so has γV′, which is then rounded before it is added to rewards that are float32 (CleanRL's ppo.py:
// gamma·nextvalues). Where the rewards have the type, too, every operation rounds to it, in the order in which TRL 1.12's ppo_trainer writes
// them: δ = (r + γV′) − V, A = δ + γλA′, R = A + V. Sums of two numbers of the type are rounded once.
func (c *Case) promoted16(e *estimate) {
	u := e.value.Half
	if u == 0 || e.o.LambdaPolicy == rl.LambdaVAPO || e.o.Bootstrap == rl.BootstrapValue && c.half("next_values") != u {
		return
	}
	all := e.reward.Half == u
	n := len(e.adv.X)
	adv, ret := Input{X: make([]float64, n), Err: make([]float64, n)}, Input{X: make([]float64, n), Err: make([]float64, n)}
	if all {
		adv.Half, ret.Half = u, u
	}
	w := c.Unit + tol.U64
	for s := range e.o.Steps(e.rollout) {
		k := s.Cell
		var a, ae float64
		if s.Next >= 0 {
			a, ae = adv.X[s.Next], adv.Err[s.Next]
		}
		if s.Step {
			gv, ge := s.NextV, 0.0
			if s.Gamma != 1 {
				gv, ge = step16(s.Gamma*s.NextV, 0, u, false)
			}
			gl := float64(s.Gamma * s.Lambda)
			if all {
				d, de := step16(s.R+gv, ge, u, true)
				d, de = step16(d-s.V, de, u, true)
				if gl != 1 {
					a, ae = step16(gl*a, math.Abs(gl)*ae, u, false)
				}
				a, ae = step16(d+a, de+ae, u, true)
			} else {
				d := s.R + gv - s.V
				x := d + float64(gl*a)
				ae = math.Abs(gl)*ae*(1+3*w) + 2*w*math.Abs(gl*a) + ge + w*(max(math.Abs(s.R+gv), math.Abs(s.R-s.V), math.Abs(gv-s.V))+math.Abs(d)+math.Abs(x)) + e.reward.E(k)
				a = x
			}
		}
		adv.X[k], adv.Err[k] = a, ae
		added := e.ret.X[k] - e.adv.X[k] // V, or 0 where the returns leave it out
		if all {
			added, _ = rounded(added, u)
			ret.X[k], ret.Err[k] = step16(a+added, ae, u, true)
		} else {
			ret.X[k], ret.Err[k] = a+added, ae+w*math.Abs(a+added)
		}
	}
	e.adv, e.ret = adv, ret
}

// whitened16 whitens numbers of a 16-bit type over the cells that count, as masked_whiten of TRL 1.12 and of verl 0.9.1 does in it: sums are
// taken in float32 and rounded, the mean and every deviation, square and product are rounded, and what the correction for one degree of
// freedom touches, a quotient of integers, is float32. Numbers without a dimension beside a tensor of the type, the count and the rate,
// keep their own type on a CPU and are cast on a GPU (narrow). It reports false where the options are not those of masked_whiten.
func whitened16(x Input, count []bool, o rl.WhitenOptions, narrow bool, lo, hi int, y Input) (m moments, ok bool) {
	u := x.Half
	if u == 0 || o.Var.DDof != 1 || o.EpsPlace != rl.InsideSqrt || o.Var.Mean.Eps > 0 {
		return m, false
	}
	var n, sum, size, off float64
	for i := lo; i < hi; i++ {
		if count == nil || count[i] {
			n++
			sum += x.X[i]
			size += math.Abs(x.X[i])
			off += x.E(i)
		}
	}
	if n < 2 {
		return m, false
	}
	fold, by := sumError(int(n), tol.U32), n
	if narrow {
		by, _ = rounded(n, u)
	}
	sum, off = step16(sum, off+fold*size, u, false)
	mean, eMean := step16(sum/by, off/by, u, false)
	centred := func(i int) (float64, float64) {
		e := x.E(i) + eMean
		return step16(x.X[i]-mean, e, u, true)
	}
	var squares, eSquares float64
	for i := lo; i < hi; i++ {
		if count == nil || count[i] {
			d, e := centred(i)
			s, es := step16(d*d, 2*math.Abs(d)*e+e*e, u, false)
			squares += s
			eSquares += es
		}
	}
	squares, eSquares = step16(squares, eSquares+fold*squares, u, false)
	v, ev := step16(squares/by, eSquares/by, u, false)
	bessel := n / (n - 1)
	v, ev = v*bessel, ev*bessel+2*tol.U32*v*bessel
	rate := func(v float64) float64 { return 1 / math.Sqrt(v+o.Eps) }
	r := rate(v)
	eR := max(math.Abs(rate(v+ev)-r), math.Abs(rate(max(v-ev, 0))-r)) + elementary*tol.U32*r
	if narrow {
		r, eR = step16(r, eR, u, false)
	}
	if !(eR < r) {
		return m, false
	}
	for i := lo; i < hi; i++ {
		d, e := centred(i)
		w, we := d, e
		if o.Shift == rl.ShiftFalsePlain {
			w, we = x.X[i], x.E(i)
		}
		w, we = step16(w*r, we*(r+eR)+math.Abs(w)*eR, u, false)
		if o.Shift == rl.ShiftFalseAddBack {
			w, we = step16(w+mean, we+eMean, u, true)
		}
		y.X[i], y.Err[i] = w, we
	}
	return moments{n: int(n), mean: mean, eMean: eMean, v: v, eV: ev}, true
}

// whitened16Moments is the same where a program takes the moments by torch.mean and torch.var, of all cells that count (lm-human-preferences:
// (x − mean)·rsqrt(var + ε); CleanRL: (x − mean)/(std + ε)), and rounds each of them. On a CPU the variance is accumulated in float64 about the
// rounded mean (aten std_var_all_cpu), and rsqrt of one number is 1 over a root that is rounded; a mean was a sum that is rounded, divided and
// rounded again in older releases (twice). On a GPU each is rounded once, and the variance is accumulated in float32 about its own mean.
func whitened16Moments(x Input, count []bool, o rl.WhitenOptions, narrow, twice bool, lo, hi int, y Input) (m moments, ok bool) {
	u := x.Half
	if u == 0 || o.EpsPlace != rl.InsideSqrt && o.EpsPlace != rl.AddStd || o.Var.Mean.Eps > 0 {
		return m, false
	}
	var cells, errs []float64
	for i := lo; i < hi; i++ {
		if count == nil || count[i] {
			cells, errs = append(cells, x.X[i]), append(errs, x.E(i))
		}
	}
	if len(cells) < 2 {
		return m, false
	}
	m = momentsOf(cells, errs, o.Var.DDof, 0, tol.U32)
	n := float64(m.n)
	mean, eMean := m.mean, m.eMean
	if twice {
		sum, e := step16(m.mean*n, m.eMean*n, u, false)
		mean, eMean = sum/n, e/n
	}
	if mean, eMean = step16(mean, eMean, u, false); !narrow {
		var squares, e float64
		for i, v := range cells {
			d, off := v-mean, errs[i]+eMean
			squares += d * d
			e += 2*math.Abs(d)*off + off*off
		}
		m.v, m.eV = squares/(n-float64(o.Var.DDof)), (e+n*tol.U64*squares)/(n-float64(o.Var.DDof))
	}
	v, ev := step16(m.v, m.eV, u, false)
	of := func(v float64) float64 { // the divisor or, inside the root, the rate
		if o.EpsPlace == rl.AddStd {
			s, _ := rounded(math.Sqrt(m.v+(v-m.v)), u)
			s, _ = rounded(s+o.Eps, u)
			return s
		}
		s, _ := rounded(v+o.Eps, u)
		if s = math.Sqrt(s); !narrow {
			s, _ = rounded(s, u)
		}
		s, _ = rounded(1/s, u)
		return s
	}
	if o.EpsPlace == rl.AddStd { // torch.std rounds the root, not what it is taken of
		v, ev = m.v, m.eV
	}
	r := of(v)
	eR := max(math.Abs(of(v+ev)-r), math.Abs(of(max(v-ev, 0))-r))
	if near := elementary * tol.U32; eR == 0 { // the root and its inverse are those of float32, rounded
		eR = max(math.Abs(of(v*(1+2*near))-r), math.Abs(of(v*(1-2*near))-r))
	}
	if !(eR < r) {
		return m, false
	}
	for i := lo; i < hi; i++ {
		d, e := step16(x.X[i]-mean, x.E(i)+eMean, u, true)
		w, we := d, e
		if o.Shift == rl.ShiftFalsePlain {
			w, we = x.X[i], x.E(i)
		}
		if o.EpsPlace == rl.AddStd {
			w, we = step16(w/r, (we+math.Abs(w/r)*eR)/(r-eR), u, false)
		} else {
			w, we = step16(w*r, we*(r+eR)+math.Abs(w)*eR, u, false)
		}
		if o.Shift == rl.ShiftFalseAddBack {
			w, we = step16(w+mean, we+eMean, u, true)
		}
		y.X[i], y.Err[i] = w, we
	}
	m.mean, m.eMean, m.v, m.eV = mean, eMean, v, ev
	return m, true
}

// whitenedAs16 chooses between the ways of the two by which of them the dumped numbers are, got: nil for the first of them.
func (c *Case) whitenedAs16(x Input, count []bool, o rl.WhitenOptions, lo, hi int, y Input, got []float64) (best moments, ok bool) {
	misses := func(p Input) (n int) {
		for i := lo; i < hi; i++ {
			if (count == nil || count[i]) && !(math.Abs(got[i]-p.X[i]) <= p.Err[i]) {
				n++
			}
		}
		return n
	}
	least := 0
	for _, way := range []func(y Input) (moments, bool){
		func(y Input) (moments, bool) { return whitened16(x, count, o, false, lo, hi, y) },
		func(y Input) (moments, bool) { return whitened16(x, count, o, true, lo, hi, y) },
		func(y Input) (moments, bool) { return whitened16Moments(x, count, o, false, false, lo, hi, y) },
		func(y Input) (moments, bool) { return whitened16Moments(x, count, o, true, false, lo, hi, y) },
		func(y Input) (moments, bool) { return whitened16Moments(x, count, o, false, true, lo, hi, y) },
	} {
		z := Input{X: make([]float64, len(y.X)), Err: make([]float64, len(y.X))}
		m, can := way(z)
		if !can {
			continue
		}
		n := 0
		if len(got) == len(y.X) {
			n = misses(z)
		}
		if !ok || n < least {
			copy(y.X[lo:hi], z.X[lo:hi])
			copy(y.Err[lo:hi], z.Err[lo:hi])
			best, ok, least = m, true, n
		}
	}
	return best, ok
}
