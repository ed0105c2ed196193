package train

import (
	"fmt"

	"plumbline/internal/dataset"
)

// Texts are B rows of T ids, without padding.
type Texts struct {
	Rows, Time int
	IDs        []int // [B, T]
}

// row returns a row of x.
func (x Texts) row(i int) []int { return x.IDs[i*x.Time : (i+1)*x.Time] }

// repeat returns x with each row k times, the copies of a row being neighbours.
func (x Texts) repeat(k int) Texts {
	out := Texts{Rows: x.Rows * k, Time: x.Time}
	for i := range out.Rows {
		out.IDs = append(out.IDs, x.row(i/k)...)
	}
	return out
}

// Logits are scores of every token at every position of Texts, [B, T, V].
type Logits struct {
	Rows, Time, Vocab int
	Data              []float64
}

// at returns the logits of position t of row i.
func (l Logits) at(i, t int) []float64 {
	from := (i*l.Time + t) * l.Vocab
	return l.Data[from : from+l.Vocab]
}

// fit stops what would silently go on with the logits of fewer positions than there are ids: nanoGPT's forward without targets
// returns those of the last position alone, [N, 1, V] (H5).
func (l Logits) fit(x Texts) error {
	if l.Rows != x.Rows || l.Time != x.Time || len(l.Data) != l.Rows*l.Time*l.Vocab {
		return fmt.Errorf("H5: the model returned logits of shape [%d, %d, %d] for ids of shape [%d, %d]: a forward pass that returns the last position alone "+
			"(nanoGPT's without targets) has no log-probabilities of the others; ask it for all positions, and do not cut the completions", l.Rows, l.Time, l.Vocab, x.Rows, x.Time)
	}
	return nil
}

// Vocabulary is what a trainer needs to know of the tokens of a masked model.
type Vocabulary struct {
	Characters int // ids below are characters; all others are special and never sampled
	Mask, Pad  int
	BlockSize  int // longest text
}

// MaskedModel is a masked model, generator or judge, that is being trained. There is the one of the reference: the trainers ask it for
// logits in float64.
type MaskedModel interface {
	Model
	Vocabulary() Vocabulary
	// Encode returns the ids of a text; a character that the model does not know is an error.
	Encode(text string) ([]int, error)
	// Decode returns ids as text, with an underscore for MASK.
	Decode(ids []int) string
}

// MaskedPolicy is a generator: a masked language model, which fills in all masks of a text in one step. It has no dropout.
type MaskedPolicy interface {
	MaskedModel
	// Logits runs the model without a gradient.
	Logits(x Texts) Logits
	// FLOPs are the floating-point operations of a forward pass, for each token of a text of so many.
	FLOPs(time int) float64
	// Reference runs the frozen model.
	Reference(x Texts) Logits
	// Accumulate runs the model, asks for the derivative of a loss by the logits [B, T, V] and adds the gradient of that loss to
	// those of the parameters.
	Accumulate(x Texts, loss func(Logits) ([]float64, error)) error
}

// Judge is a sequence scorer. It reads CLS and a text.
type Judge interface {
	MaskedModel
	// Score returns the verdict on each text, from 0 for a human's to 1 for a machine's. Of a text that leaves no room for CLS, cut
	// tokens are not read, the first ones.
	Score(x Texts) (verdicts []float64, cut int)
	// AccumulateScore asks for the derivative of a loss by the verdicts and adds the gradient of that loss to those of the
	// parameters.
	AccumulateScore(x Texts, loss func(verdicts []float64) ([]float64, error)) error
}

// ConfigError is a setting, or a model, that a trainer cannot work with.
type ConfigError struct{ Msg string }

func (e *ConfigError) Error() string { return e.Msg }

func refuse(format string, a ...any) error { return &ConfigError{fmt.Sprintf(format, a...)} }

// CharDiffusion is the name of the text that is part of the program, which nanoGPT's configuration gives the data.
const CharDiffusion = "char_diffusion"

// Streams of random numbers of the trainers of masked models.
const (
	streamWindow = iota + 20
	streamMask
	streamFill
	streamCorrupt
	streamHeldWindow
	streamHeldMask
	streamHeldFill
)

// MaskedEnv is what a trainer of masked models works with. Of Env it uses the run, not policy, tokenizer and questions.
type MaskedEnv struct {
	Env
	Generator MaskedPolicy
	Judge     Judge
	Text      string // the data
	// Clock returns the seconds since any instant, Memory the MB in use. They go to the log and nowhere else.
	Clock  func() float64
	Memory func() float64
}

// corpora returns the text of env as ids of m: the part to train on, and the part that is held out.
func (env MaskedEnv) corpora(m MaskedModel, window int) (train, held dataset.Corpus, err error) {
	v := m.Vocabulary()
	ids, err := m.Encode(env.Text)
	if err != nil {
		return train, held, refuse("dataset: %v", err)
	}
	train, held = dataset.Corpus{IDs: ids, Characters: v.Characters}.Split()
	for _, c := range []dataset.Corpus{train, held} {
		if err := c.Check(window); err != nil {
			return train, held, refuse("dataset: %v", err)
		}
	}
	return train, held, nil
}
