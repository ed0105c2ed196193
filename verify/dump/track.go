package dump

import (
	"slices"
	"strings"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// track is what became of one check over the steps.
type track struct {
	check  *stage.Check
	silent bool // judged for what its search tells other checks, and not reported

	judged, passed int         // steps, or rollout batches
	starts         []int       // the steps, the first one of each rollout batch
	pooled         bool        // judged on all steps of a rollout batch as one
	spans          map[int]int // by its first step, how many
	compared       int         // elements
	failing        []int       // steps
	cells, of      int         // failed elements of the failing steps, and all of theirs
	undecided      []int       // steps
	toLast         int         // of them those whose numbers agree to the last place all the same
	lastPlaces     int         // what they count for, see [stage.LeastToLast]
	lacking        string
	resolution     float64 // largest over the steps
	arithmetic     map[string]int
	worst          *stage.Outcome // the passed one with the largest ratio
	worstOf        judgement
	worstStep      int
	first          *stage.Outcome // that failed, or else that warned or was undetermined
	warned         []int
	seen           bool // the output was there
	exercised      bool // some number that it must be is not 0, or a rule was judged

	// Where options are open: those that have fitted every step so far.
	searched bool
	fits     []stage.Fit
	all      bool // the search tried everything

	absent     string // what no profile's options can do without, and the files do not have
	searchedAt int    // the step of the first search
	repeated   bool   // a step that told more was searched, too
	blank      int    // steps whose gradient no form makes
	adaptive   bool   // some batch has a coefficient of its own

	why  explanation
	over []stage.Change // of a declaration, on top of which a bug explains the first failure

	otherwise bool // two other values explain it, of which nobody declares one, and the other is a known bug

	unjudged string   // what the dump lacks tensors for, with their names, "the loss is not judged (entropy)"; "": nothing
	beside   []string // the checks whose failures chose between the explanations of this one
}

// add judges a batch and takes the outcome into account.
func (t *track) add(v *view, set *convention.Set, s *session) {
	o := s.judge(t.check, v, set)
	if o.Verdict == check.NotSeen || o.Verdict == check.Skip {
		return
	}
	if !t.pooled && spanOf(set) > 1 && (stage.LacksSteps(o.Outcome) || t.judged == 0 && t.whitens(v, s)) {
		t.pooled = true // the step is among those that are gathered
		return
	}
	t.seen = true
	if o.Verdict == check.Undetermined && t.check.Predict != nil && len(o.Case.Unknown) > 0 && len(o.Case.Absent) == 0 {
		if o = t.search(v, set, s); o.Verdict == check.NotSeen {
			return
		}
	}
	t.judged++
	step := v.b.Meta.Step
	t.starts = append(t.starts, step)
	if o.Tally != nil {
		t.compared += o.Tally.N + o.Exact
		t.resolution = max(t.resolution, o.resolution)
	}
	if o.Rules != nil {
		t.compared += o.Rules.Checked
	}
	if o.Check.Predict != nil && o.Verdict != check.Undetermined {
		if t.arithmetic == nil {
			t.arithmetic = map[string]int{}
		}
		t.arithmetic[o.Arithmetic.String()]++
	}
	t.exercised = t.exercised || o.exercised
	switch o.Verdict {
	case check.Pass:
		t.passed++
		if t.worst == nil || ratio(o.Outcome) > ratio(t.worst) {
			t.worst, t.worstOf, t.worstStep = light(o.Outcome), judgement{whole: o.whole}, step
		}
	case check.Fail:
		if len(t.failing) == 0 {
			t.first = s.complete(o)
		}
		t.failing = append(t.failing, step)
		if o.Tally != nil {
			t.cells += o.Tally.Failed
			t.of += o.Tally.N
		} else if o.Rules != nil {
			t.cells += len(o.Rules.Violations)
			t.of += o.Rules.Checked
		}
	case check.Warn:
		if t.first == nil {
			t.first = light(s.complete(o))
		}
		t.warned = append(t.warned, step)
	case check.Undetermined:
		if t.first == nil {
			t.first = light(s.complete(o))
			t.lacking = t.first.Lacking()
		}
		if t.undecided = append(t.undecided, step); o.ToLast > 0 {
			t.toLast++
			t.lastPlaces += o.ToLast
		}
	}
}

// whitens reports whether the rewards of a step show that they were whitened, or that a baseline of their groups was subtracted, or its importance weights
// that their mean divides them, which is done over all steps of a rollout.
func (t *track) whitens(v *view, s *session) bool {
	weights := t.check.ID == "ratio/is_weights" && s.profile == nil
	if t.check.ID != "reward/token" && !weights {
		return false
	}
	b, err := v.whole()
	if err != nil {
		s.fail(err)
		return false
	}
	if weights {
		return stage.NormalisedWeights(b)
	}
	return s.profile == nil && stage.WhitenedRewards(b) || stage.CentredRewards(b) // whether rewards are whitened a profile says
}

// search judges a batch under the options that are still possible. The outcome is that of the first fit; if none is left, it
// is the failure under the declared options completed by the profile that the files suggest.
func (t *track) search(v *view, set *convention.Set, s *session) judgement {
	if !t.searched {
		b, err := v.whole()
		if err != nil {
			s.fail(err)
			return s.judge(t.check, v, set)
		}
		u := s.telling(t, unit{b, set})
		t.searchedAt = u.b.Meta.Step
		if t.fits, t.all = s.solve(t, u), true; len(t.fits) == 0 {
			t.fits, t.all = t.complete(u.b, u.set, s)
		}
		t.fits = slices.DeleteFunc(t.fits, s.strange)
		t.searched = true
		if u.b == b && len(t.fits) > 0 {
			if s.ledger.write != nil { // each is judged again by who knows the steps before
				for _, f := range t.fits {
					s.judge(t.check, v, changed(set, f.Changes))
				}
			}
			return judgementOf(t.fits[0].Outcome)
		}
		t.repeated = s.profile == nil && len(t.fits) == 0 && !t.pooled // what tells most has excluded everything
	}
	if len(t.fits) > 0 || t.searchedAt != v.b.Meta.Step {
		var kept []stage.Fit
		var outcome *judgement
		for _, f := range t.fits {
			o := s.judge(t.check, v, changed(set, f.Changes))
			// A step without a token refutes nothing.
			if o.Verdict == check.Pass || o.Verdict == check.NotSeen || o.Verdict == check.Undetermined && len(o.Case.Unknown) == 0 {
				kept = append(kept, f)
				if outcome == nil {
					outcome = &o
				}
			}
		}
		if outcome == nil {
			kept, outcome = t.controlled(v, set, s)
		}
		t.fits = kept
		if outcome != nil {
			return *outcome
		}
		if o := t.again(v, set, s); o != nil {
			return judgementOf(o)
		}
	}
	if len(v.b.Missing) == 0 { // else the options that need what is missing are not excluded
		list, right := t.bases(v, set, s)
		switch {
		case right != nil && t.searchedAt != v.b.Meta.Step: // what tells most is wrong under everything: this one shows less
			return *right
		case len(list) > 0:
			return list[0]
		}
	}
	o := s.judge(t.check, v, set)
	undecided := func(o *stage.Outcome) *stage.Outcome {
		o.Verdict = check.Undetermined
		if text := set.Beyond(t.check.Stage); text != "" {
			o.Case.Absent = append(o.Case.Absent, stage.BeyondOptions(text))
		}
		return o
	}
	undecided(o.Outcome)
	if again := o.whole; again != nil {
		o.whole = func() (*stage.Outcome, error) {
			o, err := again()
			if err != nil {
				return nil, err
			}
			return undecided(o), nil
		}
	}
	if len(t.undecided) == 0 {
		if b, err := v.whole(); err != nil {
			s.fail(err)
		} else {
			t.absent = t.withoutInputs(b, set)
		}
	}
	return o
}

// decided returns the options that have the same value in all that fits, but for those to which they do not apply.
func (t *track) decided() []stage.Change {
	if len(t.fits) == 0 || !t.searched {
		return nil
	}
	var same []stage.Change
	for _, f := range t.fits {
		for _, c := range f.Changes {
			if c.To.Kind() == convention.NotApplicable || slices.Contains(same, c) || strings.HasPrefix(c.Option, "kl.") && t.check.Stage == convention.Reward && slices.ContainsFunc(t.fits, noKL) {
				continue
			}
			if !slices.ContainsFunc(t.fits, func(f stage.Fit) bool {
				return !slices.ContainsFunc(f.Changes, func(d stage.Change) bool {
					return d.Option == c.Option && (d.To == c.To || d.To.Kind() == convention.NotApplicable)
				})
			}) {
				same = append(same, c)
			}
		}
	}
	return same
}

// noKL reports whether a fit has a KL whose coefficient is 0: where it would stand, and which it would be, it does not say.
func noKL(f stage.Fit) bool {
	return slices.ContainsFunc(f.Changes, func(c stage.Change) bool {
		return c.Option == "kl.beta" && c.To.Kind() == convention.Number && c.To.Num() == 0
	})
}

// again searches a batch that none of the fits of an earlier one fits, and keeps what fits that one, too: where the first step
// decides little, as one of ratio 1 and KL 0 does, its search stops before it has tried everything.
func (t *track) again(v *view, set *convention.Set, s *session) *stage.Outcome {
	if t.repeated {
		return nil
	}
	t.repeated = true
	b, err := v.whole()
	if err != nil {
		s.fail(err)
		return nil
	}
	fits, all := t.complete(b, set, s)
	earlier, err := s.unit(s.ctx, t, t.searchedAt)
	if err != nil {
		return nil // it could be read before: the run is changing under us, and the failure stands
	}
	t.fits = slices.DeleteFunc(fits, func(f stage.Fit) bool {
		return s.strange(f) || stage.Judge(t.check, earlier.b, changed(earlier.set, f.Changes)).Verdict == check.Fail
	})
	if t.all = all; len(t.fits) == 0 {
		t.fits = stage.SolveWeights(t.check, s.solving(t, unit{b, set}))
	}
	if len(t.fits) == 0 {
		return nil
	}
	return stage.Judge(t.check, b, changed(set, t.fits[0].Changes))
}

// changed returns set with the changes of a fit.
func changed(set *convention.Set, changes []stage.Change) *convention.Set {
	for _, c := range changes {
		set = set.With(c.Option, c.To, "search")
	}
	return set
}

// light drops the arrays of an outcome that is kept for its numbers.
func light(o *stage.Outcome) *stage.Outcome {
	c := *o
	c.Pred, c.Got = nil, nil
	if b := o.Case.B; len(o.Got) <= max(b.Rows, len(b.Files)) {
		c.Got = slices.Clone(o.Got) // its number says what an index means
	}
	if c.Case != nil {
		k := *c.Case
		b := *k.B
		b.Tensors, b.Mask = nil, nil
		k.B = &b
		k.Forget()
		c.Case = &k
	}
	return &c
}

func ratio(o *stage.Outcome) float64 {
	if o.Tally == nil {
		return 0
	}
	return o.Tally.Worst.Ratio
}

// exercised reports whether an outcome could have come out wrong: 0 where 0 is due is what most programs compute, right or wrong.
func exercised(o *stage.Outcome) bool {
	p := o.Pred
	if p == nil {
		return true
	}
	cells := len(p.Want) == len(o.Case.B.Mask)
	for i, want := range p.Want {
		if want != 0 && (p.Judge == nil && (!cells || o.Case.B.Mask[i]) || p.Judge != nil && p.Judge[i]) {
			return true
		}
	}
	return false
}

// formal are the checks of the form of a dump, by their ids or the first parts of these: that they pass says nothing about what was
// computed.
var formal = []string{"input", "masks", "logp/range", "logp/entropy_range", "reward/spread", "aggregate/finite", "aggregate/num_items"}

func isFormal(id string) bool {
	group, _, _ := strings.Cut(id, "/")
	return slices.Contains(formal, id) || slices.Contains(formal, group)
}
