package stage

import (
	"maps"
	"math"
	"slices"

	"plumbline/verify/check"
	"plumbline/verify/tol"
)

// ToldHalf is how far apart two predictions must be somewhere, in what both of them can be off, for numbers rounded to 16 bits to
// tell them: further than that. The rounding of numbers on storing is known, not estimated as that of float32 operations is.
const ToldHalf = 1

// Apart returns the largest distance between what two outcomes of one output predict, in what both of them can be off.
func Apart(p, q *Outcome) float64 {
	var most float64
	for i, w := range p.Pred.Want {
		if q.Pred.Judge != nil && !q.Pred.Judge[i] || p.Pred.Judge != nil && !p.Pred.Judge[i] {
			continue
		}
		d := math.Abs(w-q.Pred.Want[i]) / (p.Limit(i) + q.Limit(i) + math.SmallestNonzeroFloat64)
		switch {
		case math.IsNaN(w) != math.IsNaN(q.Pred.Want[i]):
			return math.Inf(1)
		case math.IsNaN(d):
			continue
		}
		most = max(most, d)
	}
	return most
}

// Reproduces reports whether o has every element within its bound where these may be too wide to judge a number alone, as they
// are in 16 bits, but not to tell o from what failed.
func (o *Outcome) Reproduces(failed *Outcome) bool {
	return o.Tally != nil && o.Tally.Failed == 0 && o.Tally.Bad == "" && o.Tally.N+o.Exact > 0 && o.Half() && Apart(o, failed) > ToldHalf
}

// Coarser returns the outcome under the finest arithmetic of 16 bits in which a failed output could have been computed, nil if
// there is none. It is a finding, not a pass. Rounding leaves its mark on most cells: an output of which a few are wrong, or
// that has only a few, is no sign of it, and [Outcome.Few] then says that it cannot be excluded either: one rounding puts a ratio on
// the other side of a bound, or a large number on its neighbour. A bound too wide to tell is a finding only for what lies on a grid
// of 16 bits.
func Coarser(o *Outcome) *Outcome {
	if o.Verdict != check.Fail || o.Check.Predict == nil {
		return nil
	}
	grid := Grid(o.Got)
	onGrid := grid > tol.U32
	if o.Tally.N < fewCells && !onGrid {
		return nil
	}
	narrow := o // as if no input were a rounded copy
	if o.Arithmetic.Casts {
		narrow = JudgeAs(o.Check, o.Case.B, o.Case.Set, firstArithmetic(o.Check, o.Case.B))
	}
	if narrow.Tally == nil {
		return nil
	}
	few := 4*narrow.Tally.Failed < o.nonzero()
	if few && (!onGrid || o.nonzero() < fewCells) {
		return nil
	}
	if !onGrid && o.oneFactor() {
		return nil
	}
	for _, u := range []float64{tol.U16, tol.UB} {
		for _, cast := range []bool{false, true} {
			if u <= o.Arithmetic.Unit || onGrid && u < grid || cast && len(casts(o.Case.B)) == 0 {
				continue
			}
			if p := JudgeAs(o.Check, o.Case.B, o.Case.Set, Arithmetic{Unit: u, Casts: cast}); p.Verdict == check.Pass || onGrid && p.Verdict == check.Undetermined && p.Tally != nil {
				p.Few = few
				return p
			}
		}
	}
	return nil
}

// elementwise are checks whose outputs are functions of the cell alone, so that nothing rounded once is in all of them.
var elementwise = []string{"ratio/is_weights", "kl/token", "token_loss/policy"}

// oneFactor reports whether the cells of every file of an elementwise output are off by one factor of their own: rounding of each puts it up
// or down, so that k relative errors lie within a tenth of their median with a chance of about 10⁻ᵏ. Cells of one right number are
// rounded alike and count once.
func (o *Outcome) oneFactor() bool {
	b := o.Case.B
	if !slices.Contains(elementwise, o.Check.ID) || b.Cols == 0 || len(o.Got) != len(b.Mask) {
		return false
	}
	some := false
	for _, f := range b.Files {
		off := map[float64]float64{} // by the right number
		for i := f.Lo * b.Cols; i < f.Hi*b.Cols; i++ {
			want := o.Pred.Want[i]
			if (o.Pred.Judge == nil && b.Mask[i] || o.Pred.Judge != nil && o.Pred.Judge[i]) && math.Abs(want) > 100*o.Limit(i) {
				off[want] = o.Got[i]/want - 1
			}
		}
		if len(off) < fewCells {
			continue
		}
		all := slices.Sorted(maps.Values(off))
		median := all[len(all)/2]
		if !(all[len(all)-1]-all[0] <= 0.1*math.Abs(median)) || median == 0 {
			return false
		}
		some = true
	}
	return some
}

// nonzero returns the number of compared elements, those left out that are 0 on both sides: cells that nothing was computed for.
func (o *Outcome) nonzero() int {
	n := o.Tally.N
	for i, want := range o.Pred.Want {
		if want == 0 && o.Got[i] == 0 && (o.Pred.Judge == nil || o.Pred.Judge[i]) && (o.Pred.Judge != nil || len(o.Got) != len(o.Case.B.Mask) || o.Case.B.Mask[i]) {
			n--
		}
	}
	return n
}

// fewCells is the number of cells below which 16-bit arithmetic is not recognised by its errors.
const fewCells = 16
