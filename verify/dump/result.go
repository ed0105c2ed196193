package dump

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
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
	r := &Report{Lines: s.lines, Declared: s.declared && !s.o.Infer, Steps: len(s.steps)}
	for _, t := range s.tracks {
		if res, ok := t.result(s); ok {
			res.Check = t.check.ID
			res.Demanded = s.o.Selection.Demands(t.check.ID)
			r.Results = append(r.Results, res)
		} else if s.o.Selection.Demands(t.check.ID) {
			r.Results = append(r.Results, check.Result{Check: t.check.ID, Verdict: check.Undetermined, Demanded: true,
				Reason: "asked for by name, but the dump has nothing it applies to"})
		}
	}
	r.Results = append(r.Results, s.unseen()...)
	if fits := s.profilesThatFit(); fits != "" {
		r.Lines = append(r.Lines, fits)
	}
	return r
}

func (t *track) result(s *session) (check.Result, bool) {
	if !t.seen {
		return check.Result{}, false
	}
	res := check.Result{Subject: steps(t.judged, "step"), Compared: t.compared, Resolution: t.resolution}
	switch {
	case len(t.failing) > 0:
		t.failure(&res, s)
	case t.passed > 0 && len(t.undecided) <= t.judged/20:
		res.Verdict = check.Pass
		t.measure(&res, t.worst, s)
		t.remarks(&res, s)
		if len(t.warned) > 0 {
			res.Verdict = check.Warn
			t.asserted(&res, t.first, s)
		}
	case len(t.undecided) > 0:
		res.Verdict = check.Undetermined
		res.Reason = t.lacking
		if t.searched && len(t.fits) == 0 {
			res.Reason = "no combination of the options that are open gives these numbers, and no profile judges them: " + t.lacking
		}
		if res.Reason == "" {
			res.Reason = "nothing could be decided"
		}
		if t.first != nil && t.first.Tally != nil {
			t.measure(&res, t.first, s)
		}
	case len(t.warned) > 0:
		res.Verdict = check.Warn
		t.asserted(&res, t.first, s)
	default:
		return res, false
	}
	return res, true
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

// remarks says what a pass rests on.
func (t *track) remarks(res *check.Result, s *session) {
	var parts []string
	if t.searched && len(t.fits) > 0 && t.worst != nil {
		parts = append(parts, "found by search: "+classes(t.fits, t.all, t.worst.Case.Read))
	}
	if t.worst != nil && len(t.worst.Case.Used) > 0 {
		parts = append(parts, "from recomputed "+strings.Join(t.worst.Case.Used, ", ")+" (not in the dump)")
	}
	for name, n := range t.arithmetic {
		if name != "float32" {
			parts = append(parts, fmt.Sprintf("%s in %s", name, steps(n, "step")))
		}
	}
	slices.Sort(parts)
	if len(t.undecided) > 0 {
		parts = append(parts, fmt.Sprintf("undecided in %s: %s", steps(len(t.undecided), "step"), t.lacking))
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
	res.Fix = t.check.Fix
	if v.Fault != "" {
		e := check.Explanation{Fault: v.Fault, Title: v.Reason}
		if h := fault.Find(v.Fault); h != nil {
			e.Title, e.Evidence = h.Title, "catalogue rows "+strings.Join(h.Rows, ", ")
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
	if len(s.steps) > 1 {
		res.Subject = fmt.Sprintf("step %d (%d of %d steps)", first, len(t.failing), t.judged)
	}
	res.Repeat = fmt.Sprintf("--select %s", t.check.ID)
	if len(s.steps) > 1 {
		res.Repeat += fmt.Sprintf(" --steps %d", first)
	}
	if o.Rules != nil {
		t.asserted(res, o, s)
		return
	}
	finding := fmt.Sprintf("%s: %d of %d compared beyond their bound", t.check.Formula, t.cells, t.of)
	if o.Arithmetic.String() != "float32" {
		finding += " (" + o.Arithmetic.String() + ")"
	}
	if len(o.Case.Used) > 0 {
		finding += "; " + strings.Join(o.Case.Used, ", ") + " recomputed, not in the dump"
	}
	res.Fix = t.check.Fix
	if o.Pred != nil && o.Pred.Terms != nil && o.Tally.Worst.Index >= 0 {
		for _, term := range o.Pred.Terms(o.Tally.Worst.Index) {
			res.Facts = append(res.Facts, check.Fact{Name: term.Name, Value: term.Value})
		}
	}
	why := &t.why
	switch {
	case len(why.fits) > 0:
		t.convention(res, s)
	case why.coarse != nil:
		res.Verdict = check.Warn
		finding += fmt.Sprintf("; consistent with this stage having run in %s (there the largest error is %.2g of its bound)", why.coarse.Arithmetic, why.coarse.Tally.Worst.Ratio)
		res.Fix = "declare compute_dtype if that is intended; else keep this stage in float32"
	}
	for _, e := range why.faults {
		res.Explanations = append(res.Explanations, explained(e, o, why.steps))
	}
	if len(why.faults) > 0 && !why.faults[0].Lead && len(why.fits) == 0 {
		res.Fix = why.faults[0].Hypothesis.Fix
	}
	if len(res.Explanations) == 0 && res.Verdict == check.Fail {
		if p := pattern(o); p != "" {
			finding += "; " + p
		}
		finding += "; no legal option and no bug of the catalogue gives these numbers"
		if !why.all {
			finding += " (the search was cut short)"
		}
	}
	res.Reason = finding
}

// convention fills in the other legal options that fit.
func (t *track) convention(res *check.Result, s *session) {
	why := &t.why
	res.Verdict = check.Convention
	for i, f := range why.fits {
		if i == 5 {
			res.Explanations = append(res.Explanations, check.Explanation{Title: fmt.Sprintf("… and %d more sets of options that fit as well", len(why.fits)-i)})
			break
		}
		e := check.Explanation{Evidence: fmt.Sprintf("reproduces all %d compared to %.2g", f.Outcome.Tally.N, f.Outcome.Tally.Worst.Err)}
		if why.steps > 1 {
			e.Evidence += fmt.Sprintf(", on %d steps", why.steps)
		}
		var parts []string
		for _, c := range f.Changes {
			parts = append(parts, fmt.Sprintf("%s %s where %s says %s", c.Option, c.To, orDeclared(t.first.Case.Set.Origin(c.Option)), c.From))
			if n, ok := fault.OfChange(c); ok && e.Fault == "" {
				e.Fault = n.ID
				if len(n.Rows) > 0 {
					e.Evidence += "; known as a bug in " + strings.Join(n.Rows, ", ")
				}
			}
		}
		e.Title = strings.Join(parts, ", ")
		if has := havers(f.Changes); len(has) > 0 {
			e.Evidence += "; legal in " + strings.Join(has, ", ")
		}
		if len(why.fits) > 1 {
			e.Evidence += "; tied"
		}
		res.Explanations = append(res.Explanations, e)
	}
	c := why.fits[0].Changes[0]
	res.Fix = fmt.Sprintf("%s; or declare %s=%s if that is what you want", t.check.Fix, c.Option, c.To)
}

func orDeclared(origin string) string {
	if origin == "" {
		return "the declaration"
	}
	return origin
}

// havers returns the profiles that have all the values of a fit, at most four.
func havers(changes []stage.Change) []string {
	var names []string
	for _, p := range convention.Profiles() {
		if !slices.ContainsFunc(changes, func(c stage.Change) bool { return p.Value(c.Option) != c.To }) {
			names = append(names, p.Name)
		}
	}
	if len(names) > 4 {
		names = append(names[:4], "…")
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

func explained(e fault.Explanation, o *stage.Outcome, looked int) check.Explanation {
	h := e.Hypothesis
	title := h.Title
	if e.Factor != "" {
		title = "everything is as it should be " + e.Factor
	}
	ev := fmt.Sprintf("reproduces %d of %d to %.2g", e.Cells, e.Outcome.Tally.N+e.Outcome.Exact, e.Worst)
	if !math.IsInf(e.Apart, 0) {
		ev += fmt.Sprintf(", %.2g bounds away from the right numbers", e.Apart)
	}
	if looked > 1 && !e.Lead {
		ev += fmt.Sprintf(", on %d steps", looked)
	}
	ev += "; cause: " + h.Cause + "; seen in " + strings.Join(h.Rows, ", ")
	return check.Explanation{Fault: h.ID, Title: title, Evidence: ev, Lead: e.Lead}
}

// place names the element of an output: file, row and column there, token id.
func place(o *stage.Outcome, i int, redact bool) string {
	b := o.Case.B
	n := 0
	if o.Got != nil {
		n = len(o.Got)
	} else if t := b.Tensors[o.Check.Output]; t != nil {
		n = len(t.Data)
	}
	switch {
	case n == b.Rows*b.Cols && b.Cols > 0 && n != len(b.Files) || n == 0 && b.Cols > 0 && i >= max(b.Rows, len(b.Files)):
		return cell(b, i/b.Cols, i%b.Cols, redact)
	case n == len(b.Files) && i < len(b.Files) && n != b.Rows:
		return filepath.Base(b.Files[i].Name)
	case i < b.Rows:
		return cell(b, i, -1, redact)
	}
	return fmt.Sprintf("step %d", b.Meta.Step)
}

func cell(b *dump.Batch, row, col int, redact bool) string {
	if row < 0 || row >= len(b.Origin) {
		return fmt.Sprintf("step %d", b.Meta.Step)
	}
	org := b.Origin[row]
	text := fmt.Sprintf("%s [row %d", filepath.Base(b.Files[org.File].Name), org.Row)
	if col >= 0 {
		text += fmt.Sprintf(", token %d", org.Col+col)
		if id, ok := b.TokenID(row, col); ok && !redact {
			text += fmt.Sprintf(", id %d", id)
		}
	}
	return text + "]"
}

// pattern describes where the cells are that are wrong, which often says enough.
func pattern(o *stage.Outcome) string {
	b, p := o.Case.B, o.Pred
	if p == nil || len(o.Got) != b.Rows*b.Cols || b.Cols < 2 {
		return ""
	}
	badRows, badLast, badFirst, bad := map[int]bool{}, 0, 0, 0
	for r := range b.Rows {
		first, last := -1, -1
		for t := range b.Cols {
			if b.Mask[r*b.Cols+t] {
				if first < 0 {
					first = t
				}
				last = t
			}
		}
		for t := range b.Cols {
			i := r*b.Cols + t
			if !b.Mask[i] || math.Abs(o.Got[i]-p.Want[i]) <= 4*(p.Bound[i]+1e-7*math.Abs(p.Want[i])) {
				continue
			}
			bad++
			badRows[r] = true
			if t == last {
				badLast++
			}
			if t == first {
				badFirst++
			}
		}
	}
	switch {
	case bad == 0:
		return ""
	case bad == badLast:
		return "only last tokens of responses are wrong: look at the mask's end and at EOS"
	case bad == badFirst:
		return "only first tokens of responses are wrong: look at the boundary between prompt and response"
	case len(badRows) == 1 && b.Rows > 2:
		for r := range badRows {
			return fmt.Sprintf("only row %d is wrong", r)
		}
	case len(badRows) <= b.Rows/4:
		return fmt.Sprintf("%d of %d rows are wrong", len(badRows), b.Rows)
	}
	return ""
}
