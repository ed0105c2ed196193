package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
)

// TestSumsThatLackTokens leaves one token of every response out of the sums of losses that are divided by the tokens of all: the last, the first, or the last of
// those whose gradient says so.
func TestSumsThatLackTokens(t *testing.T) {
	run := func(out func(file, n, t int) bool, gradient bool) *Losses {
		const cols = 6
		l := &Losses{}
		for f := range 7 {
			lengths := []int{2 + f%5, 6, 3, 5 - f%3}
			b := lossFile(cols, lengths, func(i int) float64 { return float64(float32(math.Sin(float64(7*i + 5*f)))) }, nil)
			x, g := b.Token("token_loss"), make([]float64, 4*cols)
			var sum, n float64
			for i, in := range b.Mask {
				if !in {
					continue
				}
				n++
				if !out(f+i/cols, lengths[i/cols], i%cols) {
					sum, g[i] = sum+x[i], 0.1
				}
			}
			b.Tensors["loss"] = &dump.Tensor{Data: []float64{float64(float32(sum / n))}, Layout: dump.PerFile, Type: format.F32}
			if gradient {
				b.Tensors["dlogp"] = &dump.Tensor{Data: g, Layout: dump.PerToken, Type: format.F32}
			}
			l.Add(b)
		}
		return l
	}
	last := func(_, n, t int) bool { return t == n-1 }
	some := func(row, n, t int) bool { return t == n-1 && row%3 > 0 }
	for _, c := range []struct {
		id       string
		out      func(file, n, t int) bool
		gradient bool
	}{
		{"LOSS-MASK-NO-EOS-ABOVE", last, false},
		{"LOSS-MASK-FIRST", func(_, _, t int) bool { return t == 0 }, false},
		{"LOSS-MASK-OTHER", some, true},
		{"", some, false},
		{"", func(int, int, int) bool { return false }, true},
	} {
		l := run(c.out, c.gradient)
		require.Equal(t, c.id, l.Misdivided())
		if c.id != "" {
			require.Equal(t, []string{"agg.kind=token", "agg.denominator=micro", "agg.div_ga=false"}, formTexts(l), c.id)
		}
	}
}
