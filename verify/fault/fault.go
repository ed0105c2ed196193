// Package fault holds the bugs of the catalogue as hypotheses: each gives what a program with that bug would have produced.
//
// A hypothesis is tried on a stage that failed. It explains the failure when it reproduces every cell of the output, and is
// told apart from healthy data there. The plants that prove that hypotheses find their bug come from other code: package
// verify/plant/trainer, and real trainers with the bug patched in.
package fault

import (
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/bug"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Hypothesis is a bug as a function from the inputs of a stage to what its output would be.
type Hypothesis struct {
	ID    string // mnemonic, "AGG-PAD-DENOMINATOR": an entry of package bug
	Title string // what the program does; "" in a literal stands for the title of the registry, another one is that of a variant

	Rows       []string // codes that the bug stands for, its cause and how to mend it: of the registry
	Cause, Fix string

	// Checks are the ids, or their first parts, of the checks whose output the bug changes.
	Checks []string

	// Input returns the batch and the options with which the healthy formula gives what the bug gives; the second result is
	// false where the bug cannot show. Predict is for bugs that are no change of input. Exactly one is set.
	Input   func(c *stage.Case) (*dump.Batch, *convention.Set, bool)
	Predict func(c *stage.Case, ch *stage.Check) *stage.Prediction

	// Loose is for bugs that make numbers coarse, not other ones: what tells them apart is that the right numbers' bound is left,
	// and what Predict has looked at, such as a number grid.
	Loose bool

	// Relative is for bugs that are differences from a value or a form which a configuration declares, as the registry says: they do not
	// convict a run that declares none.
	Relative bool

	// Configured are options of which some value makes a right program give the same numbers, though none that a search tries does: where nobody
	// declares one of them, no explanation beside convicts, either.
	Configured []string

	// Foreign is for a variant of such a bug whose form no release and no known program has: it convicts.
	Foreign bool
}

// described fills in what the registry says of the bugs. An id that it does not know is a panic.
func described(list ...*Hypothesis) []*Hypothesis {
	for _, h := range list {
		b := bug.MustFind(h.ID)
		h.Rows, h.Cause, h.Fix, h.Relative = b.Rows, b.Cause, b.Fix, b.Against != "" && !h.Foreign
		if h.Title == "" {
			h.Title = b.Title
		}
	}
	return list
}

// Applies reports whether h is a hypothesis about check ch.
func (h *Hypothesis) Applies(ch *stage.Check) bool {
	return slices.ContainsFunc(h.Checks, func(id string) bool { return ch.ID == id || strings.HasPrefix(ch.ID, id+"/") })
}

// predict returns what the output of ch would be under h, nil if it cannot be told.
func (h *Hypothesis) predict(c *stage.Case, ch *stage.Check) *stage.Prediction {
	if h.Predict != nil {
		return h.Predict(c, ch)
	}
	b, set, ok := h.Input(c)
	if !ok {
		return nil
	}
	d := c.Of(b, set)
	p := ch.Predict(d)
	if !d.OK() || p == nil {
		return nil
	}
	if p.Judge == nil && len(p.Want) == len(c.B.Mask) && c.B.Cols > 0 {
		p.Judge = c.B.Mask // the cells of the dumped mask, not those of the changed one
	}
	return p
}

// Explanation is a hypothesis that reproduces an output, or most of it.
type Explanation struct {
	Hypothesis *Hypothesis
	Factor     string  // of a common factor, "1/gradient_accumulation_steps"; "" for other hypotheses
	Lead       bool    // fits most cells only
	Cells      int     // reproduced
	Worst      float64 // largest |got − want| under the hypothesis
	Apart      float64 // how many bounds the healthy prediction is away from the faulty one, at most
	Outcome    *stage.Outcome

	// Solved is for a bug under a number that nobody declares: no value of it gives the output without the bug, which then is relative to none.
	Solved bool

	// Several is for edits of two parts of a formula, or of one by a number for every group, row or part: under other options one change may do.
	Several bool

	far    bool // what nobody writes, where another formula gives the same numbers
	number bool // the formula is the right one, with another number of the configuration
	fitted bool // by a number that nobody writes
	unseen bool // another explanation leaves out what this one moves to where no cell shows it
	level  int  // of the arithmetics of the failure, the finest is 0
}

// apart is the distance in bounds between the healthy and the faulty prediction below which the data cannot tell them apart.
// Of numbers rounded to 16 bits it is [stage.ToldHalf].
const apart = 100

// leadShare is the share of cells that a hypothesis must reproduce to be worth a look.
const leadShare = 0.9

// Explain tries every hypothesis on a failed outcome and returns those that reproduce all cells; if there are none, those that
// reproduce most, as leads. Only hypotheses can be explained that the output tells apart from the healthy formula.
//
// A hypothesis is judged as the output was: in the first arithmetic, and where the stored formats make others possible, in those.
// What fits in a finer one excludes what fits in a wider one only, unless the file
// says that it has rounded copies.
func Explain(o *stage.Outcome) []Explanation {
	if o.Verdict != check.Fail || o.Pred == nil {
		return nil
	}
	t := newTrial(o)
	if e := t.zero(); e != nil {
		return e
	}
	found := make([][]Explanation, len(all))
	each(len(all), len(o.Case.B.Mask), func(i int) {
		h := all[i]
		if !h.Applies(o.Check) || t.probe != nil && !h.plausible(o, t.probe, t.wrong) {
			return
		}
		if e, ok := t.try(h, "", h.judge); ok {
			found[i] = []Explanation{e}
		}
	})
	var exact, leads []Explanation
	for _, e := range slices.Concat(found...) {
		if e.Lead {
			leads = append(leads, e)
		} else {
			exact = append(exact, e)
		}
	}
	exact = append(exact, t.fromSources()...)
	exact = append(exact, t.ofKL(exact)...)
	if len(exact) == 0 || t.multiple(exact) {
		exact = append(exact, t.factors(len(exact) > 0)...)
	}
	if slices.ContainsFunc(exact, func(e Explanation) bool {
		return e.Hypothesis.ID == "KL-TWICE" || strings.HasPrefix(e.Hypothesis.ID, "LOSS-MASK-")
	}) {
		exact = append(exact, t.fitting(termEdits(t.levels[0]))...) // a factor of a term may be that of a denominator of its own, and a mask that of one term
	}
	if len(exact) == 0 {
		for _, e := range append(t.solved(), t.extraTerms()...) {
			if e.Lead {
				leads = append([]Explanation{e}, leads...)
			} else {
				exact = append(exact, e)
			}
		}
	}
	exact, refuted := t.againstLoss(exact)
	if len(exact) == 0 || !slices.ContainsFunc(exact, func(e Explanation) bool { return !e.fitted }) {
		found := t.edits() // a number that was fitted to this step excludes no formula
		if len(exact) == 0 || slices.ContainsFunc(found, func(e Explanation) bool { return e.Hypothesis.ID != "FACTOR" }) {
			exact = found
		}
	}
	if len(exact) == 0 {
		exact = refuted
	}
	if t.halved(exact) {
		exact = append(exact, t.fitting(append(policyEdits(t.levels[0]), valueEdits(t.levels[0])...))...)
	}
	if len(exact) > 0 {
		return finest(exact)
	}
	slices.SortStableFunc(leads, func(a, b Explanation) int { return b.Cells - a.Cells })
	return leads[:min(3, len(leads))]
}

// Edited returns the edits of the formula that fit a failed outcome, whatever else fits it, in each arithmetic in which it fails, the finest first: what
// one step has in a finer one by chance, another has not.
func Edited(o *stage.Outcome) (lists [][]Explanation) {
	if o.Verdict != check.Fail || o.Pred == nil {
		return nil
	}
	t := newTrial(o)
	for _, level := range t.levels {
		one := &trial{levels: []*stage.Outcome{level}, probe: t.probe, wrong: t.wrong}
		if found := one.edits(); len(found) > 0 {
			lists = append(lists, found)
		}
	}
	return lists
}

// Edits are the edits of a formula that reproduce a failed outcome, whatever else does.
func Edits(o *stage.Outcome) []Explanation {
	if o.Verdict != check.Fail || o.Pred == nil {
		return nil
	}
	if found := newTrial(o).edits(); len(found) > 0 {
		return finest(found)
	}
	return nil
}

// halved reports whether a gradient is half of the right one and nothing else is known of it: where both sides of a clip are equal, one that
// is detached leaves half of it.
func (t *trial) halved(exact []Explanation) bool {
	return t.levels[0].Check.Stage == convention.Gradient && len(exact) > 0 && !slices.ContainsFunc(exact, func(e Explanation) bool {
		return !strings.HasSuffix(e.Factor, " (0.5)")
	})
}

// finest returns those of the explanations that fit in the finest arithmetic that any of them fits in, the best first.
func finest(exact []Explanation) []Explanation {
	level := slices.MinFunc(exact, func(a, b Explanation) int { return a.level - b.level }).level
	exact = slices.DeleteFunc(exact, func(e Explanation) bool { return e.level > level })
	slices.SortStableFunc(exact, byWeight)
	return exact
}

// byWeight orders explanations that fit equally: a bug comes before the factor that it is, then the one that can touch fewer outputs, since it
// says more, then the one that more sources report.
func byWeight(a, b Explanation) int {
	if c := boolToInt(a.unseen) - boolToInt(b.unseen); c != 0 {
		return c
	}
	factor := func(e Explanation) int { return boolToInt(e.Factor != "" || e.Hypothesis.ID == "FACTOR") }
	if c := factor(a) - factor(b); c != 0 {
		return c // a factor is true of many bugs
	}
	if c := boolToInt(b.number) - boolToInt(a.number); c != 0 {
		return c // nothing else has to be wrong
	}
	if c := len(a.Hypothesis.Checks) - len(b.Hypothesis.Checks); c != 0 {
		return c
	}
	return len(b.Hypothesis.Rows) - len(a.Hypothesis.Rows)
}

// Contradicts reports whether an explanation that fits one batch does not fit o, the outcome of another.
func Contradicts(e Explanation, o *stage.Outcome) bool {
	if e.Factor != "" {
		t := newTrial(o)
		return o.Verdict == check.Fail && !slices.ContainsFunc(append(t.factors(false), t.solved()...), func(f Explanation) bool {
			return f.Factor == e.Factor || strings.HasPrefix(e.Factor, "× "+unnamed) && strings.HasPrefix(f.Factor, "× "+unnamed) // a count may be that of the step
		})
	}
	as := o
	if a := e.Outcome.Arithmetic; a != o.Arithmetic {
		as = stage.JudgeAs(o.Check, o.Case.B, o.Case.Set, a)
	}
	q := e.Hypothesis.judge(as)
	if q == nil {
		return o.Verdict == check.Fail // where the bug cannot show, the output must be right
	}
	return q.Verdict == check.Fail
}

// Shared returns what explains o as it explains another output, as the advantages and the returns of one recursion, or a loss and its gradient.
func Shared(e Explanation, o *stage.Outcome) (Explanation, bool) {
	if e.Factor != "" || e.Lead || o.Verdict != check.Fail || o.Pred == nil {
		return Explanation{}, false
	}
	h := *e.Hypothesis
	f, ok := newTrial(o).try(&h, "", h.judge)
	return f, ok && !f.Lead
}

// ExplainPairs tries pairs of input changes on a failed outcome, for bugs that hide behind one another.
func ExplainPairs(o *stage.Outcome) []Explanation {
	if o.Verdict != check.Fail || o.Pred == nil {
		return nil
	}
	var found []Explanation
	t := newTrial(o)
	for i, a := range All() {
		for _, b := range All()[i+1:] {
			if a.Input == nil || b.Input == nil || !a.Applies(o.Check) || !b.Applies(o.Check) {
				continue
			}
			pair := &Hypothesis{ID: a.ID + " + " + b.ID, Rows: append(slices.Clone(a.Rows), b.Rows...), Title: a.Title + "; and " + b.Title,
				Cause: a.Cause + "; " + b.Cause, Fix: a.Fix + "; " + b.Fix, Checks: a.Checks, Input: both(a.Input, b.Input),
				Relative: a.Relative || b.Relative}
			if e, ok := t.try(pair, "", pair.judge); ok && !e.Lead {
				found = append(found, e)
			}
		}
	}
	return found
}

// Tells reports whether the numbers of a bug would be told from the right ones in the output of o.
func Tells(h *Hypothesis, o *stage.Outcome) bool {
	q := h.judge(o)
	if q == nil {
		return false
	}
	if o.Half() {
		return distance(q, o) > stage.ToldHalf
	}
	return distance(q, o) > apart
}
