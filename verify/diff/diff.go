// Package diff compares log-probs of the same tokens: engine and trainer of one run, or two runs.
//
// [Engine] says in a sentence how far the two sides of a run are apart, whether rounding explains it, and which cause does if it does
// not. [Runs] walks over two runs and finds where they part; under a [Relation] that they must keep (the same run twice, another
// partition into micro-batches, other padding, other order, resumed) or break (an option that is toggled) it judges that.
//
// Two tensors cannot tell which side is off, nor older weights from an adapter that is not there or from another precision: these are
// named as one family.
package diff

import (
	"context"
	"fmt"
	"math"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/bug"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Options of a comparison.
type Options struct {
	Tensor   string              // of two runs: the log-probs that are compared; "": logp_new, else logp_old, else logp_gen
	Relation Relation            // that two runs must keep; the zero value: none
	Text     func(id int) string // of a token; nil: ids only
	Redact   bool                // no ids and no text in the report

	Selection check.Selection
	Progress  func(pass string, done, total int)
}

// Report is what a comparison found.
type Report struct {
	Results  []check.Result
	Brief    *check.Brief
	Sections []check.Table
	Lines    []string
	Charts   []check.Chart
}

// UsageError is a tensor or a relation that does not exist.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Engine compares logp_gen with logp_old, or with logp_new where there is none, over all steps of a run.
func Engine(ctx context.Context, run Source, o Options) (*Report, error) {
	p := newPool("engine", "trainer", run.Common())
	steps := run.Steps()
	for i, step := range steps {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b, err := run.Batch(ctx, step)
		if err != nil {
			return nil, err
		}
		if err := p.declare(b); err != nil {
			return nil, err
		}
		trainer := "logp_old"
		if b.Token(trainer) == nil {
			trainer = "logp_new"
		}
		if b.Token(trainer) != nil && b.Token("logp_gen") != nil {
			p.add(b, b, trainer, "logp_gen", nil, nil)
		}
		if o.Progress != nil {
			o.Progress("reading", i+1, len(steps))
		}
	}
	r := &Report{Brief: &check.Brief{}}
	if len(p.rows) == 0 {
		r.Results = append(r.Results, check.Result{Check: idPasses, Subject: "engine, trainer", Verdict: check.NotSeen, Demanded: o.Selection.Demands(idPasses),
			Reason: "no step has logp_gen beside logp_old or logp_new: dump what the engine reported (verify export prints the hooks)"})
		r.Brief.Clean = r.Results[0].Reason
		r.Brief.Head = []string{r.Results[0].Reason}
		return r, nil
	}
	p.judge(r, o)
	return r, nil
}

// Source gives the steps of a run: a [dump.Run] of files, or one in memory.
type Source interface {
	Steps() []int
	Batch(ctx context.Context, step int) (*dump.Batch, error)
	Common() dump.Meta
}

// declare takes over the options that the files declare.
func (p *pool) declare(b *dump.Batch) error {
	var list []convention.NameValue
	for _, o := range b.Meta.Options {
		list = append(list, convention.NameValue{Name: o.Name, Value: o.Value})
	}
	framework := b.Meta.Framework
	if framework != "" {
		framework += " " + b.Meta.Algorithm
	}
	d, err := convention.Declare(framework, b.Meta.Version, list, "the dump")
	if err != nil {
		return format.Malformed(b.Files[0].Name, "options", "%v", err)
	}
	p.set = d.Set
	return nil
}

// temperature returns the temperature that the files declare, 1 if none.
func (p *pool) temperature() float64 {
	if v := p.set.Value("logp.temperature"); v.Kind() == convention.Number && v.Num() > 0 {
		return v.Num()
	}
	return 1
}

// judge compares the pooled tokens and reports.
func (p *pool) judge(r *Report, o Options) {
	res := check.Result{Check: idPasses, Subject: p.left + ", " + p.right, Demanded: o.Selection.Demands(idPasses), Formula: "Δ = " + p.second + " − " + p.first + "; rounding gives Δ ≈ σ·(1 − p)"}
	c := stage.NewCase(p.batch(), p.set, 0)
	m, ok := c.Compare(first, second)
	if !ok || m.Tokens == 0 && m.NotFinite == 0 {
		res.Verdict, res.Reason = check.Undetermined, "no token of the mask has a number on both sides: nothing was compared"
		r.add(res, nil)
		r.Brief.Head = []string{res.Reason}
		return
	}
	sentence := p.sentence(&m)
	res.Reason, res.Compared = sentence, m.Tokens
	res.Metric, res.Measured, res.Limit = "logit noise σ", m.Scale, stage.OrdinaryScale
	if !m.Same {
		res.Facts = facts(&m)
	} else {
		res.Metric = ""
	}
	var f *check.Finding
	name := func(id string, explains float64) {
		f = &check.Finding{Name: id, Where: p.where(), Evidence: sentence, Seen: []string{idPasses}, First: -1, Pattern: true}
		f.Title, f.Fix, f.Effect = words(id)
		res.Explanations = []check.Explanation{{Fault: id, Title: f.Title, Evidence: evidence(&m, id)}}
		res.Fix = f.Fix
		if explains > 0 {
			res.Facts = append(res.Facts, check.Fact{Name: "explained", Value: explains})
		}
		if m.Cause != nil {
			f.Or = p.sides(&m)
		}
	}
	switch {
	case m.NotFinite > 0:
		name("LOGP-NAN", 0)
		f.Evidence = fmt.Sprintf("%d of %d tokens have a log-prob that is not finite. %s", m.NotFinite, m.NotFinite+m.Tokens, sentence)
		res.Verdict, res.Reason = check.Fail, f.Evidence
	case m.Same:
		res.Verdict = check.Untested
	case m.Cause != nil && p.declared(m.Cause):
		res.Verdict = check.Pass
		res.Reason += "; the dump declares it (logp.source=raw)"
	case m.Cause != nil:
		name(m.Cause.Fault, m.Cause.Explains)
		res.Verdict = check.Fail
		if m.Cause.Fault == "LOGP-BF16" {
			res.Verdict = check.Warn
		}
	case m.Tokens < few || m.Informative < few:
		res.Verdict = check.Undetermined
		res.Reason = fmt.Sprintf("%d tokens, of which %d have p < 0.99: fewer than %d tell nothing of a cause. %s", m.Tokens, m.Informative, few, sentence)
	case m.Other:
		name(otherWeights, 0)
		res.Verdict = check.Fail
	case m.Deep:
		name(otherWeights, 0)
		res.Verdict = check.Warn
		f.Title = "either rounding to bfloat16 in a deep model, or other weights, adapter or precision"
	default:
		res.Verdict = check.Pass
	}
	if f != nil {
		f.Verdict = res.Verdict
	}
	r.add(res, f)
	b := r.Brief
	b.Head = append(b.Head, res.Reason)
	b.Clean = "nothing but rounding"
	if m.Same {
		b.Coverage = "which side is right, two tensors cannot tell: verify dump recomputes what the files allow"
	} else {
		b.Coverage = fmt.Sprintf("two tensors do not tell which side is right, nor see weights that differ by less than rounding: of these %d tokens, a temperature off by less than %.2g", m.Tokens, p.resolution(&m))
	}
	if f != nil {
		b.Next = append(b.Next, "verify explain "+f.Name)
	}
	b.Tables = p.sections(&m, o)
	r.Sections = append(r.Sections, b.Tables...)
	r.Charts = append(r.Charts, p.charts(&m)...)
}

// passes judges the log-probs of two runs beside what [walk.report] has said of the runs: a cause comes first.
func (p *pool) passes(r *Report, o Options) {
	runs := *r.Brief
	r.Brief = &check.Brief{}
	p.judge(r, o)
	b := r.Brief
	b.Findings = append(b.Findings, runs.Findings...)
	b.Head = append(b.Head, runs.Head...)
	b.Tables = append(runs.Tables, b.Tables...)
	b.Next = append(b.Next, runs.Next...)
	if b.Clean = runs.Clean; len(runs.Findings) > 0 {
		b.Clean = ""
	}
}

// add adds a result and its finding.
func (r *Report) add(res check.Result, f *check.Finding) {
	r.Results = append(r.Results, res)
	if f != nil {
		f.Results = []int{len(r.Results) - 1}
		r.Brief.Findings = append(r.Brief.Findings, *f)
	}
}

// declared reports whether the files say that the engine reports log-probs before the temperature, and the difference is that.
func (p *pool) declared(h *stage.Cause) bool {
	v := p.set.Value("logp.source")
	T := p.temperature()
	return h.Alpha != 0 && v.Kind() == convention.Enum && v.Text() == "raw" && p.engine && T != 1 && h.Near(T)
}

// few is the number of tokens below which no statistic is judged (referee: 64 informative ones).
const few = 64

// words are the title, the fix and the effect of a cause.
func words(id string) (title, fix, effect string) {
	if b := bug.Find(id); b != nil {
		return b.Title, b.Fix, b.Effect
	}
	for _, f := range own {
		if f.ID == id {
			return f.Title, f.Fix, ""
		}
	}
	return "", "", ""
}

// sentence says how far the two sides are apart, in units of what rounding explains, and what explains it.
func (p *pool) sentence(m *stage.Comparison) string {
	both := p.left + " and " + p.right
	if m.Same {
		return fmt.Sprintf("%s are equal bit by bit in %d tokens: not two measurements, or the same kernels on the same weights", both, m.Tokens)
	}
	if m.Tokens == 0 {
		return both + " have no token with two finite log-probs"
	}
	text := fmt.Sprintf("%s differ by %.2g nats per token", both, m.MeanAbs)
	size := fmt.Sprintf("%.2g × what bfloat16 explains", m.Scale/stage.OrdinaryScale)
	switch {
	case m.Cause != nil && m.Cause.Alpha != 0:
		how := "explains it"
		if m.Cause.Explains > 0.95 {
			how = "explains all of it"
		} else if m.Cause.Explains > 0.7 {
			how = fmt.Sprintf("explains %.0f %% of it", 100*m.Cause.Explains)
		}
		return fmt.Sprintf("%s, %s; %s %s", text, size, p.heat(m.Cause), how)
	case m.Cause != nil:
		return fmt.Sprintf("%s, %s; %s", text, size, m.Cause.Reason)
	case m.Other:
		return fmt.Sprintf("%s, %s; no temperature, shift, kept mass, filled value, order of rows or storing explains it: other weights, another adapter, precision or ids", text, size)
	case m.Deep:
		return fmt.Sprintf("%s, %s in a model of few layers (deep ones make up to 4 ×); no pattern in it", text, size)
	}
	return fmt.Sprintf("%s: this is rounding, no more than that of %s", text, m.Explained)
}

// heat says which temperatures explain a difference: b has α times the logits of a, so that the temperatures are 1/α and 1, or those
// that are declared.
func (p *pool) heat(h *stage.Cause) string {
	what, other := "generation", "the trainer"
	if !p.engine {
		what, other = p.left, p.right
	}
	mine, yours := 1/h.Alpha, 1.0
	if T := p.temperature(); T != 1 && p.engine {
		switch {
		case h.Near(T):
			mine, yours = 1, T
		case h.Near(1 / T):
			mine, yours = T, 1
		}
	}
	return fmt.Sprintf("%s at %.2g against %.2g of %s", what, mine, yours, other)
}

// sides says what the tokens tell of the side: they were drawn from what b reports if the mean of exp(a − b) is 1.
func (p *pool) sides(m *stage.Comparison) []string {
	if !p.engine || m.Cause == nil || m.Cause.Alpha == 0 {
		return nil
	}
	z := math.Abs(m.Rho-1) / math.Max(m.RhoSE, 1e-12)
	if z > 6 && math.Abs(m.Rho-1) > 5e-3 {
		return []string{fmt.Sprintf("GEN-RAW: the tokens were not drawn from what the engine reports (mean of exp(trainer − engine) %.3g ± %.1g, and 1 if they were)", m.Rho, m.RhoSE)}
	}
	return []string{fmt.Sprintf("GEN-TEMPERATURE-TWICE: the tokens may have been drawn from what the engine reports (mean of exp(trainer − engine) %.3g ± %.1g): then the trainer lacks the temperature", m.Rho, m.RhoSE)}
}

// evidence is the reason of a cause, with what the sampled tokens say.
func evidence(m *stage.Comparison, id string) string {
	if m.Cause != nil {
		return m.Cause.Reason
	}
	if id == otherWeights {
		return m.Discrepancy.String()
	}
	return fmt.Sprintf("%d tokens", m.NotFinite)
}

// resolution is the smallest error of a temperature that 8 standard errors of the slope of Δ on the log-probs would show.
func (p *pool) resolution(m *stage.Comparison) float64 {
	return 8 * math.Max(m.Scale, 1e-6) / math.Sqrt(float64(max(m.Tokens, 1)))
}

// facts are the numbers of a comparison.
func facts(m *stage.Comparison) []check.Fact {
	list := []check.Fact{{Name: "mean |Δ|", Value: m.MeanAbs}, {Name: "standard error", Value: m.AbsSE}, {Name: "k1", Value: m.Mean}, {Name: "k3", Value: m.K3}, {Name: "effective sample size", Value: m.ESS},
		{Name: "share outside 1 ± 0.2", Value: m.Outside}, {Name: "mean ρ", Value: m.Rho}, {Name: "its standard error", Value: m.RhoSE}}
	if m.Cause != nil && m.Cause.Alpha != 0 {
		list = append(list, check.Fact{Name: "α", Value: m.Cause.Alpha}, check.Fact{Name: "its standard error", Value: m.Cause.AlphaSE})
	}
	return list
}

// where says what was compared.
func (p *pool) where() string {
	steps := p.stepsText()
	return strings.TrimSpace(fmt.Sprintf("%s against %s, %s", p.second, p.first, steps))
}
