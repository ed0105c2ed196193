package bind

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"strings"

	"plumbline/accel"
	"plumbline/accel/lora"
	"plumbline/internal/train"
)

// Lockstep is a [train.Policy] that runs an accelerated policy beside the reference on the same batches: whatever a trainer asks for is computed
// by the reference, on the weights that the kernels compute with, and by the kernels from the masters of the reference, and both are
// compared. The reference goes on, so that every step is taken from its state.
//
// Beside both a third policy, of the kernels, goes its own way: it takes steps of its own from its own masters, with the slopes of the
// reference's loss. How far it ends from the reference is reported as the free drift, and is not judged.
//
// A tensor may differ by four times what the farthest of eight perturbed passes of the reference differs by, see Rounding of reference/model: in root
// mean square, and in its largest element. The perturbations have the size that the contract of the mode allows the kernels. The allowance
// is empirical: it is derived from the contract through the model at hand, and no theorem.
type Lockstep struct {
	*Language
	fast, start *Accelerated // whose weights are computed with; what the run began from
	run, free   train.Policy // the kernels: from the masters of the reference, and from their own
	shadow      *Language    // whose passes are perturbed
	optimizer   *lockstepOptimizer
	step, calls int
	kinds       []*parting
}

const (
	perturbed = 8 // passes
	allowed   = 4 // times the spread of the perturbed passes
)

// parting is what was compared of one kind of tensor.
type parting struct {
	kind         string
	compared     int     // tensors with something to compare
	empty        int     // tensors of no elements, or of zeros on both sides with no room between them: nothing was judged
	worst        float64 // error over bound
	where        string  // of the worst
	first        string  // the first tensor and step outside of its bound, "" if there is none
	err, allowed float64 // root mean squares of the worst
}

// NewLockstep returns the policies of a base in that mode.
func NewLockstep(b *Base, mode lora.Mode, o Options) (*Lockstep, error) {
	fast, err := NewAccelerated(b, mode, o)
	if err != nil {
		return nil, err
	}
	l := &Lockstep{fast: fast, run: fast, free: fast.twin(), start: fast.twin()}
	if l.Language, err = fast.Exact(); err != nil {
		return nil, err
	}
	l.shadow, err = fast.exact(l.Language.model)
	return l, err
}

// Weight returns a weight of the base as the numbers that both compute with.
func (l *Lockstep) Weight(name string) []float64 { return l.fast.Weight(name) }

// Variant implements [train.Policy].
func (l *Lockstep) Variant() string { return "reference in lockstep with " + l.run.Variant() }

// Restore implements [train.Policy].
func (l *Lockstep) Restore(dir string) error {
	if err := l.Language.Restore(dir); err != nil {
		return err
	}
	l.Language.copyTo(l.free.Params())
	l.Language.copyTo(l.start.params)
	return nil
}

// named are tensors with their kinds, in order.
type named struct {
	kind, name string
	x          []float64
}

// follow compares what the kernels compute with what the reference does. Both functions return the same tensors; exact is called once as it
// is and then with perturbed passes.
func (l *Lockstep) follow(what string, want []named, fast func() ([]named, error), again func(shadow *Language) ([]named, error)) error {
	l.calls++
	l.Language.copyTo(l.run.Params())
	l.Language.copyTo(l.shadow.params)
	got, err := fast()
	if err != nil {
		return fmt.Errorf("lockstep: %s: %w", what, err)
	}
	rms, top := make([]float64, len(want)), make([]float64, len(want))
	for k := range uint64(perturbed) {
		l.shadow.rounding = l.fast.Rounding(uint64(l.calls)*perturbed + k)
		moved, err := again(l.shadow)
		if err != nil {
			return fmt.Errorf("lockstep: %s: %w", what, err)
		}
		for i := range want {
			r, t := distance(moved[i].x, want[i].x)
			rms[i], top[i] = max(rms[i], r), max(top[i], t)
		}
	}
	for i, w := range want {
		size, largest := distance(w.x, make([]float64, len(w.x)))
		r, t := distance(got[i].x, w.x)
		// Where the perturbed passes agree, four roundings of float32 are left.
		if size == 0 && rms[i] == 0 && r == 0 {
			l.kind(w.kind).empty++
			continue
		}
		ratio := max(over(r, allowed*rms[i]+0x1p-22*size), over(t, allowed*top[i]+0x1p-22*largest))
		l.judge(w.kind, fmt.Sprintf("step %d: %s", l.step+1, w.name), ratio, r, allowed*rms[i])
	}
	return nil
}

// over returns a/b, 0 where both are.
func over(a, b float64) float64 {
	if a == 0 {
		return 0
	}
	return a / b
}

// distance returns root mean square and maximum of a − b; NaN if there is one.
func distance(a, b []float64) (rms, top float64) {
	for i := range a {
		d := math.Abs(a[i] - b[i])
		if !(d <= top) {
			top = d
		}
		rms += float64(d * d)
	}
	return math.Sqrt(rms / float64(max(1, len(a)))), top
}

// kind returns what was compared of a kind of tensor.
func (l *Lockstep) kind(name string) *parting {
	for _, k := range l.kinds {
		if k.kind == name {
			return k
		}
	}
	p := &parting{kind: name, worst: -1}
	l.kinds = append(l.kinds, p)
	return p
}

func (l *Lockstep) judge(kind, where string, ratio, err, bound float64) {
	p := l.kind(kind)
	p.compared++
	if !(ratio <= p.worst) {
		p.worst, p.where, p.err, p.allowed = ratio, where, err, bound
	}
	if !(ratio <= 1) && p.first == "" {
		p.first = where
	}
}

// scored are the tensors of scores, where they mean something.
func (l *Lockstep) scored(b train.Batch, s train.Scores) []named {
	_, c, _ := l.fast.pack(b)
	list := []named{{"log-probabilities", "log-probabilities", c.pick(s.LogProbs)}, {"entropies", "entropies", c.pick(s.Entropy)}}
	if s.Values != nil {
		list = append(list, named{"values", "values", c.pick(s.Values)})
	}
	return list
}

// Score implements [train.Policy].
func (l *Lockstep) Score(b train.Batch) (train.Scores, error) {
	out, err := l.Language.Score(b)
	if err != nil {
		return out, err
	}
	score := func(p train.Policy) ([]named, error) {
		s, err := p.Score(b)
		return l.scored(b, s), err
	}
	return out, l.follow("score", l.scored(b, out), func() ([]named, error) { return score(l.run) }, func(e *Language) ([]named, error) { return score(e) })
}

// Reference implements [train.Policy].
func (l *Lockstep) Reference(b train.Batch) ([]float64, error) {
	out, err := l.Language.Reference(b)
	if err != nil {
		return out, err
	}
	_, c, _ := l.fast.pack(b)
	frozen := func(x []float64) []named {
		return []named{{"reference log-probabilities", "reference log-probabilities", c.pick(x)}}
	}
	score := func(p train.Policy) ([]named, error) {
		x, err := p.Reference(b)
		return frozen(x), err
	}
	return out, l.follow("reference", frozen(out), func() ([]named, error) { return score(l.run) }, func(e *Language) ([]named, error) { return score(e) })
}

// Accumulate implements [train.Policy].
func (l *Lockstep) Accumulate(b train.Batch, loss func(train.Scores) (train.Slopes, error)) error {
	var slopes train.Slopes
	var scores train.Scores
	before := gradients(l.Language.params, nil)
	err := l.Language.Accumulate(b, func(s train.Scores) (_ train.Slopes, err error) {
		scores = s
		slopes, err = loss(s)
		return slopes, err
	})
	if err != nil {
		return err
	}
	want := append(l.scored(b, scores), gradients(l.Language.params, before)...)
	run := func(p train.Policy) ([]named, error) {
		var list []named
		for _, x := range p.Params() {
			clear(x.Grad)
		}
		err := p.Accumulate(b, func(s train.Scores) (train.Slopes, error) {
			list = l.scored(b, s)
			return slopes, nil
		})
		return append(list, gradients(p.Params(), nil)...), err
	}
	if err := l.follow("gradient", want, func() ([]named, error) { return run(l.run) }, func(e *Language) ([]named, error) { return run(e) }); err != nil {
		return err
	}
	return l.free.Accumulate(b, func(train.Scores) (train.Slopes, error) { return slopes, nil })
}

// gradients returns copies of those of the parameters, less what they were before.
func gradients(params []train.Param, before []named) (list []named) {
	for i, p := range params {
		kind := "gradients of the value head"
		switch {
		case strings.HasSuffix(p.Name, factorA):
			kind = "gradients of A"
		case strings.HasSuffix(p.Name, factorB):
			kind = "gradients of B"
		}
		g := append([]float64(nil), p.Grad...)
		if before != nil {
			for j, v := range before[i].x {
				g[j] -= v
			}
		}
		list = append(list, named{kind, "gradient of " + p.Name, g})
	}
	return list
}

// Optimizer returns the optimiser of the reference, which also makes the steps of the free policy.
func (l *Lockstep) Optimizer(params []train.Param, narrow bool) train.Optimizer {
	l.optimizer = &lockstepOptimizer{Optimizer: train.NewAdam(params, narrow), free: train.NewAdam(l.free.Params(), narrow), of: l}
	return l.optimizer
}

type lockstepOptimizer struct {
	train.Optimizer
	free train.Optimizer
	of   *Lockstep
}

// Step implements [train.Optimizer].
func (o *lockstepOptimizer) Step(u train.Update) (train.Updated, error) {
	out, err := o.Optimizer.Step(u)
	if err != nil {
		return out, err
	}
	o.of.step++
	_, err = o.free.Step(u)
	if err != nil {
		return out, fmt.Errorf("lockstep: the free policy: %w", err)
	}
	return out, nil
}

// Restore implements [train.Optimizer]: the free policy goes on from the reference's state, too.
func (o *lockstepOptimizer) Restore(dir string, updates int) error {
	if err := o.Optimizer.Restore(dir, updates); err != nil {
		return err
	}
	return o.free.Restore(dir, updates)
}

// UntestedError says that nothing was compared: there were no tensors, or all of them were empty or zero on both sides.
type UntestedError struct{}

func (UntestedError) Error() string {
	return "lockstep: untested: no tensor had anything to compare"
}

// kernels writes which variant of every kernel ran, and which this machine could not run.
func kernels(w io.Writer) {
	used, missing := map[string][]string{}, map[string]string{}
	for _, op := range accel.Ops() {
		for _, v := range accel.Variants(op) {
			switch {
			case v.Used:
				used[v.Name] = append(used[v.Name], op)
			case v.Missing != "":
				missing[v.Name] = v.Missing
			}
		}
	}
	for _, name := range accel.Levels {
		if used[name] != nil {
			fmt.Fprintf(w, "lockstep: %s: %s\n", name, strings.Join(used[name], ", "))
		}
		if missing[name] != "" {
			fmt.Fprintf(w, "lockstep: %s: not run, %s\n", name, missing[name])
		}
	}
}

// PartedError says that kernels and reference differ by more than their contract allows.
type PartedError struct{ first string }

func (e PartedError) Error() string {
	return "lockstep: the accelerated policy parts from the reference at " + e.first
}

// Report writes what was compared, one line for each kind of tensor, the kernels that ran, and the free drift. A kind of which nothing could be
// compared is untested: the factors A before the first update have the gradient 0, since B is. It returns a [PartedError] if a tensor was
// outside of its bound, and an [UntestedError] if nothing was compared at all.
func (l *Lockstep) Report(w io.Writer) error {
	fmt.Fprintf(w, "lockstep: reference and %s, %d updates, bounds of %d times the spread of %d perturbed passes (empirical)\n", l.run.Variant(), l.step, allowed, perturbed)
	if l.run == train.Policy(l.fast) { // the processor's
		kernels(w)
	}
	first, compared := "", 0
	for _, p := range l.kinds {
		if compared += p.compared; p.compared == 0 {
			fmt.Fprintf(w, "lockstep: %-28s     0 compared, %d empty or zero on both sides: UNTESTED\n", p.kind, p.empty)
			continue
		}
		verdict := "within"
		if p.empty > 0 {
			verdict = fmt.Sprintf("within (%d more untested: empty or zero on both sides)", p.empty)
		}
		if p.first != "" {
			verdict = "PARTS at " + p.first
			first = cmp.Or(first, p.first)
		}
		fmt.Fprintf(w, "lockstep: %-28s %5d compared, worst err/bound %.3f (rms %.3g of %.3g, %s): %s\n", p.kind, p.compared, p.worst, p.err, p.allowed, p.where, verdict)
	}
	if compared == 0 {
		return UntestedError{}
	}
	if l.step == 0 {
		return l.parted(first)
	}
	var apart, moved float64
	for i, p := range l.Language.params {
		for j, v := range p.Data {
			d, m := l.free.Params()[i].Data[j]-v, v-l.start.params[i].Data[j]
			apart, moved = apart+float64(d*d), moved+float64(m*m)
		}
	}
	fmt.Fprintf(w, "lockstep: free drift after %d updates: %.3g, %.3g of the way that the reference went\n", l.step, math.Sqrt(apart), math.Sqrt(apart)/math.Sqrt(moved))
	return l.parted(first)
}

func (l *Lockstep) parted(first string) error {
	if first == "" {
		return nil
	}
	return PartedError{first}
}

var _ train.Policy = (*Lockstep)(nil)
