package model

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"plumbline/reference/ad"
	"plumbline/reference/nn"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A law is a relation that a transformer keeps whatever its weights are. It returns what broke it.
type law func(m *Model, in Input, r *rand.Rand) error

// laws are the relations of a whole model. Equal means bit for bit unless the law says otherwise.
var laws = map[string]law{
	"causality":        causality,
	"causal gradient":  causalGradient,
	"padding":          padding,
	"batch":            batch,
	"packing":          packing,
	"cache":            caching,
	"teacher forcing":  teacherForcing,
	"grouped heads":    groupedHeads,
	"head permutation": headPermutation,
	"position shift":   positionShift,
	"adapter off":      adapterOff,
	"merge":            merge,
	"first step":       firstStep,
	"states":           states,
	"window":           window,
}

// hidden returns the hidden states of an input, C for each token.
func hidden(m *Model, in Input) []float64 {
	var tape ad.Tape
	return m.On(&tape, Trainable{}).Forward(in).Hidden.Data()
}

// at returns the channels of token j of row i.
func (in Input) at(x []float64, i, j int) []float64 {
	c := len(x) / (in.Batch * in.Time)
	return x[(i*in.Time+j)*c : (i*in.Time+j+1)*c]
}

// part returns the tokens [from, to) of row i as a batch of one, without mask.
func (in Input) part(i, from, to int) Input {
	return Input{Batch: 1, Time: to - from, IDs: in.IDs[i*in.Time+from : i*in.Time+to]}
}

func equal(got, want []float64, format string, args ...any) error {
	if len(got) == len(want) {
		for i := range got {
			if math.Float64bits(got[i]) != math.Float64bits(want[i]) {
				return fmt.Errorf(format+": %v is not %v", append(args, got[i], want[i])...)
			}
		}
		return nil
	}
	return fmt.Errorf(format+": %d and %d elements", append(args, len(got), len(want))...)
}

// near is equal within rounding: 1e-10 of the largest element. The hidden states are of order 1 and the sums have fewer than
// a hundred terms, so that rounding alone stays below 1e-12.
func near(got, want []float64, what string) error {
	if w := worst(got, want, 1, nil); !(w <= 1e-10) {
		return fmt.Errorf("%s: off by %.2g", what, w)
	}
	return nil
}

// A token has no influence on those before it or on another row, and some on itself.
func causality(m *Model, in Input, r *rand.Rand) error {
	i, t := r.IntN(in.Batch), r.IntN(in.Time)
	other := in
	other.IDs = slices.Clone(in.IDs)
	other.IDs[i*in.Time+t] = (in.IDs[i*in.Time+t] + 1) % m.Config.Vocab
	a, b := hidden(m, in), hidden(m, other)
	for row := range in.Batch {
		for j := range in.Time {
			if row != i || j < t {
				if err := equal(in.at(a, row, j), in.at(b, row, j), "token %d of row %d after a change of %d of row %d", j, row, t, i); err != nil {
					return err
				}
			}
		}
	}
	if equal(in.at(a, i, t), in.at(b, i, t), "") == nil {
		return fmt.Errorf("token %d has no influence on itself", t)
	}
	return nil
}

// The gradient of an output for the embedding of what it may not see is exactly 0, and for what it sees it is not.
func causalGradient(m *Model, in Input, r *rand.Rand) error {
	i, t := r.IntN(in.Batch), r.IntN(in.Time)
	table := m.Config.embedding() + ".weight"
	var tape ad.Tape
	n := m.On(&tape, Trainable{Weight: func(name string) bool { return name == table }})
	h := n.Forward(in).Hidden
	up := make([]float64, h.Size())
	for k := range in.at(up, i, t) {
		in.at(up, i, t)[k] = r.Float64() - 0.3
	}
	ad.Backward(h, up)
	seen := in.IDs[i*in.Time : i*in.Time+t+1]
	g := n.Var(table).Grad()
	for id := range m.Config.Vocab {
		row := g[id*m.Config.Hidden : (id+1)*m.Config.Hidden]
		some := slices.ContainsFunc(row, func(v float64) bool { return v != 0 })
		if some != slices.Contains(seen, id) && (m.Config.Windows == nil || some) {
			return fmt.Errorf("output %d of row %d, ids %v: the gradient of id %d is %v", t, i, seen, id, row)
		}
	}
	return nil
}

// Padding on either side, of any content, leaves the real tokens alone.
func padding(m *Model, in Input, r *rand.Rand) error {
	want := hidden(m, in)
	p := Input{Batch: in.Batch, Time: in.Time + 3}
	start := make([]int, in.Batch)
	for i := range in.Batch {
		start[i] = r.IntN(4)
		for j := range p.Time {
			real := j >= start[i] && j < start[i]+in.Time
			id := r.IntN(m.Config.Vocab)
			if real {
				id = in.IDs[i*in.Time+j-start[i]]
			}
			p.IDs, p.Real = append(p.IDs, id), append(p.Real, real)
		}
	}
	got := hidden(m, p)
	for _, v := range got {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("padding gives %g", v)
		}
	}
	for i := range in.Batch {
		for j := range in.Time {
			if err := equal(p.at(got, i, start[i]+j), in.at(want, i, j), "token %d of row %d behind %d of padding", j, i, start[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// A row of a batch is the row alone.
func batch(m *Model, in Input, _ *rand.Rand) error {
	all := hidden(m, in)
	c := len(all) / in.Batch
	for i := range in.Batch {
		if err := equal(all[i*c:(i+1)*c], hidden(m, in.part(i, 0, in.Time)), "row %d", i); err != nil {
			return err
		}
	}
	return nil
}

// Sequences packed into one row are each of them alone.
func packing(m *Model, in Input, r *rand.Rand) error {
	p := in
	p.Segment = make([]int, len(in.IDs))
	for i := range p.Segment {
		if i > 0 {
			p.Segment[i] = p.Segment[i-1] + r.IntN(2)
		}
	}
	packed := hidden(m, p)
	for i := range in.Batch {
		for from := 0; from < in.Time; {
			to := from + 1
			for to < in.Time && p.Segment[i*in.Time+to] == p.Segment[i*in.Time+from] {
				to++
			}
			want := hidden(m, in.part(i, from, to))
			for j := from; j < to; j++ {
				if err := equal(p.at(packed, i, j), in.part(i, from, to).at(want, 0, j-from), "tokens %d to %d of row %d", from, to, i); err != nil {
					return err
				}
			}
			from = to
		}
	}
	return nil
}

// Decoding with a cache, in chunks of any size and behind left padding, is the whole sequence at once.
func caching(m *Model, in Input, r *rand.Rand) error {
	in.Real = make([]bool, len(in.IDs))
	for i := range in.Batch {
		pad := r.IntN(in.Time)
		for j := range in.Time {
			in.Real[i*in.Time+j] = j >= pad
		}
	}
	want := hidden(m, in)
	var tape ad.Tape
	n, cache := m.On(&tape, Trainable{}), new(Cache)
	for from := 0; from < in.Time; {
		to := from + 1 + r.IntN(in.Time-from)
		chunk := Input{Batch: in.Batch, Time: to - from, Cache: cache}
		for i := range in.Batch {
			chunk.IDs = append(chunk.IDs, in.IDs[i*in.Time+from:i*in.Time+to]...)
			chunk.Real = append(chunk.Real, in.Real[i*in.Time+from:i*in.Time+to]...)
		}
		h := n.Forward(chunk).Hidden
		if h.NeedsGrad() {
			return fmt.Errorf("inference is recorded")
		}
		for i := range in.Batch {
			for j := range chunk.Time {
				if err := equal(chunk.at(h.Data(), i, j), in.at(want, i, from+j), "tokens %d to %d of row %d", from, to, i); err != nil {
					return err
				}
			}
		}
		from = to
	}
	if cache.Len() != in.Time {
		return fmt.Errorf("the cache has %d places after %d tokens", cache.Len(), in.Time)
	}
	return nil
}

// The log-probability of a token when it is decoded is that of the finished sequence.
func teacherForcing(m *Model, in Input, _ *rand.Rand) error {
	if in.Time < 2 {
		return nil
	}
	in = in.part(0, 0, in.Time)
	var tape ad.Tape
	n, cache := m.On(&tape, Trainable{}), new(Cache)
	want := n.LogProbs(in).Data()
	for t := range in.Time - 1 {
		next := in.part(0, t, t+1)
		next.Cache = cache
		lp := nn.LogProb(n.Logits(n.Forward(next).Hidden), in.IDs[t+1:t+2])
		if err := equal(lp.Data(), want[t:t+1], "token %d", t); err != nil {
			return err
		}
	}
	return nil
}

// Rotary attention knows distances only, so that all positions may be shifted; learned positions know places.
func positionShift(m *Model, in Input, r *rand.Rand) error {
	want := hidden(m, in)
	in.Positions = nn.Positions(in.Batch, in.Time, nil, nil)
	if err := equal(hidden(m, in), want, "explicit positions"); err != nil {
		return err
	}
	by := 1 + r.IntN(5)
	for i := range in.Positions {
		in.Positions[i] += by
	}
	err := near(hidden(m, in), want, "shifted positions")
	if m.Config.Kind == GPT2 {
		if err == nil {
			return fmt.Errorf("learned positions have no influence")
		}
		return nil
	}
	return err
}

// The states are one for the embedding and one per layer, the last after the norm.
func states(m *Model, in Input, _ *rand.Rand) error {
	want := hidden(m, in)
	in.States = true
	var tape ad.Tape
	n := m.On(&tape, Trainable{})
	out := n.Forward(in)
	if len(out.States) != m.Config.Layers+1 {
		return fmt.Errorf("%d states of %d layers", len(out.States), m.Config.Layers)
	}
	if m.Config.Kind != GPT2 {
		table := n.Var(m.Config.embedding() + ".weight")
		if err := equal(out.States[0].Data(), nn.Embedding(table, in.IDs, in.Batch, in.Time).Data(), "embedding"); err != nil {
			return err
		}
	}
	return equal(out.States[m.Config.Layers].Data(), want, "the last state")
}

func TestLaws(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(laws)) {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := drawTiny(t)
				r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
				m, err := New(c, random(r))
				require.NoError(t, err)
				in := tokens(c, r, rapid.IntRange(1, 3).Draw(t, "rows"), rapid.IntRange(1, 6).Draw(t, "tokens"))
				require.NoError(t, laws[name](m, in, r))
			})
		})
	}
}

// The laws of sequences once more at sizes at which the matrix products go by blocks and on several threads.
func TestLawsOfLargeProducts(t *testing.T) {
	llama := Config{Kind: Llama, Vocab: 140, Hidden: 130, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 34, Intermediate: 200, MaxPositions: 90,
		Eps: 1e-5, Activation: "silu", RoPE: nn.RoPE{Dim: 34, Theta: 10000}}
	gpt2 := Config{Kind: GPT2, Vocab: 140, Hidden: 132, Layers: 2, Heads: 4, KVHeads: 4, HeadDim: 33, Intermediate: 200, MaxPositions: 90,
		Eps: 1e-5, Activation: "gelu_new", QKVBias: true, OutputBias: true, MLPBias: true}
	for _, c := range []Config{llama, gpt2} {
		r := rand.New(rand.NewPCG(5, 5))
		m, err := New(c, random(r))
		require.NoError(t, err)
		in := tokens(c, r, 2, 70)
		for _, name := range []string{"causality", "padding", "batch", "packing", "cache"} {
			require.NoError(t, laws[name](m, in, r), "%s: %s", c.Kind, name)
		}
	}
}
