package stage

import (
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// groupBound bounds group advantages, and holds what they are made of.
type groupBound struct {
	bound, mean, std, size []float64
	level                  []level // of rewards in groups whose rewards are all the same
}

// gather returns the elements of x at ids.
func gather(x Input, ids []int) Input {
	y := Input{X: make([]float64, len(ids))}
	if x.Err != nil {
		y.Err = make([]float64, len(ids))
	}
	for k, i := range ids {
		y.X[k] = x.X[i]
		if x.Err != nil {
			y.Err[k] = x.Err[i]
		}
	}
	return y
}

// groupBounds bounds [rl.GroupAdvantage] of rewards r with errors e. With e_μ and e_v of [moments], the centred reward c has
//
//	mean  e_c = e + e_μ + u·|c|
//	loo   e_c = e + ((n+2)·u·Σ|r| + Σe)/(n−1) + 3u·n/(n−1)·(|r| + |μ|) + u·|c|
//
// which holds for r − (Σr − r)/(n − 1), for n/(n−1)·(r − μ) and for r·n/(n−1) − μ·n/(n−1); and c/(σ + ε) has the bound of
// [scaled] with 1/(√v + ε) over the interval v ± e_v.
//
// The variance of the others (NeMo-RL) is E[x²] − μ² in one pass: e_v = 3(n+3)·u·E[x²]·n/(n − ddof) + 2f·Σ|x|·e.
func groupBounds(r Input, members [][]int, o rl.GroupOptions, unit float64) groupBound {
	n := len(r.X)
	g := groupBound{make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n), make([]level, n)}
	var batch moments
	if o.Scale == rl.ScaleBatchStd && !o.BatchCentred {
		all := make([]int, 0, n)
		for i, v := range r.X {
			if !(o.SkipNaN && math.IsNaN(v)) {
				all = append(all, i)
			}
		}
		x := gather(r, all)
		batch = momentsOf(x.X, x.Err, o.DDof, 0, unit)
	}
	centred := Input{X: make([]float64, n), Err: make([]float64, n)}
	u := unit + tol.U64
	for _, ids := range members {
		var scorable []int
		for _, i := range ids {
			if !(o.SkipNaN && math.IsNaN(r.X[i])) {
				scorable = append(scorable, i)
			} else {
				centred.X[i] = math.NaN()
			}
		}
		x := gather(r, scorable)
		m := momentsOf(x.X, x.Err, o.DDof, 0, unit)
		k := float64(len(scorable))
		lone := k == 1 && (o.Center != rl.CenterNone || o.Scale == rl.ScaleGroupStd || o.Scale == rl.ScaleLOOStd)
		var size, err float64
		for j, v := range x.X {
			size += math.Abs(v)
			err += x.E(j)
		}
		// k equal numbers of which k and k − 1 are added and divided without an error are their own mean, with or without one of them.
		even := k > 1 && err == 0 && equal(x.X) && exactSum(x.X, unit) && exactMean(k*x.X[0], k) && exactMean((k-1)*x.X[0], k-1)
		still := o.ZeroStd == rl.ZeroStdZero && o.Center != rl.CenterNone && k > 1 && equal(x.X) && err == 0
		for j, i := range scorable {
			v, e := x.X[j], x.E(j)
			g.mean[i], g.std[i], g.size[i] = m.mean, math.Sqrt(m.v), k
			if k > 1 && o.Center == rl.CenterMean && equal(x.X) {
				g.level[i] = levelOf(v, k, m.eMean, unit, o)
			}
			c, eC := v, e
			switch {
			case lone:
				if o.Singleton != rl.SingletonRaw {
					c, eC = 0, 0
				}
			case still, even && o.Center == rl.CenterLOO:
				c, eC = 0, 0
			case o.Center == rl.CenterMean:
				c = v - m.mean
				eC = e + m.eMean + u*math.Abs(c)
			case o.Center == rl.CenterLOO:
				c = k / (k - 1) * (v - m.mean)
				eC = e + (foldError(len(x.X)+2, unit)*size+err)/(k-1) + 3*u*k/(k-1)*(math.Abs(v)+math.Abs(m.mean)) + u*math.Abs(c)
			}
			centred.X[i], centred.Err[i] = c, eC
			switch {
			case o.Scale == rl.ScaleBatchStd && !o.BatchCentred:
				g.std[i] = math.Sqrt(batch.v)
				rate, eR := batch.rate(standard(o.Eps), unit)
				g.bound[i] = scaled(c, eC, rate, eR, unit)
			case lone && (o.Scale == rl.ScaleGroupStd || o.Scale == rl.ScaleLOOStd):
				g.bound[i] = scaled(c, eC, 1/(1+o.Eps), 2*u, unit)
			case o.Scale == rl.ScaleGroupStd:
				rate, eR := m.rate(standard(o.Eps), unit)
				g.bound[i] = scaled(c, eC, rate, eR, unit)
				g.undivided(i, c, eC, rate, &m, o)
			case o.Scale == rl.ScaleLOOStd:
				rest := othersMoments(x, j, o.DDof, unit)
				g.std[i] = math.Sqrt(rest.v)
				rate, eR := rest.rate(standard(o.Eps), unit)
				g.bound[i] = scaled(c, eC, rate, eR, unit)
				g.undivided(i, c, eC, rate, &rest, o)
			default:
				g.bound[i] = eC
			}
		}
	}
	if o.Scale == rl.ScaleBatchStd && o.BatchCentred {
		g.batchCentred(centred, o, unit)
	}
	return g
}

// level is what rounding makes of the advantage of a reward x among k rewards that are all the same. The mean lies on the grid of the
// numbers about x, within its bound e of x, and x − mean is exact, so that the centred reward is a whole multiple of the grid; so are the
// deviations that σ is made of, whose mean may have been added up in another order. With n whole and n·grid ≤ e,
//
//	A = ± n·grid/(σ + ε), 0 ≤ σ ≤ e·√(k/(k − ddof))
//
// of which only n·grid/ε matters where ε is larger than e: far less than the bound of a sum in any order allows.
type level struct{ grid, most, spread, eps float64 }

func levelOf(x, k, most, unit float64, o rl.GroupOptions) level {
	if unit != tol.U32 || x == 0 {
		return level{}
	}
	fraction, exponent := math.Frexp(math.Abs(x))
	if fraction == 0.5 {
		exponent-- // numbers below a power of two are twice as dense
	}
	l := level{grid: math.Ldexp(2*unit, exponent-1), most: most, eps: 1}
	switch {
	case o.Scale == rl.ScaleGroupStd && o.Eps > 0 && o.ZeroStd == rl.ZeroStdDivide:
		l.eps, l.spread = o.Eps, math.Sqrt(k/(k-float64(o.DDof)))
	case o.Scale != rl.ScaleNone:
		return level{}
	}
	return l
}

// near returns the value nearest to out that rounding can give, with its bound; false where none is near.
func (l level) near(out float64) (ref, bound float64, ok bool) {
	switch {
	case l.grid == 0:
		return 0, 0, false
	case out == 0:
		return 0, 0, true
	}
	c := l.grid * max(1, math.Round(math.Abs(out)*l.eps/l.grid))
	high, low := c/l.eps, c/(l.eps+l.most*l.spread)
	ref, bound = math.Copysign((high+low)/2, out), (high-low)/2+4*tol.U32*high
	return ref, bound, c <= l.most && math.Abs(out-ref) <= bound
}

// undivided widens the bound of a reward that is not divided where σ = 0, if a program may find another σ = 0 than the
// reference does: to both c and c/(σ + ε).
func (g *groupBound) undivided(i int, c, eC, rate float64, m *moments, o rl.GroupOptions) {
	switch {
	case o.ZeroStd != rl.ZeroStdSkip || m.v-m.eV > 0:
	case m.eV == 0:
		g.bound[i] = eC
	default:
		g.bound[i] = max(g.bound[i], math.Abs(c-c*rate)) + eC
	}
}

// batchCentred normalises centred rewards again, over the batch.
func (g *groupBound) batchCentred(centred Input, o rl.GroupOptions, unit float64) {
	var all []int
	for i, v := range centred.X {
		if !math.IsNaN(v) {
			all = append(all, i)
		}
	}
	x := gather(centred, all)
	m := momentsOf(x.X, x.Err, o.DDof, 0, unit)
	rate, eR := m.rate(standard(o.Eps), unit)
	for j, i := range all {
		c := x.X[j] - m.mean
		g.std[i] = math.Sqrt(m.v)
		g.bound[i] = scaled(c, x.Err[j]+m.eMean+(unit+tol.U64)*math.Abs(c), rate, eR, unit)
		if o.ZeroStd == rl.ZeroStdZero && x.Err[j] == 0 && x.X[j] == 0 {
			g.bound[i] = 0 // a group of equal rewards stays 0
		}
	}
}

// othersMoments takes mean and variance of x without element skip. The standard deviation of a single one counts as 0.
func othersMoments(x Input, skip, ddof int, unit float64) moments {
	u := unit + tol.U64
	m := moments{n: len(x.X) - 1}
	if m.n < 2 {
		return m
	}
	n := float64(m.n)
	var sum, squares, cross, ss float64
	var others, square []float64
	for j, v := range x.X {
		if j != skip {
			others, square = append(others, v), append(square, v*v)
			sum += v
			squares += float64(v * v)
			cross += math.Abs(v) * x.E(j)
		}
	}
	m.mean = sum / n
	for j, v := range x.X {
		if j != skip {
			ss += float64((v - m.mean) * (v - m.mean))
		}
	}
	f := 1 / (n - float64(ddof))
	m.v = ss * f
	if x.Err == nil && equal(others) && exactSum(others, unit) && exactSum(square, unit) && exactMean(sum, n) && exactMean(squares, n) {
		m.v = 0
		return m // E[x²] and μ² are the same number
	}
	m.eV = 3*(foldError(m.n, unit)+3*u)*squares*f + 2*cross*f
	return m
}
