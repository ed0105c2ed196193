// Package train holds the trainers: one algorithm, one file, one loop. A loop sees its model only as a [Policy]; the mathematics
// is that of reference/rl and reference/optim.
package train

import (
	"fmt"
	"math"

	"plumbline/internal/rundir"
)

// Batch is B rows of P prompt tokens, padded on the left, and R response tokens, padded on the right.
type Batch struct {
	Rows, Prompt, Response int
	IDs                    []int  // [B, P+R]
	Real                   []bool // [B, P+R], false at padding
}

// Scores are of the response tokens, [B, R] each. What they hold where a token is padding means nothing.
type Scores struct {
	LogProbs []float64 // log p(token | the tokens before) at temperature 1 over the whole vocabulary
	Entropy  []float64 // of that distribution, nats
	Values   []float64 // of the state before the token; nil without a value head
}

// Slopes are the derivatives of a loss by the Scores, [B, R] each; nil is 0.
type Slopes struct{ LogProbs, Entropy, Values []float64 }

// Param is a trainable tensor. Data are numbers of float32, the precision of the masters; Grad is what was accumulated.
type Param struct {
	Name       string
	Shape      []int
	Data, Grad []float64
}

// Policy is a causal language model that is being trained.
type Policy interface {
	// Generate extends the prompts, a Batch without responses, token by token. choose gets the logits [B, V] of the next token
	// and returns its ids, nil to end.
	Generate(prompts Batch, choose func(logits []float64) []int)
	// Score runs the model without a gradient.
	Score(b Batch) Scores
	// Reference returns the log-probabilities of the response tokens under the frozen model [B, R].
	Reference(b Batch) []float64
	// Accumulate runs the model, asks for the slopes of a loss and adds the gradient of that loss to those of the parameters.
	Accumulate(b Batch, loss func(Scores) (Slopes, error)) error
	// Params are the trainable tensors, in an order that does not change.
	Params() []Param
	// Files are those of a checkpoint that hold the model: weights or adapter with value head, configuration, tokenizer.
	Files() ([]rundir.File, error)
	// Restore reads the trainable tensors of a checkpoint that Files wrote.
	Restore(dir string) error
	// Fingerprint identifies the weights that are not trained, "" if all are.
	Fingerprint() string
}

// Tokenizer is what a trainer needs of one.
type Tokenizer interface {
	Encode(text string) []int
	Decode(ids []int) string // without special tokens
	EOS() int
	Pad() int
}

// rows returns the rows of b whose indices are given.
func (b Batch) rows(index []int) Batch {
	t := b.Prompt + b.Response
	out := Batch{Rows: len(index), Prompt: b.Prompt, Response: b.Response}
	for _, i := range index {
		out.IDs = append(out.IDs, b.IDs[i*t:(i+1)*t]...)
		out.Real = append(out.Real, b.Real[i*t:(i+1)*t]...)
	}
	return out
}

// pick returns the rows of x [B, R] whose indices are given.
func pick[E any](x []E, cols int, index []int) []E {
	out := make([]E, 0, len(index)*cols)
	for _, i := range index {
		out = append(out, x[i*cols:(i+1)*cols]...)
	}
	return out
}

// leftPad returns prompts as a Batch without responses.
func leftPad(prompts [][]int, pad int) Batch {
	b := Batch{Rows: len(prompts)}
	for _, p := range prompts {
		b.Prompt = max(b.Prompt, len(p))
	}
	for _, p := range prompts {
		for range b.Prompt - len(p) {
			b.IDs, b.Real = append(b.IDs, pad), append(b.Real, false)
		}
		for _, id := range p {
			b.IDs, b.Real = append(b.IDs, id), append(b.Real, true)
		}
	}
	return b
}

// withResponses appends responses, padded on the right to the longest, and returns the mask of their tokens [B, R].
func (b Batch) withResponses(responses [][]int, pad int) (Batch, []bool) {
	out := Batch{Rows: b.Rows, Prompt: b.Prompt}
	for _, r := range responses {
		out.Response = max(out.Response, len(r))
	}
	var mask []bool
	for i, r := range responses {
		out.IDs = append(out.IDs, b.IDs[i*b.Prompt:(i+1)*b.Prompt]...)
		out.Real = append(out.Real, b.Real[i*b.Prompt:(i+1)*b.Prompt]...)
		for j := range out.Response {
			real, id := j < len(r), pad
			if real {
				id = r[j]
			}
			out.IDs, out.Real, mask = append(out.IDs, id), append(out.Real, real), append(mask, real)
		}
	}
	return out, mask
}

// NotFiniteError is a NaN or an infinity where training cannot go on.
type NotFiniteError struct {
	Tensor string
	Index  int
	Value  float64
	Step   int
}

func (e *NotFiniteError) Error() string {
	return fmt.Sprintf("step %d: %s[%d] is %g: training stops, the last checkpoint is good", e.Step, e.Tensor, e.Index, e.Value)
}

// finite returns an error for the first element that is not finite, where on holds (nil: everywhere).
func finite(step int, tensor string, x []float64, on []bool) error {
	for i, v := range x {
		if (on == nil || on[i]) && (math.IsNaN(v) || math.IsInf(v, 0)) {
			return &NotFiniteError{tensor, i, v, step}
		}
	}
	return nil
}
