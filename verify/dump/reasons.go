package dump

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/verify/bug"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// bugs adds the bugs of the catalogue that reproduce the output, common factors of one size as one.
func (t *track) bugs(res *check.Result, severalSteps bool) {
	why := &t.why
	byFactor := -1
	var names []string
	for _, e := range why.faults {
		x := explained(e, t.first, why.steps, severalSteps)
		if e.Factor != "" {
			name, value := factorOf(e.Factor)
			if name != value && name != "1/("+value+")" {
				names = append(names, name)
			}
			if byFactor < 0 {
				byFactor = len(res.Explanations)
				res.Explanations = append(res.Explanations, x)
			}
			res.Explanations[byFactor].Title = "right but for the factor " + value
			if len(names) > 0 {
				res.Explanations[byFactor].Title += ", here " + strings.Join(names, ", or ")
			}
			continue
		}
		if slices.ContainsFunc(res.Explanations, func(y check.Explanation) bool { return y.Fault == x.Fault && y.Lead == x.Lead }) {
			continue // as an option that fits
		}
		res.Explanations = append(res.Explanations, x)
	}
	for _, x := range res.Explanations {
		switch {
		case x.Lead:
		case x.Fault != "":
			res.Class = append(res.Class, x.Fault)
		case len(x.Options) > 0:
			res.Class = append(res.Class, assignments(x.Options))
		}
	}
	if len(why.faults) > 0 && !why.faults[0].Lead && len(why.fits) == 0 {
		res.Fix = why.faults[0].Hypothesis.Fix
	}
}

// factorOf takes "× world_size (2)" apart.
func factorOf(text string) (name, value string) {
	i := strings.LastIndex(text, " (")
	return strings.TrimPrefix(text[:i], "× "), strings.Trim(text[i:], " ()")
}

// assignments are options as they are declared: "adv.ddof=0, adv.eps=1e-4".
func assignments(options []check.OptionChange) string {
	var list []string
	for _, o := range options {
		list = append(list, o.Option+"="+o.Value)
	}
	return strings.Join(list, ", ")
}

// convention fills in the other options that fit: a convention where the framework can be configured so, else a bug.
func (t *track) convention(res *check.Result, declared *convention.Profile, s *session) {
	why := &t.why
	res.Verdict = check.Convention
	if s.profile == nil {
		why.fits = t.declared(why.fits)
	}
	why.fits = sharedFirst(knownFirst(why.fits), t.kin(s.tracks))
	var found []check.Explanation
	for _, f := range why.fits {
		e := check.Explanation{Evidence: "then the rule holds"}
		if o := f.Outcome; o.Tally != nil {
			e.Evidence = evidence(t.first, o.Tally.N+o.Exact, o.Tally.N+o.Exact, o.Tally.Worst.Err, why.steps)
		}
		var parts []string
		for _, c := range f.Changes {
			origin := t.first.Case.Set.Origin(c.Option)
			e.Options = append(e.Options, check.OptionChange{Option: c.Option, Value: c.To.String(), Declared: c.From.String(), Origin: origin})
			parts = append(parts, fmt.Sprintf("%s %s where %s", c.Option, c.To, says(c, origin)))
			if n, ok := t.nameOf(c, s); ok && e.Fault == "" {
				e.Fault, e.Rows = n.ID, n.Rows
			}
		}
		e.Title = strings.Join(parts, ", ") + orWorldSize(f.Changes, t.first.Case)
		if has := havers(f.Changes, declared); len(has) > 0 {
			e.Evidence += "; legal in " + strings.Join(has, ", ")
		}
		found = append(found, e)
	}
	if found[0].Fault != "LOSS-MASK-PADS" && slices.ContainsFunc(why.fits[0].Changes, func(c stage.Change) bool { return c.Option == "mask.tokens" }) {
		res.Explanations = slices.DeleteFunc(res.Explanations, func(e check.Explanation) bool { return e.Fault == "LOSS-MASK-PADS" }) // the same numbers by their other name
	}
	res.Explanations = append(found, res.Explanations...)
	best := res.Explanations[0]
	res.Fix = t.check.Fix
	if len(why.against) > 0 {
		res.Verdict = check.Fail
		for i := range found {
			res.Explanations[i].Title = "as if " + res.Explanations[i].Title
			res.Explanations[i].Evidence += fmt.Sprintf("; but %s is right under what is declared, and would not be under this: the program uses two values", strings.Join(why.against, ", "))
		}
		return
	}
	if declared != nil && slices.ContainsFunc(why.fits[0].Changes, func(c stage.Change) bool { return !declared.Possible(c.Option, c.To) }) {
		res.Verdict = check.Fail // no configuration of the framework does this
	}
	if b := bug.Find(best.Fault); b != nil && b.Fix != "" {
		if res.Fix = b.Fix; strings.HasSuffix(b.Fix, "the declared value") {
			res.Fix += valueOf(best.Options)
		}
	}
	var configured []string
	for _, o := range best.Options {
		if res.Verdict == check.Convention && o.Origin != "" && !strings.Contains(o.Origin, "@") {
			continue // the run says what it meant
		}
		if res.Verdict == check.Convention {
			configured = append(configured, o.Option+"="+o.Value)
		}
	}
	if len(configured) > 0 {
		res.Fix += "; where the run is configured to do " + strings.Join(configured, ", ") + ", judge it with its configuration (--config)"
	}
}

// valueOf returns what is declared of options in which a program differs, as the end of a sentence: ", whiten.ddof=1"; "" where that is nothing.
func valueOf(options []check.OptionChange) (text string) {
	for _, o := range options {
		if v, err := convention.Parse(o.Option, o.Declared); err == nil && v.Known() {
			text += ", " + o.Option + "=" + o.Declared
		}
	}
	return text
}

// knownFirst puts the first of as many changes that the registry knows each before one of which it knows nothing: that another kind of formula
// is the same there says less than the part that is wrong.
func knownFirst(fits []stage.Fit) []stage.Fit {
	known := func(f stage.Fit) bool {
		return !slices.ContainsFunc(f.Changes, func(c stage.Change) bool { _, ok := fault.OfChange(c); return !ok })
	}
	if len(fits) == 0 || fits[0].Whole || known(fits[0]) {
		return fits
	}
	at := slices.IndexFunc(fits, func(f stage.Fit) bool { return !f.Whole && len(f.Changes) == len(fits[0].Changes) && known(f) })
	if at < 0 {
		return fits
	}
	return slices.Concat(fits[at:at+1], fits[:at], fits[at+1:])
}

// declared leaves out of the fits of a run that declares no profile what they change of one that stands in for it, which nobody said, unless
// nothing else is changed; each that is left once, the one that contradicts the fewest declarations first.
func (t *track) declared(fits []stage.Fit) []stage.Fit {
	var list []stage.Fit
	for _, f := range fits {
		own := slices.DeleteFunc(slices.Clone(f.Changes), func(c stage.Change) bool {
			return slices.Contains(convention.ProfileNames(), t.first.Case.Set.Origin(c.Option))
		})
		if len(own) > 0 {
			f.Changes = own
		}
		if !slices.ContainsFunc(list, func(g stage.Fit) bool { return slices.Equal(f.Changes, g.Changes) }) {
			list = append(list, f)
		}
	}
	slices.SortStableFunc(list, func(a, b stage.Fit) int { return declaredChanges(a) - declaredChanges(b) })
	return list
}

// orWorldSize says that a division by the accumulation steps is one by the number of ranks, too, where both are the same number.
func orWorldSize(changes []stage.Change, c *stage.Case) string {
	world := float64(c.B.Meta.WorldSize)
	if world < 2 || c.FactOr("gradient_accumulation_steps", float64(c.B.Meta.MicroBatches)) != world ||
		!slices.ContainsFunc(changes, func(x stage.Change) bool { return x.Option == "agg.div_ga" }) {
		return ""
	}
	if slices.ContainsFunc(changes, func(x stage.Change) bool { return x.Option == "agg.div_ga" && x.To.String() == "true" }) {
		return fmt.Sprintf(", or divided by the world size, which is %g, too", world)
	}
	return fmt.Sprintf(", or multiplied by the world size, which is %g, too", world)
}

// nameOf returns what the registry knows of a change of an option that t asks for. A mean over padding in a ratio over sequences shows in
// the token losses, and then, too, in what is made of the ratio.
func (t *track) nameOf(c stage.Change, s *session) (fault.Named, bool) {
	right, id := false, t.check.ID
	for _, u := range s.tracks {
		if u.silent || u.worst == nil || u.check.Predict == nil || strings.HasPrefix(u.check.ID, "scalars/") {
			continue
		}
		switch {
		case len(u.failing) == 0:
			right = right || slices.Contains(u.worst.Case.Read, c.Option) || c.Option == "mask.tokens" && u.check.Stage == convention.Aggregate
		case u.check.ID == "token_loss/policy" && c.Option == "mask.tokens" && slices.ContainsFunc(u.why.fits, func(f stage.Fit) bool { return slices.Contains(f.Changes, c) }):
			id = u.check.ID
		}
	}
	return fault.OfChangeIn(id, c, right)
}

// says tells what declared an option, and which value: "the dump (loss_type=grpo) says true".
func says(c stage.Change, origin string) string {
	words, source, ok := strings.Cut(strings.TrimSuffix(origin, ")"), " (")
	switch {
	case origin == "":
		source = "the declaration"
	case !ok:
		source = origin
	case words != c.Option+"="+c.From.String():
		source += " (" + words + ")"
	}
	if c.From.Kind() == convention.NotApplicable {
		return source + " has none"
	}
	return fmt.Sprintf("%s says %s", source, c.From)
}

// havers returns the profiles that have all the values of a fit, at most two by name; of the declared framework only, where one is.
func havers(changes []stage.Change, declared *convention.Profile) []string {
	var names []string
	for _, p := range convention.Profiles() {
		if (declared == nil || p.Framework == declared.Framework) && !slices.ContainsFunc(changes, func(c stage.Change) bool { return p.Value(c.Option) != c.To }) {
			names = append(names, p.Name)
		}
	}
	if len(names) > 2 {
		names = append(names[:2], fmt.Sprintf("%d more", len(names)-2))
	}
	return names
}

// classes describes what a search found of the options that a check has read: those that all fits agree on, and those that this
// data cannot decide.
func classes(fits []stage.Fit, all bool, read []string) string {
	var order []string
	values := map[string][]string{}
	for _, f := range fits {
		for _, c := range f.Changes {
			if !slices.Contains(read, c.Option) {
				continue
			}
			if _, ok := values[c.Option]; !ok {
				order = append(order, c.Option)
			}
			if v := c.To.String(); !slices.Contains(values[c.Option], v) {
				values[c.Option] = append(values[c.Option], v)
			}
		}
	}
	var decided, tied []string
	for _, name := range order {
		if v := values[name]; len(v) == 1 {
			decided = append(decided, name+"="+v[0])
		} else {
			tied = append(tied, name+" "+strings.Join(v, " or "))
		}
	}
	text := strings.Join(decided, ", ")
	if len(tied) > 0 {
		if text != "" {
			text += "; "
		}
		text += "not decided by these data: " + strings.Join(tied, ", ")
	}
	if !all {
		text += " (search cut short)"
	}
	return text
}

func explained(e fault.Explanation, o *stage.Outcome, looked int, severalSteps bool) check.Explanation {
	h := e.Hypothesis
	if e.Lead || !severalSteps {
		looked = 1
	}
	x := check.Explanation{Fault: h.ID, Title: h.Title, Cause: h.Cause, Rows: h.Rows, Lead: e.Lead,
		Evidence: evidence(o, e.Cells, e.Outcome.Tally.N+e.Outcome.Exact, e.Worst, looked)}
	if !math.IsInf(e.Apart, 0) {
		x.Apart = e.Apart
	}
	return x
}

// evidence says on how many elements of the step of o, and on how many steps, an explanation rests.
func evidence(o *stage.Outcome, n, of int, worst float64, looked int) string {
	text := fmt.Sprintf("reproduces %d of %d to %.2g", n, of, worst)
	if n == of {
		text = fmt.Sprintf("reproduces all %d to %.2g", n, worst)
	}
	if looked > 1 {
		text += fmt.Sprintf(" in step %d, and fits all %d steps looked at", o.Case.B.Meta.Step, looked)
	}
	return text
}
