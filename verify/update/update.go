// Package update judges what an optimiser did with its gradients: from gradients, weights and updates of consecutive steps it recomputes
// the steps of AdamW, Adam or SGD, the clipping by the global norm, the learning rate and the decay, and names the bug that gives the
// numbers where the declared optimiser does not.
package update

import (
	"hash/fnv"
	"math"
	"slices"

	"plumbline/verify/tol"
)

// Limits of what is kept of a run: an optimiser works element by element, so that a sample of elements tells as much as all.
const (
	MostSteps    = 64
	mostElements = 1 << 14
	fewElements  = 1 << 8 // on which rules are tried first
	leastOfOne   = 16     // elements of every tensor
)

// Values are the numbers of a tensor, with the unit roundoff of the format they were stored in, 0 for float64.
type Values struct {
	X    []float64
	Unit float64
}

// Tensor is what a step has of one tensor that is trained. What is not in the dump is nil.
type Tensor struct {
	Name                  string
	Grad, Update, Weights *Values
	Parts                 int // micro-batches of which each has a gradient; only 1 says that it is the optimiser's
	Dims                  int // its dimensions, 0 where nobody says
}

// Step is what a step of a run says of its optimiser.
type Step struct {
	Number  int
	Tensors []Tensor
	Norm    float64 // logged, of the gradient; NaN
	Rate    float64 // logged, NaN

	Slope, SlopeSize float64 // of the loss by a number that is added to all values of the step, and the sum of its terms' magnitudes; 0 where nobody says
}

// Declared is what is known of the optimiser. NaN stands for what nobody says.
type Declared struct {
	Kind         string  // adam, adamw, adam_tf1, sgd, adam8bit; "": nobody says
	Rate         float64 // of the first steps, or the largest of a schedule
	Constant     bool    // the schedule is declared to be constant
	Beta1, Beta2 float64
	Eps, Decay   float64
	Clip         float64 // bound of the global norm, +Inf: none
	Spare        string  // tensors that do not decay: none, biases_and_norms; "": nobody says

	// From has the options that only a profile gives, with its name: defaults, which a run may have changed without a word. Fixed are
	// those of them that no configuration of the framework changes.
	From  map[string]string
	Fixed map[string]bool

	Falls bool // the schedule begins with the declared rate: it has no warm-up

	Micro         float64 // micro-batches of a step, 0: nobody says
	Schedule      string  // linear, cosine, constant; "": nobody says
	Steps, WarmUp float64 // of the schedule; NaN
}

// Undeclared returns what is known where nobody says anything.
func Undeclared() Declared {
	nan := math.NaN()
	return Declared{Rate: nan, Beta1: nan, Beta2: nan, Eps: nan, Decay: nan, Clip: nan, Steps: nan, WarmUp: nan}
}

// Run collects the steps of a run, in order.
type Run struct {
	names []string
	index map[string][]int  // of the elements that are kept, by tensor
	sizes map[string][2]int // of all elements of a tensor, and its dimensions
	steps []*record
}

// record is a step with the kept elements of all tensors, one after another.
type record struct {
	number     int
	norm, rate float64
	slope      [2]float64 // and the size of its terms
	of         map[string]*kept
	whole      float64 // norm of the gradients of all tensors that have one
	norms      float64 // sum of the norms of these tensors
	parts      int
}

// logsSum reports whether the logged norm is the sum of the norms of the tensors, which is that of the whole gradient only if one of them is not 0.
func (r *record) logsSum() bool {
	const part = 1e-4 // of a norm, more than its float32 sum is off
	return r.norms > r.whole*(1+100*part) && math.Abs(r.norm-r.norms) <= part*r.norms
}

// kept are the kept elements of a tensor, and what is known of all of them.
type kept struct {
	grad, update, weights  []float64
	unitG, unitU, unitW    float64
	hasGrad, moved, finite bool // some gradient, some update is not 0; all are finite
	digest                 uint64
	norm                   float64 // of all of the gradient
}

// Add takes a step down. Steps are added in increasing order; it reports whether more are wanted.
func (r *Run) Add(s *Step) bool {
	if len(r.steps) >= MostSteps {
		return false
	}
	if r.index == nil {
		r.choose(s)
	}
	rec := &record{number: s.Number, norm: s.Norm, rate: s.Rate, slope: [2]float64{s.Slope, s.SlopeSize}, of: map[string]*kept{}}
	var sum float64
	for i := range s.Tensors {
		t := &s.Tensors[i]
		rec.parts = max(rec.parts, t.Parts)
		index, ok := r.index[t.Name]
		if !ok {
			continue
		}
		k := &kept{finite: true}
		if g := t.Grad; g != nil {
			k.unitG = g.Unit
			k.grad = pick(g.X, index)
			var own float64
			for _, x := range g.X {
				own += float64(x * x)
				k.hasGrad = k.hasGrad || x != 0
				k.finite = k.finite && !math.IsNaN(x) && !math.IsInf(x, 0)
			}
			k.norm = math.Sqrt(own)
			sum += own
			rec.norms += k.norm
		}
		if u := t.Update; u != nil {
			k.unitU = u.Unit
			k.update = pick(u.X, index)
			k.moved = slices.ContainsFunc(u.X, func(x float64) bool { return x != 0 })
		}
		if w := t.Weights; w != nil {
			k.unitW = w.Unit
			k.weights = pick(w.X, index)
			k.digest = digest(w.X)
		}
		rec.of[t.Name] = k
	}
	rec.whole = math.Sqrt(sum)
	r.steps = append(r.steps, rec)
	return len(r.steps) < MostSteps
}

// choose decides which elements are kept: of every tensor a few, evenly spread, of a large one more.
func (r *Run) choose(s *Step) {
	r.index, r.sizes = map[string][]int{}, map[string][2]int{}
	total := 0
	for i := range s.Tensors {
		total += s.Tensors[i].size()
	}
	for i := range s.Tensors {
		t := &s.Tensors[i]
		n := t.size()
		if n == 0 {
			continue
		}
		share := min(n, max(leastOfOne, int(float64(mostElements)*float64(n)/float64(max(total, mostElements)))))
		index := make([]int, share)
		for k := range index {
			index[k] = int(float64(k) * float64(n) / float64(share))
		}
		r.names, r.index[t.Name], r.sizes[t.Name] = append(r.names, t.Name), index, [2]int{n, t.Dims}
	}
}

func (t *Tensor) size() int {
	for _, v := range []*Values{t.Grad, t.Update, t.Weights} {
		if v != nil {
			return len(v.X)
		}
	}
	return 0
}

// pick returns the elements of x at index, nil if x is of another size than the tensor was.
func pick(x []float64, index []int) []float64 {
	if len(index) == 0 || index[len(index)-1] >= len(x) {
		return nil
	}
	out := make([]float64, len(index))
	for k, i := range index {
		out[k] = x[i]
	}
	return out
}

func digest(x []float64) uint64 {
	h := fnv.New64a()
	var b [8]byte
	for _, v := range x {
		bits := math.Float64bits(v)
		for i := range b {
			b[i] = byte(bits >> (8 * i))
		}
		h.Write(b[:])
	}
	return h.Sum64()
}

// Empty reports whether no step has a gradient, an update or weights.
func (r *Run) Empty() bool { return len(r.steps) == 0 || len(r.names) == 0 }

// pair is one step of the optimiser on the kept elements of the tensors that have all that it takes at some step.
type pair struct {
	step       int
	g          []float64 // gradient
	w, u       []float64 // weight before, what was added; nil where the dump does not tell them, and the moments alone go on
	noise      []float64 // of u: the roundings of the weights before and after, and of what was stored
	unitG      float64
	norm       float64   // of the whole gradient as dumped
	norms      []float64 // of each tensor
	logged     float64
	rate       float64
	consistent bool // the pair before it is the step before
	told       bool // the update is in the dump, and no difference of weights whose moment is not known
}

// When the weights of a step were read: before its update, as a hook at the loss does, or behind it.
type moment int

const (
	beforeUpdate moment = iota
	afterUpdate
)

// sample is the run of an optimiser on the kept elements of the tensors that have all that it takes.
type sample struct {
	list     []*pair
	of       []int // the tensor of each element
	groups   []group
	complete bool // every element of every tensor is kept
}

// group is a tensor of a sample.
type group struct {
	name  string
	named bool // as biases and norms are
	dims  int
	flat  bool // no tensor of the run has two dimensions: how many they had is not known
}

// pairs joins the steps of the run under one reading of the moment at which weights were read, without the tensors of still.
func (r *Run) pairs(when moment, still []string) *sample {
	s := &sample{complete: true}
	flat := true
	for _, name := range r.names {
		flat = flat && r.sizes[name][1] < 2
	}
	for _, name := range r.names {
		if slices.Contains(still, name) || !r.everywhere(name, when) {
			continue
		}
		for range r.index[name] {
			s.of = append(s.of, len(s.groups))
		}
		s.groups = append(s.groups, group{name: name, named: ofBiasOrNorm(name), dims: r.sizes[name][1], flat: flat})
		s.complete = s.complete && len(r.index[name]) == r.sizes[name][0]
	}
	if len(s.groups) == 0 {
		return s
	}
	for i, rec := range r.steps {
		p := &pair{step: rec.number, norm: rec.whole, logged: rec.norm, rate: rec.rate}
		graded, whole := true, true
		for _, of := range s.groups {
			k := rec.of[of.name]
			if k == nil || len(k.grad) != len(r.index[of.name]) || !k.finite {
				graded = false
				break
			}
			p.g, p.unitG, p.norms = append(p.g, k.grad...), max(p.unitG, k.unitG), append(p.norms, k.norm)
			w, u, noise, ok := r.elements(of.name, i, when)
			whole, p.told = whole && ok, k.update != nil
			p.w, p.u, p.noise = append(p.w, w...), append(p.u, u...), append(p.noise, noise...)
		}
		if !graded {
			continue
		}
		if !whole {
			p.w, p.u, p.noise = nil, nil, nil
		}
		if rec.logsSum() {
			p.logged = math.NaN() // it is not the norm of more tensors than the dump has
		}
		p.consistent = len(s.list) == 0 || s.list[len(s.list)-1].step == p.step-1
		s.list = append(s.list, p)
	}
	for len(s.list) > 0 && s.list[len(s.list)-1].u == nil { // nothing behind them is compared
		s.list = s.list[:len(s.list)-1]
	}
	return s
}

// everywhere reports whether some step has all of the tensor.
func (r *Run) everywhere(name string, when moment) bool {
	for i := range r.steps {
		if _, _, _, ok := r.elements(name, i, when); ok {
			return true
		}
	}
	return false
}

// elements returns weight before and update of the tensor at step i, with the update's uncertainty: what was added and
// stored is known to the rounding of the weights on both sides of it.
func (r *Run) elements(name string, i int, when moment) (w, u, noise []float64, ok bool) {
	k := r.steps[i].of[name]
	if k == nil || k.grad == nil || !k.finite {
		return nil, nil, nil, false
	}
	at := func(j int) *kept {
		if j < 0 || j >= len(r.steps) || j != i && r.steps[max(i, j)].number != r.steps[min(i, j)].number+1 {
			return nil
		}
		if o := r.steps[j].of[name]; o != nil && o.weights != nil {
			return o
		}
		return nil
	}
	before, after := at(i), at(i+1)
	if when == afterUpdate {
		before, after = at(i-1), at(i)
	}
	switch {
	case k.update != nil && (before != nil || after != nil):
		u = k.update
		unit := tol.U32
		if before != nil {
			w, unit = before.weights, max(unit, before.unitW)
		} else {
			w, unit = minus(after.weights, u), max(unit, after.unitW)
		}
		noise = roundings(w, u, unit, k.unitU)
		if before != nil && after != nil && !adds(before.weights, u, after.weights, noise) {
			return nil, nil, nil, false
		}
	case before != nil && after != nil:
		w, u = before.weights, minus(after.weights, before.weights)
		noise = roundings(w, u, max(tol.U32, before.unitW, after.unitW), 0)
	default:
		return nil, nil, nil, false
	}
	return w, u, noise, len(w) == len(u) && len(w) == len(k.grad)
}

// adds reports whether w and u make z up to noise.
func adds(w, u, z, noise []float64) bool {
	if len(w) != len(u) || len(z) != len(u) {
		return false
	}
	for i := range u {
		if !(math.Abs(z[i]-w[i]-u[i]) <= noise[i]) {
			return false
		}
	}
	return true
}

func minus(x, y []float64) []float64 {
	if len(x) != len(y) {
		return nil
	}
	d := make([]float64, len(x))
	for i := range x {
		d[i] = x[i] - y[i]
	}
	return d
}

// roundings bounds what lies between the update that an optimiser computes and what is known of it: the weight before and the one
// behind are rounded, each to half a unit of its format (masters of a wider one show twice the same), the decay rounds once more, and
// the update may be stored in a format of its own.
func roundings(w, u []float64, unit, stored float64) []float64 {
	if len(w) != len(u) {
		return nil
	}
	out := make([]float64, len(u))
	for i := range u {
		out[i] = unit*(2*math.Abs(w[i])+2*math.Abs(w[i]+u[i])) + stored*math.Abs(u[i])
	}
	return out
}
