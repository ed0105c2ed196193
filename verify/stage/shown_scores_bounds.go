package stage

import (
	"cmp"
	"math"
	"slices"
)

// bounds finds at which numbers scores are held under the β of a form: every row is as due, or at one number above which none is, or below. What a group
// subtracts is what most of its rows agree on; where scores are held on one side alone it is the least of what its rows have, or the most.
func (s *GroupScores) bounds(f *scoreForm, units func(step int) func(g, n int) float64) bool {
	most, some := s.boundsBy(f, units, agreed)
	if most && !some {
		return true
	}
	among := *f
	for _, subtracted := range []func(of []bracket) (c float64, n int){endOf(-1), endOf(1)} {
		if ok, _ := s.boundsBy(f, units, subtracted); ok {
			return true
		}
	}
	if s.boundsOfEither(f, units) {
		return true
	}
	*f = among
	return most
}

// agreed is [mostCovered] where two intervals overlap at least.
func agreed(of []bracket) (c float64, n int) {
	if c, n = mostCovered(of); n < 2 {
		return 0, 0
	}
	return c, n
}

// endOf returns the lowest of intervals for a sign of −1, the highest for 1, and how many hold its middle.
func endOf(sign float64) func(of []bracket) (c float64, n int) {
	return func(of []bracket) (c float64, n int) {
		end := slices.MaxFunc(of, func(a, b bracket) int { return cmp.Compare(sign*(a.lo+a.hi), sign*(b.lo+b.hi)) })
		c = (end.lo + end.hi) / 2
		for _, x := range of {
			if x.lo <= c && c <= x.hi {
				n++
			}
		}
		return c, n
	}
}

// boundsBy is bounds where a group subtracts what subtracted says of the intervals of its rows, and whether it says nothing of some group.
func (s *GroupScores) boundsBy(f *scoreForm, units func(step int) func(g, n int) float64, subtracted func(of []bracket) (c float64, n int)) (ok, silent bool) {
	var highs, lows []float64
	due, all := 0, 0
	top, bottom := math.Inf(-1), math.Inf(1) // of the scores that are as due
	for i := range s.steps {
		p := &s.steps[i]
		for g, rows := range p.groups {
			u := units(i)(g, len(rows))
			rows = slices.DeleteFunc(slices.Clone(rows), func(x scoredRow) bool { return math.IsNaN(x.adv) })
			if all += len(rows); !(u > 0) {
				continue
			}
			if len(rows) == 0 {
				continue
			}
			var of []bracket
			for _, x := range rows {
				c, w := x.adv/u-(x.score-f.beta*x.kl), p.apart(&x, &x, u)+f.beta*x.errKL+1e-6*f.beta*math.Abs(x.kl)
				of = append(of, bracket{lo: c - w, hi: c + w})
			}
			c, n := subtracted(of)
			if due += n; n < 1 {
				silent = true
				continue
			}
			for k, x := range rows {
				if of[k].lo <= c && c <= of[k].hi {
					top, bottom = max(top, x.score), min(bottom, x.score)
				} else if held := x.adv/u + f.beta*x.kl - c; held < x.score {
					highs = append(highs, held)
				} else {
					lows = append(lows, held)
				}
			}
		}
	}
	var one [2]bool
	f.hi, one[0] = oneBound(highs, math.Inf(1))
	f.lo, one[1] = oneBound(lows, math.Inf(-1))
	const near = 1e-3
	return 3*due >= all && one[0] && one[1] && top <= f.hi+near*math.Abs(f.hi) && bottom >= f.lo-near*math.Abs(f.lo), silent
}

// boundsOfEither finds the bounds under which every group is explained, rows that are held at both or at one alone: of a group in which rows disagree the
// highest of what they have may be due where the others are held at hi, or the lowest where they are held at lo, so that some such groups say what either is.
func (s *GroupScores) boundsOfEither(f *scoreForm, units func(step int) func(g, n int) float64) bool {
	const near, most = 1e-3, 8
	within := func(x, y float64) bool { return !math.IsInf(y, 0) && math.Abs(x-y) <= near*math.Abs(y)+1e-5 }
	type group struct {
		p    *scoredStep
		rows []scoredRow
		u    float64
	}
	due := func(g group, x scoredRow, lo, hi float64) bracket { // what the group subtracts by a row
		c := x.adv/g.u - (min(max(x.score, lo), hi) - f.beta*x.kl)
		w := g.p.apart(&x, &x, g.u) + f.beta*x.errKL + 1e-6*f.beta*math.Abs(x.kl)
		return bracket{lo: c - w, hi: c + w}
	}
	agrees := func(g group, lo, hi float64, wider float64) bool {
		least, largest := math.Inf(1), math.Inf(-1)
		for _, x := range g.rows {
			d := due(g, x, lo, hi)
			least, largest = min(least, d.hi), max(largest, d.lo)
		}
		return largest <= least+wider
	}
	var groups []group
	ends := [2][]float64{{math.Inf(1)}, {math.Inf(-1)}} // candidates of hi and lo
	untold := 0
	for i := range s.steps {
		for k, rows := range s.steps[i].groups {
			g := group{&s.steps[i], rows, units(i)(k, len(rows))}
			if !(g.u > 0) || slices.ContainsFunc(rows, func(x scoredRow) bool { return math.IsNaN(x.adv) }) {
				untold++
				continue
			}
			if groups = append(groups, g); agrees(g, math.Inf(-1), math.Inf(1), 0) {
				continue
			}
			for side, sign := range []float64{1, -1} {
				var of []bracket
				for _, x := range rows {
					of = append(of, due(g, x, math.Inf(-1), math.Inf(1)))
				}
				c, _ := endOf(sign)(of)
				for j, x := range rows {
					if held := written(x.adv/g.u+f.beta*x.kl-c, near); !(of[j].lo <= c && c <= of[j].hi) && len(ends[side]) <= most &&
						!slices.ContainsFunc(ends[side], func(y float64) bool { return within(held, y) }) {
						ends[side] = append(ends[side], held)
					}
				}
			}
		}
	}
	if untold > 2*len(groups) {
		return false
	}
	for _, hi := range ends[0] {
		for _, lo := range ends[1] {
			wider := 0.0
			for _, x := range []float64{hi, lo} {
				if !math.IsInf(x, 0) {
					wider += near*math.Abs(x) + 1e-5
				}
			}
			if lo < hi && !slices.ContainsFunc(groups, func(g group) bool { return !agrees(g, lo, hi, wider) }) {
				f.hi, f.lo = hi, lo
				return true
			}
		}
	}
	return false
}

// oneBound returns the number that all of list are, none if there are none.
func oneBound(list []float64, none float64) (x float64, ok bool) {
	if len(list) == 0 {
		return none, true
	}
	m := middle(slices.Clone(list), 1)
	for _, x := range list {
		if math.Abs(x-m) > 1e-3*math.Abs(m)+1e-5 {
			return 0, false
		}
	}
	return written(m, 1e-3), true
}
