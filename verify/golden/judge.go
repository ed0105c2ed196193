package golden

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"plumbline/internal/format"
)

// recompute returns the reference's answers to an entry, or leaves in c why there are none.
type recompute func(c *call) []answer

// miss is an element beyond its bound.
type miss struct {
	output           string
	index            int
	shape            []int
	got, want, bound float64
	leak             Leak
	note             string // in place of the numbers
}

// outcome is what came of one entry.
type outcome struct {
	entry    *Entry
	numbers  int          // that were compared; an exception that the reference refuses with counts as one
	refused  int          // exceptions among them
	leaked   map[Leak]int // of these, how many are off by more than 1e-12 and within what the leak allows
	worst    float64      // largest |got − want|/bound
	at       miss         // where
	failed   int          // elements beyond their bound
	first    miss         // the worst of them
	unknown  string       // UNDETERMINED: why
	excluded []string     // outputs that the reference has no number for, on purpose
}

// judge compares an entry with what f recomputes. The error says that the entry is malformed.
func judge(e *Entry, f recompute) (*outcome, error) {
	o := &outcome{entry: e, leaked: map[Leak]int{}}
	answers, err := o.recompute(e, f)
	if err != nil || o.unknown != "" {
		return o, err
	}
	var moved [][]answer // of inputs that differ by one rounding; computed when an element is beyond its bound
	spread := func(k, i int) float64 {
		if moved == nil {
			moved = recomputeMoved(e, f)
		}
		return deviation(moved, &answers[k], k, i)
	}
	seen := map[string]bool{}
	for k := range answers {
		a := &answers[k]
		seen[a.output] = true
		if err := o.output(e, a, func(i int) float64 { return spread(k, i) }); err != nil {
			return o, err
		}
		if o.unknown != "" {
			return o, nil
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Out)) {
		switch {
		case seen[name]:
		case o.unknown == "":
			o.unknown = fmt.Sprintf("the reference has no output %s", short(name))
		}
	}
	if o.numbers == 0 && o.unknown == "" {
		return o, format.Malformed(e.File, place(e), "has no output to compare")
	}
	return o, nil
}

// recompute calls f on an entry and looks whether all of the entry was understood.
func (o *outcome) recompute(e *Entry, f recompute) ([]answer, error) {
	c := &call{e: e, given: e, used: map[string]bool{}}
	answers := f(c)
	if c.ok() {
		if left := c.unread(); left != "" {
			c.undetermined("option not known here: %s", left)
		}
	}
	o.unknown = c.unknown
	return answers, c.err
}

// output compares one output.
func (o *outcome) output(e *Entry, a *answer, spread func(i int) float64) error {
	v := e.Out[a.output]
	switch {
	case a.excuse != "":
		if v != nil {
			o.excluded = append(o.excluded, a.output)
		}
		return nil
	case v == nil && (a.maybe || e.raised()):
		return nil
	case v == nil:
		return format.Malformed(e.File, place(e), "output %s is missing", a.output)
	case v.Raises != "" && a.err == nil:
		o.unknown = fmt.Sprintf("raised %s there (%s), and the reference has numbers", short(v.Raises), short(v.Message))
		return nil
	case v.Raises != "" && !raises(a.err, v.Raises):
		o.unknown = fmt.Sprintf("raised %s there (%s), and the reference refuses for another reason: %v", short(v.Raises), short(v.Message), a.err)
		return nil
	case v.Raises != "":
		o.numbers++
		o.refused++
		return nil
	case a.err != nil:
		o.numbers++
		o.miss(miss{output: a.output, note: fmt.Sprintf("the reference refuses (%v), and there is a value", a.err)})
		return nil
	case a.text != nil:
		want, ok := v.Raw.(string)
		if !ok {
			return format.Malformed(e.File, place(e), "output %s is no text", a.output)
		}
		if o.numbers++; want != *a.text {
			o.miss(miss{output: a.output, note: fmt.Sprintf("got %q, want %q", short(*a.text), short(want))})
		}
		return nil
	case len(v.Data) != len(a.got) && a.list:
		o.numbers++
		o.miss(miss{output: a.output, note: fmt.Sprintf("has %d elements, the reference gives %d", len(v.Data), len(a.got))})
		return nil
	case len(v.Data) != len(a.got):
		return format.Malformed(e.File, place(e), "output %s has %d numbers, its inputs give %d", a.output, len(v.Data), len(a.got))
	}
	for i, want := range v.Data {
		if a.only != nil && !a.only[i] {
			continue
		}
		o.numbers++
		got := a.got[i]
		if got == want || math.IsNaN(got) && math.IsNaN(want) {
			continue
		}
		m := miss{output: a.output, index: i, shape: v.Shape, got: got, want: want, bound: a.allowed(i, want), leak: a.leak}
		off := math.Abs(got - want)
		if math.IsNaN(off) && e.nonFinite() {
			o.unknown = fmt.Sprintf("an input holds NaN or an infinity, and %s%s is %v there and %v here", a.output, m.place(), want, got)
			return nil
		}
		if a.bound != nil && !(a.bound[i] <= math.MaxFloat64) {
			o.unknown = fmt.Sprintf("%s: no bound for element %s, since numbers overflow where %s", a.output, m.place(), a.leak)
			return nil
		}
		if !(off <= m.bound) && !math.IsInf(got, 0) && !math.IsInf(want, 0) {
			if s := spread(i); s > 0 {
				m.bound, m.leak = m.bound+s, Conditioning
			}
		}
		switch ratio := off / m.bound; {
		case !(off <= m.bound):
			o.miss(m)
		default:
			if !(off <= exact*max(1, math.Abs(want))) {
				o.leaked[m.leak]++
			}
			if ratio > o.worst {
				o.worst, o.at = ratio, m
			}
		}
	}
	return nil
}

// nonFinite reports whether an input holds NaN or an infinity: the reference selects by the mask, frameworks multiply by it.
func (e *Entry) nonFinite() bool {
	for _, v := range e.In {
		for _, x := range v.Data {
			if x-x != 0 {
				return true
			}
		}
	}
	return false
}

// raised reports whether the framework raised an exception.
func (e *Entry) raised() bool {
	for _, v := range e.Out {
		if v.Raises != "" {
			return true
		}
	}
	return false
}

// miss notes an element beyond its bound.
func (o *outcome) miss(m miss) {
	if o.failed++; o.failed == 1 || m.ratio() > o.first.ratio() {
		o.first = m
	}
}

// ratio returns how far beyond its bound the element is; NaN is the furthest.
func (m *miss) ratio() float64 {
	r := math.Abs(m.got-m.want) / m.bound
	if math.IsNaN(r) {
		return math.Inf(1)
	}
	return r
}

// place returns the index of the element, one number for each dimension.
func (m *miss) place() string {
	if len(m.shape) == 0 {
		return fmt.Sprintf("[%d]", m.index)
	}
	at := make([]int, len(m.shape))
	rest := m.index
	for d := len(at) - 1; d >= 0; d-- {
		at[d] = rest % m.shape[d]
		rest /= m.shape[d]
	}
	return fmt.Sprint(at)
}

// difference returns |got − want|; it is NaN where one of them is, and infinite between an infinity and a number.
func difference(got, want float64) float64 { return math.Abs(got - want) }
