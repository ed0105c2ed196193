package stage

import (
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// normalizeThenSum is [rl.MultiAdvantage] in the second order. The sum of the normalised rewards adds (F + 1)·u·Σ|w·z|.
func (c *Case) normalizeThenSum(s sequence, group []int, members [][]int, o rl.GroupOptions) sequence {
	rewards, w := c.rewardsPerFunc()
	if !c.OK() {
		return s
	}
	b, f := c.B, len(w)
	o.SkipNaN = true
	sum, err := make([]float64, b.Rows), make([]float64, b.Rows)
	z := make([]float64, b.Rows)
	for k, weight := range w {
		in := Input{X: z}
		if rewards.Err != nil {
			in.Err = make([]float64, b.Rows)
		}
		for i := range z {
			z[i] = rewards.X[i*f+k]
			if in.Err != nil {
				in.Err[i] = rewards.E(i*f + k)
			}
		}
		o.Singleton = rl.SingletonError
		c.lone(z, members, s.complete, &o)
		if !c.OK() {
			return s
		}
		y, e := rl.GroupAdvantage(nil, z, group, o)
		if e != nil {
			c.refused(e)
			return s
		}
		g := groupBounds(in, members, o, c.Unit)
		for i, v := range y {
			sum[i] += float64(v * weight)
			err[i] += math.Abs(weight)*g.bound[i] + float64(f+1)*(c.Unit+tol.U64)*math.Abs(v*weight)
		}
	}
	x, e := rl.MultiAdvantage(nil, rewards.X, w, group, rl.NormalizeThenSum, o)
	if e != nil {
		c.refused(e)
		return s
	}
	for i, v := range rl.WeightedReward(nil, rewards.X, w, b.Rows) {
		if math.IsNaN(v) {
			sum[i] = v
		}
	}
	batch := rl.GroupOptions{Scale: rl.ScaleGroupStd, DDof: o.DDof, Eps: o.Eps, ZeroStd: o.ZeroStd, Singleton: rl.SingletonZero, SkipNaN: true}
	g := groupBounds(Input{X: sum, Err: err}, membersOf(make([]int, b.Rows)), batch, c.Unit)
	s.Input = Input{X: x, Err: g.bound}
	s.terms = func(i int) []Term {
		return []Term{{"sum of the normalised rewards", sum[i]}, {"batch mean", g.mean[i]}, {"batch std", g.std[i]}, {"adv.eps", o.Eps}}
	}
	return s
}

// opo bounds r − Σ len·r/Σ len by e + (n + 2)·u·Σ len·|r|/Σ len + Σ len·e/Σ len + u·|A|.
func (c *Case) opo(s sequence, r Input, group []int, members [][]int) sequence {
	b := c.B
	length := make([]float64, b.Rows)
	for i := range b.Tokens() {
		length[i/b.Cols]++
	}
	s.Input = Input{X: rl.OPOAdvantage(nil, r.X, length, group), Err: make([]float64, b.Rows)}
	base := make([]float64, b.Rows)
	for _, ids := range members {
		var size, err, tokens float64
		for _, i := range ids {
			size += length[i] * math.Abs(r.X[i])
			err += length[i] * r.E(i)
			tokens += length[i]
		}
		for _, i := range ids {
			base[i] = r.X[i] - s.X[i]
			s.Err[i] = r.E(i) + (c.Unit+tol.U64)*math.Abs(s.X[i])
			if len(ids) > 1 {
				s.Err[i] += (foldError(len(ids)+2, c.Unit)*size + err) / tokens
			}
		}
	}
	s.terms = func(i int) []Term {
		return []Term{{"reward", r.X[i]}, {"length-weighted mean of the group", base[i]}, {"tokens", length[i]}}
	}
	return s
}

// passK bounds (r₍₁₎ − r₍₂₎)/(σ + ε) as a centred reward with the errors of both. Rewards with errors may swap places.
func (c *Case) passK(s sequence, r Input, group []int, members [][]int) sequence {
	scale := c.inapplicable("adv.scale", "group_std") != "none"
	eps := 0.0
	if scale {
		eps = max(c.NumOr("adv.eps", 0), 0)
	}
	if !c.OK() {
		return s
	}
	x, err := rl.PassKAdvantage(nil, r.X, group, scale, eps)
	if err != nil {
		c.refused(err)
		return s
	}
	u := c.Unit + tol.U64
	s.Input = Input{X: x, Err: make([]float64, len(x))}
	std := make([]float64, len(x))
	for _, ids := range members {
		y := gather(r, ids)
		m := momentsOf(y.X, y.Err, 1, 0, c.Unit)
		rate, eR := m.rate(standard(eps), c.Unit)
		best := ids[0]
		for _, i := range ids {
			std[i] = math.Sqrt(m.v)
			if r.X[i] > r.X[best] {
				best = i
			}
		}
		for _, i := range ids {
			if r.X[i]+r.E(i)+r.E(best) < r.X[best] {
				continue
			}
			second, e := math.Inf(-1), 0.0
			for _, k := range ids {
				if k != best {
					second = max(second, r.X[k])
				}
				if k != i {
					e = max(e, r.E(k))
				}
			}
			d := r.X[best] - second
			e += r.E(i) + u*math.Abs(d)
			s.Err[i] = e
			if scale {
				s.Err[i] = scaled(d, e, rate, eR, c.Unit)
			}
		}
	}
	s.terms = func(i int) []Term { return []Term{{"reward", r.X[i]}, {"group std", std[i]}} }
	return s
}

// gpg bounds α·(r − μ), α = N/N₊, by α times that of r − μ and 3u·|A|.
func (c *Case) gpg(s sequence, r Input, group []int, members [][]int) sequence {
	c.wholeBatch()
	if !c.OK() {
		return s
	}
	g := groupBounds(r, members, rl.GroupOptions{Singleton: rl.SingletonRaw}, c.Unit)
	x := rl.GPGAdvantage(nil, r.X, group, 1)
	nonzero := 0
	for _, v := range r.X {
		if v != 0 {
			nonzero++
		}
	}
	alpha := float64(len(x)) / float64(max(1, nonzero))
	for i, v := range x {
		g.bound[i] = alpha*g.bound[i] + 3*(c.Unit+tol.U64)*math.Abs(v)
	}
	s.Input = Input{X: x, Err: g.bound}
	s.terms = func(i int) []Term {
		return []Term{{"reward", r.X[i]}, {"group mean", g.mean[i]}, {"responses per rewarded one", alpha}}
	}
	return s
}
