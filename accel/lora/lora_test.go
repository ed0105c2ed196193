package lora_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/accel/bf16"
	"plumbline/accel/lora"
	"plumbline/internal/rng"
	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

const (
	u   = 0x1p-24
	eta = 0x1p-149
)

func draw(seed, tensor uint64, n int) []float32 {
	s, x := rng.New(seed, tensor), make([]float32, n)
	for i := range x {
		x[i] = float32(s.Normal(uint64(i)))
	}
	return x
}

func wide(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

func within(t require.TestingT, what string, want []float64, got []float32, bound func(i int) float64) {
	require.Len(t, got, len(want), what)
	for i, w := range want {
		if b := bound(i)*(1+64*u) + 64*eta; !(math.Abs(float64(got[i])-w) <= b) {
			require.Failf(t, "outside of the bound", "%s[%d]: %g, want %g, error/bound %g", what, i, got[i], w, math.Abs(float64(got[i])-w)/b)
		}
	}
}

// sizes are the products |a|·|b| summed, with the roles of the arguments of a product: a [n, k], b [k, m].
func sizes(a, b []float64, n, k, m int) []float64 {
	out := make([]float64, n*m)
	for i := range n {
		for j := range m {
			for l := range k {
				out[i*m+j] += math.Abs(a[i*k+l] * b[l*m+j])
			}
		}
	}
	return out
}

func transposed(a []float64, rows, cols int) []float64 {
	out := make([]float64, len(a))
	for i := range rows {
		for j := range cols {
			out[j*rows+i] = a[i*cols+j]
		}
	}
	return out
}

// TestLinear holds every mode against y = W·x + b + s·B·A·x on the tape, with the weights that the codes stand for and, in 8 and 16 bits, the
// activations as the mode rounds them. Bounds: tolerances 5.1, 5.5 and 5.17.
func TestLinear(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mode := lora.Mode(rapid.IntRange(0, 4).Draw(t, "mode"))
		n, in, out := rapid.IntRange(1, 5).Draw(t, "tokens"), rapid.SampledFrom([]int{1, 7, 16, 33}).Draw(t, "in"), rapid.SampledFrom([]int{1, 8, 19}).Draw(t, "out")
		r, seed := rapid.IntRange(1, 4).Draw(t, "rank"), rapid.Uint64().Draw(t, "seed")
		l := &lora.Linear{Matrix: lora.NewMatrix(out, in, mode), Mode: mode, Bias: draw(seed, 1, out)}
		weights := draw(seed, 0, out*in)
		half := out / 2
		l.SetRows(0, weights[:half*in])
		l.SetRows(half, weights[half*in:])
		l.Update = &lora.Update{Rank: r, Scale: 0.5, A: draw(seed, 2, r*in), B: draw(seed, 3, out*r), GradA: draw(seed, 4, r*in), GradB: draw(seed, 5, out*r)}
		x, dy := draw(seed, 6, n*in), draw(seed, 7, n*out)
		if mode == lora.LLMInt8 {
			for i, v := range x {
				x[i] = max(-5, min(5, v))
			}
		}
		beforeA, beforeB := wide(l.Update.GradA), wide(l.Update.GradB)
		w := l.Float64()
		if mode == lora.F32 {
			require.Equal(t, wide(weights), w)
		} else if mode == lora.BF16 {
			for i, v := range weights {
				require.Equal(t, float64(bf16.Round(v)), w[i])
			}
		} else {
			for i, v := range weights { // tolerances 5.3: half a step of the row and what its scale is rounded by
				require.LessOrEqual(t, math.Abs(w[i]-float64(v)), float64(l.Scale[i/in])*(0.5+127*4*u), "row %d", i/in)
			}
		}

		// What the base reads, and how far its rounding may go: in w8a8 a code is half a step off, or a whole one at a tie.
		read, step := wide(x), make([]float64, n)
		for i, v := range x {
			switch mode {
			case lora.W8A16:
				read[i] = float64(bf16.Round(v))
			case lora.LLMInt8: // rounded to float16 first; outliers have a test of their own
				step[i/in] = max(step[i/in], math.Abs(float64(v))/127*(1+0x1p-10))
			case lora.W8A8:
				step[i/in] = max(step[i/in], math.Abs(float64(v))/127)
			}
		}
		var tape ad.Tape
		base, exact := tape.Const(read, n, in), tape.Param(wide(x), n, in)
		a, b := tape.Param(wide(l.Update.A), r, in), tape.Param(wide(l.Update.B), out, r)
		update := nn.LoRA{A: a, B: b, Scale: 0.5}.Delta(exact)
		y := ad.Add(nn.Linear(base, tape.Const(w, out, in), tape.Const(wide(l.Bias), out)), update)
		ad.Backward(y, wide(dy))

		var work lora.Work
		got := make([]float32, n*out)
		for i := range got {
			got[i] = float32(math.NaN())
		}
		l.Forward(got, x, n, true, &work)
		sBase := sizes(read, transposed(w, out, in), n, in, out)
		c, at := sizes(wide(x), transposed(wide(l.Update.A), r, in), n, in, r), transposed(wide(l.Update.B), out, r)
		sUpdate := sizes(c, at, n, r, out)
		forward := func(i int) float64 {
			b := float64(in+3)*u*sBase[i] + 2*u*math.Abs(float64(l.Bias[i%out])) + 0.5*float64(in+2*r+4)*u*sUpdate[i] + float64(r+1)*u*math.Abs(y.Data()[i])
			if mode == lora.LLMInt8 {
				for k := range in {
					b += 0x1p-11 * step[i/out] * 127 * math.Abs(w[i%out*in+k])
				}
			}
			if mode == lora.W8A8 || mode == lora.LLMInt8 {
				for k := range in {
					b += step[i/out] * (0.5 + 127*8*u) * math.Abs(w[i%out*in+k])
				}
			}
			return b
		}
		within(t, "y", y.Data(), got, forward)
		plain := make([]float32, n*out)
		l.Forward(plain, x, n, false, &work)
		without := nn.Linear(base, tape.Const(w, out, in), tape.Const(wide(l.Bias), out)).Data()
		within(t, "y without update", without, plain, forward)

		dx := draw(seed, 8, n*in)
		before, accumulate := wide(dx), rapid.Bool().Draw(t, "accumulate")
		l.Backward(dx, dy, x, n, accumulate, &work)
		// By x: dy·W, in int8 with dy·scale rounded to bfloat16, and the update's part, which the tape has.
		scaled := wide(dy)
		codes := w
		if mode.Int8() {
			codes = make([]float64, len(w))
			for i := range w {
				codes[i] = float64(l.Codes[i])
			}
			for i, v := range dy {
				scaled[i] = float64(bf16.Round(v * l.Scale[i%out]))
			}
		}
		want, size := make([]float64, n*in), sizes(scaled, codes, n, out, in)
		for i := range n {
			for k := range in {
				sum := exact.Grad()[i*in+k]
				if accumulate {
					sum += before[i*in+k]
				}
				for j := range out {
					sum += scaled[i*out+j] * codes[j*in+k]
				}
				want[i*in+k] = sum
			}
		}
		dc := sizes(wide(dy), wide(l.Update.B), n, out, r)
		sDown := sizes(dc, wide(l.Update.A), n, r, in)
		within(t, "dx", want, dx, func(i int) float64 {
			return float64(out+r+4)*u*(size[i]+math.Abs(before[i])) + 0.5*float64(out+2*r+4)*u*sDown[i] + float64(r)*u*math.Abs(want[i])
		})
		add := func(x, y []float64) []float64 {
			z := make([]float64, len(x))
			for i := range z {
				z[i] = x[i] + y[i]
			}
			return z
		}
		sA := sizes(transposed(dc, n, r), wide(x), r, n, in)
		within(t, "dA", add(a.Grad(), beforeA), l.Update.GradA, func(i int) float64 { return float64(out+n+4) * u * (0.5*sA[i] + math.Abs(beforeA[i])) })
		sB := sizes(transposed(wide(dy), n, out), c, out, n, r)
		within(t, "dB", add(b.Grad(), beforeB), l.Update.GradB, func(i int) float64 { return float64(in+n+4) * u * (0.5*sB[i] + math.Abs(beforeB[i])) })
	})
}

// TestRows demands that parts of a layer give the bits of the whole, forward and for the factors, and that a row does not depend on the others.
func TestRows(t *testing.T) {
	for _, mode := range []lora.Mode{lora.W8A16, lora.W8A8, lora.F32, lora.BF16, lora.LLMInt8} {
		const n, in, out, r = 5, 33, 40, 3
		layer := func() *lora.Linear {
			l := &lora.Linear{Matrix: lora.NewMatrix(out, in, mode), Mode: mode, Bias: draw(1, 1, out)}
			l.SetRows(0, draw(1, 0, out*in))
			l.Update = &lora.Update{Rank: r, Scale: 2, A: draw(1, 2, r*in), B: draw(1, 3, out*r), GradA: make([]float32, r*in), GradB: make([]float32, out*r)}
			return l
		}
		l, x, dy := layer(), draw(1, 6, n*in), draw(1, 7, n*out)
		var w lora.Work
		y := make([]float32, n*out)
		l.Forward(y, x, n, true, &w)
		l.Backward(nil, dy, x, n, false, &w)
		m := layer()
		for _, span := range [][2]int{{0, 17}, {17, 40}} {
			part := m.Rows(span[0], span[1])
			z := make([]float32, n*part.Out)
			part.Forward(z, x, n, true, &w)
			d := make([]float32, 0, len(z))
			for i := range n {
				require.Equal(t, y[i*out+span[0]:i*out+span[1]], z[i*part.Out:(i+1)*part.Out], "%v", mode)
				d = append(d, dy[i*out+span[0]:i*out+span[1]]...)
			}
			part.Backward(nil, d, x, n, false, &w)
		}
		require.Equal(t, l.Update.GradB, m.Update.GradB)
		one := make([]float32, out)
		l.Forward(one, x[2*in:3*in], 1, true, &w)
		require.Equal(t, y[2*out:3*out], one)
	}
}

// TestBF16 demands the bits of F32 on weights that are rounded, for layers that are unpacked in several parts, and half of its memory.
func TestBF16(t *testing.T) {
	const n, in, out = 3, 700, 400
	weights := draw(2, 0, out*in)
	half, whole := &lora.Linear{Matrix: lora.NewMatrix(out, in, lora.BF16), Mode: lora.BF16, Bias: draw(2, 1, out)}, &lora.Linear{Matrix: lora.NewMatrix(out, in, lora.F32), Mode: lora.F32, Bias: draw(2, 1, out)}
	half.SetRows(0, weights)
	for i, v := range weights {
		weights[i] = bf16.Round(v)
	}
	whole.SetRows(0, weights)
	require.Equal(t, whole.Bytes(), 2*half.Bytes())
	x, dy := draw(2, 2, n*in), draw(2, 3, n*out)
	var w lora.Work
	y, z := make([]float32, n*out), make([]float32, n*out)
	half.Forward(y, x, n, true, &w)
	whole.Forward(z, x, n, true, &w)
	require.Equal(t, z, y)
	for _, accumulate := range []bool{false, true} {
		dx, dz := draw(2, 4, n*in), draw(2, 4, n*in)
		half.Backward(dx, dy, x, n, accumulate, &w)
		whole.Backward(dz, dy, x, n, accumulate, &w)
		require.Equal(t, dz, dx)
	}
	row := make([]float32, in)
	half.Row(row, 399)
	require.Equal(t, weights[399*in:], row)
}

func TestParseMode(t *testing.T) {
	for _, m := range []lora.Mode{lora.W8A16, lora.W8A8, lora.F32, lora.BF16, lora.LLMInt8} {
		got, err := lora.ParseMode(m.String())
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
	_, err := lora.ParseMode("int4")
	require.ErrorContains(t, err, "int4")
}
