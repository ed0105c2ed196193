package golden

import (
	"errors"
	"math"

	"plumbline/reference/rl"
)

// exact is the tolerance of float64 results: |got − want| ≤ exact·max(1, |want|).
const exact = 1e-12

// Unit roundoffs of the types that frameworks compute in.
const (
	u64 = 0x1p-53
	u32 = 0x1p-24
	u16 = 0x1p-8 // bfloat16
)

// Leak names what a framework computes in less than float64, and by which the bound of a comparison is wider than 1e-12.
type Leak string

// The leaks of the pinned releases (conventions 7).
const (
	LeakBessel     Leak = "the Bessel factor n/(n−1) of two integers is a float32"
	LeakLone       Leak = "1 + ε of a group of one is a float32"
	LeakQuotient   Leak = "N/N₊ of two integers is a float32"
	LeakVectorised Leak = "mean and deviation of the groups are float32"
	LeakStatistics Leak = "mean and deviation of the advantages are float32"
	LeakLogRatio   Leak = "the log-ratio is a float32"
	LeakTau        Leak = "the two temperatures are a float32 tensor"
	LeakQuantile   Leak = "the quantile of the entropies is a float32"
	LeakFlags      Leak = "a mean of float32 flags"
	LeakFused      Leak = "hidden states, weight and loss are float32"
	LeakDType      Leak = "computed in the entry's own type"
	LeakMoments    Leak = "parameters and moments are float32"
	// LeakModel is no rounding to float32: the sums of a whole model are added up in another order.
	LeakModel        Leak = "sums over the layers of a model in another order"
	LeakFloat32Model Leak = "all or part of the model is float32; the allowance is empirical"
	// Conditioning is no leak of a framework: the result changes by more than 1e-12 when inputs change by one rounding, so
	// that no two float64 programs agree better.
	Conditioning Leak = "ill-conditioned in float64"
)

// Leaks lists the leaks by name.
var Leaks = []Leak{LeakBessel, LeakLone, LeakQuotient, LeakVectorised, LeakStatistics, LeakLogRatio, LeakTau, LeakQuantile, LeakFlags, LeakFused,
	LeakDType, LeakMoments, LeakModel, LeakFloat32Model, Conditioning}

// answer is what the reference has for one output of an entry.
type answer struct {
	output string
	got    []float64
	text   *string   // in place of got
	err    error     // the reference refuses, as the framework raised
	bound  []float64 // what leak allows for each element; nil: nothing
	leak   Leak
	only   []bool // elements to compare; nil: all
	tight  bool   // bound stands alone, without the 1e-12
	maybe  bool   // entries need not have this output
	list   bool   // how many elements there are is part of the answer
	excuse string // why there is no number for this output
}

// allowed returns the bound of element i for the wanted number.
func (a *answer) allowed(i int, want float64) float64 {
	b := 0.0
	switch {
	case a.tight:
	case math.IsInf(want, 0):
		b = exact // an infinity equals only itself
	default:
		b = exact * max(1, math.Abs(want))
	}
	if a.bound != nil {
		b += a.bound[i]
	}
	return b
}

// plain is an answer that must agree to 1e-12.
func plain(output string, got ...float64) answer { return answer{output: output, got: got} }

// refused is an answer that may be an error of the reference.
func refused(output string, got []float64, err error) answer {
	return answer{output: output, got: got, err: err}
}

// leaking is an answer whose bound is the whole effect of a leak: the distance to what the same formula gives with it.
func leaking(output string, got, leaked []float64, leak Leak) answer {
	a := answer{output: output, got: got, leak: leak, bound: make([]float64, len(got))}
	for i := range min(len(got), len(leaked)) {
		if got[i] != leaked[i] && !(math.IsNaN(got[i]) && math.IsNaN(leaked[i])) {
			a.bound[i] = math.Abs(got[i]-leaked[i]) * (1 + 0x1p-20) // the leak's own evaluation rounds
		}
	}
	return a
}

// relative is an answer of which every element may be off by u of its own size.
func relative(output string, got []float64, u float64, leak Leak) answer {
	a := answer{output: output, got: got, leak: leak, bound: make([]float64, len(got))}
	for i, x := range got {
		a.bound[i] = u * math.Abs(x)
	}
	return a
}

// bounded is an answer with a bound for each element, and nothing beside it.
func bounded(output string, got, bound []float64, leak Leak) answer {
	return answer{output: output, got: got, bound: bound, leak: leak, tight: true}
}

// errNotImplemented is the refusal of an option value that a framework names and does not implement.
var errNotImplemented = errors.New("not implemented")

// raises reports whether a framework that met the case of err raises that exception.
func raises(err error, exception string) bool {
	switch {
	case errors.Is(err, rl.ErrEmptyMask), errors.Is(err, rl.ErrSingle), errors.Is(err, rl.ErrGroupOfOne):
		return exception == "ValueError"
	case errors.Is(err, errNotImplemented):
		return exception == "NotImplementedError"
	}
	return false
}
