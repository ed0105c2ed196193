package dump

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// bases are the failures of a batch under what is declared, completed by what the checks before have found, by numbers that it gives in closed
// form, where nothing is declared, and by each profile: one of those whose options are the same, the profile that the files suggest first, then
// those that leave the fewest elements wrong. An option that a profile leaves to the configuration has several values. right is under what the batch is
// right, nil where it is so under none.
func (t *track) bases(v *view, set *convention.Set, s *session) (list []judgement, right *judgement) {
	known, found := t.foundBefore(set, s)
	known, found = unweighted(v.b, known, found)
	return t.underEach(slices.Concat(t.ofUpstream(known, found, set, s), t.withShown(v, known, s), underTensors(v.b, known)), v, s)
}

// ofTensors are the estimator that a tensor of the batch is for and no other, where nobody says which it is, with the weights that it takes where they were
// dumped, whatever made them, and the groups of the dump.
func ofTensors(b *dump.Batch, known *convention.Set) (changes []stage.Change) {
	if b.Tensors["sum_pi_squared"] == nil || known.Value("adv.kind").Kind() != convention.Unknown {
		return nil
	}
	for _, a := range []struct{ option, word, tensor string }{{"adv.kind", "optimal_token_baseline", "sum_pi_squared"}, {"tis.level", "token", "is_weights"}, {"adv.group_by", "uid", "group_id"}} {
		v, err := convention.Parse(a.option, a.word)
		if err != nil {
			panic("dump: " + err.Error())
		}
		if b.Tensors[a.tensor] != nil && known.Value(a.option).Kind() == convention.Unknown {
			changes = append(changes, stage.Change{Option: a.option, From: known.Value(a.option), To: v})
		}
	}
	return changes
}

// underTensors is known with what [ofTensors] says of it, if anything.
func underTensors(b *dump.Batch, known *convention.Set) []*convention.Set {
	set := known
	for _, c := range ofTensors(b, known) {
		set = set.With(c.Option, c.To, ofNobody)
	}
	if set == known {
		return nil
	}
	return []*convention.Set{set}
}

// buggy are the failures of a batch as [track.bases], under the numbers that it gives in closed form if one bug or another is in it: the likeliest of each first, and
// then the next, so that what one bug leaves open does not crowd out another.
func (t *track) buggy(b *dump.Batch, set *convention.Set, s *session) []judgement {
	if s.profile != nil {
		return nil
	}
	known, found := t.foundBefore(set, s)
	known, _ = unweighted(b, known, found)
	var lists [][]judgement
	shown := append(fault.SolvedUnder(t.check, s.solving(t, s.telling(t, unit{b, known}))), fault.ShownUnder(t.check, t.together(b, s), known)...)
	for _, changes := range shown {
		if f := (stage.Fit{Changes: changes}); !f.Unwritten() {
			list, _ := t.underEach([]*convention.Set{changed(known, changes)}, &view{b: b}, s)
			lists = append(lists, list)
		}
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(dealt(lists), func(j judgement) bool {
		k := underWhat(j.Outcome)
		was := seen[k]
		seen[k] = true
		return was
	})
}

// dealt are the elements of some lists, the first of each, then the second of each that has one, and so on.
func dealt[T any](lists [][]T) (all []T) {
	for i := 0; ; i++ {
		n := len(all)
		for _, l := range lists {
			if i < len(l) {
				all = append(all, l[i])
			}
		}
		if len(all) == n {
			return all
		}
	}
}

// together are some steps as one, of weights, the bounds of which each step shows a part of; of another output, b.
func (t *track) together(b *dump.Batch, s *session) *dump.Batch {
	const most = 32 // steps: one weight of a long run may be all that stands on a bound
	if t.check.ID != "ratio/is_weights" {
		return b
	}
	list := []*dump.Batch{b}
	for _, step := range spread(t.starts, most) {
		if u, err := s.unit(s.ctx, t, step); err == nil && step != b.Meta.Step {
			list = append(list, u.b)
		}
	}
	return dump.Join(list...)
}

// underEach are the failures of a batch under each of some sets, completed by each profile, as [track.bases] says.
func (t *track) underEach(sets []*convention.Set, v *view, s *session) (list []judgement, right *judgement) {
	seen := map[string]bool{}
	for _, known := range sets {
		for _, p := range s.fallbackProfiles() {
			under, _ := convention.FromProfile(p).Over(known)
			filled, passes := t.filled(v, under, s)
			if right == nil {
				right = passes
			}
			for _, o := range filled {
				if k := underWhat(o.Outcome); !seen[k] {
					seen[k] = true
					list = append(list, o)
				}
			}
		}
	}
	if len(list) == 0 {
		return nil, right
	}
	wrong := func(o judgement) float64 {
		if o.Tally == nil || o.Tally.N == 0 {
			return 1
		}
		return float64(o.Tally.Failed) / float64(o.Tally.N)
	}
	rest := list
	if s.suggest != nil {
		rest = list[1:]
	}
	away := map[*stage.Outcome]float64{}
	for _, o := range rest {
		if s.profile == nil { // what a declared profile leaves open is its own first
			away[o.Outcome] = distant(o.Outcome)
		}
	}
	slices.SortStableFunc(rest, func(x, y judgement) int {
		return cmp.Or(cmp.Compare(wrong(x), wrong(y)), cmp.Compare(away[x.Outcome], away[y.Outcome]))
	})
	return list, right
}

// distant is the root mean square of what an outcome leaves, in octaves: options under which little is left are nearer to what ran, and what is
// about as near keeps its order.
func distant(o *stage.Outcome) float64 {
	if o.Pred == nil || len(o.Got) != len(o.Pred.Want) {
		return math.Inf(1)
	}
	var sum, n float64
	for i, want := range o.Pred.Want {
		if d := o.Got[i] - want; (o.Pred.Judge == nil || o.Pred.Judge[i]) && !math.IsNaN(d) && !math.IsInf(d, 0) {
			sum, n = sum+d*d, n+1
		}
	}
	return math.Round(math.Log2(math.Sqrt(sum/n) + math.SmallestNonzeroFloat64))
}

// unweighted takes back what the checks before have found of weights between engine and trainer where the files have neither of the two: a loss without
// weights is right under any rule for them, and one beside it would ask for what is not there.
func unweighted(b *dump.Batch, known *convention.Set, found []stage.Change) (*convention.Set, []stage.Change) {
	if b.Tensors["is_weights"] != nil || b.Tensors["logp_gen"] != nil {
		return known, found
	}
	var left []stage.Change
	for _, c := range found {
		if strings.HasPrefix(c.Option, "tis.") {
			known = known.With(c.Option, convention.Value{}, "")
		} else {
			left = append(left, c)
		}
	}
	return known, left
}

// ofUpstream returns known with what the likeliest fits of the checks upstream say together of options that each of them leaves open: a bound, and what it
// counts from, are right only together.
func (t *track) ofUpstream(known *convention.Set, found []stage.Change, set *convention.Set, s *session) (sets []*convention.Set) {
	const most = 2
	starts := t.upstreamFits(upstreamOf[t.check.ID], found, set, s)
	for _, changes := range starts[:min(most, len(starts))] {
		under := known
		for _, c := range changes {
			if under.Value(c.Option).Kind() == convention.Unknown {
				under = under.With(c.Option, c.To, ofNobody)
			}
		}
		sets = append(sets, under)
	}
	return sets
}

// withShown returns set, and where nothing is declared set with what the batch gives of the check's options in closed form, the likeliest two.
func (t *track) withShown(v *view, set *convention.Set, s *session) []*convention.Set {
	const most = 2
	sets := []*convention.Set{set}
	if s.profile != nil {
		return sets
	}
	b, err := v.whole()
	if err != nil {
		s.fail(err)
		return sets
	}
	bounds := stage.ShownBounds(t.check, s.solving(t, unit{b, set}))
	var ofScores [][]stage.Change
	if t.check.ID == "advantage/group" {
		ofScores = s.scan().scores.Changes(set)
	}
	for _, shown := range [][][]stage.Change{append(t.shownByGradient(b, set), stage.Shown(t.check, b, set)...), ofScores, bounds} {
		for _, changes := range shown[:min(most, len(shown))] {
			if f := (stage.Fit{Changes: changes}); !f.Unwritten() {
				sets = append(sets, changed(set, changes))
			}
		}
	}
	return sets
}

// shownByGradient is stage.ShownByGradient of the first steps: a gradient that no form makes in two of them is of none in the others.
func (t *track) shownByGradient(b *dump.Batch, set *convention.Set) [][]stage.Change {
	const most = 2
	if t.blank >= most || !stage.TellsByGradient(t.check, b) {
		return nil
	}
	shown := stage.ShownByGradient(t.check, b, set)
	if len(shown) == 0 {
		t.blank++
	}
	return shown
}

// ofNobody is the origin of a value that was chosen for want of any: like one of a profile that stands in, it declares nothing.
const ofNobody = "no profile@"

// filled are the failures of a batch under set, with values for the options that neither a declaration nor a profile has: one where it has all
// that the check asks for. A check that stops at the first of them has not said what the others are. right is under what it is right.
func (t *track) filled(v *view, set *convention.Set, s *session) (list []judgement, right *judgement) {
	const most = 8  // failures
	const tried = 4 // times as many judgements
	n := 0
	var fill func(set *convention.Set)
	fill = func(set *convention.Set) {
		if n++; n > tried*most || len(list) >= most {
			return
		}
		o := s.judge(t.check, v, set)
		switch {
		case o.Verdict == check.Fail:
			list = append(list, o)
			return
		case o.Verdict == check.Pass && right == nil:
			right = &o
		}
		if o.Verdict != check.Undetermined || len(o.Case.Unknown) == 0 || len(o.Case.Absent) > 0 || s.profile != nil {
			return
		}
		name := o.Case.Unknown[0]
		for _, value := range set.Among(name) {
			fill(set.With(name, value, ofNobody))
		}
	}
	fill(set)
	return list, right
}

// withoutInputs names what a batch lacks where no profile's options can be tried on it for want of data, each profile's need once;
// "" if some can.
func (t *track) withoutInputs(b *dump.Batch, set *convention.Set) string {
	const most = 3 // options that a profile leaves to the configuration
	var needs []string
	var lacking func(under *convention.Set, open int) bool
	lacking = func(under *convention.Set, open int) bool {
		o := stage.Judge(t.check, b, under)
		switch {
		case o.Verdict == check.NotSeen || o.Verdict == check.Skip:
			return true
		case o.Verdict != check.Undetermined || len(o.Case.Absent) == 0 && (len(o.Case.Unknown) == 0 || open == most):
			return false
		case len(o.Case.Absent) == 0:
			name := o.Case.Unknown[0]
			among := under.Among(name)
			return len(among) > 0 && !slices.ContainsFunc(among, func(v convention.Value) bool { return !lacking(under.With(name, v, ofNobody), open+1) })
		}
		if need := strings.Join(o.Case.Absent, " and "); !slices.Contains(needs, need) {
			needs = append(needs, need)
		}
		return true
	}
	for _, p := range convention.Profiles() {
		if under, _ := convention.FromProfile(p).Over(set); !lacking(under, 0) {
			return ""
		}
	}
	return strings.Join(needs, ", or ")
}

// fallbackProfiles returns the profiles on top of which a failure without a declaration is explained.
func (s *session) fallbackProfiles() []*convention.Profile {
	if s.suggest != nil {
		return append([]*convention.Profile{s.suggest}, convention.Profiles()...)
	}
	return convention.Profiles()
}

// runs are the outcomes of several steps under the options of each of some failures, the failure first, of an output that has few numbers in a step.
func (t *track) runs(bases []*stage.Outcome, s *session) (runs [][]*stage.Outcome) {
	const few = 24 // numbers of a step
	if len(t.first.Got) >= few {
		return nil
	}
	var units []unit
	for _, step := range spread(t.starts, witnesses+1) {
		if step == t.first.Case.B.Meta.Step {
			continue
		}
		u, err := s.unit(s.ctx, t, step)
		if err != nil {
			return nil // it could be read before: the run is changing under us, and the failure stands
		}
		units = append(units, u)
	}
	for _, o := range bases {
		run := []*stage.Outcome{o}
		for _, u := range units {
			full, _ := o.Case.Set.Over(u.set)
			if p := stage.Judge(t.check, u.b, full); p.Pred != nil && p.Case.OK() {
				run = append(run, p)
			}
		}
		runs = append(runs, run)
	}
	return runs
}
