package stage

import (
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// ranks are the rows whose log-probs stand in the pairs of ranks, the ranks of each file apart, and how far off what was sorted may be.
type ranks struct {
	chosenRow, rejectedRow []int
	reach                  []float64 // of a rank, on either side of its number
	apart                  bool      // chosen and rejected answers are sorted each by themselves
}

// sortPairs makes pairs of ranks, each file by itself, as every process sorts its own micro-batch. Sorting moves no rank by more than the most that
// one of the numbers is off, so that a rank has the largest error of its file:
//
//	e = max over rows of stored + 2u·(|chosen| + |rejected| + |ref chosen| + |ref rejected|)
func (c *Case) sortPairs(q *pairPart) {
	u := c.Unit + tol.U64
	of, stored := make([]Pair, len(q.of)), make([]float64, len(q.of))
	q.ranks = &ranks{make([]int, len(q.of)), make([]int, len(q.of)), stored, q.o.Kind == rl.DPOAOTUnpaired}
	for _, f := range c.B.Files {
		var x [4][]float64
		e := 0.0
		for r := f.Lo; r < f.Hi; r++ {
			p := q.of[r]
			for k, v := range []float64{p.Chosen, p.Rejected, p.RefChosen, p.RefRejected} {
				x[k] = append(x[k], v)
			}
			e = max(e, q.stored[r]+2*u*p.size())
		}
		s := rl.DPOSorted(x[0], x[1], x[2], x[3], q.o.Kind)
		for i := range s.Chosen {
			at := f.Lo + i
			of[at] = Pair{Chosen: s.Chosen[i], Rejected: s.Rejected[i], RefChosen: s.RefChosen[i], RefRejected: s.RefRejected[i], ChosenTokens: math.NaN(), RejectedTokens: math.NaN()}
			stored[at] = e
			q.ranks.chosenRow[at], q.ranks.rejectedRow[at] = f.Lo+s.ChosenRow[i], f.Lo+s.RejectedRow[i]
		}
	}
	q.of, q.stored = of, stored
}

// inOrder reports whether the margins of the ranks are those of the rows.
func (q *pairPart) inOrder(raw []Pair) bool {
	for i, p := range q.of {
		h := func(p Pair) float64 { return (p.Chosen - p.Rejected) - (p.RefChosen - p.RefRejected) }
		if math.Abs(h(p)-h(raw[i])) > q.stored[i] {
			return false
		}
	}
	return true
}

// toRows carries derivatives of the ranks of a file to their rows. A number that lies within the errors of others may have had any of their ranks:
// what their derivatives differ is added to the error.
func (q *pairPart) toRows(lo, hi int, d, err []float64, chosen bool, put func(row int, d, err float64)) {
	at, number := q.ranks.chosenRow, func(i int) float64 { return q.of[i].Chosen }
	if !chosen {
		if at = q.ranks.rejectedRow; q.ranks.apart {
			number = func(i int) float64 { return q.of[i].Rejected }
		}
	}
	for i := lo; i < hi; i++ {
		e := err[i]
		for _, step := range []int{-1, 1} {
			for j := i + step; j >= lo && j < hi && math.Abs(number(j)-number(i)) <= 2*q.ranks.reach[i]; j += step {
				e = max(e, err[j]+math.Abs(d[j]-d[i]))
			}
		}
		put(at[i], d[i], e)
	}
}
