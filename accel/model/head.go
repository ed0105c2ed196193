package model

import (
	"plumbline/accel/cpu"
	"plumbline/accel/f32"
)

// The logits of a head are computed for this many tokens and rows of the vocabulary at once. The second number is part of what the last bits
// depend on.
const (
	headTokens = 256
	headVocab  = 1024
)

// Scores is what a head says about tokens: x [N, C] are the hidden states before them.
type Scores struct {
	m       *Model
	x       []float32
	targets []int
	adapted bool
	heads   []f32.Head
	logits  []float32 // those that were kept, in the order of the chunks
	kept    int       // of how many tokens, the first ones
}

// keptLogits is how many logits a pass with [Everything] keeps at most for the way back: 256 MiB of them.
const keptLogits = 1 << 26

// Score computes log-probability and entropy of the targets after the states x [N, C] of [Pass.Hidden]. With [Everything], and a head
// that is not trained, logits stay for the way back, until the next Score: those of as many tokens, in blocks of 256, as take no more than
// 256 MiB. The others are never whole, and computed once more, with the same bits. It panics if the
// lengths do not fit or a target is not in the vocabulary.
func (m *Model) Score(x []float32, targets []int, adapted bool, keep Keep) *Scores {
	s := &Scores{m: m, x: x, targets: targets, adapted: adapted, heads: make([]f32.Head, len(targets))}
	if len(x) != len(targets)*m.Config.Hidden {
		panic("model: score: lengths do not fit")
	}
	for _, id := range targets {
		if id < 0 || id >= m.Config.Vocab {
			panic("model: score: a target outside the vocabulary")
		}
	}
	if keep == Everything && !m.head.Trains() {
		s.kept = min(len(targets), keptLogits/m.head.Out/headTokens*headTokens)
		s.logits = m.logits.take(s.kept * m.head.Out)
	}
	s.chunks(nil, func(logits []float32, lo, hi, first, width int) {
		rows(hi-lo, func(i int) { s.heads[lo+i].Add(logits[i*width:(i+1)*width], first, targets[lo+i]) })
	})
	return s
}

// rows runs f for n rows of logits.
func rows(n int, f func(i int)) {
	cpu.Split(n, 8, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			f(i)
		}
	})
}

// chunks calls f with the logits of the tokens [lo, hi) and the rows of the vocabulary from first on. With dx the layer is run backward
// on what f leaves in place of the logits; those that were kept are not computed again.
func (s *Scores) chunks(dx []float32, f func(logits []float32, lo, hi, first, width int)) {
	m, c := s.m, s.m.Config.Hidden
	logits := m.chunk.take(min(headTokens, len(s.targets)) * min(headVocab, m.head.Out))
	work := &m.headWork
	for lo := 0; lo < len(s.targets); lo += headTokens {
		hi := min(lo+headTokens, len(s.targets))
		x := s.x[lo*c : hi*c]
		for first := 0; first < m.head.Out; first += headVocab {
			part := m.head.Rows(first, min(first+headVocab, m.head.Out))
			if !s.adapted {
				part.Update = nil
			}
			z := logits[:(hi-lo)*part.Out]
			if lo < s.kept {
				z = s.logits[lo*m.head.Out+(hi-lo)*first:][:(hi-lo)*part.Out]
			}
			if lo >= s.kept || dx == nil {
				part.Forward(z, x, hi-lo, s.adapted, work)
			}
			f(z, lo, hi, first, part.Out)
			if dx != nil {
				part.Backward(dx[lo*c:hi*c], z, x, hi-lo, first > 0, work)
			}
		}
	}
}

// LogProbs returns the log-probabilities of the targets.
func (s *Scores) LogProbs() []float64 { return s.each((*f32.Head).LogProb) }

// Entropies returns the entropies of the distributions that the targets come from, in nats.
func (s *Scores) Entropies() []float64 { return s.each((*f32.Head).Entropy) }

func (s *Scores) each(of func(*f32.Head) float64) []float64 {
	x := make([]float64, len(s.heads))
	for i := range x {
		x[i] = of(&s.heads[i])
	}
	return x
}

// Backward returns the gradient by x of a loss with the derivatives dlp and dh by log-probabilities and entropies (nil: 0), and adds the
// gradients of the factors of the head. Rows without a slope are left out if the logits are computed once more. The scores are of no more use.
func (s *Scores) Backward(dlp, dh []float64) (dx []float32) {
	c := s.m.Config.Hidden
	slope := func(d []float64, i int) float64 {
		if d == nil {
			return 0
		}
		return d[i]
	}
	dx = make([]float32, len(s.x))
	if s.kept > 0 {
		s.chunks(dx, func(logits []float32, lo, hi, first, width int) {
			rows(hi-lo, func(i int) {
				row, k := logits[i*width:(i+1)*width], lo+i
				if slope(dlp, k) == 0 && slope(dh, k) == 0 {
					clear(row)
					return
				}
				s.heads[k].Slopes(row, first, s.targets[k], slope(dlp, k), slope(dh, k))
			})
		})
		s.logits, s.kept = nil, 0
		return dx
	}
	var at []int
	some := &Scores{m: s.m, adapted: s.adapted}
	for i := range s.targets {
		if slope(dlp, i) != 0 || slope(dh, i) != 0 {
			at = append(at, i)
			some.x, some.targets, some.heads = append(some.x, s.x[i*c:(i+1)*c]...), append(some.targets, s.targets[i]), append(some.heads, s.heads[i])
		}
	}
	d := make([]float32, len(some.x))
	some.chunks(d, func(logits []float32, lo, hi, first, width int) {
		rows(hi-lo, func(i int) {
			k := at[lo+i]
			some.heads[lo+i].Slopes(logits[i*width:(i+1)*width], first, some.targets[lo+i], slope(dlp, k), slope(dh, k))
		})
	})
	for i, k := range at {
		copy(dx[k*c:(k+1)*c], d[i*c:(i+1)*c])
	}
	return dx
}

// Gather returns the states of the tokens whose numbers are given, [len(at), C].
func (p *Pass) Gather(at []int) []float32 {
	c := p.m.Config.Hidden
	x := make([]float32, len(at)*c)
	for i, k := range at {
		copy(x[i*c:(i+1)*c], p.Hidden[k*c:(k+1)*c])
	}
	return x
}

// Backward adds to the updates the gradient of a loss with the derivatives dx [len(at), C] by the states of the tokens whose numbers are
// given, each at most once. The pass is of no more use. It panics unless the pass kept what it needs.
func (p *Pass) Backward(at []int, dx []float32) {
	m, c, n := p.m, p.m.Config.Hidden, p.t.Len()
	if p.keep == Nothing || !p.adapted || len(dx) != len(at)*c {
		panic("model: backward: the pass was not made for it")
	}
	given, d := m.arena.get(n*c), m.arena.get(n*c)
	clear(given)
	clear(d)
	for i, k := range at {
		copy(given[k*c:(k+1)*c], dx[i*c:(i+1)*c])
	}
	p.normaliseBack(d, given, p.last, m.final, p.mean, p.rstd)
	m.arena.put(given)
	lowest := m.lowest()
	for i := len(m.blocks) - 1; i >= lowest; i-- {
		x := p.inputs[i]
		var k *kept
		if p.keep == Everything {
			k, p.kept[i] = p.kept[i], &kept{}
		} else {
			var y []float32
			y, k = p.layer(i, x)
			m.arena.put(y)
		}
		p.layerBack(i, d, x, k, i == lowest)
		m.arena.put(x)
		p.inputs[i] = nil
	}
	m.arena.put(d)
	p.Close()
}

// lowest returns the first block with factors that are trained, below which nothing needs a gradient; their number if there is none.
func (m *Model) lowest() int {
	for i := range m.blocks {
		b := &m.blocks[i]
		if b.attentionTrains() || b.mlpTrains() || b.o.Trains() || b.down.Trains() {
			return i
		}
	}
	return len(m.blocks)
}
