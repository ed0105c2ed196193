// Package accel is the registry of the fast kernels: which variants an op has, which of them this machine can run, and which one
// is in use.
//
// An op is a function with several implementations, its variants. "generic" is portable Go and says what the others compute; it is
// always there. A variant is used if the processor has its feature, if a self-test of a small product passes, and if no better one
// does. What is chosen depends on the machine alone, and [Limit] makes two machines choose alike.
//
// Results of one variant are the same bits for any number of goroutines. Two variants give the same bits where the op says so.
package accel

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"plumbline/accel/cpu"
)

// Generic is the name of the portable variant that every op has.
const Generic = "generic"

// Levels are the names of variants, from the one that every machine has to the most special one.
var Levels = []string{Generic, "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"}

// Variant describes an implementation of an op.
type Variant struct {
	Op, Name string
	Missing  string // why it cannot run here: a feature the processor lacks, or a self-test that failed; "" if it can
	Broken   bool   // it is the self-test: the processor has all that the variant needs, and a result is wrong
	Untried  bool   // it never ran on any machine of the authors: never chosen, only forced
	Used     bool   // it is the one in use
}

// Op is an op whose variants are functions of type F. Its zero value is of no use; see [New].
type Op[F any] struct {
	name     string
	test     func(F) error
	mu       sync.Mutex
	variants []*variant[F]
	forced   *variant[F]
	inUse    atomic.Pointer[variant[F]]
}

type variant[F any] struct {
	name    string
	f       F
	need    cpu.Feature
	untried bool
	worth   func() bool   // whether it is faster here than those below it; nil: it is
	test    func(F) error // its own; nil: that of the op
	once    sync.Once
	missing string
	broken  bool
}

// entry is what the registry knows of an op whose function type it does not.
type entry interface {
	list() []Variant
	force(name string) error
	release()
	forget()
}

var (
	mu    sync.Mutex
	ops   = map[string]entry{}
	below atomic.Int32 // how many of the levels, from the last, are off
)

// New registers an op with its generic variant. test runs a small case of the function and returns an error if a result is wrong;
// it may call the generic function, but not the op. A name can be registered once.
func New[F any](name string, generic F, test func(F) error) *Op[F] {
	o := &Op[F]{name: name, test: test, variants: []*variant[F]{{name: Generic, f: generic}}}
	mu.Lock()
	defer mu.Unlock()
	if ops[name] != nil {
		panic("accel: " + name + " is registered twice")
	}
	ops[name] = o
	return o
}

// Add registers a variant that needs a feature of the processor. It panics if the name is no level.
func (o *Op[F]) Add(name string, need cpu.Feature, f F) {
	o.add(&variant[F]{name: name, need: need, f: f})
}

// AddUntried registers a variant that never ran on any machine of the authors. It is chosen only where [Force] names it.
func (o *Op[F]) AddUntried(name string, need cpu.Feature, f F) {
	o.add(&variant[F]{name: name, need: need, f: f, untried: true})
}

// AddWhere registers a variant that is chosen only where worth says that it is faster than those below it, which some processors that have
// the feature do not hold. [Force] names it everywhere. worth is called once at most for a choice and always returns the same.
func (o *Op[F]) AddWhere(name string, need cpu.Feature, worth func() bool, f F) {
	o.add(&variant[F]{name: name, need: need, f: f, worth: worth})
}

// AddTested registers a variant that computes other bits than the generic one, as its documentation says, with a self-test of its own.
func (o *Op[F]) AddTested(name string, need cpu.Feature, test func(F) error, f F) {
	o.add(&variant[F]{name: name, need: need, f: f, test: test})
}

func (o *Op[F]) add(v *variant[F]) {
	if level(v.name) < 1 {
		panic("accel: no level is named " + v.name)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.variants = append(o.variants, v)
	slices.SortStableFunc(o.variants, func(a, b *variant[F]) int { return level(a.name) - level(b.name) })
	o.inUse.Store(nil)
}

func level(name string) int { return slices.Index(Levels, name) }

// Func returns the function of the variant in use.
func (o *Op[F]) Func() F {
	if v := o.inUse.Load(); v != nil {
		return v.f
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.choose().f
}

// choose returns the variant to use: the forced one, else the best that this machine has within the limit.
func (o *Op[F]) choose() *variant[F] {
	v := o.forced
	for i := len(o.variants) - 1; v == nil; i-- {
		if c := o.variants[i]; level(c.name) < len(Levels)-int(below.Load()) && !c.untried && o.ready(c) == "" && (c.worth == nil || c.worth()) {
			v = c
		}
	}
	o.inUse.Store(v)
	return v
}

// ready returns why v cannot run here, "" if it can. The self-test runs once in a process.
func (o *Op[F]) ready(v *variant[F]) string {
	v.once.Do(func() {
		if v.name == Generic {
			return
		}
		if why := cpu.Missing(v.need); why != "" {
			v.missing = why
			return
		}
		test := v.test
		if test == nil {
			test = o.test
		}
		if err := test(v.f); err != nil {
			v.missing, v.broken = "self-test: "+err.Error(), true
		}
	})
	return v.missing
}

func (o *Op[F]) list() []Variant {
	o.mu.Lock()
	defer o.mu.Unlock()
	used := o.choose()
	var all []Variant
	for _, v := range o.variants {
		all = append(all, Variant{Op: o.name, Name: v.name, Missing: o.ready(v), Broken: v.broken, Untried: v.untried, Used: v == used})
	}
	return all
}

func (o *Op[F]) force(name string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, v := range o.variants {
		if v.name == name {
			if why := o.ready(v); why != "" {
				return fmt.Errorf("accel: %s has no %s here: %s", o.name, name, why)
			}
			o.forced = v
			o.inUse.Store(v)
			return nil
		}
	}
	return fmt.Errorf("accel: %s has no variant %q", o.name, name)
}

func (o *Op[F]) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forced = nil
	o.inUse.Store(nil)
}

// Ops returns the names of the registered ops in order.
func Ops() []string {
	mu.Lock()
	defer mu.Unlock()
	return slices.Sorted(maps.Keys(ops))
}

func find(op string) (entry, error) {
	mu.Lock()
	defer mu.Unlock()
	e := ops[op]
	if e == nil {
		return nil, fmt.Errorf("accel: no op is named %q", op)
	}
	return e, nil
}

// Variants describes the variants of an op, generic first. It runs the self-tests that have not run yet. It panics if there is
// no such op.
func Variants(op string) []Variant {
	e, err := find(op)
	if err != nil {
		panic(err.Error())
	}
	return e.list()
}

// Force makes an op use the variant of that name until release is called. It returns an error if the op has no such variant, or
// not on this machine.
func Force(op, name string) (release func(), err error) {
	e, err := find(op)
	if err != nil {
		return nil, err
	}
	if err := e.force(name); err != nil {
		return nil, err
	}
	return e.release, nil
}

// Each calls f once for every variant of an op, in the order of [Variants], while that variant is in use. A variant that cannot
// run here is passed with the reason in Missing, while the one the machine would choose stays in use. Each releases the op when f
// returns or panics. It must not run while other goroutines use the op.
func Each(op string, f func(Variant)) {
	for _, v := range Variants(op) {
		func() {
			if v.Missing == "" {
				release, err := Force(op, v.Name)
				if err != nil {
					panic(err.Error())
				}
				defer release()
				v.Used = true
			}
			f(v)
		}()
	}
}

// Limit makes every op choose among the variants up to that level, so that machines of different features compute the same bits.
// A forced variant stays. It returns an error if there is no such level.
func Limit(name string) error {
	l := level(name)
	if l < 0 {
		return fmt.Errorf("accel: no level is named %q; there are %v", name, Levels)
	}
	mu.Lock()
	defer mu.Unlock()
	below.Store(int32(len(Levels) - 1 - l))
	for _, e := range ops {
		e.forget()
	}
	return nil
}

// forget lets the next call choose again.
func (o *Op[F]) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.inUse.Store(nil)
}

// CheckMatrix panics unless a row-major matrix [rows, cols] whose rows start ld elements apart fits a slice of n elements.
func CheckMatrix(name string, n, rows, cols, ld int) {
	switch {
	case rows < 0 || cols < 0:
		panic("accel: " + name + ": a size is negative")
	case rows == 0 || cols == 0:
	case ld < cols:
		panic("accel: " + name + ": rows overlap")
	case (rows-1)*ld+cols > n:
		panic("accel: " + name + ": the slice is too short")
	}
}
