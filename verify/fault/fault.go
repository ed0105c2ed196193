// Package fault holds the bugs of the catalogue as hypotheses: each gives what a program with that bug would have produced.
//
// A hypothesis is tried on a stage that failed. It explains the failure when it reproduces every cell of the output, and is
// told apart from healthy data there. The plants that prove that hypotheses find their bug come from other code: package
// fault/trainer, and real trainers with the bug patched in.
package fault

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Hypothesis is a bug as a function from the inputs of a stage to what its output would be.
type Hypothesis struct {
	ID    string   // mnemonic, "AGG-PAD-DENOMINATOR"
	Rows  []string // of the catalogue
	Title string   // what the program does, without a capital or a full stop
	Cause string
	Fix   string

	// Checks are the ids, or their first parts, of the checks whose output the bug changes.
	Checks []string

	// Input returns the batch and the options with which the healthy formula gives what the bug gives; the second result is
	// false where the bug cannot show. Predict is for bugs that are no change of input. Exactly one is set.
	Input   func(c *stage.Case) (*dump.Batch, *convention.Set, bool)
	Predict func(c *stage.Case, ch *stage.Check) *stage.Prediction

	// Loose is for bugs that make numbers coarse, not other ones: what tells them apart is that the right numbers' bound is left,
	// and what Predict has looked at, such as a number grid.
	Loose bool
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
}

// apart is the distance in bounds between the healthy and the faulty prediction below which the data cannot tell them apart.
const apart = 100

// leadShare is the share of cells that a hypothesis must reproduce to be worth a look.
const leadShare = 0.9

// Explain tries every hypothesis on a failed outcome and returns those that reproduce all cells; if there are none, those that
// reproduce most, as leads. Only hypotheses can be explained that the output tells apart from the healthy formula.
func Explain(o *stage.Outcome) []Explanation {
	if o.Verdict != check.Fail || o.Pred == nil {
		return nil
	}
	var exact, leads []Explanation
	probe := stage.Probe(o.Check, o.Case.B)
	wrong := stage.Probed(o, probe)
	for _, h := range All() {
		if !h.Applies(o.Check) || probe != nil && !h.plausible(o, probe, wrong) {
			continue
		}
		if e, ok := Try(h, o); ok {
			if e.Lead {
				leads = append(leads, e)
			} else {
				exact = append(exact, e)
			}
		}
	}
	if len(exact) == 0 {
		exact = append(exact, factors(o)...)
	}
	if len(exact) > 0 {
		slices.SortStableFunc(exact, byWeight)
		return exact
	}
	slices.SortStableFunc(leads, func(a, b Explanation) int { return b.Cells - a.Cells })
	return leads[:min(3, len(leads))]
}

// byWeight orders explanations that fit equally: the bug that can touch fewer outputs comes first, since it says more, then the
// one that more sources report.
func byWeight(a, b Explanation) int {
	if c := len(a.Hypothesis.Checks) - len(b.Hypothesis.Checks); c != 0 {
		return c
	}
	return len(b.Hypothesis.Rows) - len(a.Hypothesis.Rows)
}

// Try tries one hypothesis on an outcome, failed or not.
func Try(h *Hypothesis, o *stage.Outcome) (Explanation, bool) {
	p := h.predict(o.Case.Of(o.Case.B, o.Case.Set), o.Check)
	if p == nil || len(p.Want) != len(o.Pred.Want) {
		return Explanation{}, false
	}
	return weigh(h, "", p, o)
}

// plausible reports whether a hypothesis reproduces most of the output on some rows of a large batch, up to a factor, and is not
// what was wrong there under the healthy formula.
func (h *Hypothesis) plausible(o *stage.Outcome, rows *dump.Batch, wrong *stage.Outcome) bool {
	c := o.Case.Of(rows, o.Case.Set)
	p := h.predict(c, o.Check)
	return p != nil && len(p.Want) == len(rows.Tensors[o.Check.Output].Data) && stage.Worth(stage.Compare(o.Check, c, p, o.Arithmetic), wrong)
}

func weigh(h *Hypothesis, factor string, p *stage.Prediction, o *stage.Outcome) (Explanation, bool) {
	p.Got, p.GotUnit = o.Pred.Got, o.Pred.GotUnit
	if p.Judge == nil {
		p.Judge = o.Pred.Judge
	}
	q := stage.Compare(o.Check, o.Case, p, o.Arithmetic)
	if q.Tally == nil || q.Tally.N == 0 {
		return Explanation{}, false
	}
	e := Explanation{Hypothesis: h, Factor: factor, Cells: q.Tally.N - q.Tally.Failed + q.Exact, Worst: q.Tally.Worst.Err, Apart: distance(p, o.Pred), Outcome: q}
	if h.Loose {
		e.Apart = o.Tally.Worst.Ratio
	}
	if !(e.Apart > apart) {
		return e, false
	}
	if q.Verdict == check.Pass || h.Loose && q.Tally.Failed == 0 {
		return e, true
	}
	e.Lead = true
	before := o.Tally.N - o.Tally.Failed
	return e, q.Tally.N >= 20 && float64(e.Cells) >= leadShare*float64(q.Tally.N) && q.Tally.Failed*4 <= q.Tally.N-before
}

// distance returns the largest distance between two predictions in bounds of the first.
func distance(p, healthy *stage.Prediction) float64 {
	var most float64
	for i, w := range p.Want {
		if healthy.Judge != nil && !healthy.Judge[i] {
			continue
		}
		d := math.Abs(w-healthy.Want[i]) / (p.Bound[i] + 0x1p-53*math.Abs(w) + math.SmallestNonzeroFloat64)
		switch {
		case math.IsNaN(w) != math.IsNaN(healthy.Want[i]):
			d = math.Inf(1)
		case math.IsNaN(d):
			continue
		}
		most = max(most, d)
	}
	return most
}

// factorHypothesis stands for outputs that are right but for one common factor.
var factorHypothesis = &Hypothesis{ID: "FACTOR", Rows: []string{"P012", "P031", "P079", "P122", "P137", "P138", "P184", "P067", "P075", "H7b"},
	Title: "the output is multiplied by a common factor",
	Cause: "a division is done twice, left out, or done by another number (accumulation steps, ranks, batch, length)",
	Fix:   "find the division that the factor names, and do it once"}

// factors tries the factors by which results are wrong in practice.
func factors(o *stage.Outcome) []Explanation {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	b := c.B
	ga := c.FactOr("gradient_accumulation_steps", float64(max(b.Meta.MicroBatches, 1)))
	world, group := float64(b.Meta.WorldSize), c.FactOr("num_generations", math.NaN())
	beta := o.Case.Set.Value("kl.beta")
	temperature := o.Case.Set.Value("logp.temperature")
	type named struct {
		name string
		k    float64
	}
	list := []named{{"−1, the sign", -1}, {"gradient_accumulation_steps", ga}, {"world_size", world}, {"2", 2}, {"rows of the micro-batch", rowsOfFile(b)},
		{"number of micro-batches", float64(len(b.Files))}, {"num_generations", group}, {"columns", float64(b.Cols)}, {"rows", float64(b.Rows)},
		{"accumulation × world size", ga * world}, {"(accumulation steps + 1)/accumulation steps", (ga + 1) / ga}, {"n/(n−1) of the group", group / (group - 1)}, {"√(n/(n−1)) of the group", math.Sqrt(group / (group - 1))}}
	if beta.Kind() == convention.Number {
		list = append(list, named{"kl.beta", beta.Num()})
	}
	if temperature.Kind() == convention.Number {
		list = append(list, named{"temperature", temperature.Num()})
	}
	var found []Explanation
	try := func(name string, k float64) {
		if math.IsNaN(k) || math.IsInf(k, 0) || k == 1 || k == 0 {
			return
		}
		for _, base := range [][]float64{o.Pred.Want, o.Pred.Alt} {
			if base == nil {
				continue
			}
			p := *o.Pred
			p.Want, p.Bound, p.Alt = slices.Clone(base), slices.Clone(p.Bound), nil
			for i := range p.Want {
				p.Want[i] *= k
				p.Bound[i] *= math.Abs(k)
			}
			p.Scale *= math.Abs(k)
			if e, ok := weigh(factorHypothesis, fmt.Sprintf("× %s (%.6g)", name, k), &p, o); ok && !e.Lead {
				found = append(found, e)
				return
			}
		}
	}
	for _, f := range list {
		try(f.name, f.k)
		if f.k != -1 {
			try("1/("+f.name+")", 1/f.k)
		}
	}
	return found
}

func rowsOfFile(b *dump.Batch) float64 {
	if len(b.Files) == 0 {
		return math.NaN()
	}
	return float64(b.Files[0].Hi - b.Files[0].Lo)
}

// Contradicts reports whether an explanation that fits one batch does not fit o, the outcome of another.
func Contradicts(e Explanation, o *stage.Outcome) bool {
	if e.Factor != "" {
		return o.Verdict == check.Fail && !slices.ContainsFunc(factors(o), func(f Explanation) bool { return f.Factor == e.Factor })
	}
	p := e.Hypothesis.predict(o.Case.Of(o.Case.B, o.Case.Set), o.Check)
	if p == nil || len(p.Want) != len(o.Pred.Want) {
		return o.Verdict == check.Fail // where the bug cannot show, the output must be right
	}
	p.Got, p.GotUnit = o.Pred.Got, o.Pred.GotUnit
	if p.Judge == nil {
		p.Judge = o.Pred.Judge
	}
	return stage.Compare(o.Check, o.Case, p, o.Arithmetic).Verdict == check.Fail
}

// ExplainPairs tries pairs of input changes on a failed outcome, for bugs that hide behind one another.
func ExplainPairs(o *stage.Outcome) []Explanation {
	if o.Verdict != check.Fail || o.Pred == nil {
		return nil
	}
	var found []Explanation
	for i, a := range All() {
		for _, b := range All()[i+1:] {
			if a.Input == nil || b.Input == nil || !a.Applies(o.Check) || !b.Applies(o.Check) {
				continue
			}
			pair := &Hypothesis{ID: a.ID + " + " + b.ID, Rows: append(slices.Clone(a.Rows), b.Rows...), Title: a.Title + "; and " + b.Title,
				Cause: a.Cause + "; " + b.Cause, Fix: a.Fix + "; " + b.Fix, Checks: a.Checks, Input: both(a.Input, b.Input)}
			if e, ok := Try(pair, o); ok && !e.Lead {
				found = append(found, e)
			}
		}
	}
	return found
}

// Tells reports whether the numbers of a bug would be told from the right ones in the output of o.
func Tells(h *Hypothesis, o *stage.Outcome) bool {
	p := h.predict(o.Case.Of(o.Case.B, o.Case.Set), o.Check)
	return p != nil && len(p.Want) == len(o.Pred.Want) && distance(p, o.Pred) > apart
}
