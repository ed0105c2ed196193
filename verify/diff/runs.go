package diff

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// walk is the comparison of two runs, step by step.
type walk struct {
	a, b    Source
	o       Options
	id      string // of the check
	steps   []int  // that both have
	only    string // steps of one of them, in words
	compare int    // steps compared
	tensors int    // compared in all of them
	first   *difference
	at      pairing // where it is
	grown   int     // the step from which differences that are rounding have grown beyond a new rounding; −1: none
	exact   bool    // all that was compared was equal bit by bit
	changed []string
	lacking []string
	why     string // the runs cannot be compared
	options []string
	worst   *difference // of those within their bound
	ran     int         // elements compared
	unequal unequal
}

// Runs compares two runs step by step. Without a relation it says where they part, and of log-probs that differ why; with one it
// judges whether the two runs keep it.
func Runs(ctx context.Context, a, b Source, o Options) (*Report, error) {
	w := &walk{a: a, b: b, o: o, id: idRuns, grown: -1, exact: true}
	if o.Relation.Name != "" {
		w.id = "diff/" + o.Relation.Name
	}
	if o.Tensor != "" && !slices.ContainsFunc(order, func(q quantity) bool {
		return q.kind == forward && strings.HasPrefix(q.name, "logp_") && q.name == o.Tensor
	}) {
		return nil, &UsageError{fmt.Errorf("--tensor %.40q: want the log-probs logp_new, logp_old, logp_gen or logp_ref", o.Tensor)}
	}
	w.steps = slices.DeleteFunc(slices.Clone(a.Steps()), func(s int) bool { return !slices.Contains(b.Steps(), s) })
	if n, m := len(a.Steps())-len(w.steps), len(b.Steps())-len(w.steps); n+m > 0 {
		w.only = fmt.Sprintf("%d steps of the first run and %d of the second are in one of them only", n, m)
	}
	r := &Report{Brief: &check.Brief{}}
	if len(w.steps) == 0 {
		r.add(check.Result{Check: w.id, Subject: "two runs", Verdict: check.Undetermined, Demanded: true, Reason: fmt.Sprintf("the two runs have no step in common (%s against %s)", span(a.Steps()), span(b.Steps()))}, nil)
		r.Brief.Head = []string{r.Results[0].Reason}
		return r, nil
	}
	p := newPool("A", "B", a.Common())
	for i, step := range w.steps {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		x, err := a.Batch(ctx, step)
		if err != nil {
			return nil, err
		}
		y, err := b.Batch(ctx, step)
		if err != nil {
			return nil, err
		}
		more := w.step(x, y, p)
		if o.Progress != nil {
			o.Progress("comparing", i+1, len(w.steps))
		}
		if !more {
			break
		}
	}
	w.report(r)
	r.Charts = w.charts()
	if differ := slices.ContainsFunc(w.changed, func(name string) bool { return strings.HasPrefix(name, "logp_") }); o.Relation.Name == "" && len(p.rows) > 0 && (differ || o.Tensor != "") && o.Selection.Takes(idPasses) {
		p.passes(r, o)
	}
	r.Results = slices.DeleteFunc(r.Results, func(res check.Result) bool { return !o.Selection.Takes(res.Check) })
	return r, nil
}

func span(steps []int) string {
	switch len(steps) {
	case 0:
		return "none"
	case 1:
		return fmt.Sprintf("step %d", steps[0])
	}
	return fmt.Sprintf("steps %d to %d", steps[0], steps[len(steps)-1])
}

// step compares one step and reports whether to go on.
func (w *walk) step(x, y *dump.Batch, p *pool) bool {
	rel := w.o.Relation.Name
	byContent := rel == "partition" || rel == "padding" || rel == "packing" || rel == "permute"
	pr, why := pair(x, y, byContent)
	if w.compare == 0 {
		w.options = changedOptions(x, y)
	}
	if why != "" {
		switch {
		case w.compare > 0 && !w.exact:
			w.grown = x.Meta.Step // rounding has changed what is sampled
		case byContent:
			w.why = fmt.Sprintf("step %d: %s", x.Meta.Step, why)
		default:
			w.first = &difference{quantity: quantity{"response_mask", sampled}, step: x.Meta.Step, compared: 1, worst: math.Inf(1), reason: why}
		}
		return false
	}
	w.compare++
	u := math.Max(unit(x), unit(y))
	relative, masksLooked := 0.0, false
	for _, q := range w.quantities(x, y) {
		if q.kind > prompts && !masksLooked {
			masksLooked = true
			if d := pr.lengths(); d != nil {
				return w.part(pr, *d)
			}
			if rel == "" {
				w.pool(p, &pr)
			}
		}
		d := pr.compare(q, u, relative)
		if d == nil {
			if (x.Tensors[q.name] == nil) != (y.Tensors[q.name] == nil) && !slices.Contains(w.lacking, q.name) {
				w.lacking = append(w.lacking, q.name)
			}
			continue
		}
		w.tensors++
		w.ran += d.compared
		w.unequal.add(d)
		if (d.changed > 0 || d.beyond()) && !slices.Contains(w.changed, q.name) {
			w.changed = append(w.changed, q.name)
		}
		if d.beyond() {
			return w.part(pr, *d)
		}
		if d.changed > 0 {
			if relative = math.Max(relative, d.relative); w.worst == nil || d.worst > w.worst.worst {
				w.worst = d
			}
		}
	}
	w.exact = w.exact && relative == 0
	return true
}

// lengths compares the number of tokens of the rows.
func (p *pairing) lengths() *difference {
	for k := range p.ra {
		if len(p.ca[k]) != len(p.cb[k]) {
			return &difference{quantity: quantity{"response_mask", sampled}, step: p.x.Meta.Step, compared: 1, worst: math.Inf(1),
				reason: fmt.Sprintf("row %d has %d tokens against %d", p.ra[k], len(p.ca[k]), len(p.cb[k]))}
		}
	}
	return nil
}

// part notes where two runs part. What differs by more than rounding counts where all before it is of the same step, or was equal bit
// by bit: else the rounding of the steps before has gone through the weights, and grows with every step. A step that loses more than
// half of the digits is more than that.
func (w *walk) part(p pairing, d difference) bool {
	u := math.Max(unit(p.x), unit(p.y))
	if w.compare > 1 && !w.exact && d.kind != prompts {
		small := d.kind != sampled && d.reason == "" && d.biased == 0 && d.relative <= math.Sqrt(u)
		if small || d.kind == sampled || w.compare > 2 {
			w.grown = d.step
			return false
		}
	}
	w.first, w.at = &d, p
	return false
}

// quantities are those of [order], and the gradients, updates and weights of the two batches behind them.
func (w *walk) quantities(x, y *dump.Batch) []quantity {
	list := slices.Clone(order)
	for _, b := range []*dump.Batch{x, y} {
		for _, name := range b.Names() {
			prefix, _, _ := strings.Cut(name, "/")
			if q := (quantity{name, derived}); slices.Contains([]string{"grad", "update", "weights"}, prefix) && !slices.Contains(list, q) {
				list = append(list, q)
			}
		}
	}
	return list
}

// pool adds the log-probs of a step to those that are compared token by token, where the ids are equal.
func (w *walk) pool(p *pool, pr *pairing) {
	names := []string{"logp_new", "logp_old", "logp_gen"}
	if w.o.Tensor != "" {
		names = []string{w.o.Tensor}
	}
	if d := pr.compare(quantity{"response_ids", sampled}, 0, 0); d != nil && d.changed > 0 {
		return
	}
	for _, name := range names {
		if pr.x.Token(name) != nil && pr.y.Token(name) != nil {
			if len(p.rows) > 0 && p.first != name {
				continue
			}
			p.add(pr.y, pr.x, name, name, pr.rb, pr.ra)
			return
		}
	}
}

// changedOptions are the options that two runs declare differently.
func changedOptions(x, y *dump.Batch) (list []string) {
	of := func(b *dump.Batch) map[string]string {
		m := map[string]string{}
		for _, o := range b.Meta.Options {
			m[o.Name] = fmt.Sprint(o.Value)
		}
		return m
	}
	a, b := of(x), of(y)
	var names []string
	for n := range a {
		names = append(names, n)
	}
	for n := range b {
		if _, ok := a[n]; !ok {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	for _, n := range names {
		va, oka := a[n]
		vb, okb := b[n]
		if va != vb || oka != okb {
			if !oka {
				va = "–"
			}
			if !okb {
				vb = "–"
			}
			list = append(list, fmt.Sprintf("%s %s against %s", n, va, vb))
		}
	}
	return list
}

// report makes the result of a walk.
func (w *walk) report(r *Report) {
	res := check.Result{Check: w.id, Subject: "A, B", Compared: w.ran, Demanded: true}
	steps := fmt.Sprintf("%d of %d steps compared", w.compare, len(w.steps))
	if w.compare == len(w.steps) {
		steps = span(w.steps)
	}
	parted := ""
	if w.grown >= 0 {
		parted = fmt.Sprintf("; from step %d on the rounding of the steps before has gone through the weights, and nothing is judged", w.grown)
	}
	var f *check.Finding
	toggle := w.o.Relation.Name == "toggle"
	switch {
	case w.why != "":
		res.Verdict, res.Reason = check.Undetermined, w.why
	case w.tensors == 0 && w.first == nil:
		res.Verdict, res.Reason = check.Undetermined, "the two runs have no tensor in common that could be compared"
	case w.first != nil && toggle:
		res.Verdict, res.Reason = check.Pass, fmt.Sprintf("%s changes %s from step %d on", w.o.Relation.Option, w.first.name, w.first.step)
	case w.first != nil:
		f = w.name(&res)
	case toggle:
		res.Verdict = check.Fail
		res.Reason = fmt.Sprintf("%s changes nothing: %s, %s", w.o.Relation.Option, steps, w.agreement())
		f = finding(ignored, res.Reason, -1, w.id)
	default:
		res.Verdict, res.Reason = check.Pass, fmt.Sprintf("%s: %s%s", steps, w.agreement(), parted)
	}
	if w.worst != nil && w.first == nil {
		res.Metric, res.Measured, res.Limit = "max |Δ| / bound, "+w.worst.name, w.worst.worst, 1
		res.Where = w.worst.where
	} else if w.first != nil && w.first.reason == "" && !toggle {
		res.Metric, res.Measured, res.Limit, res.Where = "max |Δ|, "+w.first.name, w.first.gap, w.first.limit, w.first.where
		if w.first.biased > 0 {
			res.Metric, res.Measured, res.Limit = "mean Δ in standard errors, "+w.first.name, w.first.biased, 6
		}
	}
	if f != nil {
		f.Verdict = res.Verdict
		res.Fix = f.Fix
		res.Explanations = []check.Explanation{{Fault: f.Name, Title: f.Title, Evidence: f.Evidence}}
		res.Steps = &check.Steps{Judged: w.compare, Bad: 1, First: max(f.First, 0)}
		if f.Name == idRuns {
			res.Explanations = nil
		}
	}
	if w.only != "" {
		res.Details = append(res.Details, w.only)
		r.Lines = append(r.Lines, w.only)
	}
	if len(w.lacking) > 0 {
		line := "in one run only, not compared: " + strings.Join(w.lacking, ", ")
		res.Details = append(res.Details, line)
		r.Lines = append(r.Lines, line)
	}
	r.add(res, f)
	b := r.Brief
	b.Head = append(b.Head, res.Reason)
	b.Clean = res.Reason
	b.Coverage = "what the dumps do not hold (gradients of weights, the optimizer) shows one step later, in the log-probs of the same ids"
	if len(w.options) > 0 {
		r.Sections = append(r.Sections, check.Table{Title: "options that differ", Lines: w.options})
		if f != nil {
			b.Tables = r.Sections
		}
	}
	if f != nil && f.Name != idRuns {
		b.Next = append(b.Next, "verify explain "+f.Name)
	}
}

// agreement says how well two runs agree.
func (w *walk) agreement() string {
	if w.exact && len(w.changed) == 0 {
		return fmt.Sprintf("equal bit by bit in %d tensors", w.tensors)
	}
	return fmt.Sprintf("equal up to rounding in %d tensors (%s: at most %.2g of the bound)", w.tensors, w.worst.name, w.worst.worst)
}

func finding(id, evidence string, step int, seen string) *check.Finding {
	f := &check.Finding{Name: id, Evidence: evidence, Seen: []string{seen}, First: step}
	f.Title, f.Fix, f.Effect = words(id)
	return f
}

// name names the cause of the first difference that a relation does not allow.
func (w *walk) name(res *check.Result) *check.Finding {
	d := w.first
	res.Verdict = check.Fail
	what := fmt.Sprintf("%s of step %d is the first tensor that differs", d.name, d.step)
	switch {
	case d.reason != "":
		what += ": " + d.reason
	case d.biased > 0:
		what += fmt.Sprintf(": within its bound, and its residuals have a mean that is %.3g standard errors from 0, which rounding has not", d.biased)
	case math.IsInf(d.worst, 1):
		what += fmt.Sprintf(": %s, which must be equal; %d of %d elements differ", d.where, d.changed, d.compared)
	default:
		what += fmt.Sprintf(": %s, %.3g × the bound; %d of %d elements differ", d.where, d.worst, d.changed, d.compared)
	}
	if w.compare > 1 && w.exact {
		what += fmt.Sprintf("; the %d steps before are equal bit by bit", w.compare-1)
	}
	id, why := w.cause()
	if why != "" {
		what += "; " + why
	}
	res.Reason = what
	f := finding(id, what, d.step, w.id)
	if id == idRuns {
		f.Title = "the two runs part"
		f.Fix = "compare the code and the options that make " + d.name
	}
	return f
}
