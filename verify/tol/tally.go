// Package tol decides whether a number is inside its error bound.
//
// A bound is derived per element from the data and the contract of the computation that is judged (number format, order
// of summation); it is never a constant chosen after looking. A NaN, in the number or in the bound, never passes, and
// a bound too wide to tell anything is said to be so. Package check turns the tallies of this package into verdicts.
package tol

import (
	"cmp"
	"fmt"
	"math"
)

// Void is the share of max(|ref|, scale) above which a bound says nothing about an element.
const Void = 1e-2

// Tally collects an element-wise comparison of an output against a reference. The zero value is ready to use once
// Scale is set.
type Tally struct {
	// Coarse leaves the resolution out, and the 3 kB it takes.
	Coarse bool

	// Scale is the size below which an error does not matter: by default of the specification the root mean square of
	// the reference, or what the op declares (projection: the RMS of the gradient).
	Scale float64

	N            int // elements compared
	Failed       int // !(|out − ref| <= bound)
	Undetermined int // inside a bound wider than Void·max(|ref|, Scale)
	Bad          string
	Worst        Element // largest ratio; a NaN counts as the largest

	ratios      [len(ratioEdges) + 1]int
	resolutions []uint32 // histogram of log2(bound/Scale), from 2^-96
}

// The bins of the histogram of resolutions: 6 to the octave, so that a median is known to 6 %.
const (
	binsPerOctave = 6
	lowestOctave  = -96
	bins          = 128 * binsPerOctave
)

// Element is one compared element.
type Element struct {
	Index      int
	Ref, Out   float64
	Err, Bound float64 // |out − ref| and what it may be
	Ratio      float64 // Err/Bound
}

var ratioEdges = [...]float64{1e-3, 1e-2, 0.1, 0.5, 1, 10, 1e3}

// Add compares element i: out against ref, with |out − ref| <= bound demanded.
//
// A reference that is not finite, and a bound that is NaN or negative, make the whole case bad: the op must declare such
// values, and none here does.
func (t *Tally) Add(i int, ref, out, bound float64) {
	t.N++
	err := math.Abs(out - ref)
	if math.IsNaN(ref) || math.IsInf(ref, 0) {
		t.bad("reference %g at element %d", ref, i)
	}
	if math.IsNaN(bound) || bound < 0 {
		t.bad("bound %g at element %d", bound, i)
	}
	ratio := err / bound
	if err == 0 && bound == 0 {
		ratio = 0
	}
	switch {
	case !(err <= bound):
		t.Failed++
		if !(ratio > 1) {
			ratio = math.Inf(1) // NaN, or a positive error over the bound 0
		}
	case !(bound <= Void*max(math.Abs(ref), t.Scale)):
		t.Undetermined++
	}
	if t.N == 1 || ratio > t.Worst.Ratio {
		t.Worst = Element{i, ref, out, err, bound, ratio}
	}
	b := 0
	for b < len(ratioEdges) && ratio >= ratioEdges[b] {
		b++
	}
	t.ratios[b]++
	if !t.Coarse {
		if t.resolutions == nil {
			t.resolutions = make([]uint32, bins)
		}
		t.resolutions[resolutionBin(bound/t.Scale)]++
	}
}

func (t *Tally) bad(format string, args ...any) {
	if t.Bad == "" {
		t.Bad = fmt.Sprintf(format, args...)
	}
}

func resolutionBin(r float64) int {
	if !(r > 0) {
		return 0
	}
	if r >= 0x1p31 { // +Inf too
		return bins - 1
	}
	return max(int(math.Floor(binsPerOctave*(math.Log2(r)-lowestOctave))), 0)
}

// Resolution returns the median of bound/Scale to within 6 %, 0 if it was left out: the smallest relative fault this comparison can see.
func (t *Tally) Resolution() float64 {
	if t.N == 0 || !(t.Scale > 0) {
		return 0
	}
	seen := 0
	for b, n := range t.resolutions {
		if seen += int(n); 2*seen >= t.N {
			switch b {
			case 0:
				return 0
			case bins - 1:
				return math.Inf(1)
			}
			return math.Exp2((float64(b)+0.5)/binsPerOctave + lowestOctave)
		}
	}
	return 0
}

// Merge adds the elements of u, which came after those of t.
func (t *Tally) Merge(u *Tally) {
	if u.N == 0 {
		return
	}
	if t.N == 0 || u.Worst.Ratio > t.Worst.Ratio {
		t.Worst = u.Worst
	}
	t.N += u.N
	t.Failed += u.Failed
	t.Undetermined += u.Undetermined
	t.Bad = cmp.Or(t.Bad, u.Bad)
	for i, n := range u.ratios {
		t.ratios[i] += n
	}
	if t.resolutions == nil && u.resolutions != nil {
		t.resolutions = make([]uint32, bins)
	}
	for i, n := range u.resolutions {
		t.resolutions[i] += n
	}
}

// Ratios describes the distribution of err/bound.
func (t *Tally) Ratios() string {
	s := ""
	for i, n := range t.ratios {
		if n == 0 {
			continue
		}
		if s != "" {
			s += ", "
		}
		switch i {
		case 0:
			s += fmt.Sprintf("%d below %g", n, ratioEdges[0])
		case len(ratioEdges):
			s += fmt.Sprintf("%d from %g", n, ratioEdges[i-1])
		default:
			s += fmt.Sprintf("%d in %g..%g", n, ratioEdges[i-1], ratioEdges[i])
		}
	}
	return s
}
