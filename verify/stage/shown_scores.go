package stage

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/tol"
)

// scoredRow is a response with its score, the sum of its KL and its advantage.
type scoredRow struct{ score, kl, adv, errKL float64 }

// scoredStep is the responses of a step by groups, or of the steps of a rollout whose groups are cut over them.
type scoredStep struct {
	groups  [][]scoredRow
	rows    []float64 // their scores, in their order
	largest float64   // of what is compared
	of      map[float64][]scoredRow
	parts   int // steps
	last    int // of them
}

// GroupScores collects responses of which nothing declares what becomes of their scores before a baseline is subtracted: in
// A = u·(min(max(s, lo), hi) − β·K − c) + b, with c one number of a group and u one of all rows, of a step or of a group, two rows of a group differ by
// u·((s − s') − β·(K − K')) where neither is held. What most pairs have in common is β; rows that differ from it were held at a bound (TRL 1.16.0,
// RLOOTrainer: reward_clip_range, beta, normalize_advantages).
type GroupScores struct {
	Over  int // steps over which the rows of a rollout were shuffled: their groups are whole in all of them together; up to 1: in each
	steps []scoredStep
	plain bool // their KL is log π − log π_ref, for want of what was dumped
	other bool // some step has not what it takes
	// what they have in common, once that was sought
	found  []scoreForm
	solved bool
}

// mostScored bounds the rows that are kept.
const mostScored = 2048

// Add takes the rows of a step.
func (s *GroupScores) Add(b *dump.Batch) {
	score, id, adv := b.Row("scores"), b.Row("group_id"), rowAdvantages(b)
	if s.other = s.other || len(score) != b.Rows || len(id) != b.Rows || len(adv) != b.Rows || len(b.Missing) > 0 || variesInRow(b); s.other {
		return
	}
	begins := true
	if n := len(s.steps); n > 0 {
		p := &s.steps[n-1]
		begins = p.parts >= s.Over
		if s.other = !begins && b.Meta.Step != p.last+1; s.other || begins && n*len(p.rows) > mostScored {
			return
		}
	}
	if begins {
		s.steps = append(s.steps, scoredStep{of: map[float64][]scoredRow{}})
	}
	kl, size := sumsOfKL(b), sizesOfKL(b)
	s.plain = b.Row("kl") == nil && b.Token("kl") == nil
	step := &s.steps[len(s.steps)-1]
	perRow := len(b.Row("advantages")) == b.Rows
	for r, tokens := range (&Case{B: b}).rowsWithTokens() {
		if math.IsNaN(score[r]) {
			continue
		}
		x := scoredRow{score: score[r], adv: adv[r]}
		if !tokens && !perRow { // it is one of its group, and its advantage is not there
			x.adv = math.NaN()
		}
		if kl != nil && !math.IsNaN(kl[r]) {
			x.kl, x.errKL = kl[r], 4*tol.U32*size[r]
		}
		step.of[id[r]] = append(step.of[id[r]], x)
		step.rows = append(step.rows, x.score)
		step.largest = max(step.largest, math.Abs(x.score))
	}
	step.groups = nil
	for _, g := range slices.Sorted(maps.Keys(step.of)) {
		if len(step.of[g]) > 1 {
			step.groups = append(step.groups, step.of[g])
		}
	}
	step.parts, step.last, s.solved = step.parts+1, b.Meta.Step, false
}

// sizesOfKL are the sums of the absolute values that [sumsOfKL] are made of, which bound what they are rounded by.
func sizesOfKL(b *dump.Batch) []float64 {
	sum := make([]float64, b.Rows)
	for _, name := range []string{"kl", "logp_old", "logp_ref", "logp_new"} {
		x := b.Token(name)
		for i := range x {
			if b.Mask[i] && !math.IsNaN(x[i]) {
				sum[i/b.Cols] += math.Abs(x[i])
			}
		}
	}
	if k := b.Row("kl"); len(k) == b.Rows {
		for r := range sum {
			sum[r] += math.Abs(k[r])
		}
	}
	return sum
}

// scoreForm is what the pairs of rows have in common: how advantages are scaled, β, and the bounds at which scores are held (±Inf: none shows).
type scoreForm struct {
	center, scale string
	beta, lo, hi  float64
	units         [][]float64 // u of the groups of each step, where it is none that the centre gives
	share         float64     // of the pairs that have β
}

// bracket is an interval of numbers that a pair allows.
type bracket struct{ lo, hi float64 }

// mostCovered returns the middle of where most of the intervals overlap, by the narrowest of those, and how many do.
func mostCovered(list []bracket) (x float64, n int) {
	type end struct {
		at float64
		by int
	}
	var ends []end
	for _, s := range list {
		if !math.IsNaN(s.lo+s.hi) && !math.IsInf(s.hi-s.lo, 0) {
			ends = append(ends, end{s.lo, 1}, end{s.hi, -1})
		}
	}
	slices.SortFunc(ends, func(a, b end) int {
		return cmp.Or(cmp.Compare(a.at, b.at), b.by-a.by)
	})
	open := 0
	for i, e := range ends {
		if open += e.by; e.by > 0 && open > n && i+1 < len(ends) {
			n, x = open, (e.at+ends[i+1].at)/2
		}
	}
	return x, n
}

// pairs visits the pairs of rows of the groups of a step, of a large group those of a row and of so many before it.
func (p *scoredStep) pairs(each func(group int, x, y *scoredRow)) {
	const most = 32
	for g, rows := range p.groups {
		for i := range rows {
			for j := max(0, i-most); j < i; j++ {
				if !math.IsNaN(rows[i].adv + rows[j].adv) {
					each(g, &rows[i], &rows[j])
				}
			}
		}
	}
}

// apart is what the differences of two rows in scores and advantages are rounded by.
func (p *scoredStep) apart(x, y *scoredRow, u float64) float64 {
	return 4 * tol.U32 * (math.Abs(x.score) + math.Abs(y.score) + p.largest + (math.Abs(x.adv)+math.Abs(y.adv))/u)
}

// penalties solves every pair for β where u is known, n the rows of a group: those that show none are the interval around 0.
func (p *scoredStep) penalties(unit func(g, n int) float64) (list []bracket, zero int) {
	p.pairs(func(g int, x, y *scoredRow) {
		u := unit(g, len(p.groups[g]))
		if !(u > 0) {
			return
		}
		d := (x.score - y.score) - (x.adv-y.adv)/u
		e, k := p.apart(x, y, u), x.kl-y.kl
		if math.Abs(d) <= e && math.Abs(x.score-y.score) > 4*e { // rows of one score show nothing
			zero++
		}
		if beta := d / k; math.Abs(k) > 16*(x.errKL+y.errKL) && math.Abs(d) > e {
			w := (e+math.Abs(beta)*(x.errKL+y.errKL))/math.Abs(k) + 1e-7*math.Abs(beta)
			list = append(list, bracket{lo: beta - w, hi: beta + w})
		}
	})
	return list, zero
}

// forms returns what the rows show, the likeliest first.
func (s *GroupScores) forms() (forms []scoreForm) {
	if s.other || len(s.steps) == 0 {
		return nil
	}
	if s.solved {
		return s.found
	}
	if n := len(s.steps); s.steps[n-1].parts < s.Over { // the dump ends within a rollout
		s.steps = s.steps[:n-1]
	}
	defer func() { s.found, s.solved = forms, true }()
	for _, center := range []string{"mean", "loo"} {
		unit := func(_, n int) float64 {
			if center == "loo" {
				return float64(n) / float64(n-1)
			}
			return 1
		}
		f := scoreForm{center: center, scale: "none"}
		if s.solve(&f, func(int) func(g, n int) float64 { return unit }) {
			forms = append(forms, f)
		}
	}
	for _, scale := range []string{"batch_std", "group_std"} {
		if f := (scoreForm{scale: scale}); len(forms) == 0 && s.solveScaled(&f) && len(s.deviations(&f)) > 0 {
			forms = append(forms, f)
		}
	}
	slices.SortStableFunc(forms, func(a, b scoreForm) int { return cmp.Compare(b.share, a.share) })
	return forms
}

// solve finds β and the bounds of a form whose u are known, and reports whether every row is explained by them.
func (s *GroupScores) solve(f *scoreForm, units func(step int) func(g, n int) float64) bool {
	var list []bracket
	zero, all := 0, 0
	for i := range s.steps {
		l, z := s.steps[i].penalties(units(i))
		list, zero = append(list, l...), zero+z
		s.steps[i].pairs(func(_ int, x, y *scoredRow) {
			if x.score != y.score {
				all++
			}
		})
	}
	beta, n := mostCovered(list)
	if zero >= n {
		beta, n = 0, zero
	}
	if beta < 0 || n < 3 || n < all && (n < 6 || 5*n < all) {
		return false
	}
	f.beta, f.share = beta, float64(n)/float64(all)
	return s.bounds(f, units)
}

// difference is that of two rows of a group, with what it is rounded by.
type difference struct {
	s, k, a, es, ek, ea float64
	of                  [2]float64 // the scores
	group               int
}

// differences are those of the pairs of a step that differ in what an advantage is made of, so many at most.
func (p *scoredStep) differences() (list []difference) {
	const most = 401
	p.pairs(func(g int, x, y *scoredRow) {
		d := difference{x.score - y.score, x.kl - y.kl, x.adv - y.adv,
			4 * tol.U32 * (math.Abs(x.score) + math.Abs(y.score) + p.largest), x.errKL + y.errKL, 4 * tol.U32 * (math.Abs(x.adv) + math.Abs(y.adv)), [2]float64{x.score, y.score}, g}
		if math.Abs(d.s) > d.es {
			list = append(list, d)
		}
	})
	if stride := len(list)/most + 1; stride > 1 {
		for i := range len(list) / stride {
			list[i] = list[i*stride]
		}
		list = list[:len(list)/stride]
	}
	return list
}

// solveScaled is solve for a form with one u in each step, or in each group, that is not known: two pairs of it give u and u·β, and so β.
func (s *GroupScores) solveScaled(f *scoreForm) bool {
	const most = 600 // pairs of pairs in a step
	ofGroup := f.scale == "group_std"
	var list []bracket
	zero, all := 0, 0
	differences := make([][]difference, len(s.steps))
	for i := range s.steps {
		differences[i] = s.steps[i].differences()
		d := differences[i]
		stride := 1 + 2*(len(d)*len(d)/(4*most)) // odd, so that it does not step with the groups
		count := 0
		for j := range d {
			for k := range d[:j] {
				if ofGroup && d[j].group != d[k].group {
					continue
				}
				if count++; count%stride != 0 {
					continue
				}
				all++
				a, b := d[j], d[k]
				num, den := a.a*b.s-b.a*a.s, a.a*b.k-b.a*a.k
				en := a.ea*math.Abs(b.s) + b.ea*math.Abs(a.s) + math.Abs(a.a)*b.es + math.Abs(b.a)*a.es
				ed := a.ea*math.Abs(b.k) + b.ea*math.Abs(a.k) + math.Abs(a.a)*b.ek + math.Abs(b.a)*a.ek
				if math.Abs(num) <= en {
					zero++
				}
				if beta := num / den; math.Abs(den) > 16*ed && math.Abs(num) > en {
					w := (en + math.Abs(beta)*ed) / math.Abs(den)
					list = append(list, bracket{lo: beta - w, hi: beta + w})
				}
			}
		}
	}
	beta, n := mostCovered(list)
	short := hasDigits(beta, 2, 1e-4) // two that agree by chance agree on no number of two digits, and not on 0
	if zero >= n || zero >= 2 && n < 4 && !short {
		beta, n, short = 0, zero, true
	}
	if told := n >= 4 || n >= 2 && short; beta < 0 || !told || 20*n < all {
		return false
	}
	f.beta, f.share = written(beta, 2e-3), float64(n)/float64(all)
	f.lo, f.hi = math.Inf(-1), math.Inf(1)
	for range 2 { // bounds that are shown where most rows are within them tell the u of other steps
		before := [2]float64{f.lo, f.hi}
		s.unitsOf(f, differences)
		if !s.bounds(f, func(i int) func(g, n int) float64 { return func(g, _ int) float64 { return f.units[i][g] } }) {
			return false
		}
		if before == [2]float64{f.lo, f.hi} {
			break
		}
	}
	return true
}

// unitsOf finds the u of a form in each step, or in each of its groups, that pairs of rows have in common by scores within its bounds; 0: not known.
func (s *GroupScores) unitsOf(f *scoreForm, differences [][]difference) {
	f.units = make([][]float64, len(s.steps))
	for i, d := range differences {
		of := make([][]bracket, len(s.steps[i].groups))
		for _, x := range d {
			r := min(max(x.of[0], f.lo), f.hi) - min(max(x.of[1], f.lo), f.hi) - f.beta*x.k
			if e := x.es + f.beta*x.ek + 2e-3*f.beta*math.Abs(x.k); math.Abs(r) > 256*e { // what is hardly known agrees with much
				u := x.a / r
				w := (x.ea + math.Abs(u)*e) / math.Abs(r)
				g := x.group
				if f.scale != "group_std" {
					g = 0
				}
				of[g] = append(of[g], bracket{lo: u - w, hi: u + w})
			}
		}
		f.units[i] = make([]float64, len(of))
		for g := range of {
			from := of[g]
			if f.scale != "group_std" {
				from = of[0]
			}
			if u, n := mostCovered(from); n >= 2 && u > 0 {
				f.units[i][g] = u
			}
		}
	}
}
