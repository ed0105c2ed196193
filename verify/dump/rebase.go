package dump

import (
	"cmp"
	"slices"
	"strings"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// rebase looks for a bug on top of other options where nobody declares them all: what fails under each profile may be one bug on top of
// one of them. The failure then stands as one of that profile.
func (t *track) rebase(s *session) {
	const most = 24 // of the profiles that differ in what the check reads
	if !t.searched || len(t.why.fits) > 0 {
		return
	}
	if t.why.faults = t.held(t.why.faults, t.first, s); exact(t.why.faults) && !t.goesOn() {
		return
	}
	u, err := s.unit(s.ctx, t, t.first.Case.B.Meta.Step)
	if err != nil {
		return
	}
	for _, o := range t.rowRatio(u, s) {
		if found := t.held(fault.Explain(o), o, s); exact(found) {
			t.first, t.why.faults, s.rowRatios = o, found, true
			return
		}
	}
	if s.rowRatios { // the gradient of such losses is of no other form
		return
	}
	kept := exact(t.why.faults)
	var bases []*stage.Outcome
	failures, _ := t.bases(&view{b: u.b}, u.set, s)
	for _, j := range failures {
		if len(bases) < most {
			bases = append(bases, j.Outcome)
		}
	}
	settles := func(o *stage.Outcome) bool { // o is the base of what convicts, or of what is kept until another does
		found := t.held(fault.Explain(o), o, s)
		if !exact(found) {
			return false
		}
		first, why := t.first, t.why.faults
		if t.first, t.why.faults = o, found; !t.goesOn() {
			return true
		}
		if kept && !(several(why) && !several(found)) {
			t.first, t.why.faults = first, why
		}
		kept = true
		return false
	}
	for _, o := range bases {
		if !s.affords(o) {
			break
		}
		if settles(o) {
			return
		}
	}
	open := func(option string) bool { return u.set.Value(option).Kind() == convention.Unknown }
	for _, more := range []func() []*stage.Outcome{
		func() []*stage.Outcome { return t.leftOut(bases, open) },
		func() []*stage.Outcome { return t.configured(bases, u, s, open) },
		func() []*stage.Outcome { return t.plain(u, s) },
		func() []*stage.Outcome { return t.nextTo(bases, u, s, open) },
		func() (list []*stage.Outcome) {
			for _, j := range t.buggy(u.b, u.set, s) {
				list = append(list, j.Outcome)
			}
			return list[:min(most, len(list))]
		},
	} {
		for _, o := range more() {
			if !s.affords(o) {
				break
			}
			if settles(o) {
				return
			}
		}
		if kept && !t.goesOn() {
			return
		}
	}
	if slices.ContainsFunc(t.healed(u, s), settles) || kept {
		return
	}
	if o, found := fault.ExplainOpen(bases, open); o != nil {
		t.first, t.why.faults = o, found
	} else if o, found := fault.ExplainOpenSteps(t.runs(bases, s), open); o != nil {
		t.first, t.why.faults = o, found
	}
}

// rowRatio are the failures of token losses, and of their gradient, under the bounds of the ratios of rows that no configuration makes, which several steps
// show together ([stage.RowRatioShown]).
func (t *track) rowRatio(u unit, s *session) (list []*stage.Outcome) {
	const most = 4
	if t.check.ID != "token_loss/policy" && t.check.ID != "gradient/dlogp" {
		return nil
	}
	for _, changes := range stage.RowRatioShown(s.solving(t, u), u.set) {
		failures, _ := t.underEach([]*convention.Set{changed(u.set, changes)}, &view{b: u.b}, s)
		for _, j := range failures[:min(most, len(failures))] {
			list = append(list, j.Outcome)
		}
	}
	return list
}

// affords reports whether bugs are looked for on top of one more base, and counts it: the numbers that all of a run are held against bound the work.
func (s *session) affords(o *stage.Outcome) bool {
	s.held += len(o.Got)
	return !s.spent() || s.held == len(o.Got)
}

// spent reports whether the work of [session.affords] is done.
func (s *session) spent() bool {
	const most = 50_000 // numbers
	return s.held > most
}

// goesOn reports whether what explains advantages or rewards is relative to a declaration that is not there: numbers of whole groups or steps that are fitted
// reproduce what a slip without a number gives, too, under the base of the program. So do two changes of what one change of another base is.
func (t *track) goesOn() bool {
	if t.check.Stage == convention.Aggregate || t.check.Stage == convention.Gradient {
		return several(t.why.faults) && !t.convicted()
	}
	return (t.check.Stage == convention.Advantage || t.check.Stage == convention.Reward) && (several(t.why.faults) || !t.convicted())
}

// several reports whether all that explains a failure are changes of several parts of its formula.
func several(list []fault.Explanation) bool {
	return !slices.ContainsFunc(list, func(e fault.Explanation) bool { return !e.Lead && !e.Several })
}

// underWhat are the options that an outcome is under, as text.
func underWhat(o *stage.Outcome) string {
	var text strings.Builder
	for _, name := range o.Case.Read {
		text.WriteString(name + "=" + o.Case.Set.Value(name).String() + ";")
	}
	return text.String()
}

// configured are the failures of advantages under what each profile can be configured to, one option that nobody declares away from what it has by itself, those
// first that leave the least, as many as the size of the output allows. A base is one of bases, or has what applies under the other word alone of nobody, as [track.filled] says.
func (t *track) configured(bases []*stage.Outcome, u unit, s *session, open func(option string) bool) (list []*stage.Outcome) {
	const most, numbers = 48, 1 << 12 // of all of them together
	n := min(most, numbers/max(len(t.first.Got), 1))
	if t.check.Stage != convention.Advantage || n == 0 {
		return nil
	}
	known, found := t.foundBefore(u.set, s)
	known, _ = unweighted(u.b, known, found)
	seen := map[string]bool{}
	for _, o := range bases {
		seen[underWhat(o)] = true
	}
	for _, p := range s.fallbackProfiles() {
		under, _ := convention.FromProfile(p).Over(known)
		o := stage.Judge(t.check, u.b, under)
		for _, name := range o.Case.Read {
			if option, err := convention.Find(name); err != nil || !open(name) || option.Type != convention.EnumType && option.Type != convention.BoolType {
				continue
			}
			for _, to := range (&convention.Set{}).Among(name) {
				if to == o.Case.Set.Value(name) || !p.Configurable(name, to) {
					continue
				}
				failures, _ := t.filled(&view{b: u.b}, under.With(name, to, ofNobody), s)
				for _, j := range failures {
					if k := underWhat(j.Outcome); !seen[k] && j.Pred != nil {
						seen[k] = true
						list = append(list, j.Outcome)
					}
				}
			}
		}
	}
	away := map[*stage.Outcome]float64{}
	for _, o := range list {
		away[o] = distant(o)
	}
	slices.SortStableFunc(list, func(a, b *stage.Outcome) int { return cmp.Compare(away[a], away[b]) })
	return list[:min(n, len(list))]
}

// nextTo are the failures of a preference loss under the likeliest bases with another word for one option that nobody declares: a program may have what no
// profile has together. The options of other stages mean something only together: words that no program combines are a base on which anything fits.
func (t *track) nextTo(bases []*stage.Outcome, u unit, s *session, open func(option string) bool) (list []*stage.Outcome) {
	const most, tries, least, cells = 2, 12, 8, 1 << 14
	if groupOf(t.check.ID) != "preference" || len(u.b.Mask) > cells || len(t.first.Got) < least { // a few numbers fit too much
		return nil
	}
	seen := map[string]bool{}
	for _, o := range bases {
		seen[underWhat(o)] = true
	}
	for _, o := range bases[:min(most, len(bases))] {
		for _, name := range o.Case.Read {
			if option, err := convention.Find(name); err != nil || !open(name) || option.Type != convention.EnumType && option.Type != convention.BoolType {
				continue
			}
			for _, to := range u.set.Among(name) {
				if to == o.Case.Set.Value(name) || to.Kind() == convention.NotApplicable || len(list) == tries {
					continue
				}
				failures, _ := t.filled(&view{b: u.b}, o.Case.Set.With(name, to, ofNobody), s)
				for _, j := range failures[:min(1, len(failures))] {
					if k := underWhat(j.Outcome); !seen[k] && j.Pred != nil {
						seen[k] = true
						list = append(list, j.Outcome)
					}
				}
			}
		}
	}
	return list
}

// leftOut are the failures of the likeliest bases under what no profile has and the output shows, see [fault.Beside].
func (t *track) leftOut(bases []*stage.Outcome, open func(option string) bool) (list []*stage.Outcome) {
	const most, each = 3, 8
	for _, o := range bases[:min(most, len(bases))] {
		shown := fault.Beside(o, open)
		for _, changes := range shown[:min(each, len(shown))] {
			if under := stage.Judge(t.check, o.Case.B, changed(o.Case.Set, changes)); under.Verdict == check.Fail && under.Pred != nil {
				list = append(list, under)
			}
		}
	}
	return list
}

// exact reports whether one of some explanations reproduces all of a failure.
func exact(list []fault.Explanation) bool {
	return slices.ContainsFunc(list, func(e fault.Explanation) bool { return !e.Lead })
}

// held are those of the explanations of o that hold on the other steps, see [track.holding]; where none of them does, the edits that do: what the catalogue
// has fits a step in which the tensors that it leaves out are alike.
func (t *track) held(found []fault.Explanation, o *stage.Outcome, s *session) []fault.Explanation {
	kept := t.holding(slices.Clone(found), o, s)
	if exact(found) && !exact(kept) {
		if edits := t.holding(fault.Edits(o), o, s); exact(edits) {
			return edits
		}
	}
	return kept
}

// holding returns the explanations of o, a failure under options that nobody declares, that the other steps on which they are confirmed do not contradict
// under these: what one step does not tell from the right options is not taken for them.
func (t *track) holding(found []fault.Explanation, o *stage.Outcome, s *session) []fault.Explanation {
	for _, step := range append([]int{t.failing[0]}, t.witnesses()...) {
		if step == o.Case.B.Meta.Step || !slices.ContainsFunc(found, func(e fault.Explanation) bool { return !e.Lead }) {
			continue
		}
		u, err := s.unit(s.ctx, t, step)
		if err != nil {
			return found // it could be read before: the run is changing under us, and the failure stands
		}
		full, _ := o.Case.Set.Over(u.set)
		other := stage.Judge(t.check, u.b, full)
		if other.Pred == nil {
			continue
		}
		found = slices.DeleteFunc(found, func(e fault.Explanation) bool { return !e.Lead && fault.Contradicts(e, other) })
	}
	return found
}
