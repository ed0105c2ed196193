package tol

import "math"

// Compare compares out with ref element by element under the given bounds. Lengths that differ make a bad case.
func Compare(ref, out, bound []float64, scale float64) *Tally {
	t := &Tally{Scale: scale}
	if len(out) != len(ref) || len(bound) != len(ref) {
		t.N = max(len(ref), len(out))
		t.bad("lengths differ: reference %d, output %d, bounds %d", len(ref), len(out), len(bound))
		return t
	}
	for i := range ref {
		t.Add(i, ref[i], out[i], bound[i])
	}
	return t
}

// RMS returns the root mean square of x, 0 for an empty x.
func RMS(x []float64) float64 {
	var s float64
	for _, v := range x {
		s += float64(v * v)
	}
	return math.Sqrt(s / float64(max(1, len(x))))
}
