package model

import (
	"errors"
	"fmt"

	"plumbline/accel/cuda"
)

// Batch is rows of Time tokens each; Real is false at padding, nil: there is none. Positions count the real tokens of a row from 0.
type Batch struct {
	Rows, Time int
	IDs        []int
	Real       []bool
}

// Pass is a forward pass over a batch, with what its backward pass needs. Close gives its memory back.
type Pass struct {
	m       *Model
	d       *cuda.Context
	b       Batch
	adapted bool
	n       int // cells
	err     error
	memory  []cuda.Pointer

	real, position, cosine, sine cuda.Pointer
	kept                         []kept
	last, hidden, lastStats      cuda.Pointer
}

// kept is what a layer computed.
type kept struct {
	x, h, stats     cuda.Pointer // what the layer reads, its first norm
	q, k, v, a, lse cuda.Pointer // queries and keys after rotation; a is what attention gives
	mid, h2, stats2 cuda.Pointer // between attention and MLP; 0 where both stand side by side
	gate, up, inner cuda.Pointer
}

// floats allocates n numbers that live as long as the pass.
func (p *Pass) floats(n int) cuda.Pointer {
	if p.err != nil {
		return 0
	}
	q, err := cuda.NewBuffer[float32](p.d, n)
	p.own(q, err)
	return q
}

func (p *Pass) own(q cuda.Pointer, err error) {
	if p.err == nil {
		p.err = err
	}
	if err == nil && q != 0 {
		p.memory = append(p.memory, q)
	}
}

func upload[T cuda.Number](p *Pass, x []T) cuda.Pointer {
	if p.err != nil {
		return 0
	}
	q, err := cuda.ToDevice(p.d, x)
	p.own(q, err)
	return q
}

// do notes the error of a launch. After one, nothing more is launched: f is not called.
func (p *Pass) do(f func() error) {
	if p.err == nil {
		p.err = f()
	}
}

// Close frees the memory of the pass.
func (p *Pass) Close() error {
	errs := []error{p.err}
	for _, q := range p.memory {
		errs = append(errs, p.d.Free(q))
	}
	p.memory = nil
	return errors.Join(errs...)
}

// Forward computes the hidden states of a batch; the updates are left out unless adapted is set: the reference policy.
func (m *Model) Forward(b Batch, adapted bool) (*Pass, error) {
	p := &Pass{m: m, d: m.d, b: b, adapted: adapted, n: b.Rows * b.Time}
	if b.Rows < 1 || b.Time < 1 || len(b.IDs) != p.n || b.Real != nil && len(b.Real) != p.n {
		return nil, fmt.Errorf("cuda: %d ids and a mask of %d for %d rows of %d", len(b.IDs), len(b.Real), b.Rows, b.Time)
	}
	ids, positions, real := make([]int32, p.n), make([]int32, p.n), make([]uint8, p.n)
	for r := range b.Rows {
		at := 0
		for i := r * b.Time; i < (r+1)*b.Time; i++ {
			if b.IDs[i] < 0 || b.IDs[i] >= m.Config.Vocab {
				return nil, fmt.Errorf("cuda: row %d: id %d is not in a vocabulary of %d", r, b.IDs[i], m.Config.Vocab)
			}
			ids[i] = int32(b.IDs[i])
			if b.Real == nil || b.Real[i] {
				real[i], positions[i] = 1, int32(at)
				at++
			}
		}
	}
	every := make([]int, b.Time)
	for i := range every {
		every[i] = i
	}
	cos, sin := m.rope.Tables(every)
	p.real, p.position, p.cosine, p.sine = upload(p, real), upload(p, positions), upload(p, cos), upload(p, sin)
	x, c := p.floats(p.n*m.Config.Hidden), m.Config.Hidden
	tokens := upload(p, ids)
	p.do(func() error {
		return p.d.Embedding(m.embedding.codes, m.embedding.scale, 0, tokens, p.position, x, p.n, c, m.embedding.ld)
	})
	for i := range m.blocks {
		x = p.layer(&m.blocks[i], x)
	}
	p.last, p.hidden = x, p.floats(p.n*c)
	p.lastStats = p.normalise(p.hidden, x, m.final)
	if p.err != nil {
		return nil, p.Close()
	}
	return p, nil
}

// normalise stores the norm of x in y and returns what its backward pass needs.
func (p *Pass) normalise(y, x cuda.Pointer, w norm) (stats cuda.Pointer) {
	stats = p.floats(2 * p.n)
	p.do(func() error {
		if w.bias == 0 {
			return p.d.RMSNormForward(x, w.weight, y, stats, p.n, p.m.Config.Hidden, w.eps)
		}
		return p.d.LayerNormForward(x, w.weight, w.bias, y, stats, p.n, p.m.Config.Hidden, w.eps)
	})
	return stats
}

// normaliseBack adds to dx the gradient through a norm.
func (p *Pass) normaliseBack(dx, dy, x cuda.Pointer, w norm, stats cuda.Pointer) {
	p.do(func() error {
		if w.bias == 0 {
			return p.d.RMSNormBackward(x, w.weight, stats, dy, dx, p.n, p.m.Config.Hidden, true)
		}
		return p.d.LayerNormBackward(x, w.weight, stats, dy, dx, p.n, p.m.Config.Hidden, true)
	})
}

// forward computes y [n, out] = W·x + b + s·B·(A·x) of a layer.
func (p *Pass) forward(l *linear, x cuda.Pointer, n int) (y cuda.Pointer) {
	y = p.floats(n * l.out)
	p.do(func() error { return p.d.LinearForward(x, l.codes, l.scale, l.bias, y, n, l.out, l.in, l.ld, false) })
	if u := l.update; u != nil && p.adapted {
		r := u.host.Rank
		z := p.floats(n * r)
		p.do(func() error { return p.d.Gemm(x, u.a, z, n, r, l.in, false, true, 1, false) })
		p.do(func() error { return p.d.Gemm(z, u.b, y, n, l.out, r, false, true, u.host.Scale, true) })
	}
	return y
}

// backward stores in dx, or adds to it, the gradient by what a layer reads, and adds the gradients of its factors; x is what it read.
func (p *Pass) backward(l *linear, dx, dy, x cuda.Pointer, n int, add bool) {
	p.do(func() error { return p.d.LinearBackward(dy, l.codes, l.scale, dx, n, l.out, l.in, l.ld, add) })
	u := l.update
	if u == nil || !p.adapted {
		return
	}
	r, s := u.host.Rank, u.host.Scale
	z, dz := p.floats(n*r), p.floats(n*r)
	p.do(func() error { return p.d.Gemm(x, u.a, z, n, r, l.in, false, true, 1, false) })
	p.do(func() error { return p.d.Gemm(dy, z, u.gb, l.out, r, n, true, false, s, true) })
	p.do(func() error { return p.d.Gemm(dy, u.b, dz, n, r, l.out, false, false, s, false) })
	p.do(func() error { return p.d.Gemm(dz, x, u.ga, r, l.in, n, true, false, 1, true) })
	p.do(func() error { return p.d.Gemm(dz, u.a, dx, n, l.in, r, false, false, 1, true) })
}

// rotate turns heads by their positions, or back.
func (p *Pass) rotate(x cuda.Pointer, heads int, inverse bool) {
	c := p.m.Config
	p.do(func() error {
		return p.d.RoPE(x, p.cosine, p.sine, p.position, p.n, heads, c.HeadDim, c.Rope.Dim/2, c.Rope.Interleaved, inverse)
	})
}

func (p *Pass) attention(b *block) cuda.Attention {
	c := p.m.Config
	return cuda.Attention{Batch: p.b.Rows, TQ: p.b.Time, TK: p.b.Time, Heads: c.Heads, KV: c.KVHeads, Size: c.HeadDim, Causal: true, Scale: b.scale}
}

// layer computes a block: h = x + O·attention(norm₁ x) and y = h + MLP(norm₂ h), or y = x + O·attention(norm₁ x) + MLP(norm₁ x) of GPT-J.
func (p *Pass) layer(b *block, x cuda.Pointer) (y cuda.Pointer) {
	c := p.m.Config
	n, wide := p.n, p.n*c.Hidden
	k := kept{x: x, h: p.floats(wide), a: p.floats(n * c.Heads * c.HeadDim), lse: p.floats(n * c.Heads)}
	k.stats = p.normalise(k.h, x, b.first)
	k.q, k.k, k.v = p.forward(b.q, k.h, n), p.forward(b.k, k.h, n), p.forward(b.v, k.h, n)
	p.rotate(k.q, c.Heads, false)
	p.rotate(k.k, c.KVHeads, false)
	p.do(func() error { return p.d.AttentionForward(k.q, k.k, k.v, p.real, k.a, k.lse, p.attention(b)) })
	t := p.forward(b.o, k.a, n)
	rest, read := p.floats(wide), k.h
	p.do(func() error { return p.d.Sum(x, t, rest, wide) })
	if b.second.weight != 0 {
		k.mid, k.h2 = rest, p.floats(wide)
		k.stats2 = p.normalise(k.h2, rest, b.second)
		read = k.h2
	}
	k.up, k.inner = p.forward(b.up, read, n), p.floats(n*c.Inner)
	if b.gate != nil {
		k.gate = p.forward(b.gate, read, n)
		p.do(func() error { return p.d.SiLUMulForward(k.gate, k.up, k.inner, n*c.Inner) })
	} else {
		p.do(func() error { return p.d.GELUForward(k.up, k.inner, n*c.Inner) })
	}
	y = p.forward(b.down, k.inner, n)
	p.do(func() error { return p.d.Add(y, rest, 1, wide) })
	p.kept = append(p.kept, k)
	return y
}

// layerBack turns d, the gradient by what a block gives, into the gradient by what it reads.
func (p *Pass) layerBack(b *block, d cuda.Pointer, k kept) {
	c := p.m.Config
	n := p.n
	inner, dh := p.floats(n*c.Inner), p.floats(n*c.Hidden)
	read := k.h
	if k.mid != 0 {
		read = k.h2
	}
	p.backward(b.down, inner, d, k.inner, n, false)
	dup := p.floats(n * c.Inner)
	if b.gate != nil {
		dgate := p.floats(n * c.Inner)
		p.do(func() error { return p.d.SiLUMulBackward(k.gate, k.up, inner, dgate, dup, n*c.Inner) })
		p.backward(b.up, dh, dup, read, n, false)
		p.backward(b.gate, dh, dgate, read, n, true)
	} else {
		p.do(func() error { return p.d.GELUBackward(k.up, inner, dup, n*c.Inner) })
		p.backward(b.up, dh, dup, read, n, false)
	}
	beside := k.mid == 0 // attention reads the same norm, and dh goes on
	if !beside {
		p.normaliseBack(d, dh, k.mid, b.second, k.stats2)
	}
	qn, kn := n*c.Heads*c.HeadDim, n*c.KVHeads*c.HeadDim
	da, dq, dk, dv, delta := p.floats(qn), p.floats(qn), p.floats(kn), p.floats(kn), p.floats(n*c.Heads)
	p.backward(b.o, da, d, k.a, n, false)
	p.do(func() error {
		return p.d.AttentionBackward(k.q, k.k, k.v, p.real, k.a, k.lse, da, dq, dk, dv, delta, p.attention(b))
	})
	p.rotate(dq, c.Heads, true)
	p.rotate(dk, c.KVHeads, true)
	p.backward(b.q, dh, dq, k.h, n, beside)
	p.backward(b.k, dh, dk, k.h, n, true)
	p.backward(b.v, dh, dv, k.h, n, true)
	p.normaliseBack(d, dh, k.x, b.first, k.stats)
}
