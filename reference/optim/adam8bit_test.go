package optim

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/reference/quant"
)

// golden8bit is what bitsandbytes 0.50.2 returned (golden/gen/optim/adam8bit.py).
type golden8bit struct {
	Signed, Unsigned []float64
	Blocks           []struct {
		Name          string
		Signed        bool
		X             []float64
		Codes, Native []int
		AbsMax, Back  []float64
	}
	Types []struct {
		N     int
		DType string
	}
	Steps []struct {
		Step             int
		Decay, LR        float64
		Grad             []float64
		Before, After    []float64
		State1, State2   []int
		AbsMax1, AbsMax2 []float64
	}
}

func readGolden8bit(t *testing.T) (g golden8bit) {
	text, err := os.ReadFile("testdata/adam8bit.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &g))
	require.Len(t, g.Steps, 6)
	return g
}

func codes(list []int) []uint8 {
	out := make([]uint8, len(list))
	for i, c := range list {
		out[i] = uint8(c)
	}
	return out
}

func singles(list []float64) []float32 {
	out := make([]float32, len(list))
	for i, x := range list {
		out[i] = float32(x)
	}
	return out
}

func TestDynamicMap(t *testing.T) {
	g := readGolden8bit(t)
	require.Equal(t, g.Signed, quant.DynamicMap(true))
	require.Equal(t, g.Unsigned, quant.DynamicMap(false))
}

func TestQuantizeBlockwise(t *testing.T) {
	g := readGolden8bit(t)
	tables := 0
	for _, b := range g.Blocks {
		code := g.Unsigned
		if b.Signed {
			code = g.Signed
		}
		got := quant.QuantizeBlockwise(b.X, code)
		require.Equal(t, singles(b.AbsMax), got.AbsMax, b.Name)
		back := make([]float64, len(b.X))
		got.Dequantize(back, code)
		if b.Name != "tiny" { // torch flushes numbers below 1e-38 to zero in some operations
			require.Equal(t, codes(b.Codes), got.Codes, b.Name)
			require.Equal(t, b.Back, back, b.Name)
		}
		for i, c := range b.Native {
			if uint8(c) == got.Codes[i] {
				continue
			}
			tables++
			scale := math.Max(float64(got.AbsMax[i/quant.BlockSize]), 1e-38)
			if b.AbsMax[i/quant.BlockSize] > 0 && b.Name != "tiny" {
				require.LessOrEqual(t, math.Abs(code[c]-b.X[i]/scale), math.Abs(code[got.Codes[i]]-b.X[i]/scale)+0x1p-15, "%s[%d]: the table is that coarse", b.Name, i)
			}
		}
	}
	require.Positive(t, tables, "the native library returns other codes near zero")
}

// Every code is the nearest of its book, and a number that is a code times the scale comes back as it is.
func TestNearest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		code := quant.DynamicMap(rapid.Bool().Draw(t, "signed"))
		n := rapid.SampledFrom([]int{1, 2, 255, 256, 257, 512, 600}).Draw(t, "n")
		scale := math.Exp(rapid.Float64Range(-30, 30).Draw(t, "scale"))
		x := make([]float64, n)
		for i := range x {
			x[i] = float64(float32(scale * code[0] * rapid.Float64Range(-1, 1).Draw(t, "x")))
			if code[0] == 0 {
				x[i] = float64(float32(scale * rapid.Float64Range(0, 1).Draw(t, "x")))
			}
		}
		b := quant.QuantizeBlockwise(x, code)
		for i := range x {
			y := x[i] / math.Max(float64(b.AbsMax[i/quant.BlockSize]), 1e-38)
			best := math.Inf(1)
			for _, c := range code {
				best = math.Min(best, math.Abs(c-y))
			}
			// y and the middle between two codes are each wrong by two roundings; the distances to the two codes differ by
			// twice what lies between y and the middle.
			if !(math.Abs(code[b.Codes[i]]-y) <= best+8.01*0x1p-24*math.Abs(y)) {
				t.Fatalf("x[%d] = %g is code %d", i, x[i], b.Codes[i])
			}
		}
		back, again := make([]float64, n), make([]float64, n)
		b.Dequantize(back, code)
		quant.QuantizeBlockwise(back, code).Dequantize(again, code)
		for k, absmax := range b.AbsMax {
			block, after := back[k*quant.BlockSize:min((k+1)*quant.BlockSize, n)], again[k*quant.BlockSize:]
			// The signed book ends at -0.993: a block whose largest number is negative has a smaller scale the second time.
			if max(slices.Max(block), -slices.Min(block)) != float64(absmax) {
				continue
			}
			for i, v := range block {
				if !(math.Abs(v-after[i]) <= 2*0x1p-24*math.Abs(v)) {
					t.Fatalf("codes are not kept: %g became %g", v, after[i])
				}
			}
		}
	})
}

func TestAdam8bit(t *testing.T) {
	g := readGolden8bit(t)
	s := &State8bit{}
	for _, row := range g.Steps {
		if row.Step == 1 {
			s = NewState8bit(len(row.Before))
		}
		p := slices.Clone(row.Before)
		Adam{LR: row.LR, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: row.Decay}.Step8bit(p, row.Grad, s)
		require.Equal(t, row.Step, s.Step)
		for i, want := range row.After {
			// A few roundings to float32 of a step of at most a few lr, and that of the parameter.
			require.LessOrEqual(t, math.Abs(p[i]-want), 0x1p-23*math.Abs(want)+8*0x1p-24*math.Abs(want-row.Before[i]), "step %d, p[%d]", row.Step, i)
		}
		for _, m := range []struct {
			name   string
			code   []float64
			got    quant.Blocks
			want   []int
			absmax []float64
		}{{"m", g.Signed, s.M, row.State1, row.AbsMax1}, {"v", g.Unsigned, s.V, row.State2, row.AbsMax2}} {
			for i, a := range m.absmax {
				require.InEpsilon(t, a, m.got.AbsMax[i], 4*0x1p-24, "%s, block %d", m.name, i)
			}
			other := 0
			for i, c := range m.want {
				if uint8(c) != m.got.Codes[i] {
					other++
					// The number itself is not kept; what is left to check is that the codes are neighbours.
					require.True(t, uint8(c) == m.got.Codes[i]+1 || uint8(c)+1 == m.got.Codes[i], "step %d, %s[%d]: code %d, want %d", row.Step, m.name, i, m.got.Codes[i], c)
				}
			}
			require.LessOrEqual(t, other, 1, "codes of %s that a rounding decided", m.name)
			for i := range m.want { // go on from what they have
				m.got.Codes[i] = uint8(m.want[i])
			}
			copy(m.got.AbsMax, singles(m.absmax))
		}
	}
	for _, row := range g.Types {
		require.Equal(t, row.N >= Min8bit, row.DType == "torch.uint8", row.N)
	}
}

// With moments that the codes hold exactly, the 8-bit step is the 32-bit one.
func TestAdam8bitIsAdam(t *testing.T) {
	o := AdamWDefaults(1e-2)
	p := []float64{1, -2, 0.5}
	q := slices.Clone(p)
	g := []float64{0.25, 0.25, 0.25} // all of one magnitude: code 1, whose number is 1
	s, wide := NewState8bit(3), NewState(3)
	for range 5 {
		o.Step8bit(p, g, s)
		o.Step(q, g, wide)
	}
	for i := range p {
		require.InEpsilon(t, q[i], p[i], 1e-6)
	}
	require.Panics(t, func() { o.Step8bit(p, g[:2], s) })
	o.AMSGrad = true
	require.Panics(t, func() { o.Step8bit(p, g, s) })
}
