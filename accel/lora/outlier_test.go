package lora

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/rng"
	"plumbline/reference/quant"
)

// Every upper half of a float32, with the lower halves around the ties of float16.
func TestHalf(t *testing.T) {
	for hi := range uint32(1 << 16) {
		for _, lo := range []uint32{0, 1, 0x0fff, 0x1000, 0x1001, 0x8000, 0xffff} {
			x := math.Float32frombits(hi<<16 | lo)
			got := half(x)
			if x != x {
				require.True(t, got != got)
				continue
			}
			if want := float32(quant.Float16.Round(float64(x))); math.Float32bits(got) != math.Float32bits(want) {
				t.Fatalf("half(%x) = %x, want %x", x, got, want)
			}
		}
	}
}

// TestLLMInt8 holds every token against LLM.int8() of the reference on that token alone: the same codes, the same outliers. What is left are
// the roundings of float32: four of the product with its scales, one of each outlier's weight, product and addition, two of the last additions.
func TestLLMInt8(t *testing.T) {
	met := 0
	rapid.Check(t, func(t *rapid.T) {
		n, in, out := rapid.IntRange(1, 4).Draw(t, "tokens"), rapid.SampledFrom([]int{1, 7, 33}).Draw(t, "in"), rapid.SampledFrom([]int{1, 8, 70}).Draw(t, "out")
		seed := rapid.Uint64().Draw(t, "seed")
		normal := func(tensor uint64, n int, scale float64) []float32 {
			s, x := rng.New(seed, tensor), make([]float32, n)
			for i := range x {
				x[i] = float32(scale * s.Normal(uint64(i)))
			}
			return x
		}
		x := normal(0, n*in, rapid.SampledFrom([]float64{0.1, 3, 1e4}).Draw(t, "size"))
		for i := range x { // at the threshold, before and after the rounding to float16
			if i%5 == int(seed%5) {
				x[i] = []float32{6, -6, 5.999, 5.9999, 5.99, 6.001, 0}[i%7]
			}
		}
		l := &Linear{Matrix: NewMatrix(out, in, LLMInt8), Mode: LLMInt8, Bias: normal(1, out, 1)}
		l.SetRows(0, normal(2, out*in, 1))
		y := make([]float32, n*out)
		for i := range y {
			y[i] = float32(math.NaN())
		}
		var w Work
		l.Forward(y, x, n, false, &w)
		weight := &quant.Int8{Rows: out, Cols: in, Codes: l.Codes, AbsMax: make([]float64, out)}
		bias := make([]float64, out)
		for j := range bias {
			weight.AbsMax[j], bias[j] = 127*float64(l.Scale[j]), float64(l.Bias[j])
		}
		ref := &quant.Linear{Weight: weight, Bias: bias, Mode: quant.LLMInt8, Type: quant.Float32, Threshold: Threshold}
		for i := range n {
			row, want := make([]float64, in), make([]float64, out)
			for k := range row {
				row[k] = float64(x[i*in+k])
			}
			ref.Forward(want, row, 1)
			codes, columns := quant.QuantizeOutliers(row, 1, in, quant.Float16, Threshold)
			met += len(columns)
			for j := range want {
				const u = 0x1p-24
				exact, size := math.Abs(float64(quant.Product(codes, &quant.Int8{Rows: 1, Cols: in, Codes: l.Codes[j*in : (j+1)*in], AbsMax: []float64{1}})[0]))*
					codes.AbsMax[0]/127*float64(l.Scale[j]), 0.0
				for _, k := range columns {
					size += math.Abs(row[k] * float64(l.Codes[j*in+k]) * float64(l.Scale[j]))
				}
				bound := 5*u*exact + float64(len(columns)+3)*u*size + 2*u*(exact+math.Abs(bias[j])+size) + 0x1p-140
				if d := math.Abs(float64(y[i*out+j]) - want[j]); !(d <= bound) {
					t.Fatalf("y[%d,%d] is %v, not %v: %g beyond %g", i, j, y[i*out+j], want[j], d, bound)
				}
			}
		}
	})
	require.Positive(t, met, "no outlier was drawn")
}

// What is no number spreads over its token, an infinity over what has a weight, and neither to another token.
func TestLLMInt8Extremes(t *testing.T) {
	l := &Linear{Matrix: NewMatrix(2, 3, LLMInt8), Mode: LLMInt8}
	l.SetRows(0, []float32{1, 2, 3, 0, 1, -1})
	inf := float32(math.Inf(1))
	y, alone := make([]float32, 6), make([]float32, 2)
	var w Work
	l.Forward(alone, []float32{1, 0, 2}, 1, false, &w)
	l.Forward(y, []float32{float32(math.NaN()), 0, 0, 0, 0, inf, 1, 0, 2}, 3, false, &w)
	require.True(t, y[0] != y[0] && y[1] != y[1])
	require.Equal(t, []float32{inf, -inf}, y[2:4])
	require.Equal(t, alone, y[4:])
}
