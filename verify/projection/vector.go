package projection

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/verify/check"
)

// Fit checks that every vector has the length that the basis is for.
var Fit = &check.Check[*Input]{
	Name: "vectors/fit",
	Doc: `gradients, updates and adapters have the lengths that the basis is for

A flat basis of d rows belongs to a vector of d numbers: one tensor, or all LoRA tensors in a row (sorted by name, or in
the order that the basis file records). A side basis belongs to the left of every matrix with d rows; of an adapter that
is lora_B. Where several readings fit, the first of these is taken and the others are named.`,
	Source: source + ", section Projection Visualization; fault A11",
	Fix:    "flatten all LoRA tensors in the recorded order, or use the basis that was made for this model",
	Run: func(in *Input) ([]check.Result, error) {
		if !in.Basis.usable() {
			return skip("the basis is no floating-point matrix with 0 < K < d"), nil
		}
		f, err := in.measure()
		if err != nil {
			return nil, err
		}
		var out []check.Result
		judge := func(name string, rd reading) {
			r := check.Result{Subject: name, Verdict: check.Pass, Reason: rd.how, Compared: 1}
			if rd.problem != "" {
				r.Verdict, r.Reason = check.Fail, rd.problem
				r.Explanations = []check.Explanation{{Fault: "A11", Title: "the basis belongs to another vector or another model", Evidence: "the numbers of elements differ"}}
			}
			out = append(out, r)
			if len(rd.empty) > 0 {
				out = append(out, check.Result{Subject: name, Verdict: check.Fail, Reason: fmt.Sprintf("%d tensors have no elements, the first: %s", len(rd.empty), rd.empty[0]),
					Explanations: []check.Explanation{{Title: "a parameter that was sharded away when it was saved (ZeRO-3), or a broken save"}}})
			}
			if len(rd.also) > 0 {
				out = append(out, check.Result{Subject: name, Verdict: check.Note,
					Reason: fmt.Sprintf("two readings are possible: taken as %s (the first of flat over all, flat per tensor, side); also possible: %s", rd.how, strings.Join(rd.also, "; ")),
					Fix:    "say which with --kind flat or --kind side"})
			}
			if shield, quiet := unshielded(rd); len(shield) > 0 {
				out = append(out, check.Result{Subject: name, Verdict: check.Warn,
					Reason: fmt.Sprintf("%d tensors are not shielded by this basis, the first: %s", len(shield), shield[0]),
					Fix:    "a basis for their width as well, or leave them out of the adapter"})
			} else if quiet > 0 {
				out = append(out, check.Result{Subject: name, Verdict: check.Note, Reason: fmt.Sprintf("%d lora_A tensors are not touched: with Qᵀ·lora_B = 0 the product B·A is shielded", quiet)})
			}
		}
		each := func(sets []Set, rs []reading) {
			for i, rd := range rs {
				judge(sets[i].Name, rd)
			}
		}
		each(in.Grads, f.grads)
		each(in.Projected, f.projected)
		each(in.Updates, f.updates)
		if in.Adapter != nil {
			judge(in.Adapter.Name, f.adapter)
		}
		for i, rd := range f.grads {
			if i >= len(f.projected) || rd.problem != "" || f.projected[i].problem != "" {
				continue
			}
			for _, t := range rd.targets {
				if t.pair == nil {
					out = append(out, check.Result{Subject: in.Grads[i].Name, Verdict: check.Fail, Reason: fmt.Sprintf("%s has no partner of the same name and shape in %s", t.name, in.Projected[i].Name)})
				}
			}
		}
		return out, nil
	},
}

// unshielded returns the tensors that the basis should have touched, and how many lora_A a side basis leaves alone.
func unshielded(rd reading) (names []string, loraA int) {
	side := strings.HasPrefix(rd.how, "side")
	for _, n := range rd.unfitted {
		if side && strings.Contains(n, "lora_A") {
			loraA++
		} else {
			names = append(names, n)
		}
	}
	return names, loraA
}

// VectorsFinite checks gradients, updates and adapters for NaN and infinity.
var VectorsFinite = &check.Check[*Input]{
	Name:   "vectors/finite",
	Doc:    "gradients, updates and adapters have no NaN and no infinity\n\nEvery element is looked at; the first bad one of each vector is named.",
	Source: "NaN or infinity is a fault",
	Fix:    "find the first step and tensor with a value that is not finite; nothing after it means anything",
	Run: func(in *Input) ([]check.Result, error) {
		return in.perTarget(func(f *facts, t *target) check.Result {
			r := check.Result{Subject: t.name, Verdict: check.Pass, Metric: "not finite", Compared: len(t.v)}
			if t.bad != "" {
				r.Verdict, r.Measured, r.Where = check.Fail, 1, t.name+" "+t.bad
				r.Reason = "not finite: " + t.bad
				r.Explanations = []check.Explanation{{Fault: "GRAD-NAN", Title: "a value that is not finite"}}
			}
			return r
		})
	},
}

// perTarget judges every target, or those of the given roles.
func (in *Input) perTarget(judge func(*facts, *target) check.Result, roles ...role) ([]check.Result, error) {
	f, err := in.measure()
	if err != nil || !f.finite {
		return nil, err
	}
	asked := func(t *target) bool { return len(roles) == 0 || slices.Contains(roles, t.role) }
	n := 0
	for _, t := range f.all() {
		if asked(t) {
			n++
		}
	}
	out := make([]check.Result, 0, n) // thousands of tensors: growing would take three times their memory
	for _, t := range f.all() {
		if asked(t) {
			out = append(out, judge(f, t))
		}
	}
	return out, nil
}

const componentDoc = `

The figure is max|Qᵀv| / max(1, ‖v‖), with ‖v‖ the norm of the raw gradient where that is given, dot products in
float64. P v − v = −Q(Qᵀv), so the same figure says whether the projection is idempotent. It is relative, because a projection in float32 leaves about 1e-7 of the norm: at norm 100 the absolute test of
the source fails on correct code. What storing v in 16 bits can add, Σ|q·v|·u, is allowed with a warning, and so is what
a 16-bit basis adds. A vector so short that the limit passes it whatever it holds is undetermined if its
component is no rounding: 1 % of what a vector in a random direction has.`

// GradientComponent checks a projected gradient.
var GradientComponent = &check.Check[*Input]{
	Name:   "gradient/component",
	Doc:    "the projected gradient has no component along the basis: max|Qᵀg| / max(1, ‖g‖) < tol" + componentDoc,
	Source: source + "; faults A5, H3c, H3d",
	Fix:    "g_proj = g − Q(Qᵀg) with this Q, on this tensor, twice or with sums in float64",
	Run: func(in *Input) ([]check.Result, error) {
		return in.perTarget(in.judgeComponent, projectedGrad)
	},
}

// UpdateComponent checks what an optimiser adds to the weights.
var UpdateComponent = &check.Check[*Input]{
	Name: "update/component",
	Doc: "the update of the weights has no component along the basis: max|QᵀΔ| / ‖Δ‖ < tol" + componentDoc + `
An update is as short as the learning rate makes it, so it is judged relative to its own norm.`,
	Source: "shielded PPO, why the update must be projected; fault H3a",
	Fix:    "project the update that the optimiser returns, not (only) the gradient it is given",
	Run: func(in *Input) ([]check.Result, error) {
		return in.perTarget(in.judgeComponent, update)
	},
}

// AdapterDrift checks the change of the adapter since its initialisation.
var AdapterDrift = &check.Check[*Input]{
	Name: "adapter/drift",
	Doc: "the adapter has not moved along the basis: max|Qᵀ(W − W_init)| / max(1, ‖W − W_init‖) < tol" + componentDoc + `
Raw weights say nothing: lora_A starts with components of about 2e-2. Without W_init the raw figure is printed and the
check is undetermined.`,
	Source: source + ", check_projection.py; faults H3a, H3b",
	Fix:    "project the update that the optimiser returns (Adam scales each coordinate and leaves the subspace), and leave weight decay off",
	Run: func(in *Input) ([]check.Result, error) {
		return in.perTarget(func(f *facts, t *target) check.Result {
			if t.role == rawWeights {
				c, _, _ := t.largest()
				return check.Result{Subject: t.name, Verdict: check.Undetermined, Metric: "max|Qᵀw| (raw weights)", Measured: c, Limit: in.tol(), Compared: len(t.comp),
					Reason:       "raw weights without W_init: lora_A starts with components of about 2e-2, so this number neither passes nor fails the shield",
					Explanations: []check.Explanation{{Fault: "H3b", Title: "the test reads weights, not their change"}},
					Fix:          "give the adapter before training with --init"}
			}
			r := in.judgeComponent(f, t)
			if r.Verdict == check.Pass && t.zero {
				r.Verdict, r.Reason = check.Warn, "W = W_init in every element: nothing was trained, so the shield is untested"
				r.Compared = 0
				r.Explanations = []check.Explanation{{Fault: "UNTRAINED", Title: "the adapter equals its initialisation"}}
			}
			return r
		}, weightDelta, rawWeights)
	},
}

// largest returns max|QᵀV| and its place in the K×cols matrix of components.
func (t *target) largest() (m float64, k, col int) {
	for i, c := range t.comp {
		if a := math.Abs(c); !(a <= m) {
			m, k, col = a, i/t.cols, i%t.cols
		}
	}
	return m, k, col
}

func norm(x []float64) float64 {
	var s float64
	for _, v := range x {
		s += float64(v * v)
	}
	return math.Sqrt(s)
}

// judgeComponent judges max|Qᵀv| of a vector that is meant to have no component.
func (in *Input) judgeComponent(f *facts, t *target) check.Result {
	limit := in.tol()
	size := math.Sqrt(t.norm2)
	unit := size // what the figure is relative to
	var raw *target
	if t.pair != nil {
		raw = t.pair.raw
	}
	if raw != nil {
		unit = max(unit, math.Sqrt(raw.norm2))
	}
	den, metric := max(1, unit), "max|Qᵀv|/max(1,‖v‖)"
	if t.role == update && size > 0 {
		den, metric = size, "max|QᵀΔ|/‖Δ‖"
	}
	largest, at, col := t.largest()
	r := check.Result{Subject: t.name, Verdict: check.Pass, Metric: metric, Measured: largest / den, Limit: limit, Compared: len(t.comp)}
	r.Where = fmt.Sprintf("%s along column %d of %s: %.6g, ‖v‖ = %.6g", t.name, at, in.Basis.Name, t.comp[at*t.cols+col], unit)
	if t.cols > 1 {
		r.Where = fmt.Sprintf("%s column %d, along column %d of %s: %.6g, ‖v‖ = %.6g", t.name, col, at, in.Basis.Name, t.comp[at*t.cols+col], unit)
	}
	r.Facts = []check.Fact{{Name: "max|Qᵀv|", Value: largest}, {Name: "‖v‖", Value: size}}
	if raw != nil {
		before, _, _ := raw.largest()
		r.Facts = append(r.Facts, check.Fact{Name: "max|Qᵀg| before", Value: before})
	}
	again := maxAbs(defectTimes(f.gram, in.Basis.K, t.comp, t.cols)) // P v has the components (I − QᵀQ)·Qᵀv
	r.Facts = append(r.Facts, check.Fact{Name: "after one more pass", Value: again})
	if t.bad != "" {
		r.Verdict, r.Reason = check.Fail, "not finite: "+t.bad
		return r
	}
	switch {
	case math.IsInf(unit, 0): // elements beyond 1e154: any component would be small relative to that
		r.Verdict, r.Reason = check.Undetermined, "the square of the norm overflows float64"
		return r
	case t.norm2 < 1e-280 && !t.zero: // the squares of elements below 1e-150 have lost their digits, or are 0
		r.Verdict, r.Reason = check.Undetermined, "the square of the norm underflows float64"
		return r
	}

	// What storage in 16 bits and a basis that is not orthonormal explain.
	excess, fog := 0.0, 0.0
	for i, c := range t.comp {
		allowed := in.tol() * den
		if t.fog != nil {
			allowed += t.fog[i]
		}
		if low16(in.Basis.DType) || in.broken(f) {
			allowed += rowSum(f.gram, in.Basis.K, i/t.cols) * unit // g − Q(Qᵀg) has the components −(QᵀQ − I)Qᵀg
		}
		excess = max(excess, math.Abs(c)/allowed)
		fog = max(fog, allowed)
	}
	random := size * math.Sqrt(float64(in.Basis.K)/float64(in.Basis.D)) // ‖Qᵀv‖ of a vector in a random direction
	seen := norm(t.comp)
	switch {
	case !(largest < limit*den) && !(excess < 1):
		r.Verdict = check.Fail
		r.Explanations = in.explainComponent(f, t, seen/random)
	case !(largest < limit*den) && in.broken(f):
		r.Verdict = check.Undetermined
		r.Reason = "beyond the limit, but no more than a basis that is not orthonormal leaves: see basis/orthonormal"
		r.Fix = "mend the basis first"
	case !(largest < limit*den):
		r.Verdict, r.Limit = check.Warn, fog/den
		r.Reason = fmt.Sprintf("beyond %g, but no more than the storage of the numbers can make", in.tol())
		r.Explanations = []check.Explanation{{Fault: "H3c", Title: "stored in low precision", Evidence: in.lowParts(t)}}
		r.Fix = "keep Q in float32 or float64, and look at the projected vector before it is cast down"
		if seen > random/2 {
			r.Verdict = check.Undetermined
			r.Reason = "beyond the limit, and storage in 16 bits hides components as large as those of a vector never projected"
		}
	case size < 1 && raw == nil && t.role != update && seen > random/100 && !within(t):
		r.Verdict = check.Undetermined
		r.Reason = fmt.Sprintf("below %g only because ‖v‖ is %.2g: relative to that, ‖Qᵀv‖ = %.2g·‖v‖ is no rounding (a vector never projected has about %.2g)", in.tol(), size, seen/size, random/size)
		r.Fix = "give the raw gradient too (--grad raw --projected v), or project a gradient of norm 1"
	case !(largest < in.tol()/10) && unit > 1:
		r.Reason = fmt.Sprintf("passes relative to the norm %.4g; an absolute limit of %g would fail on it although the code is right", unit, in.tol())
		if largest < in.tol() {
			r.Reason = fmt.Sprintf("passes relative to the norm %.4g; an absolute limit of %g is near and would fail at a larger norm although the code is right", unit, in.tol())
		}
		r.Explanations = []check.Explanation{{Fault: "H3d", Title: "an absolute threshold does not fit an unclipped gradient", Evidence: fmt.Sprintf("max|Qᵀv| = %.2g at ‖v‖ = %.4g", largest, unit)}}
		r.Fix = fmt.Sprintf("judge relative to the norm; project twice or accumulate Qᵀg in float64: one more pass leaves %.1g", again)
	}
	return r
}

// within reports whether the components are no larger than what the storage of v explains.
func within(t *target) bool {
	if t.fog == nil {
		return false
	}
	for i, c := range t.comp {
		if !(math.Abs(c) <= t.fog[i]) {
			return false
		}
	}
	return true
}

func (in *Input) lowParts(t *target) string {
	var parts []string
	if low16(in.Basis.DType) {
		parts = append(parts, "Q is "+in.Basis.DType.String())
	}
	if low16(t.dtype) {
		parts = append(parts, "the vector is "+t.dtype.String())
	}
	if parts == nil {
		return "the change is near the rounding of the stored weights"
	}
	return strings.Join(parts, ", ")
}

func maxAbs(x []float64) float64 {
	m := 0.0
	for _, v := range x {
		m = max(m, math.Abs(v))
	}
	return m
}

// rowSum returns Σ_l |G_kl − I_kl|.
func rowSum(gram []float64, k, row int) float64 {
	s := 0.0
	for l := range k {
		e := gram[row*k+l]
		if l == row {
			e--
		}
		s += math.Abs(e)
	}
	return s
}
