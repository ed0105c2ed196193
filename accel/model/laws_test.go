package model_test

import (
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/accel/lora"
	"plumbline/accel/model"
	"plumbline/internal/arch"
	ref "plumbline/reference/model"
)

// llama is a model of two layers with an update on every query and value projection.
func llama(t require.TestingT, vocab int, mode lora.Mode) (*model.Model, map[string]*lora.Update) {
	c := arch.Config{Type: "llama", Vocab: vocab, Layers: 2, KVHeads: 1, Heads: 2, HeadDim: 4, Hidden: 8, Inner: 16, Positions: 64, Eps: 1e-5, Activation: "silu",
		Tied: true, Rope: arch.Rope{Theta: 10000, Dim: 4, Type: "default", Factor: 1}}
	m, err := model.New(c, mode, weights(c, 5))
	require.NoError(t, err)
	updates := map[string]*lora.Update{}
	for i, l := range c.Linears() {
		if l.Role == arch.Query || l.Role == arch.Value {
			u := &lora.Update{Rank: 2, Scale: 0.5, A: narrow(normals(1, uint64(i), 2*l.In, 0.3)), B: narrow(normals(2, uint64(i), 2*l.Out, 0.3)),
				GradA: make([]float32, 2*l.In), GradB: make([]float32, 2*l.Out)}
			updates[l.Name] = u
			require.NoError(t, m.Attach(l.Name, u))
		}
	}
	return m, updates
}

// TestChunks holds the chunked head against the reference with more tokens and a larger vocabulary than one chunk has, none of them a multiple.
func TestChunks(t *testing.T) {
	m, _ := llama(t, 1030, lora.F32)
	exact, err := ref.New(reference(m.Config), func(name string, _ ...int) ([]float64, error) { return m.Weight(name), nil })
	require.NoError(t, err)
	w := &world{config: m.Config, mode: lora.F32, fast: m, exact: exact, adapter: ref.Adapter{}, updates: map[string]*lora.Update{}, head: model.ValueHead{W: make([]float64, 8)}}
	for i, l := range m.Config.Linears() { // the same factors as in llama
		if l.Role == arch.Query || l.Role == arch.Value {
			a, b := normals(1, uint64(i), 2*l.In, 0.3), normals(2, uint64(i), 2*l.Out, 0.3)
			w.adapter[l.Name] = ref.LoRA{Rank: 2, A: a, B: b, Scale: 0.5}
			w.updates[l.Name] = &lora.Update{Rank: 2, Scale: 0.5, A: narrow(a), B: narrow(b), GradA: make([]float32, len(a)), GradB: make([]float32, len(b))}
			w.names = append(w.names, l.Name)
			require.NoError(t, m.Attach(l.Name, w.updates[l.Name]))
		}
	}
	const rows, time = 9, 33
	w.in = ref.Input{Batch: rows, Time: time}
	for i := range rows * time {
		w.in.IDs = append(w.in.IDs, i*7919%1030)
		if i%time > 0 {
			w.at = append(w.at, i)
		}
	}
	require.Greater(t, len(w.at), 256)
	w.dlp, w.dh, w.dv = normals(3, 1, len(w.at), 1), normals(3, 2, len(w.at), 0.3), normals(3, 3, len(w.at), 1)
	for i := range w.dlp {
		if i%3 == 0 {
			w.dlp[i], w.dh[i] = 0, 0 // rows without a slope are left out
		}
	}
	w.agree(t, w.run(t, model.Everything), 2)
}

// TestRowsAlone demands the same bits of a sequence alone, among others, behind padding, and extended token by token from a cache.
func TestRowsAlone(t *testing.T) {
	for _, mode := range []lora.Mode{lora.F32, lora.BF16, lora.W8A16, lora.W8A8, lora.LLMInt8} {
		m, _ := llama(t, 40, mode)
		ids := []int{3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 3}
		hidden := func(rows, time int, ids []int, real []bool) ([]float32, []int) {
			tokens, at := model.Pack(rows, time, ids, real)
			p := m.Forward(tokens, true, model.Nothing)
			return append([]float32(nil), p.Hidden...), at
		}
		alone, _ := hidden(1, 4, ids[4:8], nil)
		among, _ := hidden(3, 4, ids, nil)
		require.Equal(t, alone, among[4*8:8*8], "%v", mode)
		padded, at := hidden(1, 7, append([]int{0, 0}, append(append([]int{}, ids[4:8]...), 1)...), []bool{false, false, true, true, true, true, false})
		require.Equal(t, alone, padded)
		require.Equal(t, []int{-1, -1, 0, 1, 2, 3, -1}, at)

		cache := m.NewCache(2, 8)
		first, err := m.Extend(cache, []int{0, 1}, [][]int{ids[4:6], ids[:3]})
		require.NoError(t, err)
		require.Len(t, first, 2*40)
		_, err = m.Extend(cache, []int{0}, [][]int{ids[6:7]})
		require.NoError(t, err)
		last, err := m.Extend(cache, []int{1, 0}, [][]int{ids[3:4], ids[7:8]})
		require.NoError(t, err)
		require.Equal(t, 4, cache.Len(0))
		whole, err := m.Extend(m.NewCache(1, 4), []int{0}, [][]int{ids[4:8]})
		require.NoError(t, err)
		require.Equal(t, whole, last[40:], "%v: token by token", mode)

		// The log-probability of a token that is drawn is that of the scored one.
		s := m.Score(alone[2*8:3*8], ids[7:8], true, model.Nothing)
		three, err := m.Extend(m.NewCache(1, 4), []int{0}, [][]int{ids[4:7]})
		require.NoError(t, err)
		top, sum := math.Inf(-1), 0.0
		for _, z := range three {
			top = max(top, float64(z))
		}
		for _, z := range three {
			sum += math.Exp(float64(z) - top)
		}
		require.InDelta(t, float64(three[ids[7]])-top-math.Log(sum), s.LogProbs()[0], 1e-7)
	}
}

// TestWorkers demands the same bits from any number of goroutines, gradients included.
func TestWorkers(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, mode := range []lora.Mode{lora.F32, lora.BF16, lora.W8A16, lora.W8A8, lora.LLMInt8} {
		var first results
		for _, n := range []int{1, 2, 8} {
			runtime.GOMAXPROCS(n)
			m, updates := llama(t, 1500, mode)
			tokens, _ := model.Pack(3, 50, ramp(150, 1500), nil)
			p := m.Forward(tokens, true, model.Layers)
			at := ramp(149, 1<<30)
			x := p.Gather(at)
			s := m.Score(x, ramp(149, 1500), true, model.Everything)
			d := s.Backward(normals(1, 1, 149, 1), nil)
			p.Backward(at, d)
			got := results{"hidden": wide(x), "lp": s.LogProbs(), "dx": wide(d)}
			for name, u := range updates {
				got[name+".A"], got[name+".B"] = wide(u.GradA), wide(u.GradB)
			}
			if first == nil {
				first = got
			}
			require.Equal(t, first, got, "%v with %d", mode, n)
		}
	}
}

func ramp(n, below int) []int {
	x := make([]int, n)
	for i := range x {
		x[i] = i * 1 % below
	}
	return x
}

// TestAdapterOff demands the bits of the model without any update from a pass without the adapter, and from one whose B is 0.
func TestAdapterOff(t *testing.T) {
	for _, mode := range []lora.Mode{lora.F32, lora.BF16, lora.W8A16, lora.W8A8, lora.LLMInt8} {
		m, updates := llama(t, 40, mode)
		tokens, _ := model.Pack(2, 5, ramp(10, 40), nil)
		states := func(adapted bool) []float32 {
			return append([]float32(nil), m.Forward(tokens, adapted, model.Nothing).Hidden...)
		}
		off, on := states(false), states(true)
		require.NotEqual(t, off, on)
		for _, u := range updates {
			clear(u.B)
		}
		require.Equal(t, off, states(true))
		for name := range updates {
			require.NoError(t, m.Attach(name, nil))
		}
		require.Equal(t, off, states(true))
	}
}

// TestFrequencies holds the rotary frequencies of the types that scale them against those of the reference, by the states of a model at
// positions up to its 64th.
func TestFrequencies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := arch.Rope{Theta: rapid.SampledFrom([]float64{100, 10000, 500000}).Draw(t, "theta"), Dim: 16, Factor: rapid.SampledFrom([]float64{1, 2, 8}).Draw(t, "factor"),
			Type: rapid.SampledFrom([]string{"linear", "llama3", "yarn"}).Draw(t, "type"), LowFreqFactor: 1, HighFreqFactor: 4, OriginalPositions: rapid.SampledFrom([]int{16, 40, 8192}).Draw(t, "original")}
		if r.Type == "yarn" {
			r.NoTruncate = rapid.Bool().Draw(t, "no truncate")
			r.AttentionFactor = rapid.SampledFrom([]float64{0, 0, 1.3}).Draw(t, "attention factor")
			if rapid.Bool().Draw(t, "mscale") {
				r.MScale, r.MScaleAllDim = 0.7, 1.1
			}
			if rapid.Bool().Draw(t, "betas") {
				r.BetaFast, r.BetaSlow = 8, 2
			}
		}
		freq, factor := rope(r).Frequencies()
		got, gotFactor, err := model.Frequencies(r)
		require.NoError(t, err)
		require.InDelta(t, factor, gotFactor, 1e-15*factor)
		require.Len(t, got, len(freq))
		for i := range freq {
			require.InDelta(t, freq[i], got[i], 1e-13*freq[i], "pair %d", i)
		}
	})
	for _, kind := range []string{"dynamic", "longrope", "unknown"} {
		_, _, err := model.Frequencies(arch.Rope{Theta: 1e4, Dim: 4, Type: kind, Factor: 2})
		require.ErrorContains(t, err, kind)
	}
}

func TestRefused(t *testing.T) {
	c := arch.Config{Type: "gpt2", Vocab: 4, Layers: 1, KVHeads: 1, Heads: 1, HeadDim: 4, Hidden: 4, Inner: 4, Positions: 3, Eps: 1e-5, Activation: "gelu_new",
		QKVBias: true, OutputBias: true, MLPBias: true, Tied: true}
	m, err := model.New(c, lora.F32, weights(c, 1))
	require.NoError(t, err)
	long, _ := model.Pack(1, 4, []int{0, 1, 2, 3}, nil)
	require.ErrorContains(t, m.Check(long), "position 3")
	bad, _ := model.Pack(1, 1, []int{4}, nil)
	require.ErrorContains(t, m.Check(bad), "id 4")
	_, err = m.Extend(m.NewCache(1, 4), []int{0}, [][]int{{0, 1, 2, 3}})
	require.ErrorContains(t, err, "position 3")
	require.ErrorContains(t, m.Attach("nowhere", nil), "nowhere")
	require.Error(t, m.Attach("lm_head", &lora.Update{Rank: 1, A: make([]float32, 3), B: make([]float32, 4)}))
	c.Activation = "mish"
	_, err = model.New(c, lora.F32, weights(c, 1))
	require.ErrorContains(t, err, "mish")
	c.Activation = "gelu_new"
	_, err = model.New(c, lora.F32, func(string, []float32, int) error { return errDisk })
	require.ErrorIs(t, err, errDisk)
}

type diskError struct{}

func (diskError) Error() string { return "the disk is gone" }

var errDisk = diskError{}
