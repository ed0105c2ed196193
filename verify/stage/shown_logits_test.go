package stage

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
)

// The number by which logits are divided is read from log-probs, whatever it is; log-probs of other logits have none.
func TestTemperatureOfLogits(t *testing.T) {
	const rows, cols, vocab = 4, 6, 7
	r := rand.New(rand.NewPCG(2, 9))
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, rows)}
	z, ids := make([]float64, rows*cols*vocab), make([]float64, rows*cols)
	for i := range z {
		z[i] = float64(float32(3 * r.NormFloat64()))
	}
	for i := range ids {
		b.Mask[i], ids[i] = i%cols < 4, float64(r.IntN(vocab))
	}
	b.Tensors["logits"] = &dump.Tensor{Name: "logits", Layout: dump.PerToken, Width: vocab, Shape: []int{rows, cols, vocab}, Data: z, Type: format.F32}
	b.Tensors["response_ids"] = &dump.Tensor{Name: "response_ids", Layout: dump.PerToken, Width: 1, Shape: []int{rows, cols}, Data: ids, Type: format.I64}
	of := func(temperature float64) []float64 {
		x := make([]float64, rows*cols)
		for i := range x {
			var sum float64
			for _, v := range z[i*vocab : (i+1)*vocab] {
				sum += math.Exp(v / temperature)
			}
			x[i] = float64(float32(z[i*vocab+int(ids[i])]/temperature - math.Log(sum)))
		}
		return x
	}
	for _, want := range []float64{1, 0.7, 0.64, 2, 1.25, 0.35} {
		got, ok := TemperatureOf(b, of(want))
		require.True(t, ok, want)
		require.Equal(t, want, got)
	}
	got, ok := TemperatureOf(b, of(0.77777))
	require.True(t, ok)
	require.InDelta(t, 0.77777, got, 1e-5)
	x := of(1)
	x[7] -= 0.1
	_, ok = TemperatureOf(b, x)
	require.False(t, ok)
}
