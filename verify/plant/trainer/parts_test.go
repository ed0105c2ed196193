package trainer

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// A hole passes what is behind it on: discounted as a step under zero_step, as it is where it is carried.
func TestReturnsOverAHole(t *testing.T) {
	for hole, want := range map[string][]float64{"zero_step": {1 + 0.5*2, 2, 4}, "carry": {1 + 0.5*4, 4, 4}} {
		r := &run[float64]{Config: Config{Rows: 1, Cols: 3}, world: &world{rows: 1, cols: 3}, mask: []bool{true, false, true}}
		require.Equal(t, want, r.toGo([]float64{1, 9, 4}, 0.5, hole), hole)
	}
}

// The likeliest tokens are summed until they have 0.8, or reach down to the sampled one, wherever they stand in the vocabulary.
func TestKeptMass(t *testing.T) {
	p := []float64{0.05, 0.6, 0.02, 0.3, 0.03}
	z := make([]float64, len(p))
	for i, x := range p {
		z[i] = math.Log(x)
	}
	for id, want := range []float64{0.95, 0.9, 1, 0.9, 0.98} {
		require.InDelta(t, want, kept(z, 0, 0, id), 1e-12, "token %d", id)
	}
}

// A text that was tokenised again has another id in the middle of every second response, and nowhere else.
func TestIdsOfATextTokenisedAgain(t *testing.T) {
	const plant = "IDS-RETOKENISED"
	c := Config{Set: sets(t, 0)["trl-grpo@1.16"], Seed: 3, Rows: 16, Cols: 10, Group: 4, DType: format.F32}.withDefaults()
	healthy, _ := train(c, "", plant)
	b, _ := train(c, plant, plant)
	x, y := healthy.Tensors["input_ids"], b.Tensors["input_ids"]
	width := x.Width - b.Cols
	changed := 0
	for i := range x.Data {
		if x.Data[i] == y.Data[i] {
			continue
		}
		changed++
		row, n := i/x.Width, 0
		for t := range b.Cols {
			if healthy.Tensors["attention_mask"].Data[row*x.Width+width+t] != 0 {
				n++
			}
		}
		require.Equal(t, width+n/2, i%x.Width, "row %d of %d tokens", row, n)
		require.Zero(t, row%2)
	}
	require.Greater(t, changed, 3)
}

// A mask without the end of responses lacks the end-of-sequence token of every response that has another token, and nothing else.
func TestMaskWithoutEnds(t *testing.T) {
	const plant = "MASK-NO-EOS"
	short := 0
	for seed := range uint64(6) {
		c := Config{Set: sets(t, 0)["trl-grpo@1.16"], Seed: seed, Rows: 64, Cols: 6, Group: 4, DType: format.F32}.withDefaults()
		healthy, _ := train(c, "", plant)
		b, _ := train(c, plant, plant)
		const eos = 1
		ids := healthy.Token("response_ids")
		for r := range b.Rows {
			n, differ := 0, []int(nil)
			for i := range b.Cols {
				if healthy.Mask[r*b.Cols+i] {
					n++
				}
				if healthy.Mask[r*b.Cols+i] != b.Mask[r*b.Cols+i] {
					differ = append(differ, i)
				}
			}
			if n > 1 && ids[r*b.Cols+n-1] == eos {
				require.Equal(t, []int{n - 1}, differ)
				if n == 2 {
					short++
				}
			} else {
				require.Empty(t, differ)
			}
		}
	}
	require.Positive(t, short)
}
