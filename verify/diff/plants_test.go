package diff

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/internal/refmodel"
	"plumbline/reference/ad"
	"plumbline/reference/model"
	"plumbline/reference/sampling"
)

// contexts are logits of a model, one vector for every place of rows texts of cols tokens.
type contexts struct {
	name       string
	rows, cols int
	logits     [][]float64
}

// drawnLogits are those of no model: vocabularies of 512, with spreads that give entropies from a hundredth of a nat to five.
func drawnLogits(r *rand.Rand, rows, cols int) contexts {
	c := contexts{name: "drawn", rows: rows, cols: cols}
	for range rows * cols {
		z := make([]float64, 512)
		spread := 0.5 + 5*r.Float64()
		for i := range z {
			z[i] = spread * r.NormFloat64()
		}
		c.logits = append(c.logits, z)
	}
	return c
}

// modelLogits are those of an embedded model on texts that it wrote itself.
func modelLogits(t testing.TB, name, prompt string, r *rand.Rand, rows, cols int) contexts {
	m, err := refmodel.Open("../../internal/assets/"+name, refmodel.Options{})
	require.NoError(t, err)
	c := contexts{name: name, rows: rows, cols: cols}
	var tape ad.Tape
	net := m.Base.On(&tape, model.Trainable{})
	for range rows {
		cache := new(model.Cache)
		next := m.Encode(prompt, false)
		for range cols {
			hidden := net.Forward(model.Input{Batch: 1, Time: len(next), IDs: next, Cache: cache}).Hidden
			z := slices.Clone(net.Logits(ad.Slice(hidden, 1, len(next)-1, len(next))).Data())
			c.logits = append(c.logits, z)
			p := make([]float64, len(z))
			require.True(t, sampling.Distribution(p, z, sampling.Options{Temperature: 1, TopP: 1}))
			next = []int{sampling.Draw(p, r.Float64())}
		}
	}
	return c
}

// logSoftmax returns log-probs of z/T.
func logSoftmax(z []float64, T float64) []float64 {
	lp := make([]float64, len(z))
	top := slices.Max(z)
	var s float64
	for _, v := range z {
		s += math.Exp((v - top) / T)
	}
	for i, v := range z {
		lp[i] = (v-top)/T - math.Log(s)
	}
	return lp
}

// kept returns log-probs renormalised over the fewest tokens with a mass of topP.
func kept(lp []float64, topP float64) []float64 {
	order := make([]int, len(lp))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		if lp[a] > lp[b] {
			return -1
		}
		return 1
	})
	out := slices.Repeat([]float64{math.Inf(-1)}, len(lp))
	mass := 0.0
	for _, i := range order {
		out[i] = lp[i]
		if mass += math.Exp(lp[i]); mass >= topP {
			break
		}
	}
	for i := range out {
		out[i] -= math.Log(mass)
	}
	return out
}

// plant is a difference between the two sides that is known.
type plant struct {
	kind string
	want []string // the causes that are right; "" where nothing is to be named
	make func(r *rand.Rand, z []float64) (trainer, engine, sampler []float64)
	then func(r *rand.Rand, p *planted) // on the finished log-probs
}

// planted is the batch of a plant, before it is one.
type planted struct {
	rows, cols                   int
	trainer, engine, entropy, id []float64
}

// noisy adds the rounding of a forward pass to logits: independent errors of standard deviation sigma.
func noisy(r *rand.Rand, z []float64, sigma float64) []float64 {
	out := make([]float64, len(z))
	for i := range z {
		out[i] = z[i] + sigma*r.NormFloat64()
	}
	return out
}

// kinds are the plants of one draw; sigma is the rounding of either side.
func kinds(r *rand.Rand) []plant {
	sigma := []float64{1e-6, 0.004, 0.02, 0.05}[r.IntN(4)]
	T := []float64{0.5, 0.6, 0.7, 0.8, 0.9, 1.2, 1.5}[r.IntN(7)]
	topP := []float64{0.8, 0.9, 0.95}[r.IntN(3)]
	stale := 0.5 + 0.5*r.Float64()
	far := rand.New(rand.NewPCG(r.Uint64(), 9))
	both := func(f func(r *rand.Rand, z []float64) (a, b, s []float64)) func(r *rand.Rand, z []float64) (a, b, s []float64) {
		return f
	}
	plain := both(func(r *rand.Rand, z []float64) (a, b, s []float64) {
		e := logSoftmax(noisy(r, z, sigma), 1)
		return logSoftmax(noisy(r, z, sigma), 1), e, e
	})
	by := 1
	if r.IntN(2) == 0 {
		by = -1
	}
	return []plant{
		{"equal", []string{""}, plain, nil},
		{"temperature, engine raw", []string{"LOGP-TEMPERATURE"}, func(r *rand.Rand, z []float64) (a, b, s []float64) {
			e := noisy(r, z, sigma)
			return logSoftmax(noisy(r, z, sigma), T), logSoftmax(e, 1), logSoftmax(e, T)
		}, nil},
		{"temperature, trainer without", []string{"LOGP-TEMPERATURE"}, func(r *rand.Rand, z []float64) (a, b, s []float64) {
			e := logSoftmax(noisy(r, z, sigma), T)
			return logSoftmax(noisy(r, z, sigma), 1), e, e
		}, nil},
		{"top-p", []string{"GEN-TRUNCATED"}, func(r *rand.Rand, z []float64) (a, b, s []float64) {
			e := kept(logSoftmax(noisy(r, z, sigma), 1), topP)
			return logSoftmax(noisy(r, z, sigma), 1), e, e
		}, nil},
		{"shift", []string{"LOGP-SHIFT"}, plain, func(_ *rand.Rand, p *planted) {
			old := slices.Clone(p.engine)
			for i := range old {
				row, col := i/p.cols, i%p.cols
				p.engine[i] = old[row*p.cols+(col+by+p.cols)%p.cols]
			}
		}},
		{"shift, 0 where nothing comes from", []string{"LOGP-SHIFT"}, plain, func(_ *rand.Rand, p *planted) {
			old := slices.Clone(p.engine)
			for i := range old {
				row, from := i/p.cols, i%p.cols+by
				if p.engine[i] = 0; 0 <= from && from < p.cols {
					p.engine[i] = old[row*p.cols+from]
				}
			}
		}},
		{"bfloat16", []string{"LOGP-BF16"}, func(r *rand.Rand, z []float64) (a, b, s []float64) {
			lp := logSoftmax(noisy(r, z, 1e-6), 1)
			return logSoftmax(noisy(r, z, 1e-6), 1), lp, lp
		}, func(_ *rand.Rand, p *planted) {
			for i := range p.engine {
				p.engine[i] = format.Round(p.engine[i], format.BF16)
			}
		}},
		{"rows", []string{"ROWS-SWAPPED"}, plain, func(r *rand.Rand, p *planted) {
			order, old := r.Perm(p.rows), slices.Clone(p.engine)
			for i, from := range order {
				copy(p.engine[i*p.cols:(i+1)*p.cols], old[from*p.cols:])
			}
		}},
		{"filled", []string{"GEN-ZERO"}, plain, func(r *rand.Rand, p *planted) {
			for i := range p.engine {
				if p.trainer[i] < -1 && r.IntN(8) == 0 {
					p.engine[i] = 0
				}
			}
		}},
		{"other weights", []string{otherWeights}, func(r *rand.Rand, z []float64) (a, b, s []float64) {
			e := logSoftmax(noisy(far, z, stale), 1)
			return logSoftmax(noisy(r, z, sigma), 1), e, e
		}, nil},
		{"no adapter", []string{otherWeights, "GEN-UNADAPTED"}, func(r *rand.Rand, z []float64) (a, b, s []float64) {
			// What training did: a direction that all contexts share.
			e := logSoftmax(noisy(r, z, sigma), 1)
			w := slices.Clone(z)
			for i := range w {
				w[i] += 2 * stale * math.Sin(float64(37*i))
			}
			return logSoftmax(noisy(r, w, sigma), 1), e, e
		}, nil},
	}
}

// planted makes the batch of a plant; its tokens are drawn from what the engine sampled from.
func (c *contexts) plant(r *rand.Rand, p plant, entropies bool) *dump.Batch {
	out := &planted{rows: c.rows, cols: c.cols}
	for _, z := range c.logits {
		a, b, s := p.make(r, z)
		u, id, last := r.Float64(), 0, 0
		for i, lp := range s {
			if !math.IsInf(lp, -1) {
				last = i
			}
		}
		for id = range s {
			if u -= math.Exp(s[id]); u < 0 || id == last {
				break
			}
		}
		var h float64
		for _, lp := range a {
			if lp > -700 {
				h -= math.Exp(lp) * lp
			}
		}
		out.trainer, out.engine, out.entropy, out.id = append(out.trainer, a[id]), append(out.engine, b[id]), append(out.entropy, h), append(out.id, float64(id))
	}
	if p.then != nil {
		p.then(r, out)
	}
	b := newBatch(1, c.rows, c.cols)
	b.token("logp_old", out.trainer)
	b.token("logp_gen", out.engine)
	b.token("response_ids", out.id)
	if entropies {
		b.token("entropy", out.entropy)
	}
	return b.Batch
}

// batch builds a batch in memory.
type batch struct{ *dump.Batch }

func newBatch(step, rows, cols int) batch {
	b := batch{&dump.Batch{Meta: dump.Meta{Step: step, DLogpScale: 1}, Rows: rows, Cols: cols, Files: []dump.FileInfo{{Name: "a", Step: step, Hi: rows, Cols: cols, PromptCols: -1}}, Tensors: map[string]*dump.Tensor{}}}
	b.Mask = slices.Repeat([]bool{true}, rows*cols)
	for r := range rows {
		b.Origin = append(b.Origin, dump.Origin{Row: r})
	}
	return b
}

func (b batch) token(name string, data []float64) {
	b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Type: format.F64, Data: data}
}

// worlds are the contexts that plants are made of.
func worlds(t testing.TB) []contexts {
	r := rand.New(rand.NewPCG(1, 1))
	return []contexts{
		modelLogits(t, "tiny_gptj", "Tell me about tea.\n", r, 24, 40),
		modelLogits(t, "tiny", "Question: 12+34\nAnswer:", r, 24, 40),
		drawnLogits(r, 24, 40),
	}
}
