// Package op says what each accelerated op must compute: the inputs to try, the reference that the outputs are held against, the
// bound of the difference, and wrong implementations that must be caught.
//
// A spec takes the op as a function and knows nothing else of it, so that one spec judges every variant: portable Go, assembly,
// a device. Operands lie against pages that cannot be read or written, outputs start as NaN, what lies between rows is poisoned,
// and inputs are compared with what they were.
package op

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strconv"
	"strings"

	"plumbline/verify/tol"
)

// Spec is the specification of an op whose implementations are functions of type F.
type Spec[F any] struct {
	Name   string // "f32.Gemm"
	Doc    string // the formula
	Bound  string // the bound of the error, or why there is none
	Source string

	DeviceBound string // the bound under the contract of a device, where it is another one

	Families []string                    // of values, see Families
	Dims     func(r *rand.Rand) []int    // sizes and switches of a case, drawn so that they straddle edges
	Run      func(f F, c Case, t *Trial) // calls f once and compares
	Faults   []Fault[F]                  // each must be caught
}

// Fault is a wrong implementation.
type Fault[F any] struct {
	ID, Title string
	F         F
}

// Case is one input: everything in it follows from these numbers.
type Case struct {
	Family string
	Dims   []int
	Seed   uint64
}

// String returns the form that [ParseCase] reads: family/5x7x0/seed.
func (c Case) String() string {
	dims := make([]string, len(c.Dims))
	for i, d := range c.Dims {
		dims[i] = strconv.Itoa(d)
	}
	return fmt.Sprintf("%s/%s/%d", c.Family, strings.Join(dims, "x"), c.Seed)
}

// ParseCase is the inverse of String.
func ParseCase(s string) (Case, error) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 {
		return Case{}, fmt.Errorf("a case is family/dims/seed, such as normal/5x7x33/1, not %q", s)
	}
	c := Case{Family: parts[0]}
	for _, d := range strings.Split(parts[1], "x") {
		n, err := strconv.Atoi(d)
		if err != nil || n < 0 {
			return Case{}, fmt.Errorf("case %q: %q is no size", s, d)
		}
		c.Dims = append(c.Dims, n)
	}
	seed, err := strconv.ParseUint(parts[2], 10, 64)
	if err != nil {
		return Case{}, fmt.Errorf("case %q: %q is no seed", s, parts[2])
	}
	c.Seed = seed
	return c, nil
}

// Case returns the i-th case of a seed.
func (s *Spec[F]) Case(seed uint64, i int) Case { return s.draw(Terms{}, seed, i) }

// draw returns the i-th case of a seed among those that an implementation takes: where it does not take one, another is drawn.
func (s *Spec[F]) draw(terms Terms, seed uint64, i int) Case {
	for again := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, uint64(i)+again<<32))
		c := Case{Family: s.Families[i%len(s.Families)], Dims: s.Dims(r), Seed: r.Uint64() >> 32}
		if terms.Takes == nil || terms.Takes(c) {
			return c
		}
	}
	panic("op: " + s.Name + " has no case that this implementation takes")
}

// Report is what became of the cases of one implementation.
type Report struct {
	Cases  int
	Tally  tol.Tally // of err/bound over all cases
	Exact  int       // elements that were demanded bit by bit
	Failed int       // cases
	First  Case      // the first that failed
	Reason string    // and why
}

// Add adds the cases of b, which came after those of r.
func (r *Report) Add(b *Report) {
	if r.Failed == 0 {
		r.First, r.Reason = b.First, b.Reason
	}
	r.Cases, r.Exact, r.Failed = r.Cases+b.Cases, r.Exact+b.Exact, r.Failed+b.Failed
	if b.Tally.N > 0 {
		r.Tally.Merge(&b.Tally)
	}
}

// Compared is the number of elements that were compared in any way.
func (r *Report) Compared() int { return r.Tally.N + r.Exact }

// OK reports whether something was compared and nothing failed.
func (r *Report) OK() bool { return r.Failed == 0 && r.Compared() > 0 }

// String is one line.
func (r *Report) String() string {
	switch {
	case r.Failed > 0:
		return fmt.Sprintf("%d of %d cases fail, first %v: %s", r.Failed, r.Cases, r.First, r.Reason)
	case r.Compared() == 0:
		return fmt.Sprintf("%d cases in which nothing was compared", r.Cases)
	}
	return fmt.Sprintf("%d cases, %d elements, largest err/bound %.2g", r.Cases, r.Compared(), r.Tally.Worst.Ratio)
}

// Check runs n cases of a seed on f, all of them unless stop is set, which ends at the first failure.
func (s *Spec[F]) Check(f F, seed uint64, n int, stop bool) *Report {
	return s.check(f, Terms{}, seed, n, stop)
}

func (s *Spec[F]) check(f F, terms Terms, seed uint64, n int, stop bool) *Report {
	m := new(Memory)
	defer m.Free()
	r := new(Report)
	for i := range n {
		s.one(f, terms, s.draw(terms, seed, i), m, r)
		if stop && r.Failed > 0 {
			break
		}
	}
	return r
}

// CheckCase runs one case on f.
func (s *Spec[F]) CheckCase(f F, c Case) *Report { return s.checkCase(f, Terms{}, c) }

func (s *Spec[F]) checkCase(f F, terms Terms, c Case) *Report {
	m := new(Memory)
	defer m.Free()
	r := new(Report)
	s.one(f, terms, c, m, r)
	return r
}

func (s *Spec[F]) one(f F, terms Terms, c Case, m *Memory, r *Report) {
	t := &Trial{memory: m, contract: terms.Contract, back: c.Seed&1 == 0, poison: c.Seed&2 == 0}
	func() {
		// A write beyond an operand is a fault of the machine; here it becomes a panic, which is a failure of the case.
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() {
			switch p := recover().(type) {
			case nil:
			case OnDeviceError:
				t.Fail("%v", p)
			default:
				t.Fail("panic: %v", p)
			}
		}()
		s.Run(f, c, t)
		t.checkMemory()
	}()
	m.reset()
	r.Cases++
	r.Exact += t.exact
	if t.tally.N > 0 {
		r.Tally.Merge(&t.tally)
	}
	if t.tally.Failed > 0 || t.tally.Bad != "" {
		w := t.tally.Worst
		t.Fail("%d of %d elements beyond their bound, worst element %d: got %.9g, want %.9g, error %.3g, bound %.3g %s",
			t.tally.Failed, t.tally.N, w.Index, w.Out, w.Ref, w.Err, w.Bound, t.tally.Bad)
	}
	if t.reason != "" {
		if r.Failed == 0 {
			r.First, r.Reason = c, t.reason
		}
		r.Failed++
	}
}

// Op is a spec together with an implementation of it.
type Op struct {
	Name, Doc, Bound string
	Check            func(seed uint64, n int, stop bool) *Report
	CheckCase        func(c Case) *Report
	Case             func(seed uint64, i int) Case // those that Check runs
	Takes            func(c Case) bool             // nil: all
	Faults           []Planted
	under            func(Contract) Op
}

// Under returns o under the contract of a variant of the processor.
func (o Op) Under(variant string) Op {
	if o.under == nil {
		return o
	}
	return o.under(ContractOf(variant))
}

// Planted is a fault of an op: Check must report a failure.
type Planted struct {
	ID, Title string
	Check     func(seed uint64, n int, stop bool) *Report
}

// With joins the spec to an implementation on the processor.
func (s *Spec[F]) With(f F) Op { return s.On(Terms{}, f) }

// On joins the spec to an implementation under the terms of its backend.
func (s *Spec[F]) On(terms Terms, f F) Op {
	o := Op{Name: s.Name, Doc: s.Doc, Bound: s.Bound,
		Check:     func(seed uint64, n int, stop bool) *Report { return s.check(f, terms, seed, n, stop) },
		CheckCase: func(c Case) *Report { return s.checkCase(f, terms, c) },
		Case:      func(seed uint64, i int) Case { return s.draw(terms, seed, i) },
		Takes:     terms.Takes,
	}
	if terms.Contract != Device {
		o.under = func(k Contract) Op { return s.On(Terms{Contract: k, Takes: terms.Takes}, f) }
	}
	if terms.Contract == Device && s.DeviceBound != "" {
		o.Bound = s.DeviceBound
	}
	for _, fault := range s.Faults {
		o.Faults = append(o.Faults, Planted{fault.ID, fault.Title, func(seed uint64, n int, stop bool) *Report {
			return s.Check(fault.F, seed, n, stop)
		}})
	}
	return o
}
