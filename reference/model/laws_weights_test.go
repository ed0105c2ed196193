package model

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

// blocks cuts x into n blocks of equal length.
func blocks(x []float64, n int) [][]float64 {
	return slices.Collect(slices.Chunk(x, len(x)/n))
}

// rebuilt returns the model with another configuration and the weights that change gives for the old ones.
func rebuilt(m *Model, c Config, change func(name string, x []float64) []float64) (*Model, error) {
	other, err := New(c, func(name string, _ ...int) ([]float64, error) {
		return change(name, slices.Clone(m.data[name])), nil
	})
	if err == nil {
		other.ops = m.ops
	}
	return other, err
}

func hasSuffix(name string, suffixes ...string) bool {
	return slices.ContainsFunc(suffixes, func(s string) bool { return len(name) >= len(s) && name[len(name)-len(s):] == s })
}

// Grouped heads are heads with keys and values of their own that are equal within a group, which are neighbours.
func groupedHeads(m *Model, in Input, _ *rand.Rand) error {
	c := m.Config
	c.KVHeads = c.Heads
	other, err := rebuilt(m, c, func(name string, x []float64) []float64 {
		if !hasSuffix(name, "k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias") || c.Kind == GPTJ {
			return x
		}
		var y []float64
		for _, b := range blocks(x, m.Config.KVHeads) {
			for range c.Heads / m.Config.KVHeads {
				y = append(y, b...)
			}
		}
		return y
	})
	if err != nil {
		return err
	}
	return equal(hidden(m, in), hidden(other, in), "repeated heads")
}

// The order of the heads does not matter, within rounding: the projection behind them sums in another order.
func headPermutation(m *Model, in Input, r *rand.Rand) error {
	c := m.Config
	if c.Kind == GPT2 {
		return nil // its three projections are one; TestGoldens has it
	}
	groups := r.Perm(c.KVHeads)
	moved := func(x []float64) []float64 { // rows of whole groups
		var y []float64
		b := blocks(x, c.KVHeads)
		for _, g := range groups {
			y = append(y, b[g]...)
		}
		return y
	}
	other, err := rebuilt(m, c, func(name string, x []float64) []float64 {
		switch {
		case hasSuffix(name, "q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
			return moved(x)
		case hasSuffix(name, "o_proj.weight", "out_proj.weight"):
			in := c.Heads * c.HeadDim
			t := turned(x, c.Hidden, in)
			return turned(moved(t), in, c.Hidden)
		}
		return x
	})
	if err != nil {
		return err
	}
	return near(hidden(other, in), hidden(m, in), "permuted heads")
}

// adapterFor returns an adapter of random rank at random layers, the values of the attention among them, which count even
// if there is one token; zeroB clears its second factors.
func adapterFor(c Config, r *rand.Rand, zeroB bool) Adapter {
	a := Adapter{}
	for _, l := range c.Linears() {
		if r.IntN(2) == 0 && !hasSuffix(l.Name, "v_proj", "c_attn") {
			continue
		}
		rank := 1 + r.IntN(3)
		u := LoRA{Rank: rank, A: make([]float64, rank*l.Shape[1]), B: make([]float64, rank*l.Shape[0]), Scale: 0.5 + r.Float64()}
		for i := range u.A {
			u.A[i] = r.NormFloat64() * 0.3
		}
		for i := range u.B {
			if !zeroB {
				u.B[i] = r.NormFloat64() * 0.3
			}
		}
		a[l.Name] = u
	}
	return a
}

func logits(n *Net, in Input) []float64 { return n.Logits(n.Forward(in).Hidden).Data() }

// Without its adapter a model is its base, and so it is with an adapter whose B is 0. With another it is not.
func adapterOff(m *Model, in Input, r *rand.Rand) error {
	var tape ad.Tape
	base := logits(m.On(&tape, Trainable{}), in)
	before := maps.Clone(m.data)
	for name, x := range before {
		before[name] = slices.Clone(x)
	}
	on := m.On(&tape, Trainable{Adapter: adapterFor(m.Config, r, false), LoRA: true})
	scores := on.Logits(on.Forward(in).Hidden)
	if near(scores.Data(), base, "") == nil {
		return fmt.Errorf("the adapter has no influence")
	}
	if scores.NeedsGrad() {
		ad.Backward(scores, scores.Data())
	}
	for name, x := range before {
		if err := equal(m.data[name], x, "weight %s after a backward pass", name); err != nil {
			return err
		}
		if on.Var(name).NeedsGrad() {
			return fmt.Errorf("the frozen weight %s has a gradient", name)
		}
	}
	if err := equal(logits(m.On(&tape, Trainable{}), in), base, "adapter off"); err != nil {
		return err
	}
	return equal(logits(m.On(&tape, Trainable{Adapter: adapterFor(m.Config, r, true)}), in), base, "B = 0")
}

// An adapter is the base with W + s·B·A, within rounding.
func merge(m *Model, in Input, r *rand.Rand) error {
	a := adapterFor(m.Config, r, false)
	if m.Config.Tied {
		delete(a, head) // the embedding would change too
	}
	merged, err := rebuilt(m, m.Config, func(name string, x []float64) []float64 {
		if len(name) < len(".weight") {
			return x
		}
		l, ok := a[name[:len(name)-len(".weight")]]
		if !ok || !hasSuffix(name, ".weight") {
			return x
		}
		d := l.Delta()
		if m.Config.Kind == GPT2 && name != "lm_head.weight" {
			d = turned(d, len(l.B)/l.Rank, len(l.A)/l.Rank)
		}
		for i := range x {
			x[i] += d[i]
		}
		return x
	})
	if err != nil {
		return err
	}
	var tape ad.Tape
	return near(logits(m.On(&tape, Trainable{Adapter: a}), in), logits(merged.On(&tape, Trainable{}), in), "merged")
}

// While B is 0 the gradient of A is exactly 0 and that of B is not.
func firstStep(m *Model, in Input, r *rand.Rand) error {
	a := adapterFor(m.Config, r, true)
	var tape ad.Tape
	n := m.On(&tape, Trainable{Adapter: a, LoRA: true})
	l := n.Logits(n.Forward(in).Hidden)
	up := make([]float64, l.Size())
	for i := range up {
		up[i] = r.NormFloat64()
	}
	ad.Backward(l, up)
	var some bool
	for name := range a {
		f, _ := n.Factors(name)
		if slices.ContainsFunc(f.A.Grad(), func(v float64) bool { return v != 0 }) {
			return fmt.Errorf("A of %s has a gradient", name)
		}
		some = some || slices.ContainsFunc(f.B.Grad(), func(v float64) bool { return v != 0 })
	}
	if !some {
		return fmt.Errorf("no B has a gradient")
	}
	return nil
}

// A window as long as the sequence is none, and in a single layer one of w tokens is the last w tokens alone.
func window(m *Model, in Input, r *rand.Rand) error {
	c := m.Config
	if c.Kind != Qwen2 {
		return nil
	}
	same := func(_ string, x []float64) []float64 { return x }
	c.Windows = make([]int, c.Layers)
	full, err := rebuilt(m, c, same)
	if err != nil {
		return err
	}
	c.Windows = slices.Repeat([]int{in.Time}, c.Layers)
	long, err := rebuilt(m, c, same)
	if err != nil {
		return err
	}
	if err := equal(hidden(long, in), hidden(full, in), "a window of %d", in.Time); err != nil {
		return err
	}
	c.Layers, c.Windows = 1, []int{1 + r.IntN(in.Time)}
	one, err := rebuilt(m, c, same)
	if err != nil {
		return err
	}
	w := c.Windows[0]
	last := in.part(0, in.Time-w, in.Time)
	last.Positions = nn.Positions(1, in.Time, nil, nil)[in.Time-w:]
	return equal(in.at(hidden(one, in), 0, in.Time-1), last.at(hidden(one, last), 0, w-1), "the last of %d tokens with a window of %d", in.Time, w)
}
