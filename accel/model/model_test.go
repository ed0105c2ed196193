package model_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/accel"
	"plumbline/accel/lora"
	"plumbline/accel/model"
	"plumbline/internal/arch"
	"plumbline/internal/rng"
	"plumbline/reference/ad"
	ref "plumbline/reference/model"
	"plumbline/reference/nn"
	"plumbline/reference/rl"
)

// tiny draws the geometry of a small model.
func tiny(t *rapid.T) arch.Config {
	kind := rapid.SampledFrom([]string{"gpt2", "gptj", "llama", "qwen2"}).Draw(t, "type")
	kv := rapid.IntRange(1, 2).Draw(t, "kv heads")
	c := arch.Config{Type: kind, Vocab: rapid.IntRange(5, 40).Draw(t, "vocab"), Layers: rapid.IntRange(1, 3).Draw(t, "layers"),
		KVHeads: kv, Heads: kv * rapid.IntRange(1, 2).Draw(t, "group"), HeadDim: 2 * rapid.IntRange(2, 5).Draw(t, "half head"),
		Inner: rapid.IntRange(8, 40).Draw(t, "inner"), Positions: 64, Eps: 1e-5, Activation: "silu"}
	c.Hidden = c.Heads*c.HeadDim + rapid.IntRange(0, 3).Draw(t, "wider")
	switch kind {
	case "gpt2":
		c.KVHeads, c.Activation, c.QKVBias, c.OutputBias, c.MLPBias, c.Tied = c.Heads, "gelu_new", true, true, true, true
		c.Hidden = c.Heads * c.HeadDim
		c.InverseLayerIdx, c.Unscaled = rapid.Bool().Draw(t, "by layer"), rapid.Bool().Draw(t, "unscaled")
	case "gptj":
		c.KVHeads, c.Activation, c.MLPBias, c.HeadBias = c.Heads, "gelu_new", true, true
		c.Hidden = c.Heads * c.HeadDim
		c.Rope = arch.Rope{Theta: 10000, Dim: 2 * rapid.IntRange(1, c.HeadDim/2).Draw(t, "rotated"), Interleaved: true, Type: "default", Factor: 1}
	default:
		c.Rope = arch.Rope{Theta: 10000, Dim: c.HeadDim, Type: "default", Factor: 1}
		c.Tied = rapid.Bool().Draw(t, "tied")
		if kind == "qwen2" {
			c.QKVBias = true
			if rapid.Bool().Draw(t, "windowed") {
				c.Windows = make([]int, c.Layers)
				c.Windows[c.Layers-1] = 3
			}
		}
	}
	return c
}

// reference returns the configuration of the same model in float64.
func reference(c arch.Config) ref.Config {
	return ref.Config{Kind: ref.Kind(c.Type), Vocab: c.Vocab, Hidden: c.Hidden, Layers: c.Layers, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim,
		Intermediate: c.Inner, MaxPositions: c.Positions, Eps: c.Eps, Activation: c.Activation, Tied: c.Tied, QKVBias: c.QKVBias, OutputBias: c.OutputBias,
		MLPBias: c.MLPBias, Windows: c.Windows, Unscaled: c.Unscaled, InverseLayerIdx: c.InverseLayerIdx, RoPE: rope(c.Rope)}
}

func rope(r arch.Rope) nn.RoPE {
	if r.Theta == 0 {
		return nn.RoPE{}
	}
	out := nn.RoPE{Dim: r.Dim, Theta: r.Theta, Interleaved: r.Interleaved}
	if r.Type != "default" {
		out.Scaling = nn.RoPEScaling{Type: r.Type, Factor: r.Factor, LowFreqFactor: r.LowFreqFactor, HighFreqFactor: r.HighFreqFactor, OriginalMaxPositions: float64(r.OriginalPositions),
			BetaFast: r.BetaFast, BetaSlow: r.BetaSlow, AttentionFactor: r.AttentionFactor, MScale: r.MScale, MScaleAllDim: r.MScaleAllDim, NoTruncate: r.NoTruncate}
	}
	return out
}

// weights are drawn from a seed: matrices of the size that keeps states as they are, norms near 1.
func weights(c arch.Config, seed uint64) model.Weights {
	index := map[string]int{}
	shapes := map[string][]int{}
	for i, t := range c.Tensors() {
		index[t.Name], shapes[t.Name] = i, t.Shape
	}
	return func(name string, dst []float32, first int) error {
		shape, ok := shapes[name]
		if !ok {
			return fmt.Errorf("there is no weight %s", name)
		}
		s := rng.New(seed, uint64(index[name]))
		width, scale, shift := shape[0], 0.1, 0.0
		if len(shape) == 2 {
			width, scale = shape[1], 1/math.Sqrt(float64(shape[1]))
		} else if name[len(name)-1] == 't' {
			shift = 1
		}
		for i := range dst {
			dst[i] = float32(shift + scale*s.Normal(uint64(first*width+i)))
		}
		return nil
	}
}

// world is a model in both arithmetics, with a batch and the derivatives of a loss.
type world struct {
	config  arch.Config
	seed    uint64 // of the weights
	mode    lora.Mode
	fast    *model.Model
	exact   *ref.Model
	adapter ref.Adapter
	updates map[string]*lora.Update
	names   []string // of the adapted layers
	in      ref.Input
	at      []int // cells of the batch that are scored: the token there after the one before
	dlp, dh []float64
	head    model.ValueHead
	dv      []float64
	scorer  model.ScorerHead
	ds      []float64 // by the scores of the rows
}

func wide(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

func normals(seed, tensor uint64, n int, scale float64) []float64 {
	s, x := rng.New(seed, tensor), make([]float64, n)
	for i := range x {
		x[i] = float64(float32(scale * s.Normal(uint64(i))))
	}
	return x
}

func draw(t *rapid.T, mode lora.Mode) *world { return drawOf(t, mode, tiny(t)) }

func drawOf(t *rapid.T, mode lora.Mode, c arch.Config) *world {
	seed := rapid.Uint64().Draw(t, "seed")
	w := &world{config: c, seed: seed, mode: mode, updates: map[string]*lora.Update{}, adapter: ref.Adapter{}}
	var err error
	w.fast, err = model.New(c, mode, weights(c, seed))
	require.NoError(t, err)
	w.exact, err = ref.New(reference(c), func(name string, _ ...int) ([]float64, error) { return w.fast.Weight(name), nil })
	require.NoError(t, err)
	chosen := rapid.Uint64().Draw(t, "layers with an update")
	for i, l := range c.Linears() {
		if chosen>>(i%64)&1 == 0 {
			continue
		}
		r := 1 + i%3
		a, b := normals(seed, uint64(1000+i), r*l.In, 1/math.Sqrt(float64(l.In))), normals(seed, uint64(2000+i), r*l.Out, 0.3)
		w.adapter[l.Name] = ref.LoRA{Rank: r, A: a, B: b, Scale: 0.5}
		u := &lora.Update{Rank: r, Scale: 0.5, A: narrow(a), B: narrow(b), GradA: make([]float32, len(a)), GradB: make([]float32, len(b))}
		w.updates[l.Name], w.names = u, append(w.names, l.Name)
		require.NoError(t, w.fast.Attach(l.Name, u))
	}
	rows, time := rapid.IntRange(1, 3).Draw(t, "rows"), rapid.IntRange(2, 7).Draw(t, "time")
	w.in = ref.Input{Batch: rows, Time: time, IDs: make([]int, rows*time), Real: make([]bool, rows*time)}
	for r := range rows {
		left, right := rapid.IntRange(0, time-2).Draw(t, "left"), 0
		right = rapid.IntRange(0, time-2-left).Draw(t, "right")
		for i := range time {
			w.in.IDs[r*time+i] = rapid.IntRange(0, c.Vocab-1).Draw(t, "id")
			w.in.Real[r*time+i] = i >= left && i < time-right
			if i > left && i < time-right {
				w.at = append(w.at, r*time+i)
			}
		}
	}
	w.dlp, w.dh, w.dv = normals(seed, 1, len(w.at), 1), normals(seed, 2, len(w.at), 0.3), normals(seed, 3, len(w.at), 1)
	w.head = model.ValueHead{W: normals(seed, 4, c.Hidden, 0.3), B: 0.25}
	w.scorer = model.ScorerHead{W: [][]float64{normals(seed, 5, c.Hidden, 0.3), normals(seed, 6, c.Hidden, 0.3)}}
	w.ds = normals(seed, 7, 2*rows, 1)
	return w
}

func narrow(x []float64) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = float32(v)
	}
	return y
}

// results are named tensors.
type results map[string][]float64

// run computes them by the model under test.
func (w *world) run(t require.TestingT, keep model.Keep) results {
	tokens, at := model.Pack(w.in.Batch, w.in.Time, w.in.IDs, w.in.Real)
	require.NoError(t, w.fast.Check(tokens))
	var before, targets []int
	for _, i := range w.at {
		before, targets = append(before, at[i-1]), append(targets, w.in.IDs[i])
	}
	for _, u := range w.updates {
		clear(u.GradA)
		clear(u.GradB)
	}
	p := w.fast.Forward(tokens, true, keep)
	x := p.Gather(before)
	s := w.fast.Score(x, targets, true, keep)
	out := results{"hidden": wide(x), "log-probability": s.LogProbs(), "entropy": s.Entropies(), "value": w.head.Forward(x)}
	dx := s.Backward(w.dlp, w.dh)
	gradW, gradB := make([]float64, len(w.head.W)), 0.0
	w.head.Backward(gradW, &gradB, dx, x, w.dv)
	// A state may be scored once only here, so that its derivatives are rows of dx: that of the last token predicts none.
	if w.scorer.W != nil {
		last := w.scorer.Last(tokens)
		states, d := p.Gather(last), make([]float32, len(last)*w.config.Hidden)
		grad := [][]float64{make([]float64, w.config.Hidden), make([]float64, w.config.Hidden)}
		w.scorer.Backward(grad, d, states, w.ds)
		out["score"], out["scorer.weight"] = w.scorer.Forward(states), slices.Concat(grad...)
		before, dx = append(before, last...), append(dx, d...)
	}
	p.Backward(before, dx)
	out["value.weight"], out["value.bias"] = gradW, []float64{gradB}
	for _, n := range w.names {
		out[n+".A"], out[n+".B"] = wide(w.updates[n].GradA), wide(w.updates[n].GradB)
	}
	return out
}

// oracle computes them on the tape, with a rounding unless it is nil.
func (w *world) oracle(round *ref.Rounding) results {
	var tape ad.Tape
	train := ref.Trainable{Adapter: w.adapter, LoRA: true}
	if round != nil {
		train.Read, train.Give, train.Update = round.Read, round.Give, round.Update
	}
	net := w.exact.On(&tape, train)
	hidden := net.Forward(w.in).Hidden
	n := w.in.Batch * w.in.Time
	var before, targets []int
	for _, i := range w.at {
		before, targets = append(before, i-1), append(targets, w.in.IDs[i])
	}
	x := ad.Embedding(ad.Reshape(hidden, n, w.config.Hidden), before, len(before))
	logits := net.Logits(x)
	weight, bias := tape.Param(w.head.W, 1, w.config.Hidden), tape.Param([]float64{w.head.B}, 1)
	values := nn.ValueHead(x, weight, bias)
	v := w.config.Vocab
	out := results{"hidden": x.Data(), "log-probability": rl.LogProbs(nil, logits.Data(), targets, v, rl.LogProbOptions{}),
		"entropy": rl.Entropy(nil, logits.Data(), v, rl.EntropyOptions{}), "value": values.Data()}
	d := rl.LogProbsBackward(nil, w.dlp, logits.Data(), targets, v, rl.LogProbOptions{})
	d = rl.EntropyBackward(d, w.dh, logits.Data(), v, rl.EntropyOptions{})
	if len(w.names) > 0 {
		ad.Backward(logits, d)
	}
	ad.Backward(values, w.dv)
	if w.scorer.W != nil {
		var last []int
		for i, real := range w.in.Real {
			if real && (i%w.in.Time == w.in.Time-1 || !w.in.Real[i+1]) {
				last = append(last, i)
			}
		}
		rows := ad.Embedding(ad.Reshape(hidden, n, w.config.Hidden), last, len(last))
		weights := tape.Param(slices.Concat(w.scorer.W...), 2, w.config.Hidden)
		scores := nn.Linear(rows, weights, nil)
		ad.Backward(scores, w.ds)
		out["score"], out["scorer.weight"] = scores.Data(), weights.Grad()
	}
	out["value.weight"], out["value.bias"] = weight.Grad(), bias.Grad()
	for _, n := range w.names {
		f, _ := net.Factors(n)
		out[n+".A"], out[n+".B"] = f.A.Grad(), f.B.Grad()
	}
	return out
}

// rounding is what the contract of a mode allows its kernels.
func (w *world) rounding(seed uint64) *ref.Rounding {
	r := &ref.Rounding{Rand: rand.New(rand.NewPCG(seed, 0)), Unit: 0x1p-24, Terms: max(w.config.Inner, w.config.Hidden)}
	switch w.mode {
	case lora.W8A16:
		r.Activation, r.Gradient = 0x1p-8, 0x1p-8
	case lora.W8A8, lora.LLMInt8: // the codes of float16 numbers, whose rounding is a thirtieth of a step
		r.Code, r.Gradient = 1./254, 0x1p-8
	}
	return r
}

// distance returns root mean square and maximum of the difference.
func distance(a, b []float64) (rms, top float64) {
	for i := range a {
		d := math.Abs(a[i] - b[i])
		if !(d <= top) {
			top = d
		}
		rms += d * d
	}
	return math.Sqrt(rms / float64(max(1, len(a)))), top
}

// cancelled is what the gradients of queries and keys may have, as a share of the largest result, where the exact ones vanish. They learn by
// p·(dp - delta), which is 0 where a token sees only keys with equal values: itself alone, or one token many times. What is left there is the
// rounding of two sums over the numbers of a head, delta's over the mixture of the keys too: gamma of 2*HeadDim + Time terms. It has the same
// sign for every key, so that the perturbed references, whose signs are independent, do not reach it.
func (w *world) cancelled() float64 { return float64(2*w.config.HeadDim+w.in.Time+8) * 0x1p-24 }

// agree demands that every tensor of got lies as near to the reference as four times the farthest of some perturbed references, eight by the specification: the
// empirical allowance of tolerances 5.20.
func (w *world) agree(t require.TestingT, got results, runs uint64) {
	want := w.oracle(nil)
	spread, far := map[string]float64{}, map[string]float64{}
	for k := range runs {
		for name, x := range w.oracle(w.rounding(k)) {
			r, top := distance(x, want[name])
			spread[name], far[name] = max(spread[name], r), max(far[name], top)
		}
	}
	require.Len(t, got, len(want))
	largest := 0.0
	for _, x := range want {
		size, _ := distance(x, make([]float64, len(x)))
		largest = max(largest, size)
	}
	for name, x := range got {
		require.Len(t, x, len(want[name]), name)
		r, top := distance(x, want[name])
		size, _ := distance(want[name], make([]float64, len(want[name])))
		floor := 0x1p-22 * size
		if strings.Contains(name, ".q_proj.") || strings.Contains(name, ".k_proj.") {
			floor += w.cancelled() * largest
		}
		if !(r <= 4*spread[name]+floor) || !(top <= 4*far[name]+4*floor) {
			require.Failf(t, "outside of the allowance", "%s %v: %s: rms %g of %g, largest %g of %g, size %g", w.config.Type, w.mode, name, r, 4*spread[name], top, 4*far[name], size)
		}
	}
}

// testModes holds the model against the reference with the kernels of every level that this machine has.
func testModes(t *testing.T, mode lora.Mode) {
	defer limit(t, accel.Levels[len(accel.Levels)-1])
	levels := levels()
	rapid.Check(t, func(t *rapid.T) {
		limit(t, rapid.SampledFrom(levels).Draw(t, "level"))
		w := draw(t, mode)
		got := w.run(t, model.Everything)
		w.agree(t, got, 8)
		require.Equal(t, got, w.run(t, model.Layers), "what is computed once more has the same bits")
	})
}

func limit(t require.TestingT, level string) { require.NoError(t, accel.Limit(level)) }

// levels returns the levels at which some op of this build has a variant that runs here.
func levels() []string {
	return slices.DeleteFunc(slices.Clone(accel.Levels), func(level string) bool {
		return !slices.ContainsFunc(accel.Ops(), func(op string) bool {
			return slices.ContainsFunc(accel.Variants(op), func(v accel.Variant) bool { return v.Name == level && v.Missing == "" })
		})
	})
}

func TestModelF32(t *testing.T)   { testModes(t, lora.F32) }
func TestModelBF16(t *testing.T)  { testModes(t, lora.BF16) }
func TestModelW8A16(t *testing.T) { testModes(t, lora.W8A16) }
func TestModelW8A8(t *testing.T)  { testModes(t, lora.W8A8) }
func TestModelLLM(t *testing.T)   { testModes(t, lora.LLMInt8) }
