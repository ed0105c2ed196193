package model

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawn serves weights of full mantissas from a seed: matrices of standard deviation 0.4, vectors around 1.
func drawn(seed uint64) Weights {
	rng := rand.New(rand.NewPCG(seed, 1))
	return func(_ string, shape ...int) ([]float64, error) {
		x := make([]float64, elements(shape))
		for i := range x {
			x[i] = 0.4 * rng.NormFloat64()
			if len(shape) == 1 {
				x[i] += 1
			}
		}
		return x, nil
	}
}

// tinyMasked is a model of mode with random sizes and weights, and a batch of its base tokens with masks among them.
func tinyMasked(t *rapid.T, mode Mode) (*MaskedGPT, Input) {
	size := func(lo, hi int, name string) int { return rapid.IntRange(lo, hi).Draw(t, name) }
	heads := size(1, 3, "heads")
	c := MaskedGPTConfig{Mode: mode, Hidden: heads * 2 * size(1, 3, "D/2"), Heads: heads, Layers: size(1, 2, "layers"), MaxPositions: 12, Bias: rapid.Bool().Draw(t, "bias")}
	base := size(2, 7, "base")
	c.Mask, c.Pad, c.CLS, c.Vocab = base, base+1, base+2, base+3
	c.CLSEmbedding = mode == SequenceScorer && rapid.Bool().Draw(t, "cls embedding")
	seed := rapid.Uint64().Draw(t, "seed")
	m, err := NewMaskedGPT(c, drawn(seed))
	require.NoError(t, err)
	in := Input{Batch: size(1, 3, "B"), Time: size(2, 7, "T")}
	rng := rand.New(rand.NewPCG(seed, 2))
	for range in.Batch * in.Time {
		in.IDs = append(in.IDs, rng.IntN(base+1))
	}
	return m, in
}

// hidden returns the hidden states of an input, without a tape.
func (m *MaskedGPT) hidden(in Input) []float64 {
	return m.On(new(ad.Tape), nil).Forward(in).Hidden.Data()
}

// row returns row i of a batch alone.
func row(in Input, i int) Input {
	cut := func(ids []int) []int { return ids[i*in.Time : (i+1)*in.Time] }
	out := Input{Batch: 1, Time: in.Time, IDs: cut(in.IDs)}
	if in.Real != nil {
		out.Real = in.Real[i*in.Time : (i+1)*in.Time]
	}
	return out
}

// padded returns the input with n places of padding holding junk at the right of each row, or at the left.
func padded(in Input, n int, left bool, junk func() int) Input {
	out := Input{Batch: in.Batch, Time: in.Time + n}
	for i := range in.Batch {
		ids, real := row(in, i).IDs, make([]bool, in.Time)
		for j := range real {
			real[j] = true
		}
		pads := make([]int, n)
		for j := range pads {
			pads[j] = junk()
		}
		if left {
			out.IDs, out.Real = append(append(out.IDs, pads...), ids...), append(append(out.Real, make([]bool, n)...), real...)
		} else {
			out.IDs, out.Real = append(append(out.IDs, ids...), pads...), append(append(out.Real, real...), make([]bool, n)...)
		}
	}
	return out
}

// A row of a batch, a row with anything as padding at its right, and rows packed into one have the bits of the row alone.
// Padding at the left shifts the positions, which shows by rounding only: rotary attention knows differences of positions.
func TestMaskedRowsAreAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, in := tinyMasked(t, LanguageModel)
		width := m.Config.Hidden
		together := m.hidden(in)
		pads := rapid.IntRange(1, 12-in.Time).Draw(t, "pads")
		junk := func() int { return rapid.IntRange(0, m.Config.Vocab-1).Draw(t, "junk") }
		right, left := m.hidden(padded(in, pads, false, junk)), m.hidden(padded(in, pads, true, junk))
		n := in.Time * width
		for i := range in.Batch {
			alone := m.hidden(row(in, i))
			require.Equal(t, alone, together[i*n:(i+1)*n], "batch")
			at := i * (n + pads*width)
			require.Equal(t, alone, right[at:at+n], "padding at the right")
			require.InDeltaSlice(t, alone, left[at+pads*width:at+pads*width+n], 1e-10, "padding at the left")
		}
		if in.Batch*in.Time <= m.Config.MaxPositions {
			packed := Input{Batch: 1, Time: in.Batch * in.Time, IDs: in.IDs}
			for i := range packed.Time {
				packed.Segment = append(packed.Segment, i/in.Time)
			}
			require.Equal(t, together, m.hidden(packed), "packed")
		}
	})
}

// Every position sees every other: a change of any token reaches the hidden states everywhere, and so does a gradient.
func TestMaskedSeesBothWays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, in := tinyMasked(t, LanguageModel)
		if m.Config.Hidden == 2 {
			t.Skip("LayerNorm of two channels is a sign")
		}
		width := m.Config.Hidden
		in = row(in, 0)
		before := m.hidden(in)
		at := rapid.IntRange(0, in.Time-1).Draw(t, "changed")
		changed := in
		changed.IDs = slices.Clone(in.IDs)
		changed.IDs[at] = (in.IDs[at] + 1) % m.Config.Vocab
		after := m.hidden(changed)
		for i := range in.Time {
			require.NotEqual(t, before[i*width:(i+1)*width], after[i*width:(i+1)*width], "position %d", i)
		}
	})
}

// Positions count every place of a row, hidden or not. Adding a number to all of them changes rounding only.
func TestMaskedPositionsAreRelative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, in := tinyMasked(t, LanguageModel)
		if rapid.Bool().Draw(t, "holes") {
			for i := range in.IDs {
				in.Real = append(in.Real, i%2 == 1)
			}
		}
		before := m.hidden(in)
		shift := rapid.IntRange(1, 1000).Draw(t, "shift")
		for i := range in.IDs {
			in.Positions = append(in.Positions, i%in.Time)
		}
		require.Equal(t, before, m.hidden(in))
		for i := range in.Positions {
			in.Positions[i] += shift
		}
		require.InDeltaSlice(t, before, m.hidden(in), 1e-9)
	})
}

// The sum over masked positions is that of the log-probabilities there; what stands elsewhere in a completion has no
// influence, nor does a gradient come from a row without masks.
func TestMaskedSequenceLogProb(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, in := tinyMasked(t, LanguageModel)
		for i := range in.Time {
			if in.IDs[i] == m.Config.Mask {
				in.IDs[i] = 0 // row 0 has none
			}
		}
		completion, other := slices.Clone(in.IDs), slices.Clone(in.IDs)
		for i, id := range in.IDs {
			if id == m.Config.Mask {
				completion[i] = rapid.IntRange(0, m.Config.Mask-1).Draw(t, "filled")
				other[i] = completion[i]
			} else {
				other[i] = m.Config.Mask
			}
		}
		n := m.On(new(ad.Tape), func(string) bool { return true })
		s := n.SequenceLogProb(in, completion)
		require.Equal(t, s.Data(), n.SequenceLogProb(in, other).Data())
		logits := n.Logits(n.Forward(in).Hidden).Data()
		v := m.Config.Vocab
		for b := range in.Batch {
			var want float64
			for i := b * in.Time; i < (b+1)*in.Time; i++ {
				if in.IDs[i] == m.Config.Mask {
					var sum float64
					for _, x := range logits[i*v : (i+1)*v] {
						sum += math.Exp(x)
					}
					want += logits[i*v+completion[i]] - math.Log(sum)
				}
			}
			require.InDelta(t, want, s.Data()[b], 1e-11)
		}
		require.Zero(t, s.Data()[0])
		ad.Backward(s, append([]float64{1}, make([]float64, in.Batch-1)...))
		for _, w := range m.Config.Tensors() {
			require.Equal(t, make([]float64, elements(w.Shape)), n.Var(w.Name).Grad(), w.Name)
		}
	})
}

// scores returns the verdict on a text.
func (m *MaskedGPT) scores(text Input) []float64 {
	return m.On(new(ad.Tape), nil).Score(m.Config.JudgeInput(text)).Data()
}

// set replaces a weight.
func (m *MaskedGPT) set(name string, f func(x float64) float64) {
	x := slices.Clone(m.data[name])
	for i := range x {
		x[i] = f(x[i])
	}
	m.data[name] = x
}

// The head of a judge: with A = 0 it says σ(B) of every text; doubling A and halving w changes no bit; the logit of a score
// is affine in A; padding and the other rows do not matter.
func TestJudge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, text := tinyMasked(t, SequenceScorer)
		before := m.scores(text)
		for i, y := range before {
			require.True(t, y > 0 && y < 1)
			require.Equal(t, []float64{y}, m.scores(row(text, i)))
		}
		junk := func() int { return m.Config.Pad }
		require.Equal(t, before, m.scores(padded(text, 2, false, junk)))

		logit := func(y float64) float64 { return math.Log(y / (1 - y)) }
		const head = "sequence_head."
		a, b := m.data[head+"A"][0], m.data[head+"B"][0]
		m.set(head+"A", func(float64) float64 { return 2 * a })
		twice := m.scores(text)
		m.set(head+"base_predictor.weight", func(x float64) float64 { return x / 2 })
		require.Equal(t, before, m.scores(text))
		for i := range before {
			if y := twice[i]; y > 1e-4 && y < 1-1e-4 {
				require.InDelta(t, 2*(logit(before[i])-b)+b, logit(y), 1e-9)
			}
		}
		m.set(head+"A", func(float64) float64 { return 0 })
		for _, y := range m.scores(text) {
			require.InDelta(t, 1/(1+math.Exp(-b)), y, 1e-15)
		}
	})
}

// An embedding of its own for CLS that equals its row of the table changes no bit, and leaves that row without gradient.
func TestCLSEmbedding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, text := tinyMasked(t, SequenceScorer)
		c := m.Config
		c.CLSEmbedding = true
		own, err := NewMaskedGPT(c, drawn(1))
		require.NoError(t, err)
		for name, x := range m.data {
			own.data[name] = x
		}
		table := m.data["transformer.wte.weight"]
		own.data["cls_embedding"] = slices.Clone(table[c.CLS*c.Hidden : (c.CLS+1)*c.Hidden])
		m.Config.CLSEmbedding = false
		require.Equal(t, m.scores(text), own.scores(text))

		n := own.On(new(ad.Tape), func(string) bool { return true })
		ad.Backward(ad.Sum(n.Score(c.JudgeInput(text)), false), []float64{1})
		grad := n.Var("transformer.wte.weight").Grad()
		require.Equal(t, make([]float64, c.Hidden), grad[c.CLS*c.Hidden:(c.CLS+1)*c.Hidden])
		require.NotEqual(t, make([]float64, c.Hidden), n.Var("cls_embedding").Grad())
	})
}

// A text of any length is judged with CLS in front; what is cut is its beginning.
func TestJudgeInput(t *testing.T) {
	m, _ := NewMaskedGPT(MaskedGPTConfig{Mode: SequenceScorer, Vocab: 9, Hidden: 4, Heads: 1, Layers: 1, MaxPositions: 5, Mask: 6, Pad: 7, CLS: 8}, drawn(3))
	c := m.Config
	for _, f := range []struct{ time, kept int }{{1, 1}, {3, 3}, {4, 4}, {5, 4}, {9, 4}} {
		text := Input{Batch: 2, Time: f.time, Real: make([]bool, 2*f.time), States: true}
		for i := range 2 * f.time {
			text.IDs = append(text.IDs, i%6)
			text.Real[i] = i != 2*f.time-1
		}
		in := c.JudgeInput(text)
		require.Equal(t, 1+f.kept, in.Time)
		require.True(t, in.States)
		for b := range 2 {
			ids, real := in.IDs[b*in.Time:(b+1)*in.Time], in.Real[b*in.Time:(b+1)*in.Time]
			require.Equal(t, append([]int{8}, text.IDs[(b+1)*f.time-f.kept:(b+1)*f.time]...), ids)
			require.Equal(t, append([]bool{true}, text.Real[(b+1)*f.time-f.kept:(b+1)*f.time]...), real)
		}
		require.NoError(t, c.Check(in))
		require.Len(t, m.scores(text), 2)
	}
}

// nanoGPT counts 10.65M parameters for its character model of Shakespeare (6 layers, 6 heads, 384 channels, 65 characters)
// without learned positions, which this model has not.
func TestMaskedSize(t *testing.T) {
	n := 0
	for _, w := range (MaskedGPTConfig{Mode: LanguageModel, Vocab: 65, Hidden: 384, Layers: 6, Heads: 6, MaxPositions: 256, Mask: 63, Pad: 64}).Tensors() {
		n += elements(w.Shape)
	}
	require.Equal(t, 1065, (n+5000)/10000)
}

// Inference is the same code on constants: the same bits, and nothing is recorded.
func TestMaskedInference(t *testing.T) {
	g := readMasked(t, "maskedgpt")
	m, in := g.model(t), g.input("ids", "attention_mask")
	in.States = true
	run := func(weight func(string) bool) (Output, *ad.Var) {
		n := m.On(new(ad.Tape), weight)
		out := n.Forward(in)
		return out, n.Logits(out.Hidden)
	}
	out, logits := run(nil)
	with, trained := run(func(name string) bool { return name == "transformer.h.1.mlp.c_fc.weight" })
	require.False(t, logits.NeedsGrad())
	require.True(t, trained.NeedsGrad())
	require.Equal(t, logits.Data(), trained.Data())
	require.Len(t, out.States, m.Config.Layers+1)
	require.Equal(t, out.Hidden.Data(), out.States[m.Config.Layers].Data())
	require.False(t, with.States[1].NeedsGrad(), "before the only parameter nothing is recorded")
}

func TestMaskedRefuses(t *testing.T) {
	good := MaskedGPTConfig{Mode: SequenceScorer, Vocab: 68, Hidden: 12, Heads: 3, Layers: 1, MaxPositions: 8, Mask: 65, Pad: 66, CLS: 67}
	require.NoError(t, good.Validate())
	for want, change := range map[string]func(c *MaskedGPTConfig){
		"vocab_size 0":                          func(c *MaskedGPTConfig) { c.Vocab = 0 },
		"n_layer -1":                            func(c *MaskedGPTConfig) { c.Layers = -1 },
		`mode "token_classifier"`:               func(c *MaskedGPTConfig) { c.Mode = "token_classifier" },
		"n_embd 9":                              func(c *MaskedGPTConfig) { c.Hidden = 9 },
		"pad_token_id and cls_token_id are":     func(c *MaskedGPTConfig) { c.CLS = 66 }, // as in the original's judge
		"mask_token_id and pad_token_id are":    func(c *MaskedGPTConfig) { c.Pad = 65 },
		"cls_token_id 67 is not in a vocabular": func(c *MaskedGPTConfig) { c.Vocab = 67 },
		"block_size 1":                          func(c *MaskedGPTConfig) { c.MaxPositions = 1 },
		"a language model has no cls_embedding": func(c *MaskedGPTConfig) { c.Mode, c.CLSEmbedding = LanguageModel, true },
	} {
		c := good
		change(&c)
		require.ErrorContains(t, c.Validate(), want)
		_, err := NewMaskedGPT(c, drawn(1))
		require.ErrorContains(t, err, want)
	}
	_, err := NewMaskedGPT(good, func(name string, _ ...int) ([]float64, error) { return nil, errors.New("there is none") })
	require.ErrorContains(t, err, "model: weight transformer.wte.weight: there is none")
	_, err = NewMaskedGPT(good, func(string, ...int) ([]float64, error) { return make([]float64, 1), nil })
	require.ErrorContains(t, err, "1 elements for shape [68 12]")

	judge, err := NewMaskedGPT(good, drawn(1))
	require.NoError(t, err)
	lm := good
	lm.Mode = LanguageModel
	generator, err := NewMaskedGPT(lm, drawn(1))
	require.NoError(t, err)
	text := Input{Batch: 1, Time: 2, IDs: []int{3, 4}}
	on := func(m *MaskedGPT) *MaskedNet { return m.On(new(ad.Tape), nil) }
	for want, f := range map[string]func(){
		"logits of a sequence_scorer":      func() { on(judge).LogProbs(text, text.IDs) },
		"the score of a language_model":    func() { on(generator).Score(text) },
		"begins with 3, not with CLS 67":   func() { on(judge).Score(text) },
		"input of a judge for a language":  func() { lm.JudgeInput(text) },
		"9 tokens for a block_size of 8":   func() { on(generator).Forward(Input{Batch: 1, Time: 9, IDs: make([]int, 9)}) },
		"so there is no cache":             func() { on(generator).Forward(Input{Batch: 1, Time: 1, IDs: []int{1}, Cache: new(Cache)}) },
		"id 68 is not in a vocabulary":     func() { on(generator).Forward(Input{Batch: 1, Time: 1, IDs: []int{68}}) },
		"ad: gather: 1 indices for 1 of ":  func() { on(generator).LogProbs(text, []int{1}) },
		"there is no weight \"lm_head\"":   func() { on(generator).Var("lm_head") },
		"for a judge is ids and an attent": func() { good.JudgeInput(Input{Batch: 2, Time: 2, IDs: []int{1}}) },
	} {
		func() {
			defer func() { require.Contains(t, recover(), want) }()
			f()
		}()
	}
}
