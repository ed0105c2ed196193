package model

import (
	"fmt"

	"plumbline/accel/cuda"
)

// Chunk is how many tokens have logits at a time.
const Chunk = 128

// Scores are the log-probabilities and entropies of tokens, with what their gradient needs.
type Scores struct {
	LogProbs, Entropies []float32

	p           *Pass
	at          []int // cells whose states predict
	targets     []int32
	temperature float32
}

// Score computes, for the states of the cells at, the log-probability of one token each and the entropy of the distribution, at a temperature.
// Each cell may stand once.
func (p *Pass) Score(at, targets []int, temperature float32) (*Scores, error) {
	s := &Scores{LogProbs: make([]float32, len(at)), Entropies: make([]float32, len(at)), p: p, at: at, temperature: temperature}
	if len(targets) != len(at) || !(temperature > 0) {
		return nil, fmt.Errorf("cuda: %d targets for %d states at temperature %v", len(targets), len(at), temperature)
	}
	seen := map[int]bool{}
	for i, cell := range at {
		if cell < 0 || cell >= p.n || seen[cell] || targets[i] < 0 || targets[i] >= p.m.Config.Vocab {
			return nil, fmt.Errorf("cuda: cell %d of %d (each may stand once), target %d of %d", cell, p.n, targets[i], p.m.Config.Vocab)
		}
		seen[cell] = true
		s.targets = append(s.targets, int32(targets[i]))
	}
	return s, s.chunks(func(c *chunk) {
		c.work.do(func() error { return cuda.FromDevice(c.work.d, s.LogProbs[c.lo:c.hi], c.logp) })
		c.work.do(func() error { return cuda.FromDevice(c.work.d, s.Entropies[c.lo:c.hi], c.entropy) })
	})
}

// chunk is the logits of some of the tokens.
type chunk struct {
	lo, hi                                   int
	work                                     *Pass // owns the memory of the chunk
	rows, x, logits, ids, logp, entropy, lse cuda.Pointer
}

// chunks computes the logits of Chunk tokens at a time, what follows from them, and calls f.
func (s *Scores) chunks(f func(c *chunk)) error {
	m, hidden := s.p.m, s.p.m.Config.Hidden
	for lo := 0; lo < len(s.at); lo += Chunk {
		c := &chunk{lo: lo, hi: min(lo+Chunk, len(s.at)), work: &Pass{m: m, d: m.d, adapted: s.p.adapted}}
		n := c.hi - c.lo
		rows := make([]int32, n)
		for i := range rows {
			rows[i] = int32(s.at[lo+i])
		}
		w := c.work
		c.rows, c.ids, c.x = upload(w, rows), upload(w, s.targets[c.lo:c.hi]), w.floats(n*hidden)
		w.do(func() error { return w.d.Gather(s.p.hidden, c.rows, c.x, n, hidden) })
		c.logits = w.forward(m.head, c.x, n)
		c.logp, c.entropy, c.lse = w.floats(n), w.floats(n), w.floats(n)
		w.do(func() error {
			return w.d.HeadForward(c.logits, c.ids, c.logp, c.entropy, c.lse, n, m.head.out, s.temperature)
		})
		if w.err == nil {
			f(c)
		}
		if err := w.Close(); err != nil {
			return err
		}
	}
	return nil
}

// Hidden returns the states of cells after the last norm, [len(at), C].
func (p *Pass) Hidden(at []int) ([]float32, error) {
	c := p.m.Config.Hidden
	all := make([]float32, p.n*c)
	if err := cuda.FromDevice(p.d, all, p.hidden); err != nil {
		return nil, err
	}
	x := make([]float32, 0, len(at)*c)
	for _, cell := range at {
		x = append(x, all[cell*c:(cell+1)*c]...)
	}
	return x, nil
}

// Logits returns the logits after the cells at, [len(at), V].
func (p *Pass) Logits(at []int) ([]float32, error) {
	m, w := p.m, &Pass{m: p.m, d: p.d, adapted: p.adapted}
	rows := make([]int32, len(at))
	for i, cell := range at {
		if cell < 0 || cell >= p.n {
			return nil, fmt.Errorf("cuda: cell %d of %d", cell, p.n)
		}
		rows[i] = int32(cell)
	}
	x, list := w.floats(len(at)*m.Config.Hidden), upload(w, rows)
	w.do(func() error { return w.d.Gather(p.hidden, list, x, len(at), m.Config.Hidden) })
	y := w.forward(m.head, x, len(at))
	logits := make([]float32, len(at)*m.head.out)
	w.do(func() error { return cuda.FromDevice(w.d, logits, y) })
	return logits, w.Close()
}

// Backward adds to the gradients of the updates those of a loss with the derivatives dlogp and dentropy [len(at)] by the scores, and extra
// [len(at), C] by the states themselves, as of a value head; dentropy and extra may be nil. The pass is of no more use.
func (s *Scores) Backward(dlogp, dentropy, extra []float32) error {
	p, m, c := s.p, s.p.m, s.p.m.Config.Hidden
	if len(dlogp) != len(s.at) || dentropy != nil && len(dentropy) != len(s.at) || extra != nil && len(extra) != len(s.at)*c {
		return fmt.Errorf("cuda: %d, %d and %d slopes for %d scores", len(dlogp), len(dentropy), len(extra), len(s.at))
	}
	given := p.floats(p.n * c)
	p.do(func() error { return p.d.Fill(given, 0, p.n*c) })
	if p.err != nil {
		return p.err
	}
	err := s.chunks(func(k *chunk) {
		w, n := k.work, k.hi-k.lo
		slopes, dx := upload(w, dlogp[k.lo:k.hi]), w.floats(n*c)
		var de cuda.Pointer
		if dentropy != nil {
			de = upload(w, dentropy[k.lo:k.hi])
		}
		w.do(func() error {
			return w.d.HeadBackward(k.logits, k.ids, k.lse, k.entropy, slopes, de, n, m.head.out, s.temperature)
		})
		w.backward(m.head, dx, k.logits, k.x, n, false)
		if extra != nil {
			more := upload(w, extra[k.lo*c:k.hi*c])
			w.do(func() error { return w.d.Add(dx, more, 1, n*c) })
		}
		w.do(func() error { return w.d.Scatter(dx, k.rows, given, n, c) })
	})
	if err != nil {
		return err
	}
	d := p.floats(p.n * c)
	p.do(func() error { return p.d.Fill(d, 0, p.n*c) })
	p.normaliseBack(d, given, p.last, m.final, p.lastStats)
	for i := len(m.blocks) - 1; i >= 0; i-- {
		p.layerBack(&m.blocks[i], d, p.kept[i])
	}
	return p.err
}
