package model

import "plumbline/accel/f32"

// kept is what the backward pass of a layer needs beside what the layer read.
type kept struct {
	mean1, mean2 []float64
	rstd1, rstd2 []float32
	q, k, v, a   []float32 // queries and keys after rotation; a is what attention gives
	mid          []float32 // the residual stream between attention and MLP, nil where both stand side by side
	gate, up     []float32 // what the layers of these names give
}

func (k *kept) release(a *arena) { a.put(k.q, k.k, k.v, k.a, k.mid, k.gate, k.up) }

// layer computes layer i, x [N, C] → y:
//
//	h = x + O·attention(norm₁ x),   y = h + Down·(act(Gate·norm₂ h)∘Up·norm₂ h)    Llama, Qwen2
//	h = x + O·attention(norm₁ x),   y = h + Down·act(Up·norm₂ h)                   GPT-2
//	                                y = x + O·attention(norm₁ x) + Down·act(Up·norm₁ x)    GPT-J
func (p *Pass) layer(i int, x []float32) (y []float32, k *kept) {
	m, b, ar := p.m, &p.m.blocks[i], &p.m.arena
	c, n := m.Config.Hidden, p.t.Len()
	k = &kept{}
	h, t := ar.get(n*c), ar.get(n*c)
	k.mean1, k.rstd1 = p.normalise(h, x, b.first)
	p.project(b, h, k)
	p.attend(i, b, k)
	b.o.Forward(t, k.a, n, p.adapted, &p.work)
	if b.second.weight != nil {
		k.mid = ar.get(n * c)
		add(k.mid, x, t)
		k.mean2, k.rstd2 = p.normalise(h, k.mid, b.second)
	} else {
		add(t, t, x)
	}
	k.up = ar.get(n * b.up.Out)
	b.up.Forward(k.up, h, n, p.adapted, &p.work)
	if b.gate != nil {
		k.gate = ar.get(n * b.gate.Out)
		b.gate.Forward(k.gate, h, n, p.adapted, &p.work)
	}
	inner := ar.get(n * b.up.Out)
	p.activate(inner, k)
	y = ar.get(n * c)
	b.down.Forward(y, inner, n, p.adapted, &p.work)
	if k.mid != nil {
		add(y, y, k.mid)
	} else {
		add(y, y, t)
	}
	ar.put(h, t, inner)
	return y, k
}

// project computes queries, keys and values of h, rotated.
func (p *Pass) project(b *block, h []float32, k *kept) {
	m, n, ar := p.m, p.t.Len(), &p.m.arena
	qw, kw := m.Config.Heads*m.Config.HeadDim, m.Config.KVHeads*m.Config.HeadDim
	k.q, k.k, k.v = ar.get(n*qw), ar.get(n*kw), ar.get(n*kw)
	if b.qkv != nil {
		all := ar.get(n * b.qkv.Out)
		b.qkv.Forward(all, h, n, p.adapted, &p.work)
		for i := range n {
			row := all[i*b.qkv.Out : (i+1)*b.qkv.Out]
			copy(k.q[i*qw:(i+1)*qw], row)
			copy(k.k[i*kw:(i+1)*kw], row[qw:])
			copy(k.v[i*kw:(i+1)*kw], row[qw+kw:])
		}
		ar.put(all)
	} else {
		b.q.Forward(k.q, h, n, p.adapted, &p.work)
		b.k.Forward(k.k, h, n, p.adapted, &p.work)
		b.v.Forward(k.v, h, n, p.adapted, &p.work)
	}
	p.rotate(k.q, m.Config.Heads, false)
	p.rotate(k.k, m.Config.KVHeads, false)
}

// attend lets every sequence attend to itself and to what the cache holds of it.
func (p *Pass) attend(i int, b *block, k *kept) {
	m, n := p.m, p.t.Len()
	qw, kw := m.Config.Heads*m.Config.HeadDim, m.Config.KVHeads*m.Config.HeadDim
	k.a = m.arena.get(n * qw)
	if p.cache != nil {
		for s, row := range p.rows {
			l := &p.cache.layers[i]
			l.keys[row] = append(l.keys[row], p.part(k.k, s, kw)...)
			l.values[row] = append(l.values[row], p.part(k.v, s, kw)...)
		}
	}
	p.sequences(b, func(a f32.Attention, s, kv int, w *f32.Scratch) {
		keys, values := p.part(k.k, s, kw), p.part(k.v, s, kw)
		if p.cache != nil {
			keys, values = p.cache.layers[i].keys[p.rows[s]], p.cache.layers[i].values[p.rows[s]]
		}
		a.Forward(p.part(k.a, s, qw), p.part(k.q, s, qw), keys, values, kv, w)
	})
}

// activate computes what the last layer of the MLP reads.
func (p *Pass) activate(inner []float32, k *kept) {
	elements(len(inner), func(lo, hi int) {
		if k.gate != nil {
			p.m.act.Gated(inner[lo:hi], k.gate[lo:hi], k.up[lo:hi])
		} else {
			p.m.act.Apply(inner[lo:hi], k.up[lo:hi])
		}
	})
}

// layerBack turns d [N, C], the gradient by what layer i gives, into that by what it reads, and adds the gradients of its factors. k is used
// up. With lowest set nothing below is trained, and d is of no more use.
func (p *Pass) layerBack(i int, d, x []float32, k *kept, lowest bool) {
	m, b, ar := p.m, &p.m.blocks[i], &p.m.arena
	c, n := m.Config.Hidden, p.t.Len()
	dh := ar.get(n * c)
	var h []float32 // what the layers after a norm read
	if b.mlpTrains() || b.second.weight == nil && b.attentionTrains() {
		h = ar.get(n * c)
		if k.mid != nil {
			p.normalise(h, k.mid, b.second)
		} else {
			p.normalise(h, x, b.first)
		}
	}
	inner := ar.get(n * b.up.Out)
	var read []float32
	if b.down.Trains() {
		read = ar.get(n * b.up.Out)
		p.activate(read, k)
	}
	b.down.Backward(inner, d, read, n, false, &p.work)
	ar.put(read)
	elements(len(inner), func(lo, hi int) {
		if k.gate != nil {
			m.act.GatedBackward(k.gate[lo:hi], k.up[lo:hi], inner[lo:hi], k.gate[lo:hi], k.up[lo:hi])
		} else {
			m.act.Backward(k.up[lo:hi], inner[lo:hi], k.up[lo:hi])
		}
	})
	ar.put(inner)
	b.up.Backward(dh, k.up, h, n, false, &p.work)
	if b.gate != nil {
		b.gate.Backward(dh, k.gate, h, n, true, &p.work)
	}
	beside := k.mid == nil // attention reads the same norm, and dh goes on
	if !beside {
		p.normaliseBack(d, dh, k.mid, b.second, k.mean2, k.rstd2)
		if b.attentionTrains() {
			if h == nil {
				h = ar.get(n * c)
			}
			p.normalise(h, x, b.first)
		}
	}
	p.attentionBack(b, dh, d, h, k, beside, lowest)
	if !lowest {
		p.normaliseBack(d, dh, x, b.first, k.mean1, k.rstd1)
	}
	ar.put(dh, h)
	k.release(ar)
}

// attentionBack stores in dh, or adds to it, the gradient by what queries, keys and values are projected from; d is that by what the
// projection after attention gives.
func (p *Pass) attentionBack(b *block, dh, d, h []float32, k *kept, accumulate, lowest bool) {
	m, ar, n := p.m, &p.m.arena, p.t.Len()
	qw, kw := m.Config.Heads*m.Config.HeadDim, m.Config.KVHeads*m.Config.HeadDim
	dq, dk, dv := ar.get(n*qw), ar.get(n*kw), ar.get(n*kw)
	b.o.Backward(dq, d, k.a, n, false, &p.work)
	elements(len(dk), func(lo, hi int) {
		clear(dk[lo:hi])
		clear(dv[lo:hi])
	})
	p.sequences(b, func(a f32.Attention, s, kv int, w *f32.Scratch) {
		da := p.part(dq, s, qw)
		a.Backward(da, p.part(dk, s, kw), p.part(dv, s, kw), da, p.part(k.q, s, qw), p.part(k.k, s, kw), p.part(k.v, s, kw), kv, w)
	})
	p.rotate(dq, m.Config.Heads, true)
	p.rotate(dk, m.Config.KVHeads, true)
	if lowest {
		dh = nil
	}
	if b.qkv != nil {
		all := ar.get(n * b.qkv.Out)
		for i := range n {
			row := all[i*b.qkv.Out : (i+1)*b.qkv.Out]
			copy(row, dq[i*qw:(i+1)*qw])
			copy(row[qw:], dk[i*kw:(i+1)*kw])
			copy(row[qw+kw:], dv[i*kw:(i+1)*kw])
		}
		b.qkv.Backward(dh, all, h, n, accumulate, &p.work)
		ar.put(all)
	} else {
		b.q.Backward(dh, dq, h, n, accumulate, &p.work)
		b.k.Backward(dh, dk, h, n, true, &p.work)
		b.v.Backward(dh, dv, h, n, true, &p.work)
	}
	ar.put(dq, dk, dv)
}

// attentionTrains reports whether a layer that reads the first norm has factors that are trained.
func (b *block) attentionTrains() bool {
	if b.qkv != nil {
		return b.qkv.Trains()
	}
	return b.q.Trains() || b.k.Trains() || b.v.Trains()
}

func (b *block) mlpTrains() bool { return b.up.Trains() || b.gate != nil && b.gate.Trains() }
