package bind

import (
	"context"
	"errors"
	"math"

	"plumbline/internal/memory"
	"plumbline/internal/rng"
	"plumbline/internal/train"
	"plumbline/reference/ad"
	"plumbline/reference/model"
	"plumbline/reference/rl"
	"plumbline/reference/sampling"
)

// distribution stores the probabilities that token number at of a response is drawn from in p.
func distribution(p, logits []float64, s train.Sampling, at, eos int) error {
	copy(p, logits)
	if at < s.MinNew {
		p[eos] = math.Inf(-1)
	}
	o := sampling.Options{Temperature: s.Temperature, TopK: s.TopK, TopP: s.TopP}
	if s.Greedy {
		o = sampling.Options{}
	}
	if !sampling.Distribution(p, p, o) {
		return errors.New("the logits of the next token are not finite: training stops, the last checkpoint is good")
	}
	return nil
}

// draws are the responses of one call of [train.Policy.Sample] so far.
type draws struct {
	train.Sampling
	stream     rng.Stream
	first, eos int
	ids        [][]int
	logp       [][]float64
	done       []bool
	probs      []float64
	drawn      train.Drawn
}

func newDraws(rows, vocab int, s train.Sampling, stream rng.Stream, first, eos int) *draws {
	return &draws{Sampling: s, stream: stream, first: first, eos: eos, ids: make([][]int, rows), logp: make([][]float64, rows), done: make([]bool, rows),
		probs: make([]float64, vocab), drawn: train.Drawn{Open: rows}}
}

// more reports whether another token is to be drawn.
func (d *draws) more() bool { return d.drawn.Position < d.MaxNew && d.drawn.Open > 0 }

// draw draws the next token of row i from its logits.
func (d *draws) draw(i int, logits []float64) (int, error) {
	at := len(d.ids[i])
	if err := distribution(d.probs, logits, d.Sampling, at, d.eos); err != nil {
		return 0, err
	}
	next := sampling.Draw(d.probs, train.Uniform(d.stream, d.first+i, at))
	lp := math.Log(d.probs[next])
	if d.Raw {
		lp = rl.LogProbs(nil, logits, []int{next}, len(logits), rl.LogProbOptions{})[0]
	}
	d.ids[i], d.logp[i] = append(d.ids[i], next), append(d.logp[i], lp)
	d.drawn.Tokens++
	if next == d.eos {
		d.done[i] = true
		d.drawn.Open--
	}
	return next, nil
}

// step ends the round in which every open row has got a token.
func (d *draws) step(progress func(train.Drawn)) {
	d.drawn.Position++
	if progress != nil {
		progress(d.drawn)
	}
}

// Sample implements [train.Policy], with a cache of keys and values.
func (l *Language) Sample(ctx context.Context, prompts train.Batch, s train.Sampling, stream rng.Stream, first, eos int, progress func(train.Drawn)) (ids [][]int, logp [][]float64, err error) {
	if err := within(l.config.MaxPositions, prompts.Rows, prompts.Prompt, prompts.Real, s.MaxNew); err != nil {
		return nil, nil, err
	}
	if err := roomFor(l.config, memory.Pass{Rows: prompts.Rows, Time: prompts.Prompt, Keys: prompts.Prompt, Scored: 1}); err != nil {
		return nil, nil, err
	}
	p := l.on(l.model, l.options.Adapter, false)
	rows, vocab := prompts.Rows, l.config.Vocab
	d := newDraws(rows, vocab, s, stream, first, eos)
	cache := &model.Cache{}
	in := model.Input{Batch: rows, Time: prompts.Prompt, IDs: prompts.IDs, Real: prompts.Real, Cache: cache}
	for d.more() {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		hidden := p.Forward(in).Hidden
		logits := p.Logits(ad.Slice(hidden, 1, in.Time-1, in.Time)).Data()
		next := make([]int, rows)
		for i := range next {
			next[i] = eos
			if !d.done[i] {
				if next[i], err = d.draw(i, logits[i*vocab:(i+1)*vocab]); err != nil {
					return nil, nil, err
				}
			}
		}
		d.step(progress)
		in = model.Input{Batch: rows, Time: 1, IDs: next, Cache: cache}
	}
	return d.ids, d.logp, nil
}
