package rl

// Align is which token a column of a tensor belongs to (align); the manifest of a dump writes response, shifted and
// unshifted.
type Align int

const (
	AlignResponse  Align = iota // "response_only": column t belongs to response token t
	AlignShifted                // "full_shifted": column s is what the model says after token s, so it belongs to token s+1
	AlignUnshifted              // "full_unshifted": column s belongs to token s, column 0 to nothing
)

var aligns = enumeration[Align]("align", "response_only", "full_shifted", "full_unshifted")

func (a Align) String() string { return aligns.text(a) }

// ParseAlign reads a value of align.
func ParseAlign(s string) (Align, error) { return aligns.parse(s) }

// ResponseRange returns the columns [from, to) of a tensor of cols columns that belong to the r response tokens after a
// prompt of p tokens:
//
//	response_only    [0, r)            of r columns
//	full_shifted     [p−1, p+r−1)      of p+r columns (logits, values) or p+r−1 (log-probs)
//	full_unshifted   [p, p+r)          of p+r columns
//
// It panics where cols is another number, and on a prompt of no tokens under full_shifted: nothing predicts the first
// response token, and Python's slice [−1 : r−1] would be empty without a word.
func (a Align) ResponseRange(prompt, response, cols int) (from, to int) {
	need(prompt >= 0 && response >= 0, badLength)
	switch a {
	case AlignResponse:
		need(cols == response, badLength)
	case AlignShifted:
		need(prompt >= 1 && (cols == prompt+response || cols == prompt+response-1), badLength)
		from = prompt - 1
	case AlignUnshifted:
		need(cols == prompt+response, badLength)
		from = prompt
	default:
		panic(badOption)
	}
	return from, from + response
}

// SliceResponse stores in dst, rows×response×width, the columns of full, rows×cols×width, that ResponseRange names: width
// is 1 for values and log-probs, the vocabulary for logits. A nil dst is allocated; it must not overlap full.
func SliceResponse(dst, full []float64, rows, cols, width int, a Align, prompt, response int) []float64 {
	from, to := a.ResponseRange(prompt, response, cols)
	need(rows >= 0 && width >= 0 && len(full) == rows*cols*width, badLength)
	dst = output(dst, rows*response*width)
	for i := range rows {
		copy(dst[i*response*width:(i+1)*response*width], full[(i*cols+from)*width:(i*cols+to)*width])
	}
	return dst
}

// SliceResponseBackward adds to dfull, rows×cols×width, the gradient d, rows×response×width, of a loss with respect to what
// SliceResponse stored; the other columns stay as they are. A nil dfull is allocated as zeros.
func SliceResponseBackward(dfull, d []float64, rows, cols, width int, a Align, prompt, response int) []float64 {
	from, _ := a.ResponseRange(prompt, response, cols)
	need(rows >= 0 && width >= 0 && len(d) == rows*response*width, badLength)
	dfull = output(dfull, rows*cols*width)
	for i := range rows {
		at := (i*cols + from) * width
		for k, v := range d[i*response*width : (i+1)*response*width] {
			dfull[at+k] += v
		}
	}
	return dfull
}

// UpdateStep is one optimiser step: it follows the micro-batches From ≤ k < To, whose losses are divided by Divisor.
type UpdateStep struct{ From, To, Divisor int }

// PlanUpdates returns the optimiser steps of n micro-batches, one after every accumulation of them. Micro-batches that are
// left over at the end have a step of their own, divided by their own number, so that they neither count less nor leak into
// the next epoch.
//
// used marks the micro-batches that give a gradient, nil all: the divisor is the number of these, and a step of Divisor 0 is
// no update (the micro-steps without masks, or of identical completions, of the masked-language-model system).
func PlanUpdates(n, accumulation int, used []bool) []UpdateStep {
	need(n >= 0 && (used == nil || len(used) == n), badLength)
	need(accumulation >= 1, badOption)
	steps := make([]UpdateStep, 0, (n+accumulation-1)/accumulation)
	for from := 0; from < n; from += accumulation {
		s := UpdateStep{From: from, To: min(from+accumulation, n)}
		for k := s.From; k < s.To; k++ {
			if used == nil || used[k] {
				s.Divisor++
			}
		}
		steps = append(steps, s)
	}
	return steps
}

// UpdateOptions are the keys of the tutorial's section ppo that one epoch of updates reads.
type UpdateOptions struct {
	ClipRatio      float64 // clip_ratio, ε of the policy loss; 0.2
	ClipRangeValue float64 // clip_range_value, c of the value loss, in units of the value; 0.2
	VFCoeff        float64 // vf_coeff; 0.1
	EntropyCoeff   float64 // entropy_coeff; 0.01, a bonus, since the entropy loss is minus the entropy
	Accumulation   int     // gradient_accumulation_steps, micro-batches per optimiser step; 8
}

// UpdateBatch is one micro-batch; all slices are Rows×Cols over the response tokens, see SliceResponse.
type UpdateBatch struct {
	Rows, Cols          int
	LogpNew, LogpOld    []float64 // of the response tokens: in this forward pass, and at rollout
	ValuesNew           []float64 // of the states before these tokens
	ValuesOld, Returns  []float64
	Advantages, Entropy []float64 // Entropy: of the distribution that each token was drawn from, in this forward pass
	Mask                []bool
}

// MicroUpdate is what one micro-batch gives: its losses and metrics, which are not divided, and gradients, which are.
type MicroUpdate struct {
	PolicyLoss, ValueLoss   float64
	EntropyLoss             float64 // minus the mean entropy, at most 0
	TotalLoss               float64
	PolicyClipFrac          float64
	ValueClipFrac           float64
	ApproxKL                float64
	DLogp, DValue, DEntropy []float64 // ∂(TotalLoss/Divisor) with respect to LogpNew, ValuesNew, Entropy
}

// UpdateEpoch is what one epoch gives.
type UpdateEpoch struct {
	Steps []UpdateStep
	Micro []MicroUpdate
}

// RunPPOUpdateEpoch is the arithmetic of exercise 5: the losses of the micro-batches, composed and divided, and what flows
// back from them. With the three losses of ComputePolicyLoss, ComputeValueLoss and ComputeEntropyLoss,
//
//	total = policy + vf_coeff·value + entropy_coeff·entropy,   backward of total/divisor
//
// where entropy is the loss, minus the entropy: its coefficient has a plus. The divisor is the number of micro-batches of
// the optimiser step, see PlanUpdates. The gradient of a step is the sum of those of its micro-batches; it is clipped to
// max_grad_norm as one vector over all parameters (optim.ClipGlobalNorm, which returns the norm before), then the optimiser
// and the scheduler step.
//
// A masked cell is never read and has gradient 0. A micro-batch without a true cell gives 0 and counts in the divisor.
//
// The mean of micro-batches is that of all their tokens only if they have equally many: the document's convention.
func RunPPOUpdateEpoch(micro []UpdateBatch, o UpdateOptions) (UpdateEpoch, error) {
	e := UpdateEpoch{Steps: PlanUpdates(len(micro), o.Accumulation, nil), Micro: make([]MicroUpdate, len(micro))}
	for _, s := range e.Steps {
		for k := s.From; k < s.To; k++ {
			if err := e.Micro[k].update(&micro[k], &o, float64(s.Divisor)); err != nil {
				return UpdateEpoch{}, err
			}
		}
	}
	return e, nil
}

// update computes one micro-batch.
func (u *MicroUpdate) update(b *UpdateBatch, o *UpdateOptions, divisor float64) error {
	policy, err := ComputePolicyLoss(b.LogpNew, b.LogpOld, b.Advantages, b.Mask, b.Rows, b.Cols, o.ClipRatio)
	if err != nil {
		return err
	}
	value, err := ComputeValueLoss(b.ValuesNew, b.ValuesOld, b.Returns, b.Mask, b.Rows, b.Cols, o.ClipRangeValue)
	if err != nil {
		return err
	}
	entropy, dentropy, err := EntropyBonus(nil, b.Entropy, b.Mask, b.Rows, b.Cols, 1, tutorialAgg)
	if err != nil {
		return err
	}
	*u = MicroUpdate{
		PolicyLoss: policy.Loss, ValueLoss: value.Loss, EntropyLoss: entropy,
		TotalLoss:      policy.Loss + float64(o.VFCoeff*value.Loss) + float64(o.EntropyCoeff*entropy),
		PolicyClipFrac: policy.ClipFrac, ValueClipFrac: value.ClipFrac, ApproxKL: policy.ApproxKL,
		DLogp: policy.DLogp, DValue: value.DValue, DEntropy: dentropy,
	}
	for i := range u.DLogp {
		u.DLogp[i] /= divisor
		u.DValue[i] = float64(o.VFCoeff*u.DValue[i]) / divisor
		u.DEntropy[i] = float64(o.EntropyCoeff*u.DEntropy[i]) / divisor
	}
	return nil
}

// Metric is a logged number under its key.
type Metric struct {
	Name  string
	Value float64
}

// Metrics returns what the epoch logs, in this order: the means over its micro-batches, and over its optimiser steps that of
// gradNorm, the norms before clipping, if there is one for every step; nil leaves the key out. Without micro-batches they
// are NaN.
//
// loss/entropy is the entropy loss, at most 0, and policy/entropy the entropy.
func (e UpdateEpoch) Metrics(gradNorm []float64) []Metric {
	need(gradNorm == nil || len(gradNorm) == len(e.Steps), badLength)
	mean := func(f func(u *MicroUpdate) float64) float64 {
		var sum float64
		for k := range e.Micro {
			sum += f(&e.Micro[k])
		}
		return sum / float64(len(e.Micro))
	}
	entropy := mean(func(u *MicroUpdate) float64 { return u.EntropyLoss })
	m := []Metric{
		{"loss/policy", mean(func(u *MicroUpdate) float64 { return u.PolicyLoss })},
		{"loss/value", mean(func(u *MicroUpdate) float64 { return u.ValueLoss })},
		{"loss/entropy", entropy},
		{"loss/total", mean(func(u *MicroUpdate) float64 { return u.TotalLoss })},
		{"policy/entropy", -entropy},
		{"params/policy_clip_frac", mean(func(u *MicroUpdate) float64 { return u.PolicyClipFrac })},
		{"params/value_clip_frac", mean(func(u *MicroUpdate) float64 { return u.ValueClipFrac })},
		{"params/approx_kl", mean(func(u *MicroUpdate) float64 { return u.ApproxKL })},
	}
	if gradNorm != nil {
		var sum float64
		for _, g := range gradNorm {
			sum += g
		}
		m = append(m, Metric{"params/grad_norm", sum / float64(len(gradNorm))})
	}
	return m
}
