// Package model runs causal language models fast: GPT-2, GPT-J, Llama and Qwen2 with a frozen base of int8 codes or float32 numbers, trained
// through low-rank updates by a backward pass that is derived by hand.
//
// A batch is computed without its padding: its real tokens lie one after the other, and each sequence attends to itself. What is computed
// of a sequence therefore does not depend on the others of its batch, nor on the padding, nor on the number of workers, bit by bit.
package model

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/accel/f32"
	"plumbline/accel/lora"
	"plumbline/internal/arch"
)

// Weights stores in dst whole rows of a weight, from row first on, rounded to float32: len(dst) over the width of the weight. A vector is one
// row. Names and shapes are those of [arch.Config.Tensors].
type Weights func(name string, dst []float32, first int) error

// Model is a causal language model. It serves one pass at a time.
type Model struct {
	Config arch.Config
	Mode   lora.Mode

	embedding *lora.Matrix // [V, C]
	places    []float32    // [P, C]; nil where positions are rotated
	blocks    []block
	final     norm
	head      *lora.Linear
	linears   map[string]*lora.Linear // by the names of their modules
	stored    map[string]func() []float64
	act       f32.Activation
	rope      f32.RoPE
	arena     arena
	headWork  lora.Work
	logits    store // that are kept
	chunk     store // of logits
}

// norm is a LayerNorm, or an RMSNorm if it has no bias.
type norm struct {
	weight, bias []float32
	eps          float64
}

// block is a layer of the model. Query, key and value are one layer where qkv is not nil; where second is not there, attention and MLP read
// the same norm side by side, as in GPT-J; without a gate the activation stands between up and down.
type block struct {
	first, second   norm
	q, k, v, qkv, o *lora.Linear
	gate, up, down  *lora.Linear
	scale           float32 // of attention scores
	window          int     // of attention, 0: none
}

// New reads the weights of a model, one after the other, and quantises them as the mode says. It returns an error for an architecture that it
// does not compute and for weights that cannot be read.
func New(c arch.Config, mode lora.Mode, w Weights) (*Model, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	m := &Model{Config: c, Mode: mode, linears: map[string]*lora.Linear{}, stored: map[string]func() []float64{}}
	var err error
	if !slices.Contains([]string{"gpt2", "gptj", "llama", "qwen2"}, c.Type) {
		return nil, fmt.Errorf("model: the accelerated path does not compute %q; it computes gpt2, gptj, llama and qwen2", c.Type)
	}
	if m.act, err = f32.FindActivation(c.Activation); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if c.Rope.Theta > 0 {
		m.rope = f32.RoPE{Dim: c.Rope.Dim, Interleaved: c.Rope.Interleaved}
		if m.rope.Frequencies, m.rope.Factor, err = Frequencies(c.Rope); err != nil {
			return nil, err
		}
	}
	r := reader{m: m, read: w}
	table, _ := c.Module(arch.Embedding, -1)
	m.embedding = r.matrix(table)
	if places, ok := c.Module(arch.Places, -1); ok {
		m.places = r.vector(places.Weight().Name, places.In*places.Out)
	}
	for i := range c.Layers {
		m.blocks = append(m.blocks, r.block(i))
	}
	final, _ := c.Module(arch.FinalNorm, -1)
	m.final = r.norm(final)
	head, _ := c.Module(arch.Head, -1)
	m.head = &lora.Linear{Mode: mode, Matrix: m.embedding}
	if !head.Tied {
		m.head.Matrix = r.matrix(head)
	}
	if head.Bias {
		m.head.Bias = r.vector(head.Name+".bias", head.Out)
	}
	m.linears[head.Name] = m.head
	return m, r.err
}

// reader reads weights; after an error it reads no more.
type reader struct {
	m    *Model
	read Weights
	err  error
}

func (r *reader) rows(name string, dst []float32, first int) {
	if r.err == nil {
		r.err = r.read(name, dst, first)
	}
}

func (r *reader) vector(name string, n int) []float32 {
	x := make([]float32, n)
	r.rows(name, x, 0)
	r.m.stored[name] = func() []float64 {
		y := make([]float64, n)
		for i, v := range x {
			y[i] = float64(v)
		}
		return y
	}
	return x
}

// pieceSize is how many numbers of a weight are in memory as float32 at once.
const pieceSize = 1 << 20

// matrix reads the weight of a linear layer as [Out, In], or a table as [rows, width].
func (r *reader) matrix(mod arch.Module) *lora.Matrix {
	name := mod.Weight().Name
	if mod.Kind == arch.Conv1D {
		x, y := make([]float32, mod.In*mod.Out), make([]float32, mod.In*mod.Out)
		r.rows(name, x, 0)
		for i := range mod.In {
			for o := range mod.Out {
				y[o*mod.In+i] = x[i*mod.Out+o]
			}
		}
		w := lora.NewMatrix(mod.Out, mod.In, r.m.Mode)
		w.SetRows(0, y)
		r.m.stored[name] = func() []float64 {
			t, s := w.Float64(), make([]float64, mod.In*mod.Out)
			for i := range mod.In {
				for o := range mod.Out {
					s[i*mod.Out+o] = t[o*mod.In+i]
				}
			}
			return s
		}
		return w
	}
	out, in := mod.Out, mod.In
	if mod.Kind == arch.Table {
		out, in = in, out
	}
	w := lora.NewMatrix(out, in, r.m.Mode)
	step := max(1, pieceSize/in)
	piece := make([]float32, min(step, out)*in)
	for at := 0; at < out && r.err == nil; at += step {
		part := piece[:min(step, out-at)*in]
		r.rows(name, part, at)
		w.SetRows(at, part)
	}
	r.m.stored[name] = w.Float64
	return w
}

func (r *reader) linear(role arch.Role, layer int) *lora.Linear {
	mod, ok := r.m.Config.Module(role, layer)
	if !ok {
		return nil
	}
	l := &lora.Linear{Mode: r.m.Mode, Matrix: r.matrix(mod)}
	if mod.Bias {
		l.Bias = r.vector(mod.Name+".bias", mod.Out)
	}
	r.m.linears[mod.Name] = l
	return l
}

func (r *reader) norm(mod arch.Module) norm {
	n := norm{weight: r.vector(mod.Name+".weight", mod.Out), eps: r.m.Config.Eps}
	if mod.Kind == arch.LayerNorm {
		n.bias = r.vector(mod.Name+".bias", mod.Out)
	}
	return n
}

func (r *reader) block(i int) block {
	c := r.m.Config
	first, _ := c.Module(arch.AttentionNorm, i)
	b := block{first: r.norm(first)}
	b.q, b.k, b.v, b.qkv = r.linear(arch.Query, i), r.linear(arch.Key, i), r.linear(arch.Value, i), r.linear(arch.QKV, i)
	b.o = r.linear(arch.Output, i)
	if second, ok := c.Module(arch.MLPNorm, i); ok {
		b.second = r.norm(second)
	}
	b.gate, b.up, b.down = r.linear(arch.Gate, i), r.linear(arch.Up, i), r.linear(arch.Down, i)
	scale := 1.0
	if !c.Unscaled {
		scale = 1 / math.Sqrt(float64(c.HeadDim))
	}
	if c.InverseLayerIdx {
		scale /= float64(i + 1)
	}
	b.scale = float32(scale)
	if c.Windows != nil {
		b.window = c.Windows[i]
	}
	return b
}

// Weight returns a weight as the numbers that the model computes with, of the shape and under the name of [arch.Config.Tensors]: those that
// the codes stand for in a mode with int8. It panics if the model has no such weight.
func (m *Model) Weight(name string) []float64 {
	read := m.stored[name]
	if read == nil {
		panic("model: there is no weight " + name)
	}
	return read()
}

// Attach puts a low-rank update on the linear layer of that name in place of the one that is there; nil takes it away. It returns an error
// if there is no such layer or the factors do not fit it.
func (m *Model) Attach(name string, u *lora.Update) error {
	l := m.linears[name]
	if l == nil {
		return fmt.Errorf("model: there is no linear layer %q", name)
	}
	if u != nil && (u.Rank < 1 || len(u.A) != u.Rank*l.In || len(u.B) != u.Rank*l.Out ||
		u.GradA != nil && (len(u.GradA) != len(u.A) || len(u.GradB) != len(u.B))) {
		return fmt.Errorf("model: %s: the factors do not fit a layer of %d×%d", name, l.Out, l.In)
	}
	l.Update = u
	return nil
}

// Bytes returns the memory of the weights.
func (m *Model) Bytes() int {
	n := m.embedding.Bytes() + 4*len(m.places)
	for name, l := range m.linears {
		if l.Matrix != m.embedding || !strings.HasPrefix(name, "lm_head") {
			n += l.Matrix.Bytes()
		}
	}
	return n
}
