package train

import (
	"errors"
	"math"

	"plumbline/internal/rng"
	"plumbline/reference/rl"
	"plumbline/reference/sampling"
)

// Sampling says how the next token is drawn from logits, in the order of transformers@5.23.0: the end is suppressed, temperature,
// top-k, top-p.
type Sampling struct {
	Temperature    float64 // > 0
	TopK           int     // 0: off
	TopP           float64 // 1: off
	MinNew, MaxNew int     // tokens of a response
	Greedy         bool    // the likeliest token of all
	Raw            bool    // the log-probabilities that are reported are those of the logits as they are, not of what is drawn from
}

// distribution stores the probabilities that token number at is drawn from in p.
func (s Sampling) distribution(p, logits []float64, at, eos int) error {
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

// maxTokens bounds the tokens of a response, so that every sample has random numbers of its own.
const maxTokens = 1 << 16

// sample draws a response for every prompt, up to and with the first eos. Row i uses the random numbers of sample first+i, so what
// it gets does not depend on its neighbours. gen holds the log-probabilities under the distribution that was drawn from, or with Raw under
// that of the logits.
func sample(p Policy, prompts Batch, s Sampling, eos int, stream rng.Stream, first int) (responses [][]int, gen [][]float64, err error) {
	responses, gen = make([][]int, prompts.Rows), make([][]float64, prompts.Rows)
	done := make([]bool, prompts.Rows)
	at := 0
	var probs []float64
	p.Generate(prompts, func(logits []float64) []int {
		vocab := len(logits) / prompts.Rows
		if probs == nil {
			probs = make([]float64, vocab)
		}
		next := make([]int, prompts.Rows)
		left := false
		for i := range next {
			next[i] = eos
			if done[i] {
				continue
			}
			if err = s.distribution(probs, logits[i*vocab:(i+1)*vocab], at, eos); err != nil {
				return nil
			}
			next[i] = sampling.Draw(probs, stream.Uniform(uint64(first+i)*maxTokens+uint64(at)))
			responses[i] = append(responses[i], next[i])
			lp := math.Log(probs[next[i]])
			if s.Raw {
				lp = rl.LogProbs(nil, logits[i*vocab:(i+1)*vocab], next[i:i+1], vocab, rl.LogProbOptions{})[0]
			}
			gen[i] = append(gen[i], lp)
			done[i] = next[i] == eos
			left = left || !done[i]
		}
		at++
		if !left || at == s.MaxNew {
			return nil
		}
		return next
	})
	return responses, gen, err
}
