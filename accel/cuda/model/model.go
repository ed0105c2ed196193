// Package model trains a causal language model on a device: int8 codes with a scale for each row, and low-rank updates in float32, by the
// kernels of accel/cuda. GPT-J, Llama and Qwen2 are computed; the arithmetic is that of accel/model in its mode w8a16.
//
// A batch keeps its padding: rows of one length, of which attention sees the real tokens. A method that fails leaves the device as it is; the
// first error of a chain of launches is returned.
package model

import (
	"fmt"
	"math"

	"plumbline/accel/cuda"
	"plumbline/accel/f32"
	"plumbline/accel/lora"
	fast "plumbline/accel/model"
	"plumbline/internal/arch"
)

// Model is a model on a device. It serves one pass at a time.
type Model struct {
	Config arch.Config

	d         *cuda.Context
	embedding matrix
	blocks    []block
	final     norm
	head      *linear
	linears   map[string]*linear
	names     []string // of the linear layers, in the order of the architecture
	rope      f32.RoPE
	memory    []cuda.Pointer
	err       error
}

type matrix struct {
	out, in, ld  int
	codes, scale cuda.Pointer
}

type norm struct {
	weight, bias cuda.Pointer // bias 0: an RMSNorm
	eps          float32
}

type linear struct {
	matrix
	bias   cuda.Pointer
	update *update
}

// update is a low-rank update with its factors, their gradients and the moments of AdamW on the device.
type update struct {
	host           *lora.Update
	a, b, ga, gb   cuda.Pointer
	ma, va, mb, vb cuda.Pointer
}

type block struct {
	first, second  norm // second.weight is 0 where attention and MLP read the same norm: GPT-J
	q, k, v, o     *linear
	gate, up, down *linear
	scale          float32
}

// New reads the weights of a model, one after the other, quantises them as accel/lora does and copies them to the device. It returns an error for
// an architecture that the kernels do not compute, for weights that cannot be read, and where the device has no memory left.
func New(c arch.Config, d *cuda.Context, w fast.Weights) (*Model, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	switch {
	case c.Type != "gptj" && c.Type != "llama" && c.Type != "qwen2":
		return nil, fmt.Errorf("cuda: no kernels for %q; there are some for gptj, llama and qwen2", c.Type)
	case c.Activation != map[bool]string{true: "gelu_new", false: "silu"}[c.Type == "gptj"]:
		return nil, fmt.Errorf("cuda: no kernel for the activation %q of %s", c.Activation, c.Type)
	case c.Windows != nil:
		return nil, fmt.Errorf("cuda: no kernel for attention through a window")
	case c.HeadDim > 256:
		return nil, fmt.Errorf("cuda: heads of %d; the kernels take 256 at most", c.HeadDim)
	}
	m := &Model{Config: c, d: d, linears: map[string]*linear{}}
	m.rope = f32.RoPE{Dim: c.Rope.Dim, Interleaved: c.Rope.Interleaved}
	var err error
	if m.rope.Frequencies, m.rope.Factor, err = fast.Frequencies(c.Rope); err != nil {
		return nil, err
	}
	r := &reader{m, w}
	table, _ := c.Module(arch.Embedding, -1)
	m.embedding = r.matrix(table)
	for i := range c.Layers {
		m.blocks = append(m.blocks, r.block(i))
	}
	final, _ := c.Module(arch.FinalNorm, -1)
	m.final = r.norm(final)
	m.head = r.linear(arch.Head, -1)
	if m.err != nil {
		m.Close()
		return nil, m.err
	}
	return m, nil
}

// Close gives the memory of the model back.
func (m *Model) Close() error {
	for _, p := range m.memory {
		if err := m.d.Free(p); err != nil && m.err == nil {
			m.err = err
		}
	}
	m.memory = nil
	return m.err
}

// keep allocates memory that lives as long as the model and copies x there.
func keep[T cuda.Number](m *Model, x []T) cuda.Pointer {
	if m.err != nil {
		return 0
	}
	p, err := cuda.ToDevice(m.d, x)
	if m.err = err; err == nil && p != 0 {
		m.memory = append(m.memory, p)
	}
	return p
}

type reader struct {
	m    *Model
	read fast.Weights
}

func (r *reader) vector(name string, n int) cuda.Pointer {
	x := make([]float32, n)
	if r.m.err == nil {
		r.m.err = r.read(name, x, 0)
	}
	return keep(r.m, x)
}

// align is what leading dimensions of codes are a multiple of: the int8 product copies 16 bytes at a time.
const align = 16

func (r *reader) matrix(mod arch.Module) matrix {
	out, in := mod.Out, mod.In
	if mod.Kind == arch.Table {
		out, in = in, out
	}
	w := lora.NewMatrix(out, in, lora.W8A16)
	name, piece := mod.Weight().Name, make([]float32, in)
	for i := 0; i < out && r.m.err == nil; i++ {
		if r.m.err = r.read(name, piece, i); r.m.err == nil {
			w.SetRows(i, piece)
		}
	}
	ld := (in + align - 1) / align * align
	codes := make([]int8, out*ld)
	for i := range out {
		copy(codes[i*ld:], w.Codes[i*in:(i+1)*in])
	}
	return matrix{out, in, ld, keep(r.m, codes), keep(r.m, w.Scale)}
}

func (r *reader) linear(role arch.Role, layer int) *linear {
	mod, ok := r.m.Config.Module(role, layer)
	if !ok {
		return nil
	}
	l := &linear{matrix: r.m.embedding}
	if !mod.Tied {
		l.matrix = r.matrix(mod)
	}
	if mod.Bias {
		l.bias = r.vector(mod.Name+".bias", mod.Out)
	}
	r.m.linears[mod.Name], r.m.names = l, append(r.m.names, mod.Name)
	return l
}

func (r *reader) norm(mod arch.Module) norm {
	n := norm{weight: r.vector(mod.Name+".weight", mod.Out), eps: float32(r.m.Config.Eps)}
	if mod.Kind == arch.LayerNorm {
		n.bias = r.vector(mod.Name+".bias", mod.Out)
	}
	return n
}

func (r *reader) block(i int) block {
	c := r.m.Config
	first, _ := c.Module(arch.AttentionNorm, i)
	b := block{first: r.norm(first), q: r.linear(arch.Query, i), k: r.linear(arch.Key, i), v: r.linear(arch.Value, i), o: r.linear(arch.Output, i)}
	if second, ok := c.Module(arch.MLPNorm, i); ok {
		b.second = r.norm(second)
	}
	b.gate, b.up, b.down = r.linear(arch.Gate, i), r.linear(arch.Up, i), r.linear(arch.Down, i)
	b.scale = float32(1 / math.Sqrt(float64(c.HeadDim)))
	return b
}

// Attach puts a low-rank update on the linear layer of that name and copies its factors to the device; gradients and moments start at 0. It
// returns an error if there is no such layer or the factors do not fit it.
func (m *Model) Attach(name string, u *lora.Update) error {
	l := m.linears[name]
	switch {
	case l == nil:
		return fmt.Errorf("cuda: there is no linear layer %q", name)
	case u.Rank < 1 || len(u.A) != u.Rank*l.in || len(u.B) != u.Rank*l.out || len(u.GradA) != len(u.A) || len(u.GradB) != len(u.B):
		return fmt.Errorf("cuda: %s: the factors do not fit a layer of %d×%d", name, l.out, l.in)
	}
	za, zb := make([]float32, len(u.A)), make([]float32, len(u.B))
	l.update = &update{host: u, a: keep(m, u.A), b: keep(m, u.B), ga: keep(m, za), gb: keep(m, zb), ma: keep(m, za), va: keep(m, za), mb: keep(m, zb), vb: keep(m, zb)}
	return m.err
}

// updates are those attached, in the order of the architecture.
func (m *Model) updates() (list []*update) {
	for _, n := range m.names {
		if u := m.linears[n].update; u != nil {
			list = append(list, u)
		}
	}
	return list
}

// factor is one of the tensors of an update, with what the optimiser needs.
type factor struct {
	data, grad, m, v cuda.Pointer
	host, hostGrad   []float32
}

func (u *update) factors() []factor {
	return []factor{{u.a, u.ga, u.ma, u.va, u.host.A, u.host.GradA}, {u.b, u.gb, u.mb, u.vb, u.host.B, u.host.GradB}}
}

// ZeroGrad forgets the gradients.
func (m *Model) ZeroGrad() error {
	for _, u := range m.updates() {
		for _, f := range u.factors() {
			if err := m.d.Fill(f.grad, 0, len(f.host)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Upload copies the factors of the updates to the device, as they were changed where they were attached from.
func (m *Model) Upload() error {
	for _, u := range m.updates() {
		for _, f := range u.factors() {
			if err := cuda.Write(m.d, f.data, f.host); err != nil {
				return err
			}
		}
	}
	return nil
}

// Download copies factors and gradients of the updates to where they were attached from.
func (m *Model) Download() error {
	for _, u := range m.updates() {
		for _, f := range u.factors() {
			if err := cuda.FromDevice(m.d, f.host, f.data); err != nil {
				return err
			}
			if err := cuda.FromDevice(m.d, f.hostGrad, f.grad); err != nil {
				return err
			}
		}
	}
	return nil
}

// Step updates all factors by AdamW. Gradients are multiplied by limit/norm where their global norm is above limit; 0 is no limit. It returns
// that norm. o.Clip is not read.
func (m *Model) Step(o cuda.AdamW, limit float64) (norm float64, err error) {
	sum := 0.0
	for _, u := range m.updates() {
		for _, f := range u.factors() {
			s, err := m.d.SumSquares(f.grad, len(f.host))
			if err != nil {
				return 0, err
			}
			sum += s
		}
	}
	norm, o.Clip = math.Sqrt(sum), 1
	if limit > 0 && norm > limit {
		o.Clip = limit / (norm + 1e-6) // as torch.nn.utils.clip_grad_norm_ has it
	}
	for _, u := range m.updates() {
		for _, f := range u.factors() {
			if err := m.d.AdamWStep(f.data, f.grad, f.m, f.v, len(f.host), o); err != nil {
				return 0, err
			}
		}
	}
	return norm, nil
}
