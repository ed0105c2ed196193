package rl

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"plumbline/reference/ad"
	"plumbline/reference/optim"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The shape of every micro-batch of these tests: prompt and response tokens, vocabulary, features of a token.
const updPrompt, updResponse, updVocab, updHidden = 3, 4, 5, 6

// microData is one micro-batch before the forward pass: the features of its tokens, the ids of the response tokens, what the
// rollout left.
type microData struct {
	rows                  int
	x                     []float64 // rows×(prompt+response)×hidden
	ids                   []int     // rows×response
	old, values, ret, adv []float64 // rows×response
	mask                  []bool
}

// drawMicro draws a micro-batch with masked tails, whose cells are poisoned.
func drawMicro(r *rand.Rand, rows int) microData {
	fill := func(n int, scale float64) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = scale * r.NormFloat64()
		}
		return x
	}
	n := rows * updResponse
	d := microData{rows: rows, x: fill(rows*(updPrompt+updResponse)*updHidden, 1), old: fill(n, .5), values: fill(n, .5), ret: fill(n, 1), adv: fill(n, 1)}
	for i := range rows {
		length := r.IntN(updResponse + 1)
		for t := range updResponse {
			d.ids = append(d.ids, r.IntN(updVocab))
			d.mask = append(d.mask, t < length)
			d.old[i*updResponse+t] -= math.Log(updVocab)
		}
	}
	d.old, d.values, d.ret, d.adv = poison(d.old, d.mask), poison(d.values, d.mask), poison(d.ret, d.mask), poison(d.adv, d.mask)
	return d
}

// model is linear in the features: logits x·w, with w hidden×vocab, and values x·u.
type model struct{ w, u []float64 }

func (m model) copy() model { return model{slices.Clone(m.w), slices.Clone(m.u)} }

// linear returns the logits and values of all tokens.
func (m model) linear(x []float64) (logits, values []float64) {
	n := len(x) / updHidden
	logits, values = make([]float64, n*updVocab), make([]float64, n)
	for i := range n {
		for h, v := range x[i*updHidden : (i+1)*updHidden] {
			values[i] += v * m.u[h]
			for j := range updVocab {
				logits[i*updVocab+j] += v * m.w[h*updVocab+j]
			}
		}
	}
	return logits, values
}

// epochResult is what a whole epoch leaves: the model, the norms before clipping, what was logged.
type epochResult struct {
	model   model
	norms   []float64
	metrics []Metric
}

func (r epochResult) numbers() []float64 {
	x := append(append(slices.Clone(r.model.w), r.model.u...), r.norms...)
	for _, m := range r.metrics {
		x = append(x, m.Value)
	}
	return x
}

// updateFunc is RunPPOUpdateEpoch, or a wrong version of it.
type updateFunc func(micro []UpdateBatch, o UpdateOptions) UpdateEpoch

func rightUpdate(micro []UpdateBatch, o UpdateOptions) UpdateEpoch {
	e, err := RunPPOUpdateEpoch(micro, o)
	if err != nil {
		panic(err)
	}
	return e
}

// The optimiser of these tests.
const updMaxNorm, updLR = .25, .1

// runEpoch is the epoch by the functions of this package: forward, slice, losses, backward, sum over the micro-batches of a
// step, clip, step. at is the alignment of logits and values.
func runEpoch(m model, data []microData, o UpdateOptions, at Align, f updateFunc) epochResult {
	m = m.copy()
	const cols = updPrompt + updResponse
	var norms []float64
	var all UpdateEpoch
	for _, s := range PlanUpdates(len(data), o.Accumulation, nil) {
		var batches []UpdateBatch
		var logits [][]float64
		for _, d := range data[s.From:s.To] {
			z, v := m.linear(d.x)
			z = SliceResponse(nil, z, d.rows, cols, updVocab, at, updPrompt, updResponse)
			logits = append(logits, z)
			batches = append(batches, UpdateBatch{Rows: d.rows, Cols: updResponse, LogpNew: LogProbs(nil, z, d.ids, updVocab, LogProbOptions{}),
				LogpOld: d.old, ValuesNew: SliceResponse(nil, v, d.rows, cols, 1, at, updPrompt, updResponse), ValuesOld: d.values, Returns: d.ret,
				Advantages: d.adv, Entropy: Entropy(nil, z, updVocab, EntropyOptions{}), Mask: d.mask})
		}
		e := f(batches, o) // the micro-batches of one step are an epoch of one step
		all.Steps, all.Micro = append(all.Steps, s), append(all.Micro, e.Micro...)
		dw, du := make([]float64, len(m.w)), make([]float64, len(m.u))
		for k, d := range data[s.From:s.To] {
			dz := LogProbsBackward(nil, e.Micro[k].DLogp, logits[k], d.ids, updVocab, LogProbOptions{})
			dz = EntropyBackward(dz, e.Micro[k].DEntropy, logits[k], updVocab, EntropyOptions{})
			full := SliceResponseBackward(nil, dz, d.rows, cols, updVocab, at, updPrompt, updResponse)
			dv := SliceResponseBackward(nil, e.Micro[k].DValue, d.rows, cols, 1, at, updPrompt, updResponse)
			for i, g := range dv {
				for h, v := range d.x[i*updHidden : (i+1)*updHidden] {
					du[h] += v * g
					for j := range updVocab {
						dw[h*updVocab+j] += v * full[i*updVocab+j]
					}
				}
			}
		}
		norms = append(norms, optim.ClipGlobalNorm([][]float64{dw, du}, updMaxNorm))
		optim.SGD(m.w, dw, updLR)
		optim.SGD(m.u, du, updLR)
	}
	return epochResult{m, norms, all.Metrics(norms)}
}

// tapeEpoch is the same epoch on the tape, written from the document and sharing no function with runEpoch but the clip and
// the step.
func tapeEpoch(m model, data []microData, o UpdateOptions) epochResult {
	m = m.copy()
	const cols = updPrompt + updResponse
	var norms []float64
	sums := make([]float64, 8)
	for from := 0; from < len(data); from += o.Accumulation {
		step := data[from:min(from+o.Accumulation, len(data))]
		var tape ad.Tape
		w, u := tape.Param(m.w, updHidden, updVocab), tape.Param(m.u, updHidden, 1)
		for _, d := range step {
			n := d.rows * updResponse
			x := tape.Const(d.x, d.rows*cols, updHidden)
			z := ad.Slice(ad.Reshape(ad.MatMul(x, w, false, false), d.rows, cols, updVocab), 1, updPrompt-1, updPrompt+updResponse-1)
			v := ad.Reshape(ad.Slice(ad.Reshape(ad.MatMul(x, u, false, false), d.rows, cols), 1, updPrompt-1, updPrompt+updResponse-1), n)
			ls := ad.LogSoftmax(ad.Reshape(z, n, updVocab), 1)
			lp := ad.Reshape(ad.Gather(ls, 1, d.ids), n)
			h := ad.Neg(ad.Sum(ad.Mul(ad.Exp(ls), ls), false, 1))

			count, zero := 1e-8, tape.Const(make([]float64, n), n)
			clean := func(x []float64) *ad.Var { // constants of masked cells may be NaN, whose gradient would be too
				y := slices.Clone(x)
				for i, on := range d.mask {
					if !on {
						y[i] = 0
					}
				}
				return tape.Const(y, n)
			}
			for _, on := range d.mask {
				if on {
					count++
				}
			}
			mean := func(x *ad.Var) *ad.Var {
				return ad.Scale(ad.Sum(ad.Where(ad.Mask{Shape: []int{n}, On: d.mask}, x, zero), false, 0), 1/count)
			}
			old, adv, ret, vOld := clean(d.old), clean(d.adv), clean(d.ret), clean(d.values)
			ratio := ad.Exp(ad.Clamp(ad.Sub(lp, old), -20, 20))
			policy := ad.Neg(mean(ad.Min(ad.Mul(ratio, adv), ad.Mul(ad.Clamp(ratio, 1-o.ClipRatio, 1+o.ClipRatio), adv))))
			square := func(x *ad.Var) *ad.Var { e := ad.Sub(x, ret); return ad.Mul(e, e) }
			plain, held := square(v), square(ad.Add(vOld, ad.Clamp(ad.Sub(v, vOld), -o.ClipRangeValue, o.ClipRangeValue)))
			value := ad.Scale(mean(ad.Max(plain, held)), .5)
			entropy := ad.Neg(mean(h))
			total := ad.Add(ad.Add(policy, ad.Scale(value, o.VFCoeff)), ad.Scale(entropy, o.EntropyCoeff))
			ad.Backward(ad.Scale(total, 1/float64(len(step))), []float64{1})

			outside, larger := make([]float64, n), make([]float64, n)
			for i, r := range ratio.Data() {
				if math.Abs(r-1) > o.ClipRatio {
					outside[i] = 1
				}
				// V_old + (V_new − V_old) rounds: the squares of a cell that the clip does not touch may differ.
				touched := math.Abs(v.Data()[i]-vOld.Data()[i]) > o.ClipRangeValue
				if touched && held.Data()[i] > plain.Data()[i] {
					larger[i] = 1
				}
			}
			for i, x := range []*ad.Var{policy, value, entropy, total, ad.Neg(entropy), mean(tape.Const(outside, n)), mean(tape.Const(larger, n)),
				mean(ad.Sub(old, lp))} {
				sums[i] += x.Item() / float64(len(data))
			}
		}
		dw, du := w.Grad(), u.Grad()
		norms = append(norms, optim.ClipGlobalNorm([][]float64{dw, du}, updMaxNorm))
		optim.SGD(m.w, dw, updLR)
		optim.SGD(m.u, du, updLR)
	}
	var mean float64
	for _, g := range norms {
		mean += g / float64(len(norms))
	}
	r := epochResult{model: m, norms: norms}
	for _, v := range append(sums, mean) {
		r.metrics = append(r.metrics, Metric{Value: v})
	}
	return r
}

func drawModel(r *rand.Rand) model {
	m := model{make([]float64, updHidden*updVocab), make([]float64, updHidden)}
	for _, x := range [][]float64{m.w, m.u} {
		for i := range x {
			x[i] = .3 * r.NormFloat64()
		}
	}
	return m
}

var updOptions = UpdateOptions{ClipRatio: .2, ClipRangeValue: .2, VFCoeff: .1, EntropyCoeff: .01, Accumulation: 2}

// TestUpdateEpochTape trains a small model for one epoch, with a micro-batch left over: weights, norms before clipping and
// metrics equal those of the tape.
func TestUpdateEpochTape(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 5))
		o := updOptions
		o.Accumulation = rapid.IntRange(1, 3).Draw(t, "accumulation")
		var data []microData
		for range rapid.IntRange(1, 5).Draw(t, "micro-batches") {
			data = append(data, drawMicro(r, rapid.IntRange(1, 3).Draw(t, "rows")))
		}
		m := drawModel(r)
		got := runEpoch(m, data, o, AlignShifted, rightUpdate)
		if err := closeTo(got.numbers(), tapeEpoch(m, data, o).numbers()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestUpdateEpochRejects plants the faults of this function; the comparison with the tape must see each.
func TestUpdateEpochRejects(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	m := drawModel(r)
	data := []microData{drawMicro(r, 2), drawMicro(r, 3), drawMicro(r, 2), drawMicro(r, 1), drawMicro(r, 3)}
	for i := range data {
		data[i].mask[0] = true // the poisoned cell of a row of length 0
		for _, x := range [][]float64{data[i].old, data[i].values, data[i].ret, data[i].adv} {
			x[0] = -.5
		}
	}
	want := tapeEpoch(m, data, updOptions).numbers()
	require.NoError(t, closeTo(runEpoch(m, data, updOptions, AlignShifted, rightUpdate).numbers(), want))

	options := func(f func(o *UpdateOptions)) updateFunc {
		return func(micro []UpdateBatch, o UpdateOptions) UpdateEpoch { f(&o); return rightUpdate(micro, o) }
	}
	scaled := func(f func(n int) float64) updateFunc { // all gradients of a step of n micro-batches
		return func(micro []UpdateBatch, o UpdateOptions) UpdateEpoch {
			e := rightUpdate(micro, o)
			for _, u := range e.Micro {
				for _, g := range [][]float64{u.DLogp, u.DValue, u.DEntropy} {
					for i := range g {
						g[i] *= f(len(micro))
					}
				}
			}
			return e
		}
	}
	batch := func(f func(b *UpdateBatch)) updateFunc {
		return func(micro []UpdateBatch, o UpdateOptions) UpdateEpoch {
			micro = slices.Clone(micro)
			for k := range micro {
				f(&micro[k])
			}
			return rightUpdate(micro, o)
		}
	}
	gas := float64(updOptions.Accumulation)
	for name, f := range map[string]updateFunc{
		"left over divided by the accumulation steps": scaled(func(n int) float64 { return float64(n) / gas }),
		"loss divided twice":                          scaled(func(n int) float64 { return 1 / float64(n) }),
		"loss not divided":                            scaled(func(n int) float64 { return float64(n) }),
		"sign of the entropy":                         options(func(o *UpdateOptions) { o.EntropyCoeff = -o.EntropyCoeff }),
		"no entropy":                                  options(func(o *UpdateOptions) { o.EntropyCoeff = 0 }),
		"vf_coeff left out":                           options(func(o *UpdateOptions) { o.VFCoeff = 1 }),
		"value not clipped":                           options(func(o *UpdateOptions) { o.ClipRangeValue = math.Inf(1) }),
		"policy not clipped":                          options(func(o *UpdateOptions) { o.ClipRatio = 1e9 }),
		"old log-probs of this pass":                  batch(func(b *UpdateBatch) { b.LogpOld = b.LogpNew }),
		"values clipped around themselves":            batch(func(b *UpdateBatch) { b.ValuesOld = b.ValuesNew }),
		"returns for advantages":                      batch(func(b *UpdateBatch) { b.Advantages = b.Returns }),
		"a token masked":                              batch(func(b *UpdateBatch) { b.Mask = append([]bool{false}, b.Mask[1:]...) }),
		"the last micro-batch lost": func(micro []UpdateBatch, o UpdateOptions) UpdateEpoch {
			e := rightUpdate(micro, o)
			if last := len(micro) - 1; last > 0 {
				for _, g := range [][]float64{e.Micro[last].DLogp, e.Micro[last].DValue, e.Micro[last].DEntropy} {
					clear(g)
				}
			}
			return e
		},
		"half of the metrics": func(micro []UpdateBatch, o UpdateOptions) UpdateEpoch {
			e := rightUpdate(micro, o)
			e.Micro[0].PolicyLoss, e.Micro[0].ApproxKL = 0, 0
			return e
		},
	} {
		require.Error(t, closeTo(runEpoch(m, data, updOptions, AlignShifted, f).numbers(), want), name)
	}
	require.Error(t, closeTo(runEpoch(m, data, updOptions, AlignUnshifted, rightUpdate).numbers(), want), "slice off by one")
	leak := data[:4] // the left-over micro-batch dropped
	require.Error(t, closeTo(runEpoch(m, leak, updOptions, AlignShifted, rightUpdate).numbers(), want), "left over dropped")
}
