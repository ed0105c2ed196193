package stage

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// Step is a batch and the options under which it is judged.
type Step struct {
	B   *dump.Batch
	Set *convention.Set
}

// SolvedSteps is the number of steps that numbers are solved from together: a clip acts on few tokens of a step, on one side at most
// in some.
const SolvedSteps = 12

// Solve returns the options under which the output of ch is right in all steps, where nobody declares them and they are those of one formula
// whose numbers the steps give together in closed form: the bounds that ratios stop at, temperatures, coefficients, the factors of a recursion.
// What is solved proposes only: each proposal is judged like a declaration on every step, and nil is returned where none is right. The first
// step is that on which the options that no number gives are enumerated.
func Solve(ch *Check, steps []Step) []Fit {
	if len(steps) == 0 {
		return nil
	}
	var propose func(*solver)
	switch ch.ID {
	case "token_loss/policy":
		propose = (*solver).losses
	case "reward/token":
		propose = (*solver).rewards
	default:
		return nil
	}
	s := &solver{ch: ch, steps: steps}
	propose(s)
	return s.fits
}

// solver tries proposals on the steps.
type solver struct {
	ch    *Check
	steps []Step
	fits  []Fit
	tried int
}

// mostProposals bounds what a solver tries.
const mostProposals = 400

// assign is an option and its value in a proposal.
type assign struct {
	option string
	value  convention.Value
}

func word(option, text string) assign {
	v, err := convention.Parse(option, text)
	if err != nil {
		panic("stage: " + err.Error())
	}
	return assign{option, v}
}

func amount(option string, x float64) assign { return assign{option, convention.NumberValue(x)} }

// admits reports whether nothing that is declared says otherwise, and all values are legal.
func (s *solver) admits(list []assign) bool {
	for _, a := range list {
		if v := s.steps[0].Set.Value(a.option); v.Kind() != convention.Unknown && v != a.value {
			return false
		}
		if _, err := convention.Parse(a.option, a.value.String()); err != nil {
			return false
		}
		if a.option == "kl.beta" && a.value.Num() < 0 { // it would keep the policy away from its reference
			return false
		}
	}
	return true
}

// try judges a proposal on all steps and keeps what is right in all of them; it reports whether something is.
func (s *solver) try(list []assign) bool {
	if s.tried++; s.tried > mostProposals || !s.admits(list) {
		return false
	}
	first := s.steps[0]
	var changes []Change
	set := first.Set
	for _, a := range list {
		if set.Value(a.option).Kind() == convention.Unknown {
			changes = append(changes, Change{a.option, convention.Value{}, a.value})
			set = set.With(a.option, a.value, "search")
		}
	}
	for _, step := range s.steps { // most proposals are wrong somewhere, before anything is enumerated
		under := step.Set
		for _, c := range changes {
			under = under.With(c.Option, c.To, "search")
		}
		if under.Value("kl.place").Kind() == convention.Unknown { // a proposal without a KL term is one of the policy term alone
			under = under.With("kl.place", word("kl.place", "none").value, "search")
		}
		if o := Judge(s.ch, step.B, under); o.Verdict == check.Fail {
			return false
		}
	}
	e := newSearch(s.ch, first.B)
	e.open, e.listed, e.cap = true, true, openBudget/4
	e.complete(set, changes)
	found := e.confirmed()
	if len(found) == 0 {
		found = e.void
	}
	any := false
	for _, f := range found {
		if s.everywhere(f) {
			s.fits = append(s.fits, f)
			any = true
		}
	}
	return any
}

// everywhere reports whether a fit is right in all steps: none fails, nothing is left open, and one passes.
func (s *solver) everywhere(f Fit) bool {
	passed := f.Outcome.Verdict == check.Pass
	for _, step := range s.steps[1:] {
		under := step.Set
		for _, c := range f.Changes {
			under = under.With(c.Option, c.To, "search")
		}
		switch o := Judge(s.ch, step.B, under); {
		case o.Verdict == check.Fail, o.Verdict == check.Undetermined && !o.Case.OK():
			return false
		case o.Verdict == check.Pass:
			passed = true
		}
	}
	return passed
}

// interval is where a number lies that several cells show, each within its error.
type interval struct {
	lo, hi, mid float64
	n           int
}

// meet returns the interval in which all observations x ± e lie; where they do not meet, that of the median alone.
func meet(x, e []float64) interval {
	if len(x) == 0 {
		return interval{lo: math.NaN(), hi: math.NaN(), mid: math.NaN()}
	}
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(x[i], x[j]) })
	m := order[len(order)/2]
	v := interval{lo: math.Inf(-1), hi: math.Inf(1), mid: x[m], n: len(x)}
	for i := range x {
		v.lo, v.hi = max(v.lo, x[i]-e[i]), min(v.hi, x[i]+e[i])
	}
	if !(v.lo <= v.hi) {
		v.lo, v.hi = x[m]-e[m], x[m]+e[m]
	}
	v.mid = min(max(v.mid, v.lo), v.hi)
	return v
}

// of returns the interval of a + b·x.
func (v interval) of(a, b float64) interval {
	w := interval{lo: a + b*v.lo, hi: a + b*v.hi, mid: a + b*v.mid, n: v.n}
	if b < 0 {
		w.lo, w.hi = w.hi, w.lo
	}
	return w
}

// candidates are the numbers to try: the one with the fewest digits inside, which people write, then the observed one.
func (v interval) candidates() []float64 {
	if v.n == 0 {
		return nil
	}
	list := []float64{shortest(v.lo, v.hi, v.mid)}
	if v.mid != list[0] {
		list = append(list, v.mid)
	}
	return list
}

// shortest returns the number with the fewest digits, six at most, in [lo, hi], that nearest to mid; mid if there is none.
func shortest(lo, hi, mid float64) float64 {
	for digits := range 6 {
		x, err := strconv.ParseFloat(strconv.FormatFloat(mid, 'e', digits, 64), 64)
		if err == nil && lo <= x && x <= hi {
			return x
		}
	}
	return mid
}

// weightedMedian returns the x that splits the weights in halves, NaN of none.
func weightedMedian(x, w []float64) float64 {
	order := make([]int, 0, len(x))
	var total float64
	for i := range x {
		if w[i] > 0 && !math.IsNaN(x[i]) && !math.IsInf(x[i], 0) {
			order = append(order, i)
			total += w[i]
		}
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(x[i], x[j]) })
	var sum float64
	for _, i := range order {
		if sum += w[i]; sum >= total/2 {
			return x[i]
		}
	}
	return math.NaN()
}

// arithmeticOf is the arithmetic in which the inputs of a solution are read: with promotion where tensors have a 16-bit type.
func arithmeticOf(ch *Check, b *dump.Batch) Arithmetic {
	a := firstArithmetic(ch, b)
	if a.Unit <= tol.U32 && inHalf(b) {
		a.Promoted = true
	}
	return a
}
