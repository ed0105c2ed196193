package bind_test

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/bind"
	"plumbline/internal/rng"
	"plumbline/internal/train"
)

// policyBounds are what a policy is held to where its numbers need not be equal bit by bit.
type policyBounds struct {
	padding  float64 // of log-probabilities behind more padding
	sampled  float64 // between the log-probabilities that Sample and Score report of a token
	gradient float64 // between a slope and its central difference with step h, over their size
	h        float64
}

// policyLaws holds a policy to what [train.Policy] says of all of them. open returns a new one each time, in the same state.
func policyLaws(t *testing.T, open func() train.Policy, vocab, eos int, bound policyBounds) {
	words := rng.New(11, 0)
	ids := func(at, n int) []int {
		x := make([]int, n)
		for i := range x {
			x[i] = int(words.Word(uint64(100*at+i)) % uint64(vocab))
		}
		return x
	}
	var pairs []pair
	for i := range 4 {
		pairs = append(pairs, pair{ids(2*i, 2+i), ids(2*i+1, 5-i)})
	}
	score := func(t *testing.T, p train.Policy, b train.Batch) train.Scores {
		s, err := p.Score(b)
		require.NoError(t, err)
		return s
	}
	rows := func(b train.Batch, from, n int) train.Batch {
		width := b.Prompt + b.Response
		return train.Batch{Rows: n, Prompt: b.Prompt, Response: b.Response, IDs: b.IDs[from*width : (from+n)*width], Real: b.Real[from*width : (from+n)*width]}
	}
	data := func(p train.Policy, grad bool) (all []float64) {
		for _, x := range p.Params() {
			if grad {
				all = append(all, x.Grad...)
			} else {
				all = append(all, x.Data...)
			}
		}
		return all
	}
	batch := batchOf(pairs, 0)
	prompts := rows(batch, 0, 4)
	prompts.Response, prompts.IDs, prompts.Real = 0, nil, nil
	for i := range 4 {
		at := i * (batch.Prompt + batch.Response)
		prompts.IDs, prompts.Real = append(prompts.IDs, batch.IDs[at:at+batch.Prompt]...), append(prompts.Real, batch.Real[at:at+batch.Prompt]...)
	}
	how := train.Sampling{Temperature: 1, TopP: 1, MaxNew: 7, Raw: true}
	draw := func(t *testing.T, p train.Policy, prompts train.Batch, how train.Sampling, first int) ([][]int, [][]float64) {
		ids, logp, err := p.Sample(context.Background(), prompts, how, rng.New(5, 1), first, eos, nil)
		require.NoError(t, err)
		require.Len(t, ids, prompts.Rows)
		return ids, logp
	}

	t.Run("scores", func(t *testing.T) {
		p := open()
		want := score(t, p, batch)
		require.Equal(t, want, score(t, p, batch), "twice")
		require.NoError(t, p.Accumulate(batch, func(now train.Scores) (train.Slopes, error) {
			require.Equal(t, want, now, "of an update")
			return train.Slopes{}, nil
		}))
		require.Zero(t, slices.Max(data(p, true)))
		refused := errors.New("refused")
		require.ErrorIs(t, p.Accumulate(batch, func(train.Scores) (train.Slopes, error) { return train.Slopes{LogProbs: want.Entropy}, refused }), refused)
		require.Zero(t, slices.Max(data(p, true)), "an error adds nothing")
		for i := range 4 {
			alone := score(t, p, rows(batch, i, 1))
			require.Equal(t, want.LogProbs[i*batch.Response:(i+1)*batch.Response], alone.LogProbs, "row %d alone", i)
		}
		more := batchOf(pairs, 3)
		padded := score(t, p, more)
		for i, x := range pairs {
			for j := range x.response {
				a, b := want.LogProbs[i*batch.Response+j], padded.LogProbs[i*more.Response+j]
				require.LessOrEqual(t, a, 0.)
				require.True(t, math.Abs(a-b) <= bound.padding, "row %d, token %d: %g, behind padding %g", i, j, a, b)
			}
		}
	})
	t.Run("samples", func(t *testing.T) {
		p := open()
		before := data(p, false)
		got, logp := draw(t, p, prompts, how, 40)
		again, logpAgain := draw(t, p, prompts, how, 40)
		require.Equal(t, got, again)
		require.Equal(t, logp, logpAgain)
		for i := range 4 {
			one := train.Batch{Rows: 1, Prompt: prompts.Prompt, IDs: prompts.IDs[i*prompts.Prompt : (i+1)*prompts.Prompt], Real: prompts.Real[i*prompts.Prompt : (i+1)*prompts.Prompt]}
			alone, lp := draw(t, p, one, how, 40+i)
			require.Equal(t, got[i], alone[0], "row %d alone", i)
			require.Equal(t, logp[i], lp[0])
			end := slices.Index(got[i], eos)
			require.True(t, end == len(got[i])-1 || end < 0 && len(got[i]) == how.MaxNew, "%v ends with the end or the length", got[i])
			s := score(t, p, batchOf([]pair{{realIDs(one), got[i]}}, 0))
			for j := range got[i] {
				require.True(t, math.Abs(s.LogProbs[j]-logp[i][j]) <= bound.sampled, "row %d, token %d: %g when drawn, %g when scored", i, j, logp[i][j], s.LogProbs[j])
			}
		}
		require.Equal(t, before, data(p, false))
	})
	t.Run("the number decides the token", func(t *testing.T) {
		p := open()
		x := realIDs(rows(prompts, 3, 1))
		var all []pair
		for id := range vocab {
			all = append(all, pair{x, []int{id}})
		}
		lp := score(t, p, batchOf(all, 0)).LogProbs
		for first := range 40 {
			got, _ := draw(t, p, train.Batch{Rows: 1, Prompt: len(x), IDs: x, Real: slices.Repeat([]bool{true}, len(x))}, train.Sampling{Temperature: 1, TopP: 1, MaxNew: 1}, first)
			u, below, upTo := train.Uniform(rng.New(5, 1), first, 0), 0.0, 0.0
			for id := range got[0][0] + 1 {
				below, upTo = upTo, upTo+math.Exp(lp[id])
			}
			require.True(t, below <= u+float64(vocab)*bound.sampled && u < upTo+float64(vocab)*bound.sampled, "sample %d: u = %g, token %d of [%g, %g)", first, u, got[0][0], below, upTo)
		}
		greedy, _ := draw(t, p, rows(prompts, 3, 1), train.Sampling{Greedy: true, MaxNew: 1}, 0)
		require.GreaterOrEqual(t, lp[greedy[0][0]]+bound.sampled, slices.Max(lp))
		short := train.Sampling{Temperature: 1, TopP: 1, MaxNew: 6, MinNew: 6}
		got, _ := draw(t, p, prompts, short, 0)
		for _, r := range got {
			require.Len(t, r, 6)
			require.NotContains(t, r, eos)
		}
		// Of tokens that are as likely as each other, the end is among so many, but not before its time.
		many := train.Batch{Rows: 4 * vocab, Prompt: len(x)}
		for range many.Rows {
			many.IDs, many.Real = append(many.IDs, x...), append(many.Real, slices.Repeat([]bool{true}, len(x))...)
		}
		for least, want := range []bool{true, false} {
			got, _ := draw(t, p, many, train.Sampling{Temperature: 1e6, TopP: 1, MinNew: least, MaxNew: 1}, 1000)
			require.Equal(t, want, slices.ContainsFunc(got, func(r []int) bool { return r[0] == eos }), "min_new %d", least)
		}
	})
	t.Run("a call can be stopped", func(t *testing.T) {
		p := open()
		before := data(p, false)
		ctx, cancel := context.WithCancel(context.Background())
		calls, last := 0, train.Drawn{}
		_, _, err := p.Sample(ctx, prompts, train.Sampling{Temperature: 1, TopP: 1, MaxNew: 50, MinNew: 50}, rng.New(5, 1), 0, eos, func(d train.Drawn) {
			require.GreaterOrEqual(t, d.Tokens, last.Tokens)
			require.LessOrEqual(t, d.Tokens, 4*d.Position)
			last = d
			if calls++; calls == 3 {
				cancel()
			}
		})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 3, calls, "no token after that")
		require.Equal(t, before, data(p, false))
		all, _, err := p.Sample(context.Background(), prompts, how, rng.New(5, 1), 0, eos, func(d train.Drawn) { last = d })
		require.NoError(t, err)
		n := 0
		for _, r := range all {
			n += len(r)
		}
		require.Equal(t, n, last.Tokens)
		require.LessOrEqual(t, last.Open, 4)
	})
	t.Run("gradient", func(t *testing.T) {
		p := open()
		for k, x := range p.Params() { // B of zeros has no gradient for A
			for i := range x.Data {
				x.Data[i] = float64(float32(x.Data[i] + .02*rng.New(3, uint64(k)).Normal(uint64(i))))
			}
		}
		weigh := rng.New(4, 0)
		loss := func() (sum float64) {
			s := score(t, p, batch)
			for i, x := range pairs {
				for j := range x.response {
					at := i*batch.Response + j
					sum += weigh.Normal(uint64(at))*s.LogProbs[at] + .3*s.Entropy[at]
				}
			}
			return sum
		}
		require.NoError(t, p.Accumulate(batch, func(s train.Scores) (train.Slopes, error) {
			d := train.Slopes{LogProbs: make([]float64, len(s.LogProbs)), Entropy: make([]float64, len(s.LogProbs))}
			for i, x := range pairs {
				for j := range x.response {
					at := i*batch.Response + j
					d.LogProbs[at], d.Entropy[at] = weigh.Normal(uint64(at)), .3
				}
			}
			return d, nil
		}))
		for k, x := range p.Params() {
			move, slope := make([]float64, len(x.Data)), 0.0
			for i, g := range x.Grad {
				move[i] = float64(float32(bound.h * rng.New(8, uint64(k)).Normal(uint64(i))))
				slope += g * move[i]
			}
			kept := slices.Clone(x.Data)
			var side [2]float64
			for s, sign := range []float64{1, -1} {
				for i := range kept {
					x.Data[i] = kept[i] + sign*move[i]
				}
				side[s] = loss()
			}
			copy(x.Data, kept)
			got := (side[0] - side[1]) / 2
			size := 0.0
			for i, g := range x.Grad {
				size = math.Hypot(size, g*move[i])
			}
			require.True(t, math.Abs(got-slope) <= bound.gradient*(size+bound.h), "%s: the slope is %g, the difference %g, terms of size %g", x.Name, slope, got, size)
		}
	})
	t.Run("checkpoint", func(t *testing.T) {
		p := open()
		for _, x := range p.Params() {
			for i := range x.Data {
				x.Data[i] = float64(float32(x.Data[i] + .01*float64(i%7)))
			}
		}
		want := score(t, p, batch)
		files, err := p.Files()
		require.NoError(t, err)
		dir := t.TempDir()
		for _, f := range files {
			w, err := os.Create(filepath.Join(dir, f.Name))
			require.NoError(t, err)
			require.NoError(t, f.Write(io.Writer(w)))
			require.NoError(t, w.Close())
		}
		q := open()
		require.NoError(t, q.Restore(dir))
		require.Equal(t, data(p, false), data(q, false))
		require.Equal(t, want, score(t, q, batch))
		require.Equal(t, p.Variant(), q.Variant())
		require.NotEmpty(t, p.Variant())
		frozen, err := open().Reference(batch)
		require.NoError(t, err)
		now, err := q.Reference(batch)
		require.NoError(t, err)
		require.Equal(t, frozen, now, "the frozen model does not move")
	})
}

// realIDs are those of the only row of a batch that are no padding.
func realIDs(b train.Batch) (ids []int) {
	for i, id := range b.IDs {
		if b.Real[i] {
			ids = append(ids, id)
		}
	}
	return ids
}

// The policies of the reference, in float64. Behind other padding a sum may have another order: fewer than 2¹⁰ terms of a few units, in
// fewer than 100 sums one after another. A central difference of step h misses h² of a third derivative and 2⁻⁵²/h of the sums.
func TestReferencePolicyLaws(t *testing.T) {
	bound := policyBounds{padding: 100 * 0x1p-42, sampled: 100 * 0x1p-42, gradient: 1e-4, h: 1e-5}
	for name, o := range map[string]bind.Options{"all weights": {}, "value head": {ValueHead: true}, "adapter": {PEFT: bind.AdapterConfig(bind.TinyGPTJ, train.LoRA{R: 2, Alpha: 4, Targets: []string{"q_proj", "fc_in"}})},
		"adapter on int8": {Int8: true, PEFT: bind.AdapterConfig(bind.TinyGPTJ, train.LoRA{R: 2, Alpha: 4, Targets: []string{"q_proj", "fc_in"}})}} {
		t.Run(name, func(t *testing.T) {
			open := func() train.Policy {
				m, extra, err := bind.Open(bind.TinyGPTJ, 1)
				require.NoError(t, err)
				o := o
				o.Extra, o.Seed = extra, 3
				if o.PEFT.R > 0 {
					o.Adapter, err = bind.NewAdapter(m.Base.Config, o.PEFT.R, o.PEFT.Alpha, o.PEFT.Targets.List, 1)
					require.NoError(t, err)
				}
				p, err := bind.NewLanguage(m.Base, o)
				require.NoError(t, err)
				return p
			}
			policyLaws(t, open, 257, 256, bound)
		})
	}
}
