package stage

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// Laws of the baseline are stated for scores without KL, and not clipped: those are options of their own.
const baseline = "kl.beta=0 kl.adaptive=none reward.clip=none eos.rule=none adv.multi=sum_then_normalize "

// openGroups is what profiles leave open or, for numbers per response, do not say.
const openGroups = "adv.singleton=zero adv.group_by=uid whiten.mask=response mean.eps=0 kl.place=loss "

func grouped(set *convention.Set) bool { return has("adv.kind", "group", "batch_baseline", "raw")(set) }

// byGroup applies to advantages among the responses to one prompt.
func byGroup(set *convention.Set) bool { return has("adv.kind", "group")(set) }

func scales(set *convention.Set) bool {
	return byGroup(set) && !has("adv.scale", "none")(set) || whitens(set) && grouped(set)
}

var byStride = fault{before: func(_ *subject, b *dump.Batch) *dump.Batch {
	return b.With("group_id", mapped(b.Row("group_id"), func(i int, _ float64) float64 { return float64(i / 2) }))
}}

var wrongBaseline = map[string]fault{
	"groups by stride": byStride,
	"one group of all": {before: func(_ *subject, b *dump.Batch) *dump.Batch {
		return b.With("group_id", make([]float64, b.Rows))
	}},
	"no baseline":     {options: "adv.kind=raw"},
	"not centred":     {options: "adv.center=none"},
	"σ of the batch":  {options: "adv.scale=batch_std adv.std_of=rewards adv.ddof=1 adv.eps=1e-4 adv.zero_std=divide_eps"},
	"σ of the others": {options: "adv.scale=loo_std adv.ddof=0 adv.eps=1e-4 adv.zero_std=divide_eps"},
	"ε of 10⁻²":       {options: "adv.eps=1e-2 whiten.eps=1e-2"},
	"not scaled":      {options: "adv.scale=none whiten.scope=none"},
	"a constant":      addsConstant,
	"the first row's share": {after: func(_ *subject, b *dump.Batch, p *Prediction) {
		for i := range p.Want {
			p.Want[i] += 1e-6 * b.Row("scores")[0]
		}
	}},
}

var groupLaws = []law{{
	name: "a shift of a group's rewards changes nothing (B)", given: baseline, open: openGroups, where: grouped,
	holds: func(s *subject) string {
		b := s.responses(s.dyadic)
		of := b.of()
		c := s.draw(len(b.group), func() float64 { return float64(s.r.IntN(16) - 8) })
		p, q := s.groupAdvantage(b.grid), s.groupAdvantage(b.with(mapped(b.scores(), func(i int, r float64) float64 { return r + c[of[i]] })).grid)
		return near(nil, q.Want, p.Want, func(i int) float64 { return p.Bound[i] + q.Bound[i] })
	},
	faults: and(only(wrongBaseline, "groups by stride", "one group of all", "no baseline", "not centred", "σ of the batch"), "clipped at 6", fault{before: func(_ *subject, b *dump.Batch) *dump.Batch {
		return b.With("scores", mapped(b.Row("scores"), func(_ int, r float64) float64 { return min(r, 6) }))
	}}),
}, {
	name: "a factor of 4 changes nothing without ε (E)", given: baseline + "adv.eps=0 whiten.eps=0", open: openGroups, where: grouped,
	holds: func(s *subject) string {
		b := s.responses(s.r.NormFloat64)
		return identical(nil, s.groupAdvantage(b.with(mapped(b.scores(), func(_ int, r float64) float64 { return 4 * r })).grid).Want, s.groupAdvantage(b.grid).Want)
	},
	faults: only(wrongBaseline, "ε of 10⁻²", "not scaled"),
}, {
	name: "a factor of 4 changes nothing (E)", given: baseline, open: openGroups, where: scales, // no profile is without an ε
	holds: func(s *subject) string {
		b := s.responses(s.r.NormFloat64)
		return identical(nil, s.groupAdvantage(b.with(mapped(b.scores(), func(_ int, r float64) float64 { return 4 * r })).grid).Want, s.groupAdvantage(b.grid).Want)
	},
}, {
	name: "a factor of 4 changes no more than ε lets it (B)", given: baseline, open: openGroups, where: scales,
	holds: func(s *subject) string {
		b := s.responses(s.r.NormFloat64)
		p, q := s.groupAdvantage(b.grid), s.groupAdvantage(b.with(mapped(b.scores(), func(_ int, r float64) float64 { return 4 * r })).grid)
		return near(nil, q.Want, p.Want, func(i int) float64 {
			var change float64 // of (σ + ε)/(σ + ε/4), or of √((v + ε)/(v + ε/16))
			if sigma := p.term(i, "std"); sigma > 0 {
				change = s.num("adv.eps", 0) / sigma
			}
			if sigma := p.term(i, "whitening std"); sigma > 0 {
				change += s.num("whiten.eps", 0) / (sigma * sigma)
			}
			return p.Bound[i] + q.Bound[i] + math.Abs(p.Want[i])*change
		})
	},
	faults: only(wrongBaseline, "ε of 10⁻²", "not scaled", "the first row's share"),
}, {
	name: "a factor of −1 changes signs (E)", given: baseline, open: openGroups, where: grouped,
	holds: func(s *subject) string {
		b := s.responses(s.r.NormFloat64)
		minus := func(_ int, r float64) float64 { return -r }
		return identical(nil, s.groupAdvantage(b.with(mapped(b.scores(), minus)).grid).Want, mapped(s.groupAdvantage(b.grid).Want, minus))
	},
	faults: only(wrongBaseline, "a constant"),
}, {
	name: "rows in any order, groups by id (B)", given: baseline, open: openGroups, where: grouped,
	holds: func(s *subject) string {
		b := s.responses(s.r.NormFloat64)
		order := s.r.Perm(b.Rows)
		p, q := s.groupAdvantage(b.grid), s.groupAdvantage(b.only(order))
		return near(nil, q.Want, permuted(p.Want, order, 1), func(i int) float64 { return q.Bound[i] + p.Bound[order[i]] })
	},
	faults: only(wrongBaseline, "groups by stride", "the first row's share"),
}, {
	name: "the order of the groups (E)", given: baseline, open: openGroups, where: grouped,
	holds: func(s *subject) string {
		b := s.responses(s.r.NormFloat64)
		if s.text("adv.kind", "") == "batch_baseline" {
			b.group = [][]int{b.group[0][:1], b.group[0][1:]}
		}
		order := slices.Concat(b.group...)
		slices.Reverse(b.group)
		other := slices.Concat(b.group...)
		p, q := s.groupAdvantage(b.only(order)).Want, s.groupAdvantage(b.only(other)).Want
		of := make([]float64, b.Rows)
		for k, r := range order {
			of[r] = p[k]
		}
		return identical(nil, q, permuted(of, other, 1))
	},
	faults: only(wrongBaseline, "groups by stride", "the first row's share"),
}, {
	name: "another group's rewards do not matter (E)", given: baseline, open: openGroups, where: grouped,
	holds: func(s *subject) string {
		b := s.responses(s.r.NormFloat64)
		on := make([]bool, b.Rows)
		if s.text("adv.kind", "") == "batch_baseline" {
			b.group = [][]int{b.group[0][:1]}
		}
		for _, r := range b.group[0] {
			on[r] = true
		}
		other := b.with(mapped(b.scores(), func(i int, r float64) float64 {
			if on[i] {
				return r
			}
			return 100 * s.r.NormFloat64()
		}))
		return identical(on, s.groupAdvantage(other.grid).Want, s.groupAdvantage(b.grid).Want)
	},
	faults: only(wrongBaseline, "groups by stride", "one group of all", "σ of the batch", "the first row's share"),
}, {
	name: "a group of any size is what it is alone (E)", given: baseline, open: openGroups, where: grouped,
	holds: func(s *subject) string {
		b := s.responses(s.r.NormFloat64)
		if s.text("adv.kind", "") == "batch_baseline" {
			b.group = [][]int{b.group[0][:1], b.group[0][1:]}
		}
		p := s.groupAdvantage(b.grid)
		for _, rows := range b.group {
			if broken := identical(nil, s.groupAdvantage(b.only(rows)).Want, permuted(p.Want, rows, 1)); broken != "" {
				return broken
			}
		}
		return ""
	},
	faults: only(wrongBaseline, "groups by stride", "one group of all", "σ of the batch", "the first row's share"),
}, {
	name: "the advantages of a group add up to 0 (B)", given: baseline, open: openGroups, where: grouped,
	holds: func(s *subject) string {
		b := s.responses(s.r.NormFloat64)
		p := s.groupAdvantage(b.grid)
		for _, rows := range b.group {
			var sum, bound float64
			for _, r := range rows {
				sum += p.Want[r]
				bound += p.Bound[r] + float64(len(rows))*tol.U64*math.Abs(p.Want[r])
			}
			if !(math.Abs(sum) <= bound) {
				return fmt.Sprintf("group of rows %v: %v, where %.3g is possible", rows, sum, bound)
			}
		}
		return ""
	},
	faults: only(wrongBaseline, "groups by stride", "no baseline", "not centred", "σ of the others", "a constant"),
}, {
	name: "equal rewards whose sum is exact give exactly 0 (E)", given: baseline, open: openGroups, where: grouped,
	holds:  func(s *subject) string { return s.equalRewards(s.dyadic()) },
	faults: only(wrongBaseline, "groups by stride", "no baseline", "not centred", "a constant"),
}, {
	name: "equal rewards give exactly 0 (E)", given: baseline, open: openGroups, where: grouped,
	holds:  func(s *subject) string { return s.equalRewards(s.r.NormFloat64()) },
	faults: only(wrongBaseline, "groups by stride", "no baseline", "not centred", "a constant"),
}, {
	name: "a group of one gives 0 (E)", given: baseline, open: openGroups, where: func(set *convention.Set) bool { return has("adv.kind", "group", "raw")(set) },
	holds: func(s *subject) string {
		b := s.responses(s.r.NormFloat64)
		id := slices.Clone(b.Row("group_id"))
		r := s.r.IntN(b.Rows)
		id[r] = 99
		// A group of which one is left is one, too.
		on := make([]bool, b.Rows)
		for i, x := range id {
			n := 0
			for _, y := range id {
				if x == y {
					n++
				}
			}
			on[i] = n == 1
		}
		return identical(on, s.groupAdvantage(replaced(b.grid, "group_id", id)).Want, make([]float64, b.Rows))
	},
	faults: map[string]fault{"adv.singleton raw": {options: "adv.singleton=raw"}, "adv.singleton nan": {options: "adv.singleton=nan"}},
}, {
	name: "a reward that is NaN is left out (E)", given: baseline, open: openGroups, where: grouped,
	holds: func(s *subject) string {
		b := s.responses(s.r.NormFloat64)
		for g := range b.group { // two are left
			b.group[g] = append(b.group[g], b.Rows+g)
		}
		extra := len(b.group)
		rows := make([]int, 0, b.Rows+extra)
		for r := range b.Rows {
			rows = append(rows, r)
		}
		for _, members := range b.group {
			rows = append(rows, members[0])
		}
		more := b.only(rows)
		score := slices.Clone(more.Row("scores"))
		for k := b.Rows; k < len(score); k++ {
			score[k] = math.NaN()
		}
		want := append(slices.Clone(s.groupAdvantage(b.grid).Want), make([]float64, extra)...)
		return identical(nil, s.groupAdvantage(replaced(more, "scores", score)).Want, want)
	},
	faults: map[string]fault{"NaN is 0": {before: func(_ *subject, b *dump.Batch) *dump.Batch {
		return b.With("scores", mapped(b.Row("scores"), func(_ int, r float64) float64 {
			if math.IsNaN(r) {
				return 0
			}
			return r
		}))
	}}, "no groups": {options: "adv.kind=raw"}},
}, {
	name: "one scored response of a group gives no NaN (E)", given: baseline, open: openGroups, where: grouped,
	holds: func(s *subject) string {
		b := s.responses(s.r.NormFloat64)
		score := slices.Clone(b.scores())
		for _, r := range b.group[0][1:] {
			score[r] = math.NaN()
		}
		for i, a := range s.groupAdvantage(b.with(score).grid).Want {
			if math.IsNaN(a) {
				return fmt.Sprint("row ", i, " is NaN")
			}
		}
		return ""
	},
	faults: map[string]fault{"0/0": {after: func(_ *subject, b *dump.Batch, p *Prediction) {
		for i, r := range b.Row("scores") {
			p.Want[i] += 0 * r
		}
	}}},
}, {
	name: "leave-one-out is n/(n−1)·(r − mean) (B)", given: baseline + "adv.scale=none", open: openGroups, where: byGroup,
	holds: func(s *subject) string {
		b := s.responses(s.r.NormFloat64)
		p, q := s.with("adv.center=loo").groupAdvantage(b.grid), s.with("adv.center=mean").groupAdvantage(b.grid)
		want, bound := make([]float64, b.Rows), make([]float64, b.Rows)
		for _, rows := range b.group {
			k := float64(len(rows)) / float64(len(rows)-1)
			for _, r := range rows {
				want[r], bound[r] = k*q.Want[r], p.Bound[r]+k*q.Bound[r]+3*tol.U64*math.Abs(k*q.Want[r])
			}
		}
		return near(nil, p.Want, want, func(i int) float64 { return bound[i] })
	},
	faults: map[string]fault{"adv.center mean": {options: "adv.center=mean"}, "a constant": addsConstant},
}, {
	name: "Dr.GRPO divides by nothing (E)", given: baseline + "adv.scale=none adv.center=mean", open: openGroups, where: byGroup,
	holds: func(s *subject) string {
		b := s.responses(s.r.NormFloat64)
		return identical(nil, s.groupAdvantage(b.with(doubled(b.scores())).grid).Want, doubled(s.groupAdvantage(b.grid).Want))
	},
	faults: map[string]fault{"σ of the group": {options: "adv.scale=group_std adv.ddof=1 adv.eps=0 adv.zero_std=divide_eps"}},
}, {
	name: "all tokens of a response have its advantage (E)", given: baseline, open: openGroups, where: grouped,
	holds: func(s *subject) string {
		b := s.responses(s.r.NormFloat64)
		p := s.groupAdvantage(grid{b.Without("advantages")})
		perRow := s.groupAdvantage(b.grid).Want
		for r := range b.Rows {
			first := -1
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				switch {
				case !b.Mask[i]:
				case first < 0:
					first = i
				case p.Want[i] != p.Want[first]:
					return at(b.Batch, i) + ": another advantage than that of the first token"
				}
			}
			if !whitens(s.set) && p.Want[first] != perRow[r] { // tokens have other moments than responses
				return fmt.Sprintf("row %d: %v and %v", r, p.Want[first], perRow[r])
			}
		}
		return ""
	},
	faults: map[string]fault{"spread over the tokens": {after: func(_ *subject, b *dump.Batch, p *Prediction) {
		for i := range p.Want {
			p.Want[i] *= 1 + 1e-6*float64(i%b.Cols)
		}
	}}, "divided by the length": {after: func(_ *subject, b *dump.Batch, p *Prediction) {
		if len(p.Want) > b.Rows {
			for i := range p.Want {
				p.Want[i] /= 2
			}
		}
	}}},
}, {
	name: "equal rewards of a group have equal advantages (E)", given: baseline, open: openGroups, where: grouped,
	holds:  func(s *subject) string { return s.equalPair(func(*Prediction, int) float64 { return 0 }) },
	faults: unequal,
}, {
	name: "equal rewards of a group have equal advantages (B)", given: baseline, open: openGroups, where: grouped,
	holds:  func(s *subject) string { return s.equalPair(func(p *Prediction, i int) float64 { return p.Bound[i] }) },
	faults: unequal,
}, {
	name: "|A| is at most (n−1)/√n for ddof 1, √(n−1) for ddof 0 (B)", given: baseline, open: openGroups,
	where: func(set *convention.Set) bool { return byGroup(set) && has("adv.scale", "group_std")(set) },
	holds: func(s *subject) string {
		b := s.responses(func() float64 { return math.Exp(6 * s.r.NormFloat64()) })
		for _, ddof := range []string{"0", "1"} {
			p := s.with("adv.center=mean adv.ddof=" + ddof).groupAdvantage(b.grid)
			for _, rows := range b.group {
				n := float64(len(rows))
				most := math.Sqrt(n - 1)
				if ddof == "1" {
					most = (n - 1) / math.Sqrt(n)
				}
				for _, r := range rows {
					if !(math.Abs(p.Want[r]) <= most+p.Bound[r]) {
						return fmt.Sprintf("row %d: %v of a group of %v", r, p.Want[r], n)
					}
				}
			}
		}
		return ""
	},
	faults: map[string]fault{"not scaled": {options: "adv.scale=none"}, "the other ddof": {options: "adv.ddof=0"}, "leave-one-out": {options: "adv.center=loo"}},
}}
