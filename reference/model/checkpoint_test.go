package model

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
)

// Layers that are run again give the same bits, logits and gradients, of weights and of an adapter, padded and packed.
func TestCheckpointing(t *testing.T) {
	for kind, c := range tinies() {
		c.Layers = 3
		r := rand.New(rand.NewPCG(4, 0))
		m, err := New(c, random(r))
		require.NoError(t, err)
		adapter := adapterFor(c, r, true)
		for _, in := range []Input{
			{Batch: 2, Time: 3, IDs: []int{4, 1, 2, 0, 3, 1}, Real: []bool{true, true, true, false, true, true}},
			{Batch: 1, Time: 4, IDs: []int{4, 1, 2, 0}, Segment: []int{0, 0, 1, 1}},
		} {
			for _, train := range []Trainable{{Weight: func(string) bool { return true }}, {Adapter: adapter, LoRA: true}, {Adapter: adapter, LoRA: true, Weight: func(string) bool { return true }}} {
				run := func(checkpointing bool) (out [][]float64) {
					in := in
					in.Checkpointing = checkpointing
					n := m.On(&ad.Tape{}, train)
					logits := n.Logits(n.Forward(in).Hidden)
					slopes := make([]float64, logits.Size())
					for i := range slopes {
						slopes[i] = float64(i%5) - 1.7
					}
					ad.Backward(logits, slopes)
					out = append(out, logits.Data())
					for _, w := range c.Tensors() {
						if v := n.Var(w.Name); train.Weight != nil {
							out = append(out, v.Grad())
						}
					}
					for _, name := range slices.Sorted(maps.Keys(train.Adapter)) {
						f, _ := n.Factors(name)
						out = append(out, f.A.Grad(), f.B.Grad())
					}
					return out
				}
				want := run(false)
				require.Greater(t, len(want), 3)
				require.Equal(t, want, run(true), "%s", kind)
			}
		}
	}
}
