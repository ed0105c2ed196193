// Package train holds the trainers: one algorithm, one file, one loop. A loop sees its model only as a [Policy], and
// moves it only by an [Optimizer]; the mathematics is that of reference/rl and reference/optim.
package train

import (
	"context"
	"fmt"
	"math"

	"plumbline/internal/rng"
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

// Param is a trainable tensor. Data are the masters, numbers of float32 in float64: a checkpoint in float32 holds all of them.
// Grad is the gradient that was accumulated since the last step, of the same length.
type Param struct {
	Name       string
	Shape      []int
	Data, Grad []float64
}

// Model is what every trainer, and every checkpoint, knows of a model that is being trained.
type Model interface {
	// Params are the trainable tensors, always the same ones in the same order. The model owns the slices and never replaces them; an
	// [Optimizer], Restore and the trainer write into them. A model that computes with copies of its own (narrower, or on a device)
	// takes Data as it is at the beginning of each of its calls, and has added its gradient to Grad when a call returns.
	Params() []Param
	// Files are those of a checkpoint that hold the model: weights or adapter with value head, configuration, tokenizer. An adapter is
	// in adapter_config.json and adapter_model.safetensors, as PEFT reads them, with the names of Params in its namespace.
	Files() ([]rundir.File, error)
	// Restore reads the trainable tensors of a checkpoint that Files wrote, into Data.
	Restore(dir string) error
	// Fingerprint identifies the weights that are not trained, "" if all are.
	Fingerprint() string
	// Variant names the arithmetic for the manifest of a checkpoint: [Reference], or the kernels. Runs of one variant end in the same
	// bytes; a run that goes on under another one is warned of, since it rounds otherwise.
	Variant() string
}

// Reference is the [Model.Variant] of models in float64 on the tape.
const Reference = "reference"

// Policy is a causal language model that is being trained. It hands out no logits: what a trainer needs of them are scores of given
// tokens and tokens that are drawn, both of which a policy may compute without ever forming [B, T, V].
//
// One call is made at a time. Slices that a call is given are the caller's and are not kept; slices that it returns are new, and the
// caller's. Every result is a function of the arguments and of Data alone: the same call has the same bits, however many threads
// compute it and whatever was called before. Rows of a batch do not depend on one another: a row has the same bits alone, among
// others and, on the left of a prompt and on the right of a response, behind any padding, as far as Variant is said to keep them.
type Policy interface {
	Model
	// Sample draws a response to every row of prompts, a Batch without responses, up to and with the first eos, or s.MaxNew tokens.
	// Token t of row i is drawn with the number u = [Uniform](stream, first+i, t): the smallest id at which the sum of the
	// probabilities of s.Distribution, in the order of the ids, exceeds u. first numbers the row 0 among all samples of the
	// stream, so what a row gets depends neither on its neighbours nor on how many rows one call has.
	//
	// logp[i][t] is the log-probability of that token under the distribution that it was drawn from, or with s.Raw under the model's own at
	// temperature 1 over the whole vocabulary. eos is drawn like any other token; with fewer than s.MinNew tokens its probability is 0.
	//
	// progress, if it is not nil, is called on the caller's goroutine after every token; it must not call the policy. When ctx is
	// cancelled Sample returns ctx.Err() after the token that it computes: nothing that a checkpoint holds has changed.
	Sample(ctx context.Context, prompts Batch, s Sampling, stream rng.Stream, first, eos int, progress func(Drawn)) (ids [][]int, logp [][]float64, err error)
	// Score runs the model without a gradient.
	Score(b Batch) (Scores, error)
	// Reference returns the log-probabilities of the response tokens under the frozen model [B, R].
	Reference(b Batch) ([]float64, error)
	// Accumulate runs the model, asks for the slopes of a loss and adds the gradient of that loss to those of the parameters. It adds
	// nothing if loss returns an error, which it returns. The scores are those that Score returns for b, bit for bit: the first ratio
	// of an update is 1.
	Accumulate(b Batch, loss func(Scores) (Slopes, error)) error
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
