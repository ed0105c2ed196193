package dump

import (
	"context"
	"math"
	"slices"
	"strconv"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// explanation is what was found out about a check that failed.
type explanation struct {
	fits   []stage.Fit         // other legal options under which every step looked at is right
	all    bool                // the search tried everything
	faults []fault.Explanation // bugs that reproduce every step looked at, or leads
	coarse *stage.Outcome      // arithmetic in 16 bits that the failure is as large as
	steps  int                 // that were looked at
	some   bool                // bugs of the first failing step that need not hold elsewhere

	others  []string // bugs among faults that were found by another check
	against []string // checks that are right under the declared options and would be wrong under every fit
}

// witnesses is the number of steps on which explanations are confirmed beside the first failing one.
const witnesses = 11

// explain explains every check that failed, on the first failing step and then on others: one file may fit by coincidence.
func (s *session) explain(ctx context.Context) error {
	if s.o.Leading {
		s.explainFirst()
		return nil
	}
	var failing []*track
	wanted := map[int]bool{}
	for _, t := range s.tracks {
		if t.silent || len(t.failing) == 0 || !t.explainable() {
			continue
		}
		failing = append(failing, t)
		for _, step := range t.witnesses() {
			wanted[step] = true
		}
	}
	if len(failing) == 0 {
		return nil
	}
	for i, t := range failing {
		t.candidates(s)
		t.inherit(failing[:i])
		t.why.steps = 1
	}
	for i, t := range failing {
		t.inherit(failing[i+1:])
		t.share(failing)
	}
	steps := make([]int, 0, len(wanted))
	for step := range wanted {
		steps = append(steps, step)
	}
	slices.Sort(steps)
	for i, step := range steps {
		read := map[int]unit{} // by the steps that are judged as one
		for _, t := range failing {
			if !slices.Contains(t.witnesses(), step) {
				continue
			}
			u, ok := read[t.spans[step]]
			if !ok {
				var err error
				if u, err = s.unit(ctx, t, step); err != nil {
					return err
				}
				read[t.spans[step]] = u
			}
			t.confirm(u.b, u.set)
		}
		if s.o.Progress != nil {
			s.o.Progress("explaining", i+1, len(steps))
		}
	}
	for _, t := range failing {
		if err := s.lend(ctx, t, failing); err != nil {
			return err
		}
	}
	for i, t := range failing {
		if err := s.elsewhere(ctx, t, failing[:i]); err != nil {
			return err
		}
		if err := s.edited(ctx, t); err != nil {
			return err
		}
	}
	for _, t := range failing {
		if err := s.onOther(ctx, t); err != nil {
			return err
		}
	}
	for _, t := range failing {
		if err := s.onSame(ctx, t, failing); err != nil {
			return err
		}
		s.contradict(t)
		t.decide(s.closed != nil)
		if err := s.everyFew(ctx, t); err != nil {
			return err
		}
	}
	for _, t := range failing {
		t.giveWay(failing)
	}
	for i, t := range failing {
		if err := s.alike(ctx, t, failing[:i]); err != nil {
			return err
		}
	}
	for _, t := range failing {
		t.widestFirst(failing)
	}
	return nil
}

// everyFew takes rounding in 16 bits back as what may explain a few cells, where another failing step has what it does not explain.
func (s *session) everyFew(ctx context.Context, t *track) error {
	if t.why.coarse == nil || !t.why.coarse.Few {
		return nil
	}
	for _, step := range spread(t.failing[1:], witnesses) {
		u, err := s.unit(ctx, t, step)
		if err != nil {
			return err
		}
		if o := stage.Judge(t.check, u.b, completed(t, u.set)); o.Verdict == check.Fail && stage.Coarser(o) == nil {
			t.why.coarse = nil
			return nil
		}
	}
	return nil
}

// elsewhere explains a failure by another step where nothing that fits the first failing one fits the others: all ratios of a first
// update are 1, and many formulas give its numbers.
func (s *session) elsewhere(ctx context.Context, t *track, before []*track) error {
	const tries = 2 // steps
	others := spread(t.failing[1:], tries)
	for _, step := range others {
		if s.spent() {
			return nil
		}
		if len(t.why.fits) > 0 || slices.ContainsFunc(t.why.faults, func(e fault.Explanation) bool { return !e.Lead }) || t.first.Rules != nil {
			return nil
		}
		first, why := t.first, t.why
		u, err := s.unit(ctx, t, step)
		if err != nil {
			return err
		}
		o := stage.Judge(t.check, u.b, completed(t, u.set))
		if o.Verdict != check.Fail || o.Pred == nil {
			continue
		}
		t.first, t.why = o, explanation{steps: 1}
		t.candidates(s)
		t.inherit(before)
		for _, other := range append([]int{t.failing[0]}, t.witnesses()...) {
			if other == step || len(t.why.fits) == 0 && len(t.why.faults) == 0 {
				continue
			}
			u, err := s.unit(ctx, t, other)
			if err != nil {
				return err
			}
			t.confirm(u.b, u.set)
		}
		if len(t.why.fits) == 0 && !slices.ContainsFunc(t.why.faults, func(e fault.Explanation) bool { return !e.Lead }) {
			t.first, t.why = first, why
		}
	}
	return nil
}

// explainable reports whether a failure is one of numbers, or of a rule that an option decides.
func (t *track) explainable() bool { return t.first.Pred != nil || len(t.check.Options) > 0 }

// explainFirst explains the first check that failed on the only step, and the next one where arithmetic in 16 bits makes a warning
// of it.
func (s *session) explainFirst() {
	for _, t := range s.tracks {
		if t.silent || len(t.failing) == 0 {
			continue
		}
		if t.explainable() {
			t.why.steps = 1
			t.candidates(s)
			s.contradict(t)
			t.decide(s.closed != nil)
		}
		if t.why.coarse == nil {
			return
		}
	}
}

// witnesses returns the steps on which the explanations of t are confirmed: failing ones, and some that passed, both spread
// over the run.
func (t *track) witnesses() []int {
	var passing []int
	for _, step := range t.starts {
		if !slices.Contains(t.failing, step) {
			passing = append(passing, step)
		}
	}
	return append(spread(t.failing[1:], witnesses-4), spread(passing, 4)...)
}

// spread returns at most n elements of list, evenly spaced.
func spread(list []int, n int) []int {
	if len(list) <= n {
		return list
	}
	var some []int
	for i := range n {
		some = append(some, list[i*(len(list)-1)/(n-1)])
	}
	return some
}

// candidates collects what may explain the first failure.
func (t *track) candidates(s *session) {
	if s.profile == nil && t.searched && t.check.Predict != nil && !t.readsDeclared() {
		t.why.all = t.all // the search has tried what profiles have, with options of theirs changed
	} else {
		t.why.fits, t.why.all = stage.Conventions(t.first)
	}
	t.why.fits = slices.DeleteFunc(t.why.fits, func(f stage.Fit) bool { return !tenable(f, s.closed) })
	if len(t.why.fits) == 0 {
		t.why.fits = t.contrary(s)
	}
	if t.first.Rules != nil {
		return
	}
	t.why.faults = fault.Explain(t.first)
	t.why.some = len(t.why.faults) > 0 && !t.why.faults[0].Lead
	t.rebase(s)
	t.byRows(s)
	t.fromBeside(s)
	if s.o.Deep && len(t.why.faults) == 0 {
		t.why.faults = fault.ExplainPairs(t.first)
	}
}

// tenable reports whether a fit may be named under the profile of the framework that wrote the files: it contradicts two declared options at most, and no value of
// it is one that the framework cannot be configured to, but for a single one that is a known bug. Where nothing is declared, the
// profile that stands in for it binds nobody.
func tenable(f stage.Fit, declared *convention.Profile) bool {
	if declared == nil {
		return true
	}
	n := declaredChanges(f)
	if n > 2 {
		return false
	}
	return !slices.ContainsFunc(f.Changes, func(c stage.Change) bool {
		if declared.Possible(c.Option, c.To) {
			return false
		}
		_, named := fault.OfChange(c)
		return n > 1 || !named
	})
}

// inherit tries what explains the stages before, where nothing else explains t: a bound that was solved for from token losses is that
// of their gradient, too.
func (t *track) inherit(before []*track) {
	if t.first.Rules != nil || len(t.why.fits) > 0 || slices.ContainsFunc(t.why.faults, func(e fault.Explanation) bool { return !e.Lead }) {
		return
	}
	const most = 4 // of the fits of a stage
	b, set := t.first.Case.B, t.first.Case.Set
	for _, u := range before {
		if u.first.Rules != nil {
			continue
		}
		for _, f := range u.why.fits[:min(most, len(u.why.fits))] {
			full := changed(set, f.Changes)
			if o := stage.Judge(t.check, b, full); o.Verdict == check.Pass {
				t.why.fits = append(t.why.fits, stage.Fit{Changes: f.Changes, Set: full, Outcome: o})
			}
		}
	}
}

// unexplained reports whether nothing explains the failure of numbers so far.
func (t *track) unexplained() bool {
	return t.first.Rules == nil && len(t.why.fits) == 0 && !slices.ContainsFunc(t.why.faults, func(e fault.Explanation) bool { return !e.Lead })
}

// gradients are those of losses.
var gradients = map[string][]string{"aggregate/pg_loss": {"gradient/dlogp"}, "aggregate/loss": {"gradient/dlogp", "gradient/dvalues"}, "aggregate/value_loss": {"gradient/dvalues"},
	"preference/pair_loss": {"preference/dlogp_chosen", "preference/dlogp_rejected"}}

// share tries the bugs that explain another output of the same stage, or the gradient of a loss, where nothing else explains t: the advantages
// of a recursion are whitened, so that less can be fitted to them than to its returns, and a loss is a handful of numbers.
func (t *track) share(failing []*track) {
	if !t.unexplained() {
		return
	}
	var found []fault.Explanation
	for _, u := range failing {
		if !t.shares(u) {
			continue
		}
		for _, e := range u.why.faults {
			if f, ok := fault.Shared(e, t.first); ok {
				found = append(found, f)
				t.decidedBeside([]*track{u})
			}
		}
	}
	if len(found) > 0 {
		t.why.faults = found
	}
}

// confirm keeps the candidates that hold on another step.
func (t *track) confirm(b *dump.Batch, set *convention.Set) {
	set = completed(t, set)
	o := stage.Judge(t.check, b, set)
	if o.Verdict != check.Pass && o.Verdict != check.Fail || o.Pred == nil && o.Rules == nil {
		return
	}
	t.why.steps++
	t.why.fits = slices.DeleteFunc(t.why.fits, func(f stage.Fit) bool {
		return stage.Judge(t.check, b, changed(set, f.Changes)).Verdict == check.Fail
	})
	t.why.faults = slices.DeleteFunc(t.why.faults, func(e fault.Explanation) bool {
		return !e.Lead && fault.Contradicts(e, o)
	})
}

// completed returns set with the values that the first failure was judged under where set has none: those of the profile that
// stood in for a declaration, and those on top of which a bug explains it.
func completed(t *track, set *convention.Set) *convention.Set {
	if len(t.over) > 0 {
		return changed(set, t.over)
	}
	if len(t.first.Case.Set.Names()) == len(set.Names()) {
		return set
	}
	full, _ := t.first.Case.Set.Over(set)
	return full
}

// decide chooses between the explanations: another legal option if one change is enough, or all options of a profile where the files
// do not name the framework that wrote them; a bug before two changes; arithmetic in 16 bits last.
func (t *track) decide(closed bool) {
	if t.first.Rules != nil {
		return
	}
	several := func(f stage.Fit) bool {
		if closed { // options that only the changed ones make meaningful are more to believe, too
			return len(f.Changes) > 1
		}
		return declaredChanges(f) > 1 && !f.Whole
	}
	if u := stage.Grid(t.first.Got); u > tol.U32 {
		t.why.fits = slices.DeleteFunc(t.why.fits, func(f stage.Fit) bool { return rounding(f, u) })
	}
	if slices.ContainsFunc(t.why.faults, func(e fault.Explanation) bool { return !e.Lead }) {
		t.why.fits = slices.DeleteFunc(t.why.fits, func(f stage.Fit) bool { return fitted(f) || t.unlisted(f) || t.anyBaseline(f) || t.saysLess(f) })
	}
	if len(t.why.fits) > 0 && several(t.why.fits[0]) && slices.ContainsFunc(t.why.faults, func(e fault.Explanation) bool { return !e.Lead }) {
		t.why.fits = nil
	}
	t.why.fits = slices.DeleteFunc(t.why.fits, func(f stage.Fit) bool {
		return declaredChanges(f) > mostChanged && (closed || !f.Whole) // so many fit what they do not explain, but for a program of another framework
	})
	if len(t.why.fits) > 0 {
		t.why.faults = slices.DeleteFunc(t.why.faults, func(e fault.Explanation) bool { return e.Lead })
		return
	}
	if !slices.ContainsFunc(t.why.faults, func(e fault.Explanation) bool { return !e.Lead }) && len(t.failing) > 0 {
		t.why.coarse = stage.Coarser(t.first)
	}
}

// rounding reports whether a fit changes nothing but numbers, and these by no more than the spacing 2u of an output's format: the number
// was solved from the roundings of a few cells, and is that of the declaration.
func rounding(f stage.Fit, u float64) bool {
	return len(f.Changes) > 0 && !slices.ContainsFunc(f.Changes, func(c stage.Change) bool {
		return c.From.Kind() != convention.Number || c.To.Kind() != convention.Number || math.Abs(c.To.Num()-c.From.Num()) > 2*u*math.Abs(c.From.Num())
	})
}

// fitted reports whether a fit is a coefficient of a number that nobody writes, to four digits: it was solved for, and a bug that gives the same
// numbers has none to choose.
func fitted(f stage.Fit) bool {
	if len(f.Changes) != 1 || f.Changes[0].To.Kind() != convention.Number || !slices.Contains([]string{"kl.beta", "entropy.coef", "value.coef", "tis.high", "tis.low"}, f.Changes[0].Option) {
		return false
	}
	x := f.Changes[0].To.Num()
	short, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 4, 64), 64)
	return err != nil || math.Abs(short-x) > 1e-6*math.Abs(x)
}

// unlisted reports whether a fit is a factor of the recursion that was solved for and that no framework has: what two factors of a formula make
// together, one that is left out or twice there makes, too, without a number to choose.
func (t *track) unlisted(f stage.Fit) bool {
	if len(f.Changes) != 1 {
		return false
	}
	c := f.Changes[0]
	return (c.Option == "gae.gamma" || c.Option == "gae.lambda") && !slices.Contains(t.first.Case.Set.Among(c.Option), c.To)
}

// anyBaseline reports whether a fit says no more than that a group has some baseline: that of ReMax is the reward of a greedy response, and where that
// was not dumped it is solved from the advantages.
func (t *track) anyBaseline(f stage.Fit) bool {
	return t.first.Case.B.Row("reward_baselines") == nil && slices.ContainsFunc(f.Changes, func(c stage.Change) bool {
		return c.Option == "adv.kind" && c.From.Known() && c.To.String() == "remax"
	})
}

// mostChanged is the number of declared options that an explanation may contradict.
const mostChanged = 2

// declaredChanges returns the number of changes of a fit that contradict a declaration. An option that only another value makes
// meaningful had none.
func declaredChanges(f stage.Fit) int {
	n := 0
	for _, c := range f.Changes {
		if c.From.Known() {
			n++
		}
	}
	return n
}
