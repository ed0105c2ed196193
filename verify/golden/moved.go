package golden

import (
	"math"

	"plumbline/internal/format"
)

// A float64 program returns the exact result of inputs that differ from the given ones by roundings: a walk of as many
// steps as it makes. Moving every input by one rounding, up or down at random, makes a walk of that kind through the same
// formula; a result that then moves by more than 1e-12 is one on which two right programs differ. walks is how many are
// taken, and reach what multiple of the furthest is allowed, which covers the programs whose sums have several steps for
// each input. A result that moves by more than jump lies at a discontinuity (the sign of a difference of equal numbers), which
// every program meets alike: nothing is allowed there.
const (
	walks = 8
	reach = 4
	jump  = 1e-3
)

// recomputeMoved returns the answers to e with its float64 inputs moved by one rounding each, once for every walk. It is
// empty for an entry without such inputs.
func recomputeMoved(e *Entry, f recompute) [][]answer {
	all := [][]answer{}
	for walk := range walks {
		m := *e
		m.In = make(map[string]*Value, len(e.In))
		some := false
		for name, v := range e.In {
			if v.Tensor != "" && v.DType == format.F64 {
				w := *v
				w.Data = moved(v.Data, uint64(walk))
				v, some = &w, true
			}
			m.In[name] = v
		}
		if !some {
			return all
		}
		c := &call{e: &m, given: e, used: map[string]bool{}}
		if answers := f(c); c.ok() {
			all = append(all, answers)
		}
	}
	return all
}

// moved returns x with every element that is not 0 or 1 replaced by one of its neighbours; 0 and 1 are those of masks.
func moved(x []float64, walk uint64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		h := (uint64(i)*walks + walk + 1) * 0x9e3779b97f4a7c15 // the generator splitmix64
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		switch {
		case v == 0 || v == 1 || v-v != 0:
			y[i] = v
		case (h^h>>31)>>63 == 0:
			y[i] = math.Nextafter(v, math.Inf(1))
		default:
			y[i] = math.Nextafter(v, math.Inf(-1))
		}
	}
	return y
}

// deviation returns reach times the largest change of element i of answer k, 0 where nothing can be said.
func deviation(moved [][]answer, a *answer, k, i int) float64 {
	var d float64
	for _, answers := range moved {
		if k >= len(answers) || answers[k].output != a.output || i >= len(answers[k].got) {
			continue
		}
		if x := math.Abs(answers[k].got[i] - a.got[i]); x > d && x <= math.MaxFloat64 {
			d = x
		}
	}
	if d > jump*max(1, math.Abs(a.got[i])) {
		return 0
	}
	return reach * d
}
