package model

import (
	"sync"

	"plumbline/accel/cpu"
	"plumbline/accel/f32"
	"plumbline/accel/lora"
)

// Keep says what a pass leaves for its backward pass.
type Keep int

const (
	Nothing    Keep = iota // there is no backward pass
	Layers                 // what the layers read; each is computed once more on the way back, with the same bits
	Everything             // what the layers compute, too
)

// Pass is a forward pass over sequences of tokens.
type Pass struct {
	// Hidden are the states of the tokens after the last norm, [N, C].
	Hidden []float32

	m        *Model
	t        Tokens
	adapted  bool
	keep     Keep
	cache    *Cache
	rows     []int // of the cache, by sequence
	cos, sin []float32
	inputs   [][]float32 // of the layers
	kept     []*kept     // by layer, with Everything
	last     []float32   // what the last norm reads
	mean     []float64
	rstd     []float32
	work     lora.Work
}

// Forward computes the hidden states of the tokens; the adapter is left out unless adapted is set: the reference policy. The tokens must be
// valid, see [Model.Check].
func (m *Model) Forward(t Tokens, adapted bool, keep Keep) *Pass {
	p := &Pass{m: m, t: t, adapted: adapted, keep: keep}
	p.run()
	return p
}

func (p *Pass) run() {
	m, c := p.m, p.m.Config.Hidden
	n := p.t.Len()
	m.arena.begin(n)
	if m.rope.Dim > 0 {
		p.cos, p.sin = m.rope.Tables(p.t.Positions)
	}
	x := m.arena.get(n * c)
	split(n, c, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row := x[i*c : (i+1)*c]
			m.embedding.Row(row, p.t.IDs[i])
			if m.places != nil {
				at := p.t.Positions[i] * c
				for j, v := range m.places[at : at+c] {
					row[j] += v
				}
			}
		}
	})
	for i := range m.blocks {
		y, k := p.layer(i, x)
		switch p.keep {
		case Nothing:
			m.arena.put(x)
			k.release(&m.arena)
		case Layers:
			p.inputs = append(p.inputs, x)
			k.release(&m.arena)
		default:
			p.inputs, p.kept = append(p.inputs, x), append(p.kept, k)
		}
		x = y
	}
	p.Hidden = m.arena.get(n * c)
	p.mean, p.rstd = p.normalise(p.Hidden, x, m.final)
	if p.last = x; p.keep == Nothing {
		m.arena.put(x)
		p.last = nil
	}
}

// Close gives the memory of the pass back to the model: the next pass over as many tokens takes it. The pass is of no more use.
func (p *Pass) Close() {
	a := &p.m.arena
	a.put(p.Hidden, p.last)
	a.put(p.inputs...)
	for _, k := range p.kept {
		k.release(a)
	}
	*p = Pass{}
}

// split runs f over ranges of n rows of c numbers, of a size that depends on c alone.
func split(n, c int, f func(lo, hi int)) { cpu.Split(n, max(1, (1<<14)/c), f) }

// normalise stores the norm of x in y and returns what its backward pass needs.
func (p *Pass) normalise(y, x []float32, w norm) (mean []float64, rstd []float32) {
	c := len(w.weight)
	n := len(x) / c
	rstd = make([]float32, n)
	if w.bias != nil {
		mean = make([]float64, n)
	}
	split(n, c, func(lo, hi int) {
		if w.bias == nil {
			f32.RMSNorm(y[lo*c:hi*c], x[lo*c:hi*c], w.weight, w.eps, rstd[lo:hi])
		} else {
			f32.LayerNorm(y[lo*c:hi*c], x[lo*c:hi*c], w.weight, w.bias, w.eps, mean[lo:hi], rstd[lo:hi])
		}
	})
	return mean, rstd
}

// normaliseBack adds to dx the gradient through a norm.
func (p *Pass) normaliseBack(dx, dy, x []float32, w norm, mean []float64, rstd []float32) {
	c := len(w.weight)
	split(len(x)/c, c, func(lo, hi int) {
		if w.bias == nil {
			f32.RMSNormBackward(dx[lo*c:hi*c], dy[lo*c:hi*c], x[lo*c:hi*c], w.weight, rstd[lo:hi])
		} else {
			f32.LayerNormBackward(dx[lo*c:hi*c], dy[lo*c:hi*c], x[lo*c:hi*c], w.weight, mean[lo:hi], rstd[lo:hi])
		}
	})
}

// rotate turns heads by their positions, or back.
func (p *Pass) rotate(x []float32, heads int, inverse bool) {
	if p.m.rope.Dim == 0 {
		return
	}
	d, half := p.m.Config.HeadDim, p.m.rope.Dim/2
	split(p.t.Len(), heads*d, func(lo, hi int) {
		p.m.rope.Apply(x[lo*heads*d:hi*heads*d], heads, d, p.cos[lo*half:hi*half], p.sin[lo*half:hi*half], inverse)
	})
}

var scratches = sync.Pool{New: func() any { return new(f32.Scratch) }}

// sequences runs f for every sequence and key-value head.
func (p *Pass) sequences(b *block, f func(a f32.Attention, s, kv int, w *f32.Scratch)) {
	c := p.m.Config
	a := f32.Attention{Heads: c.Heads, KVHeads: c.KVHeads, Dim: c.HeadDim, Scale: b.scale, Causal: true, Window: b.window}
	cpu.Run((len(p.t.Starts)-1)*c.KVHeads, func(task int) {
		w := scratches.Get().(*f32.Scratch)
		f(a, task/c.KVHeads, task%c.KVHeads, w)
		scratches.Put(w)
	})
}

// part returns the rows of a sequence of x, whose rows are width wide.
func (p *Pass) part(x []float32, s, width int) []float32 {
	return x[p.t.Starts[s]*width : p.t.Starts[s+1]*width]
}

// elements runs f over ranges of n numbers.
func elements(n int, f func(lo, hi int)) { cpu.Split(n, 1<<13, f) }

// add stores x + y in dst.
func add(dst, x, y []float32) {
	elements(len(dst), func(lo, hi int) { f32.Add(dst[lo:hi], x[lo:hi], y[lo:hi]) })
}
