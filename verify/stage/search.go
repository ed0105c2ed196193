package stage

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// Change is an option that has another value than was declared, or has one where none was.
type Change struct {
	Option   string
	From, To convention.Value
}

// Fit is a set of option values under which an output is right.
type Fit struct {
	Changes []Change // of what was declared; empty if the declared options are enough
	Set     *convention.Set
	Outcome *Outcome
	Whole   bool // the changes are what decides of all the values of a profile
}

// budget bounds a search by what it costs: predicted cells. It is a count, not a time, so that the answer is the same on every
// machine.
const budget = 20_000_000

// loose is the resolution, relative to the scale, above which a bound that is too wide excludes nothing at all.
const loose = 0.3

// sampled is the number of cells on which candidates are tried before those that are left are confirmed on everything.
const sampled = 4096

type search struct {
	ch    *Check
	a     Arithmetic
	full  *dump.Batch
	probe *dump.Batch // what is tried first of part, up to a factor; nil: nothing
	wrong *Outcome    // of the declared options on probe
	part  *dump.Batch // whole groups, about [sampled] cells; full itself where the output needs the whole step
	spent int
	cap   int // of spent
	fits  []Fit
	void  []Fit // within bounds that are too wide to tell
	limit int

	listed bool // only listed values: solving for one takes two predictions of everything
}

// Complete returns the values of the options that set leaves open under which the output of ch in b is right, and whether all
// were tried: what every profile says of them first, then all combinations, if they are few, then profiles with one or two
// options changed. Options are asked for one after another, so that one that another value makes meaningless is not searched.
func Complete(ch *Check, b *dump.Batch, set *convention.Set) (fits []Fit, all bool) {
	s := newSearch(ch, b)
	all = true
	starts := s.profiles(set)
	for _, p := range starts {
		all = s.complete(p.Set, p.Changes) && all
	}
	if len(s.fits) == 0 {
		s.cap = s.spent + combinations*(len(s.part.Mask)+256)
		all = s.complete(set, nil)
		s.cap = budget
	}
	if len(s.fits) > 0 {
		s.expand(s.fits[0])
	}
	if len(s.fits) == 0 && len(s.void) == 0 && !all {
		for _, p := range starts {
			all = s.changed(p, 1) && all
		}
		for _, p := range starts {
			if len(s.fits) == 0 {
				all = s.changed(p, 2) && all
			}
		}
	}
	if fits = s.confirmed(); len(fits) == 0 {
		fits = s.void
	}
	return fits, all
}

// wide is the number of cells above which ties are sought by one change only.
const wide = 200_000

// expand adds what one and two changes of the options that were open make of a fit: data that cannot tell options apart must
// not name one of them only.
func (s *search) expand(fit Fit) {
	seen := map[string]bool{}
	key := func(set *convention.Set) string {
		var k strings.Builder
		for _, c := range fit.Changes {
			k.WriteString(set.Value(c.Option).String() + ";")
		}
		return k.String()
	}
	for _, f := range s.fits {
		seen[key(f.Set)] = true
	}
	try := func(set *convention.Set, changes []Change) {
		if k := key(set); !seen[k] {
			seen[k] = true
			s.complete(set, changes)
		}
	}
	for i, c := range fit.Changes {
		for _, v := range fit.Set.Among(c.Option) {
			one := slices.Clone(fit.Changes)
			one[i].To = v
			set := fit.Set.With(c.Option, v, "search")
			try(set, one)
			if len(s.part.Mask) > wide {
				continue
			}
			for j := i + 1; j < len(fit.Changes); j++ {
				for _, w := range set.Among(fit.Changes[j].Option) {
					two := slices.Clone(one)
					two[j].To = w
					try(set.With(fit.Changes[j].Option, w, "search"), two)
				}
			}
		}
	}
}

// combinations is the number of them below which all are tried before profiles with changes are.
const combinations = 3000

// profiles returns set completed by each profile, once where several say the same of what the check reads.
func (s *search) profiles(set *convention.Set) []Fit {
	var starts []Fit
	seen := map[string]bool{}
	for _, p := range convention.Profiles() {
		full, _ := convention.FromProfile(p).Over(set)
		o := s.judge(s.part, full)
		var key strings.Builder
		var changes []Change
		for _, name := range o.Case.Read {
			v := full.Value(name)
			key.WriteString(name + "=" + v.String() + ";")
			if v != set.Value(name) && v.Known() {
				changes = append(changes, Change{name, set.Value(name), v})
			}
		}
		if !seen[key.String()] {
			seen[key.String()] = true
			starts = append(starts, Fit{Changes: changes, Set: changedBy(set, changes, p.Name)})
		}
	}
	return starts
}

func changedBy(set *convention.Set, changes []Change, origin string) *convention.Set {
	for _, c := range changes {
		set = set.With(c.Option, c.To, origin)
	}
	return set
}

// changed tries a start with n of its own options changed.
func (s *search) changed(start Fit, n int) bool {
	all := true
	for i, c := range start.Changes {
		for _, v := range alternatives(start.Set, c.Option, s) {
			rest := slices.Clone(start.Changes)
			rest[i].To = v
			next := Fit{Changes: rest, Set: start.Set.With(c.Option, v, "search")}
			if n == 1 {
				all = s.complete(next.Set, rest) && all
				continue
			}
			later := next
			later.Changes = rest[i+1:]
			for j, d := range later.Changes {
				for _, w := range alternatives(next.Set, d.Option, s) {
					both := slices.Clone(rest)
					both[i+1+j].To = w
					all = s.complete(next.Set.With(d.Option, w, "search"), both) && all
				}
			}
		}
	}
	return all
}

// Conventions returns the sets of option values under which an output that is wrong under the declared ones is right: with one
// option changed, or all options of a profile, or two changed, whatever comes first in this order; where no profile has the one
// value that fits, those of a profile that fit come before it. The declared set is completed by the same search where it leaves
// options open.
func Conventions(o *Outcome) (fits []Fit, all bool) {
	if o.Rules != nil {
		return permitted(o), true
	}
	s := newSearch(o.Check, o.Case.B)
	s.a = o.Arithmetic
	s.wrong = Probed(o, s.probe)
	set := o.Case.Set
	read := slices.Clone(o.Case.Read)
	all = true
	for _, name := range read {
		for _, v := range alternatives(set, name, s) {
			all = s.complete(set.With(name, v, "search"), []Change{{name, set.Value(name), v}}) && all
		}
	}
	if fits = s.confirmed(); slices.ContainsFunc(fits, Fit.known) {
		return fits, all
	}
	s.wholeProfiles(set)
	if whole := s.confirmed(); len(whole) > 0 {
		return append(s.fewest(whole, set), fits...), all
	}
	if len(fits) > 0 || !all {
		return fits, all
	}
	s.fits, s.cap = nil, s.spent+budget
	if s.listed = len(s.part.Mask) > wide; s.probe != nil {
		s.cap = s.spent + budget/4
	}
	for i, first := range read {
		for _, v := range alternatives(set, first, s) {
			one := set.With(first, v, "search")
			for _, second := range read[i+1:] {
				for _, w := range alternatives(one, second, s) {
					all = s.complete(one.With(second, w, "search"), []Change{{first, set.Value(first), v}, {second, set.Value(second), w}}) && all
				}
			}
		}
	}
	return s.confirmed(), all
}

// wholeProfiles tries every profile in place of the one that set comes from, first under what else was declared, then with
// all values of its own. Options that set and the profile read differently, as another estimator reads others, are the
// profile's, too.
func (s *search) wholeProfiles(set *convention.Set) {
	declared := &convention.Set{}
	for _, name := range set.Names() {
		if !slices.ContainsFunc(convention.Profiles(), func(p *convention.Profile) bool { return p.Name == set.Origin(name) }) {
			declared = declared.With(name, set.Value(name), set.Origin(name))
		}
	}
	s.fits, s.cap = nil, s.spent+budget/2
	seen := map[string]bool{}
	for _, strongest := range []*convention.Set{declared, {}} {
		for _, p := range convention.Profiles() {
			full, _ := set.Over(convention.FromProfile(p))
			full, _ = full.Over(strongest)
			part := s.part
			if s.probe != nil {
				part = s.probe
			}
			o := s.judge(part, full)
			var key strings.Builder
			for _, name := range o.Case.Read {
				key.WriteString(name + "=" + full.Value(name).String() + ";")
			}
			if !seen[key.String()] {
				seen[key.String()] = true
				s.complete(full, nil)
			}
		}
		if len(s.fits) > 0 {
			break
		}
	}
	for i := range s.fits {
		f := &s.fits[i]
		f.Changes, f.Whole = nil, true
		for _, name := range f.Outcome.Case.Read {
			if v := f.Set.Value(name); v != set.Value(name) {
				f.Changes = append(f.Changes, Change{name, set.Value(name), v})
			}
		}
		f.Set = changedBy(set, f.Changes, "search")
	}
}

// known reports whether some profile has all the values of a fit, and the option that was changed has a value in the declared
// one: a program that is right under it is known, and does not compute something else besides.
func (f Fit) known() bool {
	return f.Changes[0].From.Kind() != convention.NotApplicable && slices.ContainsFunc(convention.Profiles(), func(p *convention.Profile) bool {
		return !slices.ContainsFunc(f.Changes, func(c Change) bool { return p.Value(c.Option) != c.To })
	})
}

// fewest returns those of the fits of whole profiles that have the fewest changes once they are reduced, each once.
func (s *search) fewest(fits []Fit, set *convention.Set) (few []Fit) {
	for i := range fits {
		s.reduce(&fits[i], set)
	}
	slices.SortStableFunc(fits, func(a, b Fit) int { return len(a.Changes) - len(b.Changes) })
	for _, f := range fits {
		if len(f.Changes) == len(fits[0].Changes) && !slices.ContainsFunc(few, func(g Fit) bool { return slices.Equal(f.Changes, g.Changes) }) {
			few = append(few, f)
		}
	}
	return few
}

// reduce takes the changes out of a fit without which the output is right as well: those that are left decide.
func (s *search) reduce(f *Fit, set *convention.Set) {
	for i := len(f.Changes) - 1; i >= 0 && len(f.Changes) > 1; i-- {
		rest := slices.Delete(slices.Clone(f.Changes), i, i+1)
		less := changedBy(set, rest, "search")
		if o := s.judge(s.full, less); o.Verdict == check.Pass {
			f.Changes, f.Set, f.Outcome = rest, less, o
		}
	}
}

// permitted returns the other values of the options of a check that asserts under which nothing breaks its rule.
func permitted(o *Outcome) (fits []Fit) {
	set := o.Case.Set
	for _, name := range o.Check.Options {
		for _, v := range set.Among(name) {
			if v == set.Value(name) {
				continue
			}
			changed := set.With(name, v, "search")
			if p := Judge(o.Check, o.Case.B, changed); p.Verdict == check.Pass {
				fits = append(fits, Fit{Changes: []Change{{name, set.Value(name), v}}, Set: changed, Outcome: p})
			}
		}
	}
	return fits
}

// Untried returns the changes of one option under which an output that is wrong cannot be predicted, with what the batch
// lacks for it: "kl.kind=seq_prob (…)". Whether it would be right then is open.
func Untried(o *Outcome) []string {
	if o.Rules != nil {
		return nil
	}
	s := newSearch(o.Check, o.Case.B)
	s.a = o.Arithmetic
	var list []string
	for _, name := range o.Case.Read {
		for _, v := range alternatives(o.Case.Set, name, s) {
			if p := s.judge(s.part, o.Case.Set.With(name, v, "search")); len(p.Case.Absent) > 0 {
				list = append(list, name+"="+v.String()+" ("+strings.Join(p.Case.Absent, ", ")+")")
			}
		}
	}
	return list
}

func newSearch(ch *Check, b *dump.Batch) *search {
	s := &search{ch: ch, full: b, part: b, probe: Probe(ch, b), a: firstArithmetic(ch, b), cap: budget, limit: 256}
	switch ch.Stage {
	case convention.Advantage:
		if t := b.Tensors[ch.Output]; t != nil && t.Layout == dump.PerToken && len(b.Mask) >= probedFrom {
			s.probe = sample(b, probeCells)
		}
	case convention.KL, convention.Reward, convention.Ratio, convention.TokenLoss:
		s.part = sample(b, sampled)
	}
	return s
}

// complete tries set, and where a prediction asks for an option that has no value, every value that it may have.
func (s *search) complete(set *convention.Set, changes []Change) bool {
	part := s.part
	probed := s.probe != nil && (s.ch.Stage != convention.Advantage || local(set))
	if probed {
		part = s.probe
	}
	if s.spent += s.cost(part); s.spent > s.cap || len(s.fits) >= s.limit {
		return false
	}
	o := s.judge(part, set)
	if probed && o.Case.OK() {
		if !Worth(o, s.wrong) {
			return true
		}
		s.spent += s.cost(s.part)
		o = s.judge(s.part, set)
	}
	if len(o.Case.Absent) > 0 {
		return true
	}
	if len(o.Case.Unknown) > 0 {
		name := o.Case.Unknown[0]
		all := true
		for _, v := range s.candidates(set, name) {
			c := append(slices.Clone(changes), Change{name, set.Value(name), v})
			all = s.complete(set.With(name, v, "search"), c) && all
		}
		return all
	}
	switch {
	case o.Verdict == check.Pass:
		s.fits = append(s.fits, Fit{Changes: changes, Set: set, Outcome: o})
	case o.Verdict == check.Undetermined && o.Tally != nil && o.Tally.Resolution() <= loose:
		s.void = append(s.void, Fit{Changes: changes, Set: set, Outcome: o})
	}
	return true
}

// cost is what a prediction for b is counted as: its cells, and an eighth of them if the output is one number of a row, which
// is read from the cells at most once.
func (s *search) cost(b *dump.Batch) int {
	if t := b.Tensors[s.ch.Output]; t != nil && t.Layout == dump.PerRow {
		return len(b.Mask)/8 + 256
	}
	return len(b.Mask) + 256
}

func (s *search) judge(b *dump.Batch, set *convention.Set) *Outcome {
	large := s.probe != nil // most of what is tried fails, and needs no resolution for that
	o := judgeAs(s.ch, b, set, s.a, large)
	if large && o.Verdict != check.Fail {
		o = JudgeAs(s.ch, b, set, s.a)
	}
	if o.Verdict == check.Fail {
		for _, a := range fallbacks(s.a, b) {
			if p := JudgeAs(s.ch, b, set, a); p.Verdict != check.Fail {
				return p
			}
		}
	}
	return o
}

// confirmed returns the fits that hold on the whole batch.
func (s *search) confirmed() []Fit {
	if s.part == s.full {
		return s.fits
	}
	var kept []Fit
	for _, f := range s.fits {
		if o := s.judge(s.full, f.Set); o.Verdict == check.Pass {
			f.Outcome = o
			kept = append(kept, f)
		}
	}
	return kept
}

// alternatives returns the values of an option other than the one that set has.
func alternatives(set *convention.Set, name string, s *search) []convention.Value {
	var others []convention.Value
	for _, v := range s.candidates(set.With(name, convention.Value{}, ""), name) {
		if v != set.Value(name) {
			others = append(others, v)
		}
	}
	return others
}

// linear are the options in which some outputs are linear, so that their value is solved for.
var linear = map[string]bool{"kl.beta": true, "value.coef": true, "entropy.coef": true}

// candidates returns the values that an unknown option may have: those that frameworks have, and the one that the data give.
func (s *search) candidates(set *convention.Set, name string) []convention.Value {
	list := slices.Clone(set.Among(name))
	if linear[name] && !s.listed {
		if x, ok := s.solve(set, name); ok {
			if v := convention.NumberValue(x); !slices.Contains(list, v) {
				list = append(list, v)
			}
		}
	}
	return list
}

// solve returns the value of an option in which the output is linear: by least squares between the predictions for 0 and 1,
// rounded to the decimal with few digits that people write if that is near enough.
func (s *search) solve(set *convention.Set, name string) (float64, bool) {
	at := func(x float64) *Outcome {
		return JudgeAs(s.ch, s.part, set.With(name, convention.NumberValue(x), "search"), s.a)
	}
	o0, o1 := at(0), at(1)
	if s.judge(s.part, set.With(name, convention.NumberValue(0), "search")).Verdict == check.Pass {
		return 0, true
	}
	if o0.Tally == nil || o1.Tally == nil || len(o0.Got) != len(o1.Pred.Want) {
		return 0, false
	}
	var num, den float64
	for i, w := range o0.Pred.Want {
		d := o1.Pred.Want[i] - w
		n := num + float64(d*(o0.Got[i]-w))
		if math.IsNaN(n) || math.IsInf(n, 0) {
			continue
		}
		num, den = n, den+float64(d*d)
	}
	x := num / den
	if math.IsNaN(x) || math.IsInf(x, 0) || x < 0 {
		return 0, false
	}
	for digits := 1; digits <= 4; digits++ {
		short, err := strconv.ParseFloat(strconv.FormatFloat(x, 'e', digits-1, 64), 64)
		if err == nil && math.Abs(short-x) <= 1e-4*x {
			return short, true
		}
	}
	return x, true
}

// sample returns the first rows of b, whole groups, that hold about n cells; b itself if it is no larger, or packed groups
// cannot be told.
func sample(b *dump.Batch, n int) *dump.Batch {
	if b.Rows*b.Cols <= 2*n || b.Cols == 0 {
		return b
	}
	rows := max(1, n/b.Cols)
	keep := make([]int, 0, rows)
	if id := b.Row("group_id"); len(id) == b.Rows {
		taken := map[float64]bool{}
		for r := 0; r < b.Rows && len(taken) < max(1, rows/8); r++ {
			taken[id[r]] = true
		}
		for r := range b.Rows {
			if taken[id[r]] {
				keep = append(keep, r)
			}
		}
	} else {
		for r := range rows {
			keep = append(keep, r)
		}
	}
	return b.Select(keep)
}
