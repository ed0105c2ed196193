package fault

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

const (
	large    = 1 << 16 // cells of an output from which on hypotheses are tried at once
	inFlight = 8 << 20 // cells of all that are: a hypothesis takes some ten arrays of the output's size, so that this is a GB at most
)

// each calls do for 0 … n−1, on several processors if what it works on is large.
func each(n, cells int, do func(i int)) {
	workers := 1
	if cells >= large {
		workers = max(1, min(n, runtime.GOMAXPROCS(0), inFlight/cells))
	}
	if workers <= 1 {
		for i := range n {
			do(i)
		}
		return
	}
	var next atomic.Int64
	var wait sync.WaitGroup
	for range workers {
		wait.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	wait.Wait()
}

// trial is a failed output and what hypotheses about it are compared with.
type trial struct {
	levels []*stage.Outcome // the failure, in arithmetics with ever wider bounds
	probe  *dump.Batch      // rows of a large batch that are tried first, nil: none
	wrong  *stage.Outcome   // of the healthy formula on the probe
}

func newTrial(o *stage.Outcome) *trial {
	t := &trial{probe: stage.Probe(o.Check, o.Case.B)}
	t.wrong = stage.Probed(o, t.probe)
	for _, a := range stage.Arithmetics(o.Check, o.Case.B) {
		p := o
		if a != o.Arithmetic {
			p = stage.JudgeAs(o.Check, o.Case.B, o.Case.Set, a)
		}
		if p.Verdict == check.Fail {
			t.levels = append(t.levels, p)
		}
	}
	if len(t.levels) == 0 { // an arithmetic that the caller has chosen
		t.levels = []*stage.Outcome{o}
	}
	return t
}

// lossy reports whether the file says that it has rounded copies.
func lossy(b *dump.Batch) bool {
	for _, t := range b.Tensors {
		if t.Casts {
			return true
		}
	}
	return false
}

// try weighs what a hypothesis predicts: in the widest arithmetic first, which most of them fail, then from the finest on.
func (t *trial) try(h *Hypothesis, factor string, judge func(*stage.Outcome) *stage.Outcome) (Explanation, bool) {
	last := len(t.levels) - 1
	widest, fits, ok := weigh(h, factor, judge, t.levels[last])
	if widest.Outcome == nil || !fits {
		return widest, ok
	}
	for i, o := range t.levels[:last] {
		if e, fits, ok := weigh(h, factor, judge, o); fits && ok {
			if !lossy(o.Case.B) {
				e.level = i
			}
			return e, true
		}
	}
	if !lossy(t.levels[last].Case.B) { // else that inputs are exact excludes nothing
		widest.level = last
	}
	return widest, ok
}

// plausible reports whether a hypothesis reproduces most of the output on some rows of a large batch, up to a factor, and is not
// what was wrong there under the healthy formula.
func (h *Hypothesis) plausible(o *stage.Outcome, rows *dump.Batch, wrong *stage.Outcome) bool {
	c := o.Case.Of(rows, o.Case.Set)
	p := h.predict(c, o.Check)
	return p != nil && len(p.Want) == len(rows.Tensors[o.Check.Output].Data) && stage.Worth(stage.Compare(o.Check, c, p, o.Arithmetic), wrong)
}

// judge judges the output of o as if it should be what a program with the bug gives, nil if that cannot be told.
func (h *Hypothesis) judge(o *stage.Outcome) *stage.Outcome {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	p := h.predict(c, o.Check)
	if p == nil || len(p.Want) != len(o.Pred.Want) {
		return nil
	}
	p.Got, p.GotUnit = o.Pred.Got, o.Pred.GotUnit
	if p.Judge == nil {
		p.Judge = o.Pred.Judge
	}
	q := stage.Compare(o.Check, o.Case, p, o.Arithmetic)
	if o.Arithmetic.Casts && q.Verdict == check.Fail && (h.Predict != nil || !o.Case.Asks()) && near(q) {
		// A bug that has its own formula need not ask for the errors of its inputs.
		p.Bound = stage.Spread(o.Check.Output, func(c *stage.Case) *stage.Prediction { return h.predict(c, o.Check) }, c, p)
		q = stage.Compare(o.Check, o.Case, p, o.Arithmetic)
	}
	return q
}

// near reports whether three quarters of the judged elements are within a tenth of what they should be: worth finding out what
// rounding of inputs does to the rest.
func near(o *stage.Outcome) bool {
	agree, total := 0, 0
	for i, w := range o.Pred.Want {
		if o.Pred.Judge != nil && !o.Pred.Judge[i] {
			continue
		}
		total++
		if math.Abs(o.Got[i]-w) <= 0.1*max(math.Abs(w), o.Tally.Scale) {
			agree++
		}
	}
	return 4*agree >= 3*total
}

// weigh reports whether a hypothesis reproduces all cells of o, and whether that is worth telling: that it is told apart from
// the healthy formula, or reproduces most cells.
func weigh(h *Hypothesis, factor string, judge func(*stage.Outcome) *stage.Outcome, o *stage.Outcome) (e Explanation, fits, ok bool) {
	q := judge(o)
	if q == nil || q.Tally == nil || q.Tally.N == 0 {
		return Explanation{}, false, false
	}
	e = Explanation{Hypothesis: h, Factor: factor, Cells: q.Tally.N - q.Tally.Failed + q.Exact, Worst: q.Tally.Worst.Err, Apart: distance(q, o), Outcome: q}
	least := float64(apart)
	switch {
	case h.Loose:
		e.Apart = o.Tally.Worst.Ratio
	case o.Half():
		least = stage.ToldHalf
	}
	fits = (q.Verdict == check.Pass || (h.Loose || o.Half()) && q.Tally.Failed == 0) && sees(q, o)
	if !(e.Apart > least) || fits {
		return e, fits, e.Apart > least || fits && !h.Loose && hit(q, o) > least
	}
	e.Lead = true
	before := o.Tally.N - o.Tally.Failed
	return e, false, q.Tally.N >= 20 && float64(e.Cells) >= leadShare*float64(q.Tally.N) && q.Tally.Failed*4 <= q.Tally.N-before
}

// hit returns by how many of its own errors a prediction is nearer to the output than the healthy one, in tenths: the bound of a sum of n terms is n roundings,
// and its error hardly ever more than their root. A prediction that is right by chance is a thousand times nearer once in five hundred times, as one that
// is apart by a hundred bounds is within one of them once in fifty. 0 where the healthy one is not clearly outside the bounds.
func hit(q, o *stage.Outcome) float64 {
	const clearly, tenth = 4, 0.1
	if o.Half() || q.Pred.GotUnit > 0 || q.Tally.Failed > 0 {
		return 0
	}
	var err, far float64
	for i, w := range q.Pred.Want {
		h, got := o.Pred.Want[i], o.Got[i]
		if o.Pred.Judge != nil && !o.Pred.Judge[i] || q.Pred.Judge != nil && !q.Pred.Judge[i] || math.IsNaN(w) || math.IsNaN(h) {
			continue
		}
		err = max(err, math.Abs(got-w), tol.U32*math.Abs(got))
		if d := math.Abs(got - h); d > clearly*max(q.Pred.Bound[i], o.Limit(i)) {
			far = max(far, d)
		}
	}
	return tenth * far / (err + math.SmallestNonzeroFloat64)
}

// sees reports whether a prediction says something of most elements that are wrong: one that leaves them out, because it is of cells that the
// dump does not have, reproduces what was right anyway.
func sees(q, o *stage.Outcome) bool {
	if q.Pred.Judge == nil {
		return true
	}
	var seen, unseen int
	mask := o.Case.B.Mask
	for i, want := range o.Pred.Want {
		if o.Pred.Judge != nil && !o.Pred.Judge[i] || o.Pred.Judge == nil && len(mask) == len(o.Got) && !mask[i] || math.Abs(o.Got[i]-want) <= o.Limit(i) {
			continue
		}
		if q.Pred.Judge[i] {
			seen++
		} else {
			unseen++
		}
	}
	return seen >= unseen
}

// distance returns the largest distance between two predictions: in bounds of the first, or in what both can be off where that
// is the rounding to 16 bits.
func distance(faulty, healthy *stage.Outcome) float64 {
	if healthy.Half() {
		return stage.Apart(faulty, healthy)
	}
	p := faulty.Pred
	var most float64
	for i, w := range p.Want {
		h := healthy.Pred.Want[i]
		if healthy.Pred.Judge != nil && !healthy.Pred.Judge[i] || p.Judge != nil && !p.Judge[i] {
			continue // what nobody predicts tells nothing apart
		}
		d := math.Abs(w-h) / (p.Bound[i] + 0x1p-53*math.Abs(w) + math.SmallestNonzeroFloat64)
		switch {
		case math.IsNaN(w) != math.IsNaN(h):
			d = math.Inf(1)
		case math.IsNaN(d):
			continue
		}
		most = max(most, d)
	}
	return most
}
