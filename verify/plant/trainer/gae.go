package trainer

import (
	"math"
	"slices"
)

// rowValues returns V of a row as the recursion takes it, and which cells hold a value.
func (r *run[F]) rowValues(row int) (v []F, valid []bool) {
	lo := row * r.cols
	v = slices.Clone(r.values0[lo : lo+r.cols])
	valid = make([]bool, r.cols)
	_, last := ends(r.mask[lo : lo+r.cols])
	if r.o.maskAll {
		last = r.cols - 1
	}
	switch r.plant {
	case "GAE-VALUE-SHIFT":
		copy(v, v[1:])
	case "GAE-EOS-VALUE-ZERO":
		if last >= 0 {
			v[last] = 0
		}
	}
	extra := 0
	if r.o.valueSpan == "p1" {
		extra = 1
	}
	for t := range valid {
		if r.o.hole == "none" || r.o.hole == "" {
			valid[t] = t <= last+extra || r.o.valueSpan == ""
		} else {
			valid[t] = r.counts(lo+t) || extra == 1 && t == last+1
		}
	}
	return v, valid
}

// gae runs the recursion from right to left and whitens.
func (r *run[F]) gae() {
	n := r.cells()
	r.values0, r.values1 = make([]F, n), make([]F, n)
	for i := range n {
		r.values0[i], r.values1[i] = r.num(r.values[i]), r.num(r.newValues[i])
		if r.FirstStep { // nothing has been updated yet
			r.values1[i] = r.values0[i]
		}
		if row, t := i/r.cols, i%r.cols; t > r.length[row] && r.fill == r.fill {
			r.values0[i], r.values1[i] = 0, 0
		}
	}
	r.adv, r.returns = make([]F, n), make([]F, n)
	for row := range r.rows {
		r.recursion(row)
	}
	raw := slices.Clone(r.adv)
	if r.o.whitenScope != "none" && r.o.whitenScope != "" && r.plant != "WHITEN-MISSING" {
		r.adv = r.whiten(r.adv, r.o.whitenShift)
	}
	if r.o.returnsAfter != (r.plant == "GAE-RETURNS-AFTER-WHITENING") {
		raw = r.adv
	}
	for row := range r.rows {
		lo := row * r.cols
		_, valid := r.rowValues(row)
		for t := range r.cols {
			i := lo + t
			switch {
			case r.o.returnsMask == "true" && !r.counts(i):
				r.returns[i] = 0
			case r.o.returnsMask == "masked_v" && !valid[t]:
				r.returns[i] = raw[i]
			default:
				r.returns[i] = r.add(raw[i], r.values0[i])
			}
		}
	}
}

// recursion stores the advantages of a row.
func (r *run[F]) recursion(row int) {
	lo := row * r.cols
	m := slices.Clone(r.mask[lo : lo+r.cols])
	v, valid := r.rowValues(row)
	x := r.token[lo : lo+r.cols]
	a := r.adv[lo : lo+r.cols]
	first, last := ends(m)
	if r.o.maskAll {
		for t := range m {
			m[t] = true
		}
		first, last = 0, r.cols-1
	}
	gamma, lambda := r.num(r.o.gamma), r.num(r.o.lambda)
	switch r.plant {
	case "GAE-NO-LAMBDA":
		lambda = 1
	case "GAE-TOOL-TOKENS":
		for t := first; first >= 0 && t <= last; t++ {
			m[t] = true
		}
	}
	decay := r.mul(gamma, lambda)
	// step returns r + γ·V_next − V + γλ·A_next.
	step := func(reward, value, vNext, aNext F) F {
		if r.plant == "GAE-R-MINUS-V" {
			return r.sub(reward, value)
		}
		delta := r.sub(r.add(reward, r.mul(gamma, vNext)), value)
		return r.add(delta, r.mul(decay, aNext))
	}
	// after is the value behind the last token.
	var after F
	switch {
	case last < 0:
	case r.plant == "GAE-LAST-INDEX" && last+1 < r.cols:
		after = v[last+1]
	case r.plant == "GAE-TRUNCATED-BOOTSTRAP" && r.eosAt[row] < 0:
		after = v[last]
	}
	var vNext, aNext F
	for t := r.cols - 1; t >= 0; t-- {
		rv, val := x[t], v[t]
		switch r.o.hole {
		case "carry":
			if !m[t] {
				a[t] = aNext
				continue
			}
			if t == last {
				vNext = after
			}
			a[t] = step(rv, val, vNext, aNext)
			vNext, aNext = val, a[t]
			continue
		case "zero_step":
			if !m[t] {
				rv, val = 0, 0
			}
		case "cut":
			if !m[t] || t == last {
				vNext, aNext = 0, 0
			}
		case "cut_next":
			if t+1 < r.cols && !m[t+1] {
				vNext, aNext = 0, 0
			}
		default:
			if !valid[t] {
				val = 0
			}
		}
		if t == last && after != 0 {
			vNext = after
		}
		a[t] = step(rv, val, vNext, aNext)
		vNext, aNext = val, a[t]
	}
}

// toGo returns the discounted sums of rewards from every token on. A hole costs a discount under zero_step.
func (r *run[F]) toGo(x []F, gamma float64, hole string) []F {
	y := make([]F, len(x))
	g := r.num(gamma)
	for row := range r.rows {
		var sum F
		for t := r.cols - 1; t >= 0; t-- {
			i := row*r.cols + t
			switch {
			case r.counts(i):
				sum = r.add(x[i], r.mul(g, sum))
			case r.plant == "RFPP-HOLE-DROPS":
				sum = 0
			case hole == "zero_step":
				sum = r.mul(g, sum)
			}
			y[i] = sum
		}
	}
	return y
}

// reinforcePlusPlus whitens the returns of the tokens.
func (r *run[F]) reinforcePlusPlus() {
	if r.o.broadcast {
		sums := make([]F, r.rows)
		for i := range sums {
			sums[i] = r.sum(picked(r.token[i*r.cols:(i+1)*r.cols], r.mask[i*r.cols:(i+1)*r.cols]))
		}
		r.returns = r.spread(sums)
	} else {
		r.returns = r.toGo(r.token, r.o.gamma, r.o.hole)
	}
	r.adv = slices.Clone(r.returns)
	if r.o.whitenScope != "none" && r.o.whitenScope != "" && r.plant != "WHITEN-MISSING" {
		r.adv = r.whiten(r.adv, r.o.whitenShift)
	}
}

// tokenBaseline subtracts from the returns of a token the mean over its group and column, weighted by the squared norm of the
// score function of the response so far.
func (r *run[F]) tokenBaseline() {
	r.returns = r.toGo(r.token, 1, "carry")
	r.adv = make([]F, r.cells())
	weight := make([]F, r.cells())
	for i := range r.rows {
		var w F
		for t := range r.cols {
			if c := i*r.cols + t; r.mask[c] {
				w += 1 - F(2*F(math.Exp(float64(r.lp[oldPolicy][c])))) + r.piSquared[c]
				weight[c] = w
			}
		}
	}
	for _, rows := range r.members() {
		var ends []int
		for _, i := range rows {
			ends = append(ends, count(r.mask[i*r.cols:(i+1)*r.cols]))
		}
		longest := slices.Index(ends, slices.Max(ends))
		second := slices.Max(append(slices.Delete(slices.Clone(ends), longest, longest+1), 0))
		for t := range r.cols {
			var top, bottom []F
			for _, i := range rows {
				if c := i*r.cols + t; r.mask[c] {
					top, bottom = append(top, r.mul(r.returns[c], weight[c])), append(bottom, weight[c])
				}
			}
			base := r.div(r.sum(top), r.add(r.sum(bottom), r.num(1e-8)))
			for k, i := range rows {
				c := i*r.cols + t
				if !r.mask[c] {
					continue
				}
				b := base
				if len(rows) == 1 || k == longest && t >= second {
					b = 0
				}
				r.adv[c] = r.sub(r.returns[c], b)
			}
		}
	}
}
