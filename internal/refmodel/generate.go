package refmodel

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"plumbline/internal/memory"
	"plumbline/reference/ad"
	"plumbline/reference/model"
	"plumbline/reference/sampling"
)

// PromptError says that a prompt cannot be continued by the model.
type PromptError struct{ msg string }

func (e *PromptError) Error() string { return e.msg }

// GenerateOptions says how a prompt is continued.
type GenerateOptions struct {
	Tokens   int              // at most so many new ones
	Sampling sampling.Options // the zero value is greedy
	Seed     uint64           // of the draws; greedy has none
}

// Generate continues prompt with the reference model, adapter included, until Tokens are drawn or one ends the text, and
// calls f with each as it is drawn; f may be nil. It returns the new tokens with the one that ends the text. Keys and values
// are kept, so a step costs one token. Rows of the embedding that no token stands for are never drawn.
//
// The draws are those of a PCG generator (math/rand/v2) with the seed (Seed, 0), one for each token.
func (m *Model) Generate(ctx context.Context, prompt []int, o GenerateOptions, f func(id int) error) ([]int, error) {
	if err := m.checkPrompt(prompt, o.Tokens); err != nil {
		return nil, err
	}
	var tape ad.Tape
	net := m.Base.On(&tape, model.Trainable{Adapter: m.Adapter})
	r := rand.New(rand.NewPCG(o.Seed, 0))
	cache := new(model.Cache)
	drawn, none := []int{}, m.withoutToken()
	for next := prompt; len(drawn) < o.Tokens; {
		if err := ctx.Err(); err != nil {
			return drawn, err
		}
		hidden := net.Forward(model.Input{Batch: 1, Time: len(next), IDs: next, Cache: cache}).Hidden
		p := slices.Clone(net.Logits(ad.Slice(hidden, 1, len(next)-1, len(next))).Data())
		for _, id := range none {
			p[id] = math.Inf(-1)
		}
		if !sampling.Distribution(p, p, o.Sampling) {
			return drawn, fmt.Errorf("%s: the logits after token %d are not finite", m.Path, len(prompt)+len(drawn))
		}
		id := sampling.Draw(p, r.Float64())
		drawn = append(drawn, id)
		if f != nil {
			if err := f(id); err != nil {
				return drawn, err
			}
		}
		if slices.Contains(m.EOS, id) {
			break
		}
		next = []int{id}
	}
	return drawn, nil
}

// withoutToken returns the rows of the embedding that no token stands for.
func (m *Model) withoutToken() (rows []int) {
	if m.Tokenizer == nil {
		return nil
	}
	for id := range m.Base.Config.Vocab {
		if _, ok := m.Tokenizer.Token(id); !ok {
			rows = append(rows, id)
		}
	}
	return rows
}

// checkPrompt refuses what the model cannot take.
func (m *Model) checkPrompt(prompt []int, tokens int) error {
	c := m.Base.Config
	if len(prompt) == 0 {
		return &PromptError{"the prompt has no tokens"}
	}
	for i, id := range prompt {
		if id < 0 || id >= c.Vocab {
			return &PromptError{fmt.Sprintf("token %d of the prompt is %d, the vocabulary has %d rows", i, id, c.Vocab)}
		}
	}
	// the last new token is not read again
	if n := len(prompt) + tokens - 1; n > c.MaxPositions {
		return &PromptError{fmt.Sprintf("a prompt of %d tokens and %d new ones need %d positions, the model has %d (max_position_embeddings)", len(prompt), tokens, n, c.MaxPositions)}
	}
	return memory.Need(Sizes(c).Bytes(memory.Pass{Rows: 1, Time: len(prompt), Keys: len(prompt), Scored: 1}), "a prompt of %d tokens", len(prompt))
}
