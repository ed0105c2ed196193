package model

import (
	"fmt"
	"maps"
	"slices"

	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

// Weights returns the elements of a weight in row-major order. It is asked once for each of [Config.Tensors], with the name
// and the shape of there, and returns an error if it has no such tensor or another shape. The model keeps the slice.
type Weights func(name string, shape ...int) ([]float64, error)

// load asks w for the tensors.
func load(w Weights, tensors []Tensor) (map[string][]float64, error) {
	data := make(map[string][]float64, len(tensors))
	for _, t := range tensors {
		x, err := w(t.Name, t.Shape...)
		if err != nil {
			return nil, fmt.Errorf("model: weight %s: %w", t.Name, err)
		}
		if n := elements(t.Shape); len(x) != n {
			return nil, fmt.Errorf("model: weight %s: %d elements for shape %v", t.Name, len(x), t.Shape)
		}
		data[t.Name] = x
	}
	return data, nil
}

func elements(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// LoRA is the low-rank update ΔW = Scale·B·A of one linear layer. Its rank, alpha and their patterns are resolved by the
// reader of the adapter, see [nn.LoRAScale].
type LoRA struct {
	Rank  int
	A     []float64 // [Rank, in]
	B     []float64 // [out, Rank]
	Scale float64
}

// Delta returns ΔW [out, in]. For a layer that stores its weight as [in, out], as those of GPT-2, it is the transposed of
// the update of the weight.
func (l LoRA) Delta() []float64 {
	var tape ad.Tape
	b, a := tape.View(l.B, len(l.B)/l.Rank, l.Rank), tape.View(l.A, l.Rank, len(l.A)/l.Rank)
	return ad.Scale(ad.MatMul(b, a, false, false), l.Scale).Data()
}

// Adapter holds LoRA updates by the name of their layer, see [Config.Linears].
type Adapter map[string]LoRA

// Validate returns an error that names the first update, in the order of names, whose layer the model does not have or whose
// factors do not fit it.
func (a Adapter) Validate(c Config) error {
	shapes := map[string][]int{}
	for _, t := range c.Linears() {
		shapes[t.Name] = t.Shape
	}
	for _, name := range slices.Sorted(maps.Keys(a)) {
		l, s := a[name], shapes[name]
		switch {
		case s == nil:
			return c.errorf("adapter: there is no linear layer %q", name)
		case l.Rank < 1:
			return c.errorf("adapter: %s: rank %d", name, l.Rank)
		case len(l.A) != l.Rank*s[1] || len(l.B) != l.Rank*s[0]:
			return c.errorf("adapter: %s: A of %d and B of %d elements for rank %d of a layer of %d×%d", name, len(l.A), len(l.B), l.Rank, s[0], s[1])
		}
	}
	return nil
}

// Trainable says what a model on a tape consists of and what of it has a gradient.
type Trainable struct {
	Adapter Adapter // nil: the base alone
	LoRA    bool    // the factors of the adapter are parameters
	// Weight tells which weights are parameters; nil: none. A parameter is a copy of the weight and has a gradient of its
	// size.
	Weight func(name string) bool
	// Read and Give, if they are not nil, replace what the weight of a linear layer reads and what it gives, bias included and update
	// not, Update what its update reads: by them the rounding of a kernel is modelled.
	Read, Give, Update func(layer string, x *ad.Var) *ad.Var
}

// params are named weights on a tape.
type params struct {
	tape *ad.Tape
	vars map[string]*ad.Var
	lora map[string]nn.LoRA
}

// Var returns a weight on the tape: a parameter with its gradient if it is trainable. It panics if the model has no weight
// of this name.
func (p *params) Var(name string) *ad.Var {
	v := p.vars[name]
	if v == nil {
		panic(fmt.Sprintf("model: there is no weight %q", name))
	}
	return v
}

// Factors returns the LoRA update of a layer on the tape, and whether it has one.
func (p *params) Factors(name string) (nn.LoRA, bool) {
	l, ok := p.lora[name]
	return l, ok
}

// bias returns a weight, or nil if there is none.
func (p *params) bias(name string) *ad.Var { return p.vars[name+".bias"] }

// bind puts the tensors on a tape.
func bind(t *ad.Tape, tensors []Tensor, data map[string][]float64, train func(string) bool) *params {
	p := &params{tape: t, vars: make(map[string]*ad.Var, len(tensors)), lora: map[string]nn.LoRA{}}
	for _, w := range tensors {
		if train != nil && train(w.Name) {
			p.vars[w.Name] = t.Param(data[w.Name], w.Shape...)
		} else {
			p.vars[w.Name] = t.View(data[w.Name], w.Shape...)
		}
	}
	return p
}

// adapt puts the updates of an adapter on the tape.
func (p *params) adapt(a Adapter, train bool) {
	leaf := p.tape.Const
	if train {
		leaf = p.tape.Param
	}
	for _, name := range slices.Sorted(maps.Keys(a)) {
		l := a[name]
		p.lora[name] = nn.LoRA{
			A:     leaf(l.A, l.Rank, len(l.A)/l.Rank),
			B:     leaf(l.B, len(l.B)/l.Rank, l.Rank),
			Scale: l.Scale,
		}
	}
}
