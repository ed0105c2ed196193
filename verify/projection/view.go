package projection

import (
	"fmt"
	"math"

	"plumbline/internal/format"
	"plumbline/reference/linalg"
)

// Limit returns the limit that the input is judged by.
func (in *Input) Limit() float64 { return in.tol() }

// Lines returns what the scripts of the source document print: the gradient-flow line, and for each vector its largest
// component, with the mode and a summary. Between them it says how each file was matched with the basis.
func (in *Input) Lines() []string {
	var out []string
	for _, g := range in.Grads {
		if len(g.Tensors) > 0 {
			out = append(out, FlowOf(g, in.Adapter).String())
		}
	}
	f, err := in.measure()
	if err != nil || !f.finite {
		return out
	}
	read := func(name string, r reading) {
		if r.problem == "" {
			out = append(out, fmt.Sprintf("%s is read as %s", name, r.how))
		}
	}
	for i, r := range f.grads {
		read(in.Grads[i].Name, r)
	}
	for i, r := range f.updates {
		read(in.Updates[i].Name, r)
	}
	if in.Adapter != nil {
		read(in.Adapter.Name, f.adapter)
	}
	list := func(mode string, targets []*target) {
		if len(targets) == 0 {
			return
		}
		out = append(out, "mode: "+mode)
		var most, sum float64
		for _, t := range targets {
			c, _, _ := t.largest()
			if mode != "weights-raw" {
				c /= max(1, math.Sqrt(t.norm2))
			}
			most, sum = max(most, c), sum+c
			out = append(out, fmt.Sprintf("%s: max projection component = %.8f", t.name, c))
		}
		out = append(out, fmt.Sprintf("maximum %.8f, average %.8f over %d", most, sum/float64(len(targets)), len(targets)))
	}
	var grads, updates, weights []*target
	for _, t := range f.all() {
		switch t.role {
		case projectedGrad:
			grads = append(grads, t)
		case update:
			updates = append(updates, t)
		case weightDelta, rawWeights:
			weights = append(weights, t)
		}
	}
	list("gradient", grads)
	list("update", updates)
	list(f.adapterMode, weights)
	return out
}

// Named is a list of numbers with a name.
type Named struct {
	Name   string
	Values []float64
}

// Components returns |Qᵀv| by column of Q for the first vector, before and after projection where both are known, and the
// vector's name. Of a matrix it is the largest over its columns. It returns nil if no vector fits the basis.
func (in *Input) Components() ([]Named, string, error) {
	f, err := in.measure()
	if err != nil || !f.finite {
		return nil, "", err
	}
	magnitude := func(t *target) []float64 {
		out := make([]float64, in.Basis.K)
		for i, c := range t.comp {
			out[i/t.cols] = max(out[i/t.cols], math.Abs(c))
		}
		return out
	}
	for _, p := range f.pairs {
		return []Named{{"before", magnitude(p.raw)}, {"after", magnitude(p.out)}}, p.out.name, nil
	}
	for _, t := range f.all() {
		return []Named{{"|Qᵀv|", magnitude(t)}}, t.name, nil
	}
	return nil, "", nil
}

// Orthonormalise returns an orthonormal basis of the same space, d×rank, and the type to store it in: that of the file,
// but at least float32. It holds the whole basis in memory. A basis without an orthonormal form gives a *UsageError.
func (in *Input) Orthonormalise() (q []float64, rank int, dtype format.DType, err error) {
	b := in.Basis
	if !b.usable() {
		return nil, 0, 0, usage("%s cannot be orthonormalised: it is no floating-point matrix with fewer columns than rows", b.Name)
	}
	all := make([]float64, b.D*b.K)
	if err := b.rows(all, 0); err != nil {
		return nil, 0, 0, err
	}
	q, rank, ok := linalg.Orthonormalise(all, b.K)
	if !ok {
		return nil, 0, 0, usage("%s cannot be orthonormalised: it is not finite, or zero", b.Name)
	}
	dtype = b.DType
	if low16(dtype) {
		dtype = format.F32
	}
	return q, rank, dtype, nil
}
