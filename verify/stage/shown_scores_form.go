package stage

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"plumbline/verify/convention"
)

// Changes returns what the rows of all steps show of the options of their advantages that set leaves open.
func (s *GroupScores) Changes(set *convention.Set) [][]Change {
	var lists [][]assign
	for _, f := range s.forms() {
		base := s.shownOf(&f)
		if f.scale == "none" {
			lists = append(lists, append(base, word("adv.center", f.center), word("adv.scale", "none")))
			continue
		}
		for _, list := range s.deviations(&f) {
			lists = append(lists, append(slices.Clone(base), list...))
		}
	}
	return openOf(lists, set)
}

// shownOf is what a form shows beside its centre and its scale.
func (s *GroupScores) shownOf(f *scoreForm) []assign {
	base := []assign{word("adv.kind", "group"), word("whiten.scope", "none")}
	if f.beta > 0 {
		base = append(base, word("kl.place", "sequence_reward_before_baseline"), amount("kl.beta", written(f.beta, 2e-3)))
		if s.plain {
			base = append(base, word("kl.kind", "k1"), word("kl.clamp_in", "none"), word("kl.clamp_out", "none"))
		}
	}
	return append(base, f.ends()...)
}

// deviations are the ways to take a deviation σ under which the u of a form are 1/(σ + ε) with one ε, that of the least spread first, with that number.
func (s *GroupScores) deviations(f *scoreForm) (lists [][]assign) {
	type way struct {
		list        []assign
		eps, spread float64
	}
	var ways []way
	over := 1
	if f.scale == "batch_std" && s.Over <= 1 {
		over = s.rollout(f)
	}
	for _, center := range []string{"loo", "mean"} {
		for _, of := range []string{"centred", "rewards"} {
			for ddof := range 2 {
				if of == "centred" && f.scale == "group_std" {
					continue
				}
				var eps []float64
				size := 0.0
				for at := 0; at+over <= len(s.steps); at += over {
					for _, x := range s.quotients(f, at, over, center, of, ddof) {
						eps, size = append(eps, x[0]), max(size, x[1])
					}
				}
				if len(eps) == 0 {
					continue
				}
				m := middle(slices.Clone(eps), 1)
				spread := 0.0
				for _, x := range eps {
					spread = max(spread, math.Abs(x-m))
				}
				if spread <= 1e-3*size && m >= -1e-4*size && m <= 0.02*size {
					list := []assign{word("adv.center", center), word("adv.scale", f.scale), word("adv.ddof", fmt.Sprint(ddof))}
					if f.scale == "batch_std" {
						list = append(list, word("adv.std_of", of))
					}
					ways = append(ways, way{list, m, spread})
				}
			}
		}
	}
	// of groups of one size the mean with half an ε is the mean of the others: one that people write comes first
	slices.SortStableFunc(ways, func(a, b way) int {
		if p := powerOfTen(a.eps, a.spread); p != powerOfTen(b.eps, b.spread) {
			return map[bool]int{true: -1, false: 1}[p]
		}
		return cmp.Compare(a.spread, b.spread)
	})
	for _, w := range ways {
		if w.eps <= max(w.spread, 2e-6) {
			lists = append(lists, w.list) // no ε shows: that of a release
			continue
		}
		for _, tol := range []float64{0.1, 1e-2} {
			lists = append(lists, append(slices.Clone(w.list), amount("adv.eps", written(w.eps, tol))))
		}
	}
	return lists
}

// powerOfTen reports whether an ε that is known to a spread is 10⁻ⁿ, or too small to show.
func powerOfTen(eps, spread float64) bool {
	const hidden = 2e-6
	log := math.Log10(eps)
	return math.Abs(eps) <= hidden && spread <= hidden || spread <= 0.1*eps && math.Abs(log-math.Round(log)) <= 0.05
}

// quotients returns 1/u − σ and σ, by the rows of some steps, or by those of each group.
func (s *GroupScores) quotients(f *scoreForm, at, over int, center, of string, ddof int) (list [][2]float64) {
	var all []float64
	unit := math.NaN()
	add := func(x []float64, u float64) {
		if sigma := math.Sqrt(momentsOf(x, nil, ddof, 0, 0).v); u > 0 && sigma > 0 {
			list = append(list, [2]float64{1/u - sigma, sigma})
		}
	}
	for i := at; i < at+over; i++ {
		for g, rows := range s.steps[i].groups {
			n := float64(len(rows))
			k := 1.0
			if center == "loo" {
				k = n / (n - 1)
			}
			var x []float64
			mean := 0.0
			for _, r := range rows {
				x = append(x, min(max(r.score, f.lo), f.hi)-f.beta*r.kl)
				mean += x[len(x)-1] / n
			}
			if f.scale == "group_std" {
				add(x, f.units[i][g]/k)
				continue
			}
			if u := f.units[i][g] / k; u > 0 {
				unit = u
			}
			for j := range x {
				if of == "centred" {
					x[j] = k * (x[j] - mean)
				}
			}
			all = append(all, x...)
		}
	}
	if f.scale == "batch_std" {
		add(all, unit)
	}
	return list
}

// ends are the bounds of a form as an option; of a side on which no score is held it is the other one's mirror.
func (f *scoreForm) ends() []assign {
	lo, hi := f.lo, f.hi
	switch {
	case math.IsInf(lo, 0) && math.IsInf(hi, 0):
		return nil
	case math.IsInf(lo, 0):
		lo = -hi
	case math.IsInf(hi, 0):
		hi = -lo
	}
	v, err := convention.Parse("reward.clip_range", fmt.Sprintf("%g,%g", lo, hi))
	if err != nil || !(lo < hi) {
		return nil
	}
	return []assign{word("reward.clip", "before_baseline"), {"reward.clip_range", v}}
}

// Rollout returns over how many steps the advantages were normalised together, 1 where none show it: their u is one number in blocks of as many steps,
// and another in each of these. Rows that come back are another pass over the same.
func (s *GroupScores) Rollout() int {
	forms := s.forms()
	if len(forms) == 0 || forms[0].scale != "batch_std" || s.Over > 1 {
		return 1
	}
	return s.rollout(&forms[0])
}

func (s *GroupScores) rollout(f *scoreForm) int {
	var u []float64
	for _, of := range f.units {
		u = append(u, slices.Max(append(of, 0)))
	}
	for n := len(u); n > 1; n-- {
		if blocks(u, n) && !s.again(n) {
			return n
		}
	}
	return 1
}

// blocks reports whether the numbers that are known of u are one in every n of them, and not in all where there are more than n.
func blocks(u []float64, n int) bool {
	const near = 1e-4
	of := slices.Repeat([]float64{math.NaN()}, (len(u)+n-1)/n)
	for i, x := range u {
		switch b := &of[i/n]; {
		case x == 0: // not known
		case math.IsNaN(*b):
			*b = x
		case math.Abs(x-*b) > near**b:
			return false
		}
	}
	for i := range of {
		if math.IsNaN(of[i]) || i > 0 && math.Abs(of[i]-of[i-1]) <= near*of[i] {
			return false
		}
	}
	return len(u)%n == 0
}

// again reports whether rows of the first n steps come back in them, which is another pass over what was normalised.
func (s *GroupScores) again(n int) bool {
	for i := range n {
		if slices.ContainsFunc(s.steps[:i], func(p scoredStep) bool { return slices.Equal(p.rows, s.steps[i].rows) }) {
			return true
		}
	}
	return false
}
