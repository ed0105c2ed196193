package projection

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/verify/tol"
)

// role says what a target is, and so which check judges it.
type role int

const (
	rawGrad       role = iota // before projection, its partner is the projected one
	projectedGrad             // claimed to have no component in span(Q)
	update
	weightDelta // W − W_init
	rawWeights  // W alone, without W_init
)

// target is one matrix V, d×cols row-major, whose components QᵀV are judged.
type target struct {
	name  string
	role  role
	v     []float64
	noise func(dst []float64, from int) // bound on the storage error of each element; nil where it is far below any limit
	cols  int
	pair  *pair // with its other half: of a gradient that is there before and after projection
	dtype format.DType

	comp  []float64 // QᵀV, K×cols
	fog   []float64 // Σ_i |q_ik|·noise_i, K×cols
	norm2 float64   // ‖V‖²
	zero  bool
	bad   string // where V is not finite
}

// reading is how the tensors of a set were matched with the basis.
type reading struct {
	targets  []target
	how      string   // "flat: 1 vector of 4096"
	also     []string // other readings that fit the shapes too
	unfitted []string // tensors that the basis does not touch
	empty    []string // tensors without elements
	problem  string   // why nothing fits, with both numbers
}

func isLoRA(name string) bool { return strings.Contains(name, "lora_") }

func isLoRAB(name string) bool { return strings.Contains(name, "lora_B") }

// loraOnly returns the LoRA tensors of ts, or all of them if none is one, sorted by name: the order of a flat vector.
func loraOnly(ts []Tensor) []Tensor {
	var out []Tensor
	for _, t := range ts {
		if isLoRA(t.Name) {
			out = append(out, t)
		}
	}
	if out == nil {
		out = slices.Clone(ts)
	}
	slices.SortFunc(out, func(a, b Tensor) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// match finds the vectors of set that the basis applies to. Where several readings fit the shapes it takes the first of:
// the one that was stated; flat over all tensors; flat per tensor; side.
func (in *Input) match(set Set, r role, flatName string) reading {
	b := in.Basis
	floats := set.floats()
	if len(floats) == 0 && len(set.Tensors) > 0 {
		t := set.Tensors[0]
		return reading{problem: fmt.Sprintf("%s is stored as %s, want float64, float32, float16 or bfloat16", t.Name, t.typeName())}
	}
	tensors := loraOnly(floats)
	kind, why := in.kind()

	total := 0
	var each, side []Tensor
	var empty []string
	for _, t := range tensors {
		total += len(t.Data)
		if len(t.Data) == 0 {
			empty = append(empty, t.Name)
			continue
		}
		if len(t.Data) == b.D {
			each = append(each, t)
		}
		if len(t.Shape) == 2 && t.Shape[0] == b.D && (isLoRAB(t.Name) || !isLoRA(t.Name)) {
			side = append(side, t)
		}
	}
	if len(b.Order) > 0 && kind != Side {
		return in.matchOrder(tensors, r, flatName)
	}
	type option struct {
		kind Kind
		name string
		take func() []target
	}
	var options []option
	if total == b.D && len(tensors) > 0 {
		name := flatName
		if len(tensors) == 1 {
			name = tensors[0].Name
		}
		how := fmt.Sprintf("flat: all %d tensors in one vector of %d, sorted by name", len(tensors), total)
		if len(tensors) == 1 {
			how = fmt.Sprintf("flat: a vector of %d", total)
		}
		options = append(options, option{Flat, how, func() []target {
			return []target{concat(name, tensors, r)}
		}})
	}
	if len(each) > 0 && !(len(tensors) == 1 && total == b.D) {
		options = append(options, option{Flat, fmt.Sprintf("flat: each of %d tensors as a vector of %d", len(each), b.D), func() []target { return columns(each, 1, r) }})
	}
	if len(side) > 0 && !(len(side) == 1 && side[0].Shape[1] == 1 && len(each) > 0) {
		options = append(options, option{Side, fmt.Sprintf("side: on the left of %d matrices with %d rows", len(side), b.D), func() []target { return columns(side, 0, r) }})
	}
	var fits []option
	for _, o := range options {
		if kind == AnyKind || o.kind == kind {
			fits = append(fits, o)
		}
	}
	if len(fits) == 0 {
		return reading{problem: in.misfit(tensors, total, kind, why), empty: empty}
	}
	taken := fits[0]
	out := reading{targets: taken.take(), how: taken.name, empty: empty}
	if why != "" {
		out.how += ", " + why
	}
	for _, o := range fits[1:] {
		out.also = append(out.also, o.name)
	}
	if len(out.targets) > 1 || len(tensors) > 1 && out.targets[0].name != flatName {
		taken := map[string]bool{}
		for i := range out.targets {
			taken[out.targets[i].name] = true
		}
		for _, t := range tensors {
			if !taken[t.Name] {
				out.unfitted = append(out.unfitted, t.Name)
			}
		}
	}
	return out
}

// matchOrder builds the flat vector in the order that the basis file records.
func (in *Input) matchOrder(tensors []Tensor, r role, flatName string) reading {
	recorded := 0
	for _, s := range in.Basis.Order {
		if recorded += min(s.Len, in.Basis.D+1); recorded > in.Basis.D {
			break // no need to add up what a file may claim
		}
	}
	if recorded != in.Basis.D {
		return reading{problem: fmt.Sprintf("the basis has %d rows, but the tensors it records, the first of them %q, have not as many elements", in.Basis.D, in.Basis.Order[0].Name)}
	}
	if len(tensors) == 1 && len(tensors[0].Data) == in.Basis.D && tensors[0].Name != in.Basis.Order[0].Name {
		return reading{targets: []target{concat(tensors[0].Name, tensors, r)}, how: fmt.Sprintf("flat: a vector of %d, taken to be in the order that the basis file records", in.Basis.D)}
	}
	byName := map[string]Tensor{}
	for _, t := range tensors {
		byName[t.Name] = t
	}
	var ordered []Tensor
	listed := map[string]bool{}
	for _, s := range in.Basis.Order {
		t, ok := byName[s.Name]
		if listed[s.Name] {
			return reading{problem: fmt.Sprintf("the basis records tensor %q twice", s.Name)}
		}
		listed[s.Name] = true
		if !ok {
			return reading{problem: fmt.Sprintf("the basis records tensor %q of %d elements, which is not there", s.Name, s.Len)}
		}
		if len(t.Data) != s.Len {
			return reading{problem: fmt.Sprintf("the basis records %d elements for tensor %q, which has %d", s.Len, s.Name, len(t.Data))}
		}
		delete(byName, s.Name)
		ordered = append(ordered, t)
	}
	out := reading{targets: []target{concat(flatName, ordered, r)}, how: fmt.Sprintf("flat: %d tensors in the order that the basis file records", len(ordered))}
	for _, t := range tensors {
		if _, left := byName[t.Name]; left {
			out.unfitted = append(out.unfitted, t.Name)
		}
	}
	return out
}

func (in *Input) misfit(tensors []Tensor, total int, kind Kind, why string) string {
	d := in.Basis.D
	if len(tensors) == 0 {
		return "it holds no tensors"
	}
	msg := fmt.Sprintf("the basis has %d rows; ", d)
	if len(tensors) == 1 {
		msg += tensors[0].describe()
	} else {
		msg += fmt.Sprintf("the %d tensors have %d elements together, none fits alone (the first: %s)", len(tensors), total, tensors[0].describe())
	}
	if kind != AnyKind {
		msg += fmt.Sprintf("; the reading is %s, %s", kind, why)
	}
	if in.Basis.K == total {
		msg += fmt.Sprintf("; it fits the %d columns: is the basis stored transposed, or does it have more columns than rows?", total)
	}
	return msg
}

// concat lays tensors in a row.
func concat(name string, tensors []Tensor, r role) target {
	if len(tensors) == 1 {
		t := newTarget(&tensors[0], 1, r)
		t.name = name
		return t
	}
	t := target{name: name, role: r, cols: 1, dtype: tensors[0].DType} // of several types the last 16-bit one
	parts := make([]target, len(tensors))
	noisy := false
	for i := range tensors {
		parts[i] = newTarget(&tensors[i], 1, r)
		noisy = noisy || parts[i].noise != nil
		if low16(parts[i].dtype) {
			t.dtype = parts[i].dtype
		}
		t.v = append(t.v, parts[i].v...)
	}
	if noisy {
		t.noise = func(dst []float64, from int) {
			clear(dst)
			at := 0 // of the part in the vector
			for _, p := range parts {
				lo, hi := max(from, at), min(from+len(dst), at+len(p.v))
				if lo < hi && p.noise != nil {
					p.noise(dst[lo-from:hi-from], lo-at)
				}
				at += len(p.v)
			}
		}
	}
	return t
}

// columns makes one target of each tensor, with cols columns or, for 0, as many as the tensor has.
func columns(tensors []Tensor, cols int, r role) []target {
	out := make([]target, len(tensors))
	for i := range tensors {
		c := cols
		if c == 0 {
			c = tensors[i].Shape[1]
		}
		out[i] = newTarget(&tensors[i], c, r)
	}
	return out
}

// newTarget wraps t. In the 16-bit formats storing v has moved every element by up to u·|v|, far more than the limit on
// a component, so the error is carried along.
func newTarget(t *Tensor, cols int, r role) target {
	out := target{name: t.Name, role: r, v: t.Data, cols: cols, dtype: t.DType}
	switch {
	case t.noise != nil:
		out.noise = func(dst []float64, from int) {
			for i := range dst {
				dst[i] = float64(t.noise[from+i])
			}
		}
	case low16(t.DType):
		u, eta := t.DType.Unit()
		out.noise = func(dst []float64, from int) {
			for i := range dst {
				dst[i] = tol.Storage(t.Data[from+i], u, eta)
			}
		}
	}
	return out
}

func low16(d format.DType) bool { return d == format.F16 || d == format.BF16 }

// floats returns the tensors of a floating-point type; others, such as a step counter, are no vectors.
func (s *Set) floats() []Tensor {
	var out []Tensor
	for _, t := range s.Tensors {
		if t.DType.Float() {
			out = append(out, t)
		}
	}
	return out
}

func (t *Tensor) typeName() string {
	if t.DType == format.Unknown && t.Type != "" {
		return t.Type
	}
	return t.DType.String()
}
