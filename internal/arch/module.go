package arch

import (
	"slices"
	"strconv"
	"strings"
)

// Role is what a module is for, the same word in every architecture.
type Role string

// The roles. A family has some of them: GPT-2 projects queries, keys and values by one layer, QKV, and has no Gate.
const (
	Embedding Role = "embedding" // of the tokens
	Places    Role = "positions" // learned, added to the embedding of the tokens

	EmbeddingNorm Role = "embedding norm" // behind the embedding, before the blocks

	AttentionNorm Role = "attention norm" // before attention; of GPT-J before attention and MLP, which run side by side
	Query         Role = "query"
	Key           Role = "key"
	Value         Role = "value"
	QKV           Role = "query, key and value" // one layer for all three, its outputs in this order
	Output        Role = "attention output"     // after attention, back to the hidden states

	QueryNorm         Role = "query norm"          // of each head, or of all together
	KeyNorm           Role = "key norm"            //
	AttentionPostNorm Role = "attention post norm" // behind attention, before it is added

	MLPNorm Role = "mlp norm"
	Gate    Role = "gate"        // goes through the activation and multiplies Up
	Up      Role = "up"          // from the hidden states to the inner ones
	Down    Role = "down"        // back
	GateUp  Role = "gate and up" // one layer for both, its outputs in this order
	Router  Role = "router"      // chooses among the experts
	Expert  Role = "expert"      // a matrix of one of several MLPs: the only role that a layer has more than once

	MLPPostNorm Role = "mlp post norm" // behind the MLP, before it is added

	FinalNorm Role = "final norm"
	Head      Role = "head" // from the hidden states to the logits
)

// Kind says how a module stores its weight.
type Kind uint8

// The kinds.
const (
	Linear    Kind = iota // weight [Out, In]
	Conv1D                // the linear layer of GPT-2: weight [In, Out]
	Table                 // rows to look up: weight [In, Out], In rows of width Out
	RMSNorm               // weight [Out]
	LayerNorm             // weight [Out], bias [Out]
	Matrix                // weight [Out, In] of a part that newer versions hold together with others: an adapter need not find it
)

// Module is a layer of a model.
type Module struct {
	Name    string // without .weight
	Role    Role
	Layer   int // block it lies in, from 0; -1 outside of the blocks
	Kind    Kind
	In, Out int  // features it takes and gives, however the weight is stored. A norm has no In
	Bias    bool // it has a bias [Out]
	Tied    bool // a head whose weight is the embedding and not stored
}

// Tensor is the name and the shape of a weight as it is stored.
type Tensor struct {
	Name  string
	Shape []int
}

// IsLinear reports whether a LoRA update can sit on the module: A [r, In] and B [Out, r], whatever way round the weight is
// stored. For a Conv1D the update of the weight is the transposed (B·A)ᵀ.
func (m Module) IsLinear() bool { return m.Kind == Linear || m.Kind == Conv1D }

// Weight returns the weight of the module. That of a tied head is not stored.
func (m Module) Weight() Tensor {
	t := Tensor{Name: m.Name + ".weight"}
	switch m.Kind {
	case Linear, Matrix:
		t.Shape = []int{m.Out, m.In}
	case Conv1D, Table:
		t.Shape = []int{m.In, m.Out}
	default:
		t.Shape = []int{m.Out}
	}
	return t
}

// Tensors returns what a model stores for the module: its weight, unless that is tied, and its bias.
func (m Module) Tensors() []Tensor {
	var list []Tensor
	if !m.Tied {
		list = append(list, m.Weight())
	}
	if m.Bias || m.Kind == LayerNorm {
		list = append(list, Tensor{m.Name + ".bias", []int{m.Out}})
	}
	return list
}

// Last returns the last part of the module's name, which is what a target of an adapter usually names: q_proj.
func (m Module) Last() string { return m.Name[strings.LastIndexByte(m.Name, '.')+1:] }

// Modules returns the modules of the model in the order of the forward pass, the head last, also if it is tied. It panics if
// c is not valid.
func (c Config) Modules() []Module {
	if err := c.Validate(); err != nil {
		panic(err.Error())
	}
	f := families[c.Type]
	list := slices.Clone(f.first(c))
	for i := range c.Layers {
		list = append(list, c.block(f, i)...)
	}
	return append(list, f.last(c)...)
}

// Block returns the modules of block i in the order of the forward pass. It panics if c is not valid.
func (c Config) Block(i int) []Module {
	if err := c.Validate(); err != nil {
		panic(err.Error())
	}
	return c.block(families[c.Type], i)
}

func (c Config) block(f *family, i int) []Module {
	list := f.block(c)
	for k := range list {
		list[k].Name = c.BlockName(i) + list[k].Name
		list[k].Layer = i
	}
	return list
}

// BlockName returns what the names of all modules of block i begin with, "" for a type that is not known.
func (c Config) BlockName(i int) string {
	if f := families[c.Type]; f != nil {
		return f.blocks + strconv.Itoa(i) + "."
	}
	return ""
}

// Adaptable returns the linear layers of one block, which a target of an adapter usually means. It panics if c is not valid.
func (c Config) Adaptable() []Module {
	return slices.DeleteFunc(c.Block(0), func(m Module) bool { return !m.IsLinear() })
}

// Tensors returns the weights that the model stores in the order of the forward pass. A tied head is not among them. It panics
// if c is not valid.
func (c Config) Tensors() []Tensor {
	var list []Tensor
	for _, m := range c.Modules() {
		list = append(list, m.Tensors()...)
	}
	return list
}

// Linears returns the layers that a LoRA update may sit on, the head last, also if it is tied. It panics if c is not valid.
func (c Config) Linears() []Module {
	return slices.DeleteFunc(c.Modules(), func(m Module) bool { return !m.IsLinear() })
}

// Module returns the module of a role: of block layer, or of none with -1. The second result tells whether the architecture has
// it. It panics if c is not valid.
func (c Config) Module(role Role, layer int) (Module, bool) {
	var list []Module
	switch f := families[c.Type]; {
	case layer >= c.Layers:
	case layer >= 0:
		list = c.Block(layer)
	case c.Validate() != nil:
		panic(c.Validate().Error())
	default:
		list = append(f.first(c), f.last(c)...)
	}
	i := slices.IndexFunc(list, func(m Module) bool { return m.Role == role })
	if i < 0 {
		return Module{}, false
	}
	return list[i], true
}
