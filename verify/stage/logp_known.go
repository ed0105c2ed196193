package stage

import (
	"slices"
	"sync"

	"plumbline/reference/rl"
)

// entropies remembers the entropies that were predicted from the logits of a batch: of the many bugs that are tried on the losses of a step hardly one changes
// them, and each needs exponentials of the whole vocabulary.
type entropies struct {
	lock  sync.Mutex
	known []knownEntropies
}

// knownEntropies hold the slices that they are of, which nobody writes to: the same slice has the same numbers.
type knownEntropies struct {
	logits []float64
	mask   []bool
	rows   []int
	cols   int
	unit   float64
	o      rl.LogProbOptions
	p      *Prediction
}

// mostEntropies are as many as temperatures and masks that are tried in turn.
const mostEntropies = 4

func (k *knownEntropies) of(x knownEntropies) bool {
	return len(k.logits) > 0 && len(k.logits) == len(x.logits) && &k.logits[0] == &x.logits[0] && len(k.mask) > 0 && len(k.mask) == len(x.mask) && &k.mask[0] == &x.mask[0] &&
		slices.Equal(k.rows, x.rows) && k.cols == x.cols && k.unit == x.unit && k.o == x.o
}

// get returns a copy of what is known, nil of what is not.
func (e *entropies) get(x knownEntropies) *Prediction {
	if e == nil {
		return nil
	}
	e.lock.Lock()
	defer e.lock.Unlock()
	for i := range e.known {
		if k := &e.known[i]; k.of(x) {
			p := *k.p
			p.Want, p.Bound, p.Judge = slices.Clone(p.Want), slices.Clone(p.Bound), slices.Clone(p.Judge)
			return &p
		}
	}
	return nil
}

func (e *entropies) put(x knownEntropies, p *Prediction) {
	if e == nil {
		return
	}
	x.p = &Prediction{Want: slices.Clone(p.Want), Bound: slices.Clone(p.Bound), Judge: slices.Clone(p.Judge), Scale: p.Scale, Terms: p.Terms}
	e.lock.Lock()
	defer e.lock.Unlock()
	if e.known = append(e.known, x); len(e.known) > mostEntropies {
		e.known = slices.Delete(e.known, 0, 1)
	}
}
