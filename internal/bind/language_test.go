package bind_test

import (
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/bind"
	"plumbline/internal/rng"
	"plumbline/internal/train"
	"plumbline/reference/ad"
	"plumbline/reference/model"
	"plumbline/reference/rl"
)

// pair is a prompt and its response.
type pair struct{ prompt, response []int }

// batchOf pads pairs to one length, prompts on the left, responses on the right, with so many columns more than are needed.
func batchOf(pairs []pair, more int) train.Batch {
	b := train.Batch{Rows: len(pairs), Prompt: more, Response: more}
	for _, p := range pairs {
		b.Prompt, b.Response = max(b.Prompt, more+len(p.prompt)), max(b.Response, more+len(p.response))
	}
	for _, p := range pairs {
		row, real := make([]int, b.Prompt+b.Response), make([]bool, b.Prompt+b.Response)
		from := b.Prompt - len(p.prompt)
		for i, id := range append(slices.Clone(p.prompt), p.response...) {
			row[from+i], real[from+i] = id, true
		}
		b.IDs, b.Real = append(b.IDs, row...), append(b.Real, real...)
	}
	return b
}

// One loss, the sum of weighted log-probabilities of all response tokens, has one gradient: of rows alone, of rows that are padded,
// of rows that are padded more, and of all sequences packed into one row. Each element is a sum of fewer than 2¹⁴ terms, each of
// which passes fewer than 100 others; the norm bounds their magnitudes up to the root of the number of rows.
func TestPaddedOrPacked(t *testing.T) {
	m, _, err := bind.Open(bind.Tiny, 1)
	require.NoError(t, err)
	l, err := bind.NewLanguage(m.Base, bind.Options{})
	require.NoError(t, err)
	stream, at := rng.New(5, 0), uint64(0)
	word := func(n int) int { at++; return int(stream.Word(at) % uint64(n)) }
	var pairs []pair
	for range 5 {
		p := pair{make([]int, 1+word(9)), make([]int, 1+word(6))}
		for _, ids := range [][]int{p.prompt, p.response} {
			for i := range ids {
				ids[i] = word(m.Base.Config.Vocab)
			}
		}
		pairs = append(pairs, p)
	}
	weight := func(row, token int) float64 { return stream.Normal(uint64(1000 + 100*row + token)) }
	gradient := func(parts [][]pair, more int) (grad []float64) {
		first := 0
		for _, part := range parts {
			b := batchOf(part, more)
			require.NoError(t, l.Accumulate(b, func(train.Scores) (train.Slopes, error) {
				d := make([]float64, b.Rows*b.Response)
				for i, p := range part {
					for j := range p.response {
						d[i*b.Response+j] = weight(first+i, j)
					}
				}
				return train.Slopes{LogProbs: d}, nil
			}))
			first += len(part)
		}
		for _, p := range l.Params() {
			grad = append(grad, p.Grad...)
			clear(p.Grad)
		}
		return grad
	}
	want := gradient([][]pair{pairs}, 0)
	norm := 0.0
	for _, v := range want {
		norm = math.Hypot(norm, v)
	}
	require.Positive(t, norm)
	got := map[string][]float64{"packed": packedGradient(m.Base, pairs, weight), "padded by 7 more": gradient([][]pair{pairs}, 7), "2 + 3 rows": gradient([][]pair{pairs[:2], pairs[2:]}, 0)}
	var alone [][]pair
	for i := range pairs {
		alone = append(alone, pairs[i:i+1])
	}
	got["alone"] = gradient(alone, 0)
	bound := math.Sqrt(5) * 100 * (1 << 14) * 0x1p-53 * norm
	for name, g := range got {
		worst := 0.0
		for i := range want {
			worst = max(worst, math.Abs(g[i]-want[i]))
		}
		t.Logf("%-16s %.2g of %.2g, norm %.3g", name, worst, bound, norm)
		require.LessOrEqual(t, worst, bound, name)
	}
	// A sequence that sees its neighbour in the row has another gradient, far beyond the bound.
	both := append(append(slices.Clone(pairs[0].prompt), pairs[0].response...), pairs[1].prompt...)
	wrong := packedGradient(m.Base, []pair{{both, pairs[1].response}}, func(_, token int) float64 { return weight(1, token) })
	right := packedGradient(m.Base, pairs[1:2], func(_, token int) float64 { return weight(1, token) })
	worst := 0.0
	for i := range right {
		worst = max(worst, math.Abs(wrong[i]-right[i]))
	}
	require.Greater(t, worst, 1e6*bound)
}

// Checkpointing changes no bit of a gradient, and leaves less of a pass in memory.
func TestGradientCheckpointing(t *testing.T) {
	var pairs []pair
	for i := range 6 {
		pairs = append(pairs, pair{[]int{1, 2, 3 + i}, slices.Repeat([]int{7 + i}, 60)})
	}
	b := batchOf(pairs, 0)
	run := func(lora, checkpointing bool) (grad []float64, held uint64) {
		m, _, err := bind.Open(bind.TinyGPTJ, 1)
		require.NoError(t, err)
		o := bind.Options{Checkpointing: checkpointing}
		if lora {
			o.Adapter, err = bind.NewAdapter(m.Base.Config, 2, 4, []string{"q_proj", "fc_in"}, 1)
			require.NoError(t, err)
			for _, f := range o.Adapter { // B of zeros has no gradient for A
				for i := range f.B {
					f.B[i] = float64(i%5) / 50
				}
			}
		}
		l, err := bind.NewLanguage(m.Base, o)
		require.NoError(t, err)
		before := inUse()
		require.NoError(t, l.Accumulate(b, func(s train.Scores) (train.Slopes, error) {
			held = inUse() - before
			return train.Slopes{LogProbs: slices.Repeat([]float64{-1}, len(s.LogProbs)), Entropy: slices.Repeat([]float64{.1}, len(s.LogProbs))}, nil
		}))
		for _, p := range l.Params() {
			grad = append(grad, p.Grad...)
		}
		return grad, held
	}
	for _, lora := range []bool{false, true} {
		want, all := run(lora, false)
		got, some := run(lora, true)
		require.Equal(t, want, got)
		require.NotZero(t, got[len(got)-1])
		t.Logf("lora %t: %d kB of a pass are kept, with checkpointing %d kB", lora, all>>10, some>>10)
		require.Less(t, some, all/2)
	}
}

func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// packedGradient is the gradient of the weights, in the order of their names in the configuration, with all pairs in one row.
func packedGradient(m *model.Model, pairs []pair, weight func(row, token int) float64) (grad []float64) {
	in := model.Input{Batch: 1}
	var slopes []float64 // of the token after each
	for i, p := range pairs {
		ids := append(slices.Clone(p.prompt), p.response...)
		for j, id := range ids {
			in.IDs, in.Segment = append(in.IDs, id), append(in.Segment, i)
			w := 0.0
			if k := j + 1 - len(p.prompt); k >= 0 && j+1 < len(ids) {
				w = weight(i, k)
			}
			slopes = append(slopes, w)
		}
	}
	in.Time = len(in.IDs)
	next := append(slices.Clone(in.IDs[1:]), 0)
	net := m.On(&ad.Tape{}, model.Trainable{Weight: func(string) bool { return true }})
	logits := net.Logits(net.Forward(in).Hidden)
	v := m.Config.Vocab
	ad.Backward(logits, rl.LogProbsBackward(make([]float64, len(logits.Data())), slopes, logits.Data(), next, v, rl.LogProbOptions{}))
	for _, t := range m.Config.Tensors() {
		grad = append(grad, net.Var(t.Name).Grad()...)
	}
	return grad
}
