package stage

import (
	"slices"

	"plumbline/verify/check"
)

// reading says how decisions that lie within their own error were taken, each of which is of a token or of a response: a bound that holds both ways of several
// tells nothing of a sum. The numbers of a program are those of one of them.
type reading struct {
	taken     bool  // the decisions are those of other; else the error holds both ways
	other     uint  // by its index, whether a decision is the other one than that of the numbers as they were computed here
	decisions []int // the tokens or the rows that they are of
}

// mostDecisions is the number of decisions of which all readings are tried.
const mostDecisions = 6

// of returns the number of a cell, and its error, under a decision that makes it x or alt.
func (r *reading) of(decision int, x, e, alt float64) (float64, float64) {
	if r == nil {
		return x, e + max(alt-x, x-alt)
	}
	k := slices.Index(r.decisions, decision)
	if k < 0 {
		k = len(r.decisions)
		r.decisions = append(r.decisions, decision)
	}
	switch {
	case !r.taken:
		return x, e + max(alt-x, x-alt)
	case r.other>>k&1 == 1:
		return alt, e
	}
	return x, e
}

// decision is what the weight of a cell is decided with: its row, where weights are of responses, or the cell itself.
func (c *Case) decision(i int) int {
	if c.EnumOr("tis.level", "token") == "token" && c.EnumOr("tis.rule", "") != "seq_filter" {
		return c.B.Rows + i
	}
	return i / max(c.B.Cols, 1)
}

// read judges an output whose bounds are too wide to tell, for the decisions in them, under each way in which these can have been taken: nil where none is right.
func (o *Outcome) read(coarse bool) *Outcome {
	n := len(o.Case.reading.decisions)
	if n == 0 || n > mostDecisions {
		return nil
	}
	for other := range uint(1) << n {
		p := predictAs(o.Check, o.Case.B, o.Case.Set, o.Arithmetic, &reading{taken: true, other: other, decisions: slices.Clone(o.Case.reading.decisions)})
		if !p.Case.OK() || p.Pred == nil {
			return nil
		}
		if p.compare(p.Pred, coarse); p.Verdict == check.Pass {
			return p
		}
	}
	return nil
}
