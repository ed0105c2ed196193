package stage

import (
	"math"
	"slices"
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
	first *Outcome    // of the declared options, that failed; nil where they are open
	part  *dump.Batch // whole groups, about [sampled] cells; full itself where the output needs the whole step
	spent int
	cap   int // of spent
	fits  []Fit
	void  []Fit // within bounds that are too wide to tell
	limit int

	open   bool // options without a value are searched: numbers that the data give are tried, too
	listed bool // only listed values: solving for one takes two predictions of everything
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
			all = s.complete(set.With(name, v, "search"), changedTo(changes, Change{name, set.Value(name), v})) && all
		}
		return all
	}
	switch {
	case o.Verdict == check.Pass:
		s.fits = append(s.fits, Fit{Changes: changes, Set: set, Outcome: o})
	case o.Verdict == check.Undetermined && s.first != nil && o.Half() && o.Tally != nil && o.Tally.Bad == "":
		if s.part != s.full || o.Reproduces(s.first) { // else the whole batch says
			s.fits = append(s.fits, Fit{Changes: changes, Set: set, Outcome: o})
		}
	case o.Verdict == check.Undetermined && o.Tally != nil && o.Tally.Resolution() <= loose:
		s.void = append(s.void, Fit{Changes: changes, Set: set, Outcome: o})
	}
	return true
}

// changedTo returns changes with c in place of an earlier change of its option, such as a profile's, to which the option does not apply.
func changedTo(changes []Change, c Change) []Change {
	list := make([]Change, 0, len(changes)+1)
	for _, other := range changes {
		if other.Option == c.Option {
			c.From = other.From
		} else {
			list = append(list, other)
		}
	}
	return append(list, c)
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
	o := judgeAs(s.ch, b, set, s.a, true) // most of what is tried fails, and needs no resolution for that
	if o.Verdict != check.Fail {
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

// right reports whether the whole output is right.
func (s *search) right(o *Outcome) bool {
	return o.Verdict == check.Pass || s.first != nil && o.Verdict == check.Undetermined && o.Reproduces(s.first)
}

// confirmed returns the fits that hold on the whole batch.
func (s *search) confirmed() []Fit {
	if s.part == s.full {
		return s.fits
	}
	var kept []Fit
	for _, f := range s.fits {
		if o := s.judge(s.full, f.Set); s.right(o) {
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
	if name == "whiten.scope" && s.ch.Stage == convention.Advantage && alikeInRows(s.full, s.ch.Output) {
		list = slices.DeleteFunc(list, func(v convention.Value) bool { return v.Kind() == convention.Enum && v.Text() == "row" })
	}
	if (linear[name] || name == "dpo.beta" && strings.HasPrefix(s.ch.ID, "scalars/rewards_")) && !s.listed {
		if x, ok := s.solve(set, name); ok {
			if v := convention.NumberValue(x); !slices.Contains(list, v) {
				list = append(list, v)
			}
		}
	}
	if (s.first != nil || s.open) && !s.listed {
		for _, v := range s.implied(set, name) {
			if !slices.Contains(list, v) {
				list = append(list, v)
			}
		}
	}
	return list
}

// alikeInRows reports whether an output has one number for all tokens of each row, and not 0 in all of them. Whitened over its row, of such numbers nothing but
// rounding is left, which bounds nothing; where the mean is added back, they stay what they are.
func alikeInRows(b *dump.Batch, output string) bool {
	x := b.Tensors[output]
	if x == nil || b.Cols == 0 || x.Width > 1 {
		return false
	}
	some := slices.ContainsFunc(x.Data, func(v float64) bool { return v != 0 })
	if x.Layout == dump.PerRow || len(x.Data) != len(b.Mask) {
		return some && x.Layout == dump.PerRow
	}
	for r := range b.Rows {
		first := -1
		for i := range b.TokensOf(r) {
			if first < 0 {
				first = i
			}
			if x.Data[i] != x.Data[first] {
				return false
			}
		}
	}
	return some
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
	x = written(x, 1e-4)
	return x, tells(o0, o1, at(x), x)
}

// tells reports whether a coefficient x that was solved for is more than the rounding of what it multiplies: what the term adds to some
// element, x·(p₁ − p₀), is four times what a program with x can be off there. The bound grows with x, so that x = 10¹⁵ of a term of 10⁻¹⁷
// would fit anything.
func tells(o0, o1, at *Outcome, x float64) bool {
	if x == 0 {
		return true
	}
	if at.Pred == nil || len(at.Pred.Bound) != len(o0.Pred.Want) {
		return false
	}
	for i, w := range o0.Pred.Want {
		if math.Abs(x*(o1.Pred.Want[i]-w)) > 4*at.Pred.Bound[i] {
			return true
		}
	}
	return false
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
