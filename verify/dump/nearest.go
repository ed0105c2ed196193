package dump

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// departure is an option that a run without a declaration has otherwise than a profile can be configured to, though nothing else of the run is.
type departure struct {
	profile *convention.Profile
	track   *track
	change  stage.Change // from the profile's value to the found one
	shared  int          // options that the run has as the profile does
}

// notTaste are the options of which another value than a framework's is seldom a matter of taste in a program that is like it in all else. What programs
// choose freely (how losses are aggregated, what is whitened, estimators of KL, small numbers in quotients) tells nothing.
var notTaste = []string{"adv.center", "adv.ddof", "whiten.ddof", "whiten.mask", "whiten.shift_mean", "returns.before_whiten", "score.index", "value.factor", "value.mask",
	"ratio.old", "gae.hole", "gae.value_mask", "gae.truncated_bootstrap", "mask.tokens"}

// unlike are the options that a departure may leave open, beside the place of a KL that a run has not got: what keeps a quotient from a division by 0.
var unlike = []string{"adv.eps", "whiten.eps", "whiten.eps_place", "mean.eps", "agg.len_eps", "ratio.len_eps", "logp.temp_eps"}

// minor are the options in which programs differ without one of them being wrong: a squared error has its half in some (CleanRL) and not in others (stable-baselines3
// 2.7, PPO.train, mse_loss; Spinning Up).
var minor = []string{"adv.ddof", "whiten.ddof", "value.factor"}

// neverMeant are the options of which no framework has but one value, and another is a slip: a value function that is fitted to advantages without their
// scale is one of no rewards (every table of the conventions, V14).
var neverMeant = []string{"returns.before_whiten"}

// leastShared is the number of options that a run has as a profile does before one that it has otherwise is worth telling.
const leastShared = 8

// nearest leaves a check undecided whose numbers are right only under a value that no configuration of a framework can have, where all the rest of a
// run that declares nothing is that framework's: it may be meant, and it is what a program written after the framework has where one thing went wrong.
// Numbers that nothing explains are no framework's.
func (s *session) nearest(r *Report) {
	if s.profile != nil || s.o.Leading || slices.ContainsFunc(r.Results, func(res check.Result) bool {
		return res.Verdict == check.Fail || res.Verdict == check.Convention || res.Verdict == check.Undetermined && res.Steps != nil && res.Steps.Bad > 0
	}) {
		return
	}
	var searched []*track
	for _, t := range s.tracks {
		if t.searched && !t.silent && len(t.fits) > 0 && len(t.failing) == 0 {
			searched = append(searched, t)
		}
	}
	defer func() { s.kept = nil }()
	for _, t := range searched {
		if c, ok := s.meantByNobody(t); ok {
			slip(&r.Results[slices.IndexFunc(r.Results, func(res check.Result) bool { return res.Check == t.check.ID })], c)
			return
		}
	}
	if len(searched) == 0 || len(fitting(searched, (*convention.Profile).Configurable)) > 0 {
		return
	}
	var found []*departure
	for _, p := range convention.Profiles() {
		d, whole := s.departs(searched, p)
		if whole {
			return // a framework does all of it
		}
		if d == nil {
			continue
		}
		found = append(slices.DeleteFunc(found, func(o *departure) bool { return o.change.Option == d.change.Option && o.shared <= d.shared }), d) // of releases the last
	}
	if len(found) == 0 {
		return
	}
	slices.SortStableFunc(found, func(a, b *departure) int { return b.shared - a.shared })
	res := &r.Results[slices.IndexFunc(r.Results, func(res check.Result) bool { return res.Check == found[0].track.check.ID })]
	found[0].tell(res)
	if len(found) > 1 {
		res.Explanations = append(res.Explanations, found[1].explanation())
	}
}

// meantByNobody returns the option that all that fits a check has as no framework has it, and that the numbers need: with the value of every framework they are wrong.
func (s *session) meantByNobody(t *track) (c stage.Change, ok bool) {
	units, err := s.looked(t)
	if err != nil {
		return c, false // what cannot be read again decides nothing
	}
	right := t.fits[0].Changes
	for _, u := range s.tracks { // what makes advantages right stands for what returns of them do not ask for
		if u != t && u.searched && len(u.fits) > 0 && len(u.failing) == 0 && u.check.ID == "gae/advantage" {
			right = slices.Concat(u.fits[0].Changes, right)
		}
	}
	for _, c := range t.decided() {
		if !slices.Contains(neverMeant, c.Option) || c.From.Known() {
			continue
		}
		if c.From = ofAll(c.Option); c.From.Known() && c.From != c.To && slices.ContainsFunc(units, func(u unit) bool {
			return stage.Judge(t.check, u.b, changed(u.set, right).With(c.Option, c.From, "search")).Verdict == check.Fail
		}) {
			return c, true
		}
	}
	return c, false
}

// ofAll is the value that an option has in every profile to which it applies; none where they differ.
func ofAll(option string) (v convention.Value) {
	for _, p := range convention.Profiles() {
		switch has := p.Value(option); {
		case !has.Known() || has.Kind() == convention.NotApplicable:
		case v.Known() && v != has:
			return convention.Value{}
		default:
			v = has
		}
	}
	return v
}

// slip writes an option that no framework has into the result of its check.
func slip(res *check.Result, c stage.Change) {
	n, _ := fault.OfChangeIn(res.Check, c, false)
	res.Verdict, res.Where, res.Class = check.Fail, "", []string{n.ID}
	res.Reason = strings.TrimSuffix(fmt.Sprintf("the numbers are right, with %s=%s, which no framework has; %s", c.Option, c.To, res.Reason), "; ")
	res.Fix = fmt.Sprintf("compute as all frameworks do: %s=%s", c.Option, c.From)
	res.Explanations = []check.Explanation{{Fault: n.ID, Title: fmt.Sprintf("%s %s, where all frameworks have %s", c.Option, c.To, c.From), Cause: n.Cause, Rows: n.Rows,
		Evidence: "no framework has it", Options: []check.OptionChange{{Option: c.Option, Value: c.To.String(), Declared: c.From.String(), Origin: "all profiles"}}}}
}

// departs returns what a run has otherwise than p, nil if it is not one known option alone, and whether it is none.
func (s *session) departs(searched []*track, p *convention.Profile) (d *departure, whole bool) {
	shared := map[string]bool{}
	for _, t := range searched {
		for _, c := range s.lacks(t, p, shared) {
			if d == nil {
				d = &departure{profile: p, track: t, change: c}
			} else if d.change.Option != c.Option {
				return nil, false
			}
		}
	}
	if d == nil {
		return nil, true
	}
	if _, named := fault.OfChangeIn(d.track.check.ID, d.change, false); !named || !slices.Contains(notTaste, d.change.Option) || !d.change.From.Known() || len(shared) < leastShared {
		return nil, false
	}
	d.shared = len(shared)
	return d, false
}

// lacks returns the changes from the values of p to those under which the outputs of a check are right, of the fit that needs the fewest; what is right
// under the value of p, too, is none. The options that p has as they were found are put down in shared.
func (s *session) lacks(t *track, p *convention.Profile, shared map[string]bool) (best []stage.Change) {
	for i, f := range t.fits {
		var list []stage.Change
		for _, c := range f.Changes {
			has := p.Value(c.Option)
			switch {
			case c.To.Kind() == convention.NotApplicable || slices.Contains(unlike, c.Option), c.Option == "kl.place" && c.To.String() == "none":
			case unbounded(p, c):
			case t.oldUnseen(c):
			case has.Kind() != convention.NotApplicable && p.Configurable(c.Option, c.To):
				shared[c.Option] = shared[c.Option] || has == c.To
			default:
				list = append(list, stage.Change{Option: c.Option, From: has, To: c.To})
			}
		}
		if len(list) > 0 {
			list = s.needed(t, f, list, p)
		}
		if i == 0 || len(list) < len(best) {
			best = list
		}
		if len(best) == 0 {
			return nil
		}
	}
	return best
}

// oldUnseen reports whether a change is that of a ratio's denominator to the engine's log-probs in a run that dumps none of the rollout: prime-rl and
// tinker-cookbook compute none, so that these ratios are no slip of a program that has both.
func (t *track) oldUnseen(c stage.Change) bool {
	return c.Option == "ratio.old" && t.worst != nil && !t.worst.Case.Has("logp_old")
}

// unbounded reports whether a bound that no number was found for may be any large one that p can be configured to.
func unbounded(p *convention.Profile, c stage.Change) bool {
	const large = 1e6
	return c.To.String() == "none" && p.Configurable(c.Option, convention.NumberValue(large))
}

// needed returns those of the changes of a fit without which the outputs of some step are wrong. A number of the fit that p has another value of may make
// up for a word: of groups of two the mean with ε/2 is the other response with ε.
func (s *session) needed(t *track, f stage.Fit, list []stage.Change, p *convention.Profile) []stage.Change {
	units, err := s.looked(t)
	if err != nil {
		return list // what cannot be read again decides nothing
	}
	right := func(back []stage.Change) bool {
		return !slices.ContainsFunc(units, func(u unit) bool {
			set := changed(u.set, f.Changes)
			for _, c := range back {
				set = set.With(c.Option, c.From, "search")
			}
			o := stage.Judge(t.check, u.b, set)
			if len(o.Case.Unknown) > 0 { // what applies under the values that are put back alone
				for _, name := range o.Case.Unknown {
					set = set.With(name, p.Value(name), "search")
				}
				o = stage.Judge(t.check, u.b, set)
			}
			return o.Verdict != check.Pass && o.Verdict != check.NotSeen
		})
	}
	with := slices.Clone(list)
	for _, c := range f.Changes {
		if has := p.Value(c.Option); c.To.Kind() == convention.Number && has.Kind() == convention.Number && has != c.To {
			with = append(with, stage.Change{Option: c.Option, From: has, To: c.To})
		}
	}
	if right(list) || len(with) > len(list) && right(with) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(list), func(c stage.Change) bool { return right([]stage.Change{c}) })
}

// looked returns the steps of a track on which changes are judged, four at most. Those of a moderate size are kept: every profile asks for them.
func (s *session) looked(t *track) (units []unit, err error) {
	const most, small = 4, 1 << 16 // steps; cells
	for _, step := range spread(t.starts, most) {
		u, kept := s.kept[step]
		if !kept || t.spans[step] > 0 {
			if u, err = s.unit(s.ctx, t, step); err != nil {
				return nil, err
			}
			if t.spans[step] == 0 && len(u.b.Mask) <= small {
				if s.kept == nil {
					s.kept = map[int]unit{}
				}
				s.kept[step] = u
			}
		}
		units = append(units, u)
	}
	return units, nil
}

// tell writes a departure into the result of its check.
func (d *departure) tell(res *check.Result) {
	c, of := d.change, d.profile.Name
	if slices.Contains(neverMeant, c.Option) {
		slip(res, c)
		return
	}
	res.Verdict, res.Where = check.Undetermined, ""
	if slices.Contains(minor, c.Option) || c.Option == "ratio.old" && c.To.String() == "engine" { // verl 0.9.1, rollout_correction.bypass_mode
		res.Verdict = check.Warn
	}
	res.Reason = strings.TrimSuffix(fmt.Sprintf("the numbers are right, with %s=%s, which no configuration of %s has; all the rest is as there, so it is meant, or it is a bug; %s",
		c.Option, c.To, of, res.Reason), "; ")
	res.Fix = fmt.Sprintf("where it is meant, say so: --set %s=%s; else compute as %s does: %s=%s", c.Option, c.To, of, c.Option, c.From)
	res.Explanations = []check.Explanation{d.explanation()}
}

func (d *departure) explanation() check.Explanation {
	c, of := d.change, d.profile.Name
	n, _ := fault.OfChangeIn(d.track.check.ID, c, false)
	return check.Explanation{Fault: n.ID, Title: fmt.Sprintf("%s %s, where %s has %s", c.Option, c.To, of, c.From), Cause: n.Cause, Rows: n.Rows,
		Evidence: "all the rest is as there: meant, or a bug", Options: []check.OptionChange{{Option: c.Option, Value: c.To.String(), Declared: c.From.String(), Origin: of}}}
}
