package dump

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/bug"
	"plumbline/verify/check"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// info describes a check, with the bugs of the catalogue that are looked for in its output.
func info(c *stage.Check) check.Info {
	i := check.Info{Name: c.ID, Doc: c.Title + "\n\n" + c.Formula, Source: c.Source, Fix: c.Fix}
	for _, h := range fault.All() {
		if h.Applies(c) {
			i.Faults = append(i.Faults, check.FaultInfo{ID: h.ID, Title: h.Title, Cause: h.Cause, Fix: h.Fix, Source: strings.Join(h.Rows, ", ")})
		}
	}
	return i
}

// report turns the tracks into results.
func (s *session) report() *Report {
	for _, text := range slices.Sorted(maps.Keys(s.remarks)) {
		if more := s.remarks[text] - fewRemarks; more > 0 {
			s.say(fmt.Sprintf("… and %d more of: %s", more, text))
		}
	}
	r := &Report{Lines: s.lines, Overrides: s.override, Declared: s.declared && !s.o.Infer, Steps: len(s.steps)}
	if s.o.Config != nil {
		for _, t := range s.o.Config.Taken {
			r.Taken = append(r.Taken, t.String())
		}
	}
	unseen := s.unseen()
	for _, t := range s.tracks {
		if t.silent {
			continue
		}
		res, ok := t.result(s)
		if !ok {
			if !s.demanded(t.check.ID) {
				continue
			}
			res = check.Result{Verdict: check.Undetermined, Reason: "asked for by name, but the dump has nothing it applies to"}
			unseen = slices.DeleteFunc(unseen, func(u check.Result) bool {
				if u.Check == t.check.ID {
					res.Reason = "asked for by name, but " + u.Reason
				}
				return u.Check == t.check.ID
			})
		}
		t.contradicted(&res, s)
		t.withoutKL(&res, s)
		t.discounted(&res, s)
		t.unclipped(&res, s, r.Results)
		t.withoutWeights(&res, s)
		t.correctedTwice(&res, s)
		t.sharpened(&res, s)
		t.drifted(&res, s)
		t.synchronised(&res, s)
		res.Check, res.Formal = t.check.ID, isFormal(t.check.ID)
		res.Demanded = s.o.Selection.Demands(t.check.ID)
		r.Results = append(r.Results, res)
		if text := t.found(); text != "" {
			r.Found = append(r.Found, t.check.ID+": "+text)
		}
	}
	s.nearest(r)
	s.exchanged(r)
	s.rewarded(r)
	if res, ok := s.engineOverSteps(); ok {
		for i := range r.Results { // one cause: what is apart by then is so for the same reason
			if size := &r.Results[i]; size.Check == "agreement/size" && size.Verdict == check.Fail && len(size.Explanations) == 0 && len(res.Explanations) > 0 && !res.Explanations[0].Lead {
				size.Explanations = slices.Clone(res.Explanations)
				size.Explanations[0].Evidence = res.Reason
			}
		}
		r.Results = append(r.Results, res)
	}
	logs := slices.IndexFunc(r.Results, func(res check.Result) bool { return groupOf(res.Check) == "scalars" })
	if logs < 0 {
		logs = len(r.Results)
	}
	r.Results = slices.Insert(r.Results, logs, s.optimizer.results(s)...)
	r.Results = append(append(s.input.results(s.o.Selection), r.Results...), unseen...)
	r.Lines = append(s.formatLines(), r.Lines...)
	if fits := s.profilesThatFit(); fits != "" {
		r.Lines = append(r.Lines, fits)
	}
	if s.o.Brief {
		r.Coverage = s.coverage()
		r.Brief = s.brief(r)
	}
	return r
}

// demanded reports whether a check that does not apply was asked for: by its id, or as the first of a group of which nothing
// applies.
func (s *session) demanded(id string) bool {
	for _, pattern := range slices.Concat(s.o.Selection.Select, s.o.Selection.Require) {
		one := check.Selection{Select: []string{pattern}}
		group := slices.DeleteFunc(slices.Clone(s.tracks), func(t *track) bool { return !one.Takes(t.check.ID) })
		if pattern == id || len(group) > 0 && group[0].check.ID == id && !slices.ContainsFunc(group, func(t *track) bool { return t.seen }) {
			return true
		}
	}
	return false
}

func (t *track) result(s *session) (check.Result, bool) {
	if !t.seen {
		return check.Result{}, false
	}
	res := check.Result{Subject: t.units(t.judged), Compared: t.compared, Resolution: t.resolution, Steps: &check.Steps{Judged: t.judged}}
	// Bounds that are too wide in some steps tell where all of enough numbers agree to the last place, under options that are declared.
	toLast := !t.searched && t.toLast > 0 && len(t.undecided) == t.toLast && max(t.compared, t.lastPlaces) >= stage.LeastToLast
	switch {
	case len(t.failing) > 0:
		t.failure(&res, s)
	case t.passed > 0 && len(t.undecided) <= t.judged/20, toLast:
		res.Verdict = check.Pass
		if t.measure(&res, t.worst, s); t.worst == nil {
			t.measure(&res, t.first, s)
		}
		t.remarks(&res)
		if toLast {
			res.Reason = "all numbers with a bound too wide to tell agree to the last place of their type"
		}
		switch {
		case len(t.warned) > 0:
			res.Verdict = check.Warn
			t.asserted(&res, t.first, s)
		case !t.exercised:
			res.Verdict, res.Reason = check.Untested, "agrees, but the right number is 0 throughout, whatever the formula: "+s.idle(t)
		}
	case len(t.undecided) > 0:
		res.Verdict = check.Undetermined
		res.Reason = t.lacking
		if t.searched && len(t.fits) == 0 {
			res.Reason = "no combination of the options that are open gives these numbers, and no profile judges them: " + t.lacking
			if t.absent != "" {
				res.Reason = "not in the dump: " + t.absent
			}
			if t.first != nil && len(t.first.Case.B.Missing) > 0 {
				res.Reason = "files of the step are missing, over which its sums may run (" + t.first.Case.B.Missing[0] + ")"
			}
		}
		if res.Reason == "" {
			res.Reason = "nothing could be decided"
		}
		if t.first != nil && t.first.Tally != nil {
			t.measure(&res, t.first, s)
		}
		switch {
		case s.o.Selection.Demands(t.check.ID):
		case strings.HasPrefix(t.check.Output, "scalars/"): // no tensor of the dump is left undecided
			res.Verdict, res.Metric, res.Reason = check.NotSeen, "", "the logged number is not judged: "+res.Reason
		case strings.HasPrefix(res.Reason, "not in the dump: "+stage.ScoresOfTokens): // for which there is no tensor
			res.Verdict, res.Metric, res.Reason = check.NotSeen, "", "the rewards are not judged: "+res.Reason
		case t.wantsTensors(res.Reason):
			_, list, _ := strings.Cut(res.Reason, notDumped)
			res.Verdict, res.Reason = check.NotSeen, t.lacks(list)
		}
	case len(t.warned) > 0:
		res.Verdict = check.Warn
		t.asserted(&res, t.first, s)
	default:
		return res, false
	}
	return res, true
}

// notDumped is before the names of what a dump lacks.
const notDumped = "not in the dump: "

// lacks notes that an output is not judged for want of some tensors, and returns the reason that says so.
func (t *track) lacks(tensors string) string {
	what := notJudged(t.check.Output)
	t.unjudged = fmt.Sprintf("%s (%s)", what, tensors)
	return what + ": " + notDumped + tensors
}

// notJudged says that an output is not judged.
func notJudged(output string) string {
	switch output {
	case "advantages", "returns", "is_weights":
		return "the " + strings.ReplaceAll(output, "is_weights", "importance weights") + " are not judged"
	case "loss":
		return "the loss is not judged"
	}
	return output + " is not judged"
}

// wantsTensors reports whether a reason is that the dump lacks tensors, which hooks leave out, and no more: nothing was tried that gives other numbers. It is a
// blind spot then, and no doubt.
func (t *track) wantsTensors(reason string) bool {
	_, list, lacks := strings.Cut(reason, notDumped)
	if !lacks || t.absent == "" && t.searched {
		return false
	}
	known := dumpfile.TensorNames()
	return !slices.ContainsFunc(strings.FieldsFunc(strings.NewReplacer(", or ", ",", " and ", ",").Replace(list), func(r rune) bool { return r == ',' }), func(name string) bool {
		return !slices.Contains(known, strings.TrimSpace(name))
	})
}

// measure fills in the numbers of an outcome.
func (t *track) measure(res *check.Result, o *stage.Outcome, s *session) {
	if o == nil || o.Tally == nil || o.Tally.N == 0 {
		return
	}
	w := o.Tally.Worst
	res.Metric, res.Measured, res.Limit = "|Δ|", w.Err, w.Bound
	res.Where = place(o, w.Index, s.o.Redact) + fmt.Sprintf("  got %s  want %s", shown(w.Out), shown(w.Ref))
}

func shown(x float64) string { return fmt.Sprintf("%.7g", x) }

// found describes the options that a search has found, "" if there was none.
func (t *track) found() string {
	if !t.searched || len(t.fits) == 0 || t.worst == nil {
		return ""
	}
	return classes(t.fits, t.all, t.worst.Case.Read)
}

// remarks says what a pass rests on.
func (t *track) remarks(res *check.Result) {
	var parts []string
	if text := t.found(); text != "" {
		parts = append(parts, "found by search: "+text)
	}
	if t.worst != nil && len(t.worst.Case.Used) > 0 {
		parts = append(parts, "from recomputed "+strings.Join(t.worst.Case.Used, ", ")+" (not in the dump)")
	}
	for name, n := range t.arithmetic {
		if name != "float32" {
			parts = append(parts, fmt.Sprintf("%s in %s", name, t.units(n)))
		}
	}
	slices.Sort(parts)
	if len(t.undecided) > 0 {
		parts = append(parts, fmt.Sprintf("undecided in %s: %s", t.units(len(t.undecided)), t.lacking))
	}
	if t.worst != nil && t.worst.Rules != nil && t.worst.Rules.Note != "" {
		parts = append(parts, t.worst.Rules.Note)
	}
	res.Reason = strings.Join(parts, "; ")
}

func steps(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// asserted fills in the first violation of a rule.
func (t *track) asserted(res *check.Result, o *stage.Outcome, s *session) {
	if o == nil || o.Rules == nil || len(o.Rules.Violations) == 0 {
		return
	}
	v := o.Rules.Violations[0]
	res.Reason = v.Reason
	if n := len(o.Rules.Violations); n > 1 {
		res.Reason += fmt.Sprintf(" (and %d more in this step)", n-1)
	}
	if o.Rules.Note != "" {
		res.Reason += "; " + o.Rules.Note
	}
	res.Where = cell(o.Case.B, v.Row, v.Col, s.o.Redact)
	if v.Got != 0 && !s.o.Redact { // it may be a token id
		res.Facts = append(res.Facts, check.Fact{Name: "found", Value: v.Got})
	}
	res.Fix = t.check.Fix
	if v.Fault != "" {
		e := check.Explanation{Fault: v.Fault, Title: v.Reason}
		if h := fault.Find(v.Fault); h != nil {
			e.Title, e.Cause, e.Rows = h.Title, h.Cause, h.Rows
			if b := bug.Find(h.ID); b != nil { // the first hypothesis of a bug may be a variant
				e.Title = b.Title
			}
			res.Fix = h.Fix
		}
		res.Explanations = append(res.Explanations, e)
	}
}

func (t *track) failure(res *check.Result, s *session) {
	o := t.first
	res.Verdict = check.Fail
	t.measure(res, o, s)
	first := t.failing[0]
	res.Steps.Bad, res.Steps.First = len(t.failing), first
	if len(s.steps) > 1 {
		res.Subject = fmt.Sprintf("step %d (%d of %s)", first, len(t.failing), t.units(t.judged))
	}
	res.Repeat = t.repeat(s)
	res.Formula = t.check.Formula
	if o.Rules != nil {
		t.asserted(res, o, s)
		if len(t.why.fits) > 0 {
			t.convention(res, s.closed, s)
		}
		t.rejected(res, s)
		return
	}
	finding := fmt.Sprintf("%d of %d compared elements beyond their bound", t.cells, t.of)
	if len(s.steps) > 1 {
		finding += fmt.Sprintf(" in %d of %s, from step %d", len(t.failing), t.units(t.judged), first)
	}
	if o.Arithmetic.String() != "float32" {
		finding += "; arithmetic: " + o.Arithmetic.String()
	}
	if len(o.Case.Used) > 0 {
		finding += "; " + strings.Join(o.Case.Used, ", ") + " recomputed, not in the dump"
	}
	res.Fix = t.check.Fix
	if o.Pred != nil && o.Pred.Terms != nil && o.Tally.Worst.Index >= 0 {
		for _, term := range o.Pred.Terms(o.Tally.Worst.Index) {
			if s.o.Redact && strings.Contains(term.Name, "token id") {
				continue
			}
			res.Facts = append(res.Facts, check.Fact{Name: term.Name, Value: term.Value})
		}
	}
	why := &t.why
	if t.check.ID == "aggregate/kl_loss" && slices.ContainsFunc(why.faults, func(e fault.Explanation) bool { return !e.Lead && e.Factor == "" }) {
		why.fits = slices.DeleteFunc(why.fits, movesKL) // a KL that has a loss stands in it: the bug says more
	}
	switch {
	case len(why.fits) > 0:
		t.convention(res, s.closed, s)
	case why.coarse != nil && s.common.ComputeDType == "float32" && storedWhole(o.Case.B): // it says in what ratios, losses and sums are computed (docs/dump.md)
		finding += fmt.Sprintf("; as much as if this stage had run in %s, and compute_dtype declares float32", why.coarse.Arithmetic)
	case why.coarse != nil && why.coarse.Few:
		res.Verdict = check.Undetermined
		finding += fmt.Sprintf("; too few to tell from rounding, had this stage run in %s", why.coarse.Arithmetic)
		res.Fix = "declare compute_dtype, or dump a step in float32"
	case why.coarse != nil:
		res.Verdict = check.Warn
		finding += fmt.Sprintf("; consistent with this stage having run in %s (there the largest error is %.2g of its bound)", why.coarse.Arithmetic, why.coarse.Tally.Worst.Ratio)
		res.Fix = "declare compute_dtype if that is intended; else keep this stage in float32"
	}
	t.bugs(res, len(s.steps) > 1)
	if s.closed != nil {
		nameless(res.Explanations)
	}
	if len(res.Explanations) == 0 && res.Verdict == check.Fail {
		if p := pattern(o); p != "" {
			finding += "; " + p
		}
		finding += "; no legal option and no bug of the catalogue gives these numbers"
		if !why.all {
			finding += " (the search was cut short)"
		}
		if open := stage.Untried(o); len(open) > 0 {
			finding += fmt.Sprintf("; %s could not be tried for want of data (-v)", steps(len(open), "option value"))
			for _, text := range open {
				res.Details = append(res.Details, "not tried: "+text)
			}
		}
	}
	res.Reason = finding
	t.ungrouped(res, s)
	t.undeclared(res, s)
}

// storedWhole reports whether no tensor of a batch is stored in 16 bits, which rounds what was computed in 32.
func storedWhole(b *dumpfile.Batch) bool {
	for _, t := range b.Tensors {
		if t.Casts || t.Type == format.BF16 || t.Type == format.F16 {
			return false
		}
	}
	return true
}

// fewSteps is the number of steps up to which a failure is repeated on the whole run.
const fewSteps = 16

// repeatSteps returns the flag that restricts a run to the steps on which the failure of t rests: the first one that failed and
// those that its explanation was confirmed on. What was found by search rests on all of them, and where rollout batches begin is
// told by the first step of the run.
func (s *session) repeatSteps(t *track) string {
	if len(s.steps) <= fewSteps || t.searched || t.pooled || isAcross(t.check) {
		return ""
	}
	some := append([]int{t.failing[0]}, t.witnesses()...)
	slices.Sort(some)
	text := make([]string, len(some))
	for i, step := range some {
		text[i] = strconv.Itoa(step)
	}
	return " --steps " + strings.Join(text, ",")
}

// nameless moves explanations by options that the framework of the files does not have behind those by bugs: such an option is no name
// for what its program does, if something else is.
func nameless(list []check.Explanation) {
	const none = "–" // as a [convention.Value] that does not apply is printed
	rank := func(e check.Explanation) int {
		switch {
		case e.Lead:
			return 2
		case len(e.Options) > 0 && !slices.ContainsFunc(e.Options, func(o check.OptionChange) bool { return o.Declared != none }):
			return 1
		}
		return 0
	}
	slices.SortStableFunc(list, func(a, b check.Explanation) int { return rank(a) - rank(b) })
}

// movesKL reports whether a fit takes the KL out of the loss.
func movesKL(f stage.Fit) bool {
	return slices.ContainsFunc(f.Changes, func(c stage.Change) bool { return c.Option == "kl.place" && c.To.String() != "loss" })
}
