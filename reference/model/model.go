package model

import (
	"fmt"

	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

// A Model is a configuration with weights.
type Model struct {
	Config  Config
	tensors []Tensor
	data    map[string][]float64
	ops     ops
}

// New returns the model with the given configuration and weights. It returns an error if the configuration is not valid or a
// weight is missing.
func New(c Config, w Weights) (*Model, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	m := &Model{Config: c, tensors: c.Tensors(), ops: standard}
	var err error
	m.data, err = load(w, m.tensors)
	return m, err
}

// Data returns the elements of a weight, as they were given to the model. It panics if there is no such weight.
func (m *Model) Data(name string) []float64 {
	x, ok := m.data[name]
	if !ok {
		panic(fmt.Sprintf("model: there is no weight %q", name))
	}
	return x
}

// A Net is a model on a tape.
type Net struct {
	*params
	Config              Config
	ops                 ops
	act                 func(*ad.Var) *ad.Var
	read, give, updated func(layer string, x *ad.Var) *ad.Var // see [Trainable]
}

// On puts the model on a tape. Several forward passes may follow and share the parameters. It panics if the adapter does not
// fit, see [Adapter.Validate].
func (m *Model) On(t *ad.Tape, train Trainable) *Net {
	if err := train.Adapter.Validate(m.Config); err != nil {
		panic(err.Error())
	}
	p := bind(t, m.tensors, m.data, train.Weight)
	p.adapt(train.Adapter, train.LoRA)
	n := m.net(p)
	n.read, n.give, n.updated = train.Read, train.Give, train.Update
	return n
}

func (m *Model) net(p *params) *Net {
	act, err := nn.Activation(m.Config.Activation)
	if err != nil {
		panic(err.Error())
	}
	return &Net{params: p, Config: m.Config, ops: m.ops, act: act}
}

// ops are the operations that a forward pass is made of. A test replaces one to plant a fault.
type ops struct {
	linear    func(x, w, b *ad.Var) *ad.Var
	conv1d    func(x, w, b *ad.Var) *ad.Var
	layerNorm func(x, w, b *ad.Var, eps float64) *ad.Var
	rmsNorm   func(x, w *ad.Var, eps float64) *ad.Var
	rotate    func(r nn.RoPE, x *ad.Var, pos []int) *ad.Var
	mask      func(nn.Visible) ad.Mask
	attention func(q, k, v *ad.Var, mask ad.Mask, scale float64) *ad.Var
	swiglu    func(gate, up *ad.Var) *ad.Var
	delta     func(l nn.LoRA, x *ad.Var) *ad.Var
	residual  func(x, y *ad.Var) *ad.Var
	places    func(Input) (real []bool, pos []int)
	embed     func(*Net, *pass) *ad.Var
	block     func(n *Net, p *pass, x *ad.Var, i int) *ad.Var
	last      func(*Net, *ad.Var) *ad.Var
}

var standard = ops{
	linear:    nn.Linear,
	conv1d:    nn.Conv1D,
	layerNorm: nn.LayerNorm,
	rmsNorm:   nn.RMSNorm,
	rotate:    nn.RoPE.Apply,
	mask:      nn.Visible.Mask,
	attention: nn.Attention,
	swiglu:    nn.SwiGLU,
	delta:     nn.LoRA.Delta,
	residual:  ad.Add,
	places:    Input.places,
	embed:     (*Net).embed,
	block:     (*Net).block,
	last:      (*Net).last,
}

// linear applies the layer of a name and its LoRA update.
func (n *Net) linear(x *ad.Var, name string) *ad.Var {
	return n.update(n.base(n.ops.linear, x, name, name), x, name)
}

// conv1d is linear for a layer that stores its weight as [in, out].
func (n *Net) conv1d(x *ad.Var, name string) *ad.Var {
	return n.update(n.base(n.ops.conv1d, x, name, name), x, name)
}

// base applies the layer of a name, whose weight may be another's, without its LoRA update.
func (n *Net) base(op func(x, w, b *ad.Var) *ad.Var, x *ad.Var, name, weight string) *ad.Var {
	if n.read != nil {
		x = n.read(name, x)
	}
	y := op(x, n.Var(weight+".weight"), n.bias(name))
	if n.give != nil {
		y = n.give(name, y)
	}
	return y
}

func (n *Net) update(y, x *ad.Var, name string) *ad.Var {
	if l, ok := n.Factors(name); ok {
		if n.updated != nil {
			x = n.updated(name, x)
		}
		return ad.Add(y, n.ops.delta(l, x))
	}
	return y
}

func (n *Net) layerNorm(x *ad.Var, name string) *ad.Var {
	return n.ops.layerNorm(x, n.Var(name+".weight"), n.bias(name), n.Config.Eps)
}

func (n *Net) rmsNorm(x *ad.Var, name string) *ad.Var {
	return n.ops.rmsNorm(x, n.Var(name+".weight"), n.Config.Eps)
}

// Logits returns the scores [..., V] of the tokens that may follow, from hidden states [..., C] as [Output] has them. The
// columns of padding rows of the vocabulary are among them.
func (n *Net) Logits(hidden *ad.Var) *ad.Var {
	w := head
	if n.Config.Tied {
		w = n.Config.embedding()
	}
	return n.update(n.base(n.ops.linear, hidden, head, w), hidden, head)
}
