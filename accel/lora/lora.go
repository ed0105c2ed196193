// Package lora holds the linear layers of a model that is trained by low-rank updates: a frozen base of int8 codes, or of bfloat16 or float32 numbers, and
// float32 factors A and B beside it. Hu et al. 2021, Section 4.1.
package lora

import (
	"fmt"
	"math"

	"plumbline/accel/bf16"
	"plumbline/accel/cpu"
	"plumbline/accel/f32"
	"plumbline/accel/i8"
)

// Mode says how a base is stored and what its products are computed from.
type Mode int

// The modes. Backward they differ in the storage of the base alone: what is rounded to codes or to bfloat16 on the way forward is
// differentiated as if it were not, as bitsandbytes does.
const (
	// W8A16 has int8 weights with a scale for each row of outputs, and rounds activations to bfloat16.
	W8A16 Mode = iota
	// W8A8 has the same weights and quantises activations, too, with a scale for each token. Its sums are of integers.
	W8A8
	// F32 has float32 weights and activations.
	F32
	// BF16 has bfloat16 weights; activations and sums are float32. Its products are, bit by bit, those of F32 with the rounded weights.
	BF16
	// LLMInt8 is W8A8 where activations of 6 and more keep their precision, as bitsandbytes does: see [Threshold].
	LLMInt8
)

var modes = []string{"w8a16", "w8a8", "f32", "bf16", "llm.int8"}

func (m Mode) String() string { return modes[m] }

// ParseMode reads the name of a mode.
func ParseMode(name string) (Mode, error) {
	for i, n := range modes {
		if n == name {
			return Mode(i), nil
		}
	}
	return 0, fmt.Errorf("lora: mode %q is not one of %v", name, modes)
}

// Int8 reports whether the weights are codes.
func (m Mode) Int8() bool { return m == W8A16 || m == W8A8 || m == LLMInt8 }

// Matrix is a frozen weight [Out, In]: codes with the scales of their rows, w_ij = Codes_ij·Scale_i, or Data, or Half, the upper halves of float32
// numbers.
type Matrix struct {
	Out, In int
	Codes   []int8
	Scale   []float32
	Data    []float32
	Half    []uint16
}

// NewMatrix returns an empty weight of that mode.
func NewMatrix(out, in int, mode Mode) *Matrix {
	if mode.Int8() {
		return &Matrix{Out: out, In: in, Codes: make([]int8, out*in), Scale: make([]float32, out)}
	}
	if mode == BF16 {
		return &Matrix{Out: out, In: in, Half: make([]uint16, out*in)}
	}
	return &Matrix{Out: out, In: in, Data: make([]float32, out*in)}
}

// SetRows stores rows of float32 weights, [n, In], from row first on: quantised by [i8.QuantizeRows] if the matrix is one of codes, rounded half
// to even if it is one of bfloat16.
func (m *Matrix) SetRows(first int, x []float32) {
	if len(x)%m.In != 0 || first < 0 || first+len(x)/m.In > m.Out {
		panic("lora: rows that the matrix does not have")
	}
	switch {
	case m.Half != nil:
		for i, v := range x {
			m.Half[first*m.In+i] = uint16(math.Float32bits(bf16.Round(v)) >> 16)
		}
		return
	case m.Codes == nil:
		copy(m.Data[first*m.In:], x)
		return
	}
	n := len(x) / m.In
	i8.QuantizeRows(m.Codes[first*m.In:], m.In, m.Scale[first:first+n], x, m.In, n, m.In)
	i8.Scales(m.Scale[first:first+n], m.Scale[first:first+n])
}

// Row stores in dst [In] row i as numbers. The products of codes and scales are rounded to float32.
func (m *Matrix) Row(dst []float32, i int) {
	switch {
	case m.Half != nil:
		widen(dst, m.Half[i*m.In:(i+1)*m.In])
		return
	case m.Codes == nil:
		copy(dst, m.Data[i*m.In:(i+1)*m.In])
		return
	}
	for j, c := range m.Codes[i*m.In : (i+1)*m.In] {
		dst[j] = float32(c) * m.Scale[i]
	}
}

// Float64 returns the weight as the numbers that it stands for, without any rounding.
func (m *Matrix) Float64() []float64 {
	w := make([]float64, m.Out*m.In)
	for i := range w {
		if m.Half != nil {
			w[i] = float64(math.Float32frombits(uint32(m.Half[i]) << 16))
		} else if m.Codes == nil {
			w[i] = float64(m.Data[i])
		} else {
			w[i] = float64(m.Codes[i]) * float64(m.Scale[i/m.In])
		}
	}
	return w
}

// Bytes returns the memory that the weight takes.
func (m *Matrix) Bytes() int { return len(m.Codes) + 4*len(m.Scale) + 4*len(m.Data) + 2*len(m.Half) }

// widen stores bfloat16 numbers as float32, exactly.
func widen(dst []float32, half []uint16) {
	for i, h := range half {
		dst[i] = math.Float32frombits(uint32(h) << 16)
	}
}

// unpacked is how many numbers of a weight of bfloat16 stand as float32 at once while a product is computed.
const unpacked = 1 << 17

// parts calls f with the rows [from, to) of a weight of bfloat16, some at a time in their order, as float32.
func (m *Matrix) parts(w *Work, f func(rows []float32, from, to int)) {
	step := max(1, unpacked/m.In)
	for from := 0; from < m.Out; from += step {
		to := min(m.Out, from+step)
		rows := grow(&w.rows, (to-from)*m.In)
		cpu.Split(to-from, max(1, (1<<14)/m.In), func(lo, hi int) {
			widen(rows[lo*m.In:hi*m.In], m.Half[(from+lo)*m.In:(from+hi)*m.In])
		})
		f(rows, from, to)
	}
}

// Update is the low-rank update ΔW = Scale·B·A of a linear layer, with the gradients of its factors.
type Update struct {
	Rank         int
	Scale        float32
	A, B         []float32 // [Rank, In], [Out, Rank]
	GradA, GradB []float32 // of the same sizes; nil: the factors are not trained
}

// Linear is the layer y = W·x + b + s·B·(A·x).
type Linear struct {
	*Matrix
	Mode   Mode
	Bias   []float32 // [Out], nil: none
	Update *Update   // nil: none
}

// Work is the memory that layers use while they compute. The zero value is ready; it serves one call at a time.
type Work struct {
	codes []int8
	scale []float32
	c, dc []float32
	rows  []float32
	rest  []float32 // of activations, without outliers
}

// grow returns x with room for n elements.
func grow[E any](x *[]E, n int) []E {
	if cap(*x) < n {
		*x = make([]E, n)
	}
	return (*x)[:n]
}

// Rows returns the layer of the outputs [from, to) alone. It shares weights, factors and gradients with l.
func (l *Linear) Rows(from, to int) *Linear {
	m := &Matrix{Out: to - from, In: l.In}
	part := &Linear{Matrix: m, Mode: l.Mode}
	if l.Half != nil {
		m.Half = l.Half[from*l.In : to*l.In]
	} else if l.Codes != nil {
		m.Codes, m.Scale = l.Codes[from*l.In:to*l.In], l.Scale[from:to]
	} else {
		m.Data = l.Data[from*l.In : to*l.In]
	}
	if l.Bias != nil {
		part.Bias = l.Bias[from:to]
	}
	if u := l.Update; u != nil {
		part.Update = &Update{Rank: u.Rank, Scale: u.Scale, A: u.A, B: u.B[from*u.Rank : to*u.Rank], GradA: u.GradA}
		if u.GradB != nil {
			part.Update.GradB = u.GradB[from*u.Rank : to*u.Rank]
		}
	}
	return part
}

// Forward stores in y [n, Out] the outputs for x [n, In]; the update is left out unless adapted is set, which makes the layer that of the
// base model. A row of y depends on the same row of x alone, and not on n, bit by bit. y must not overlap x. It panics if the lengths do
// not fit.
func (l *Linear) Forward(y, x []float32, n int, adapted bool, w *Work) {
	check(len(y) == n*l.Out && len(x) == n*l.In)
	switch {
	case l.Mode == F32 || l.Mode == BF16:
		if l.Mode == F32 {
			f32.Gemm(y, l.Out, x, l.In, l.Data, l.In, n, l.Out, l.In, false, true, false)
		} else if n > 0 {
			l.parts(w, func(rows []float32, from, to int) {
				f32.Gemm(y[from:], l.Out, x, l.In, rows, l.In, n, to-from, l.In, false, true, false)
			})
		}
		if l.Bias != nil {
			for i := range n {
				for j, b := range l.Bias {
					y[i*l.Out+j] += b
				}
			}
		}
	case l.Mode == W8A8:
		codes, scale := grow(&w.codes, n*l.In), grow(&w.scale, n)
		i8.QuantizeRows(codes, l.In, scale, x, l.In, n, l.In)
		i8.Scales(scale, scale)
		i8.GemmScaled(y, l.Out, codes, l.In, scale, l.Codes, l.In, l.Scale, l.Bias, n, l.Out, l.In)
	case l.Mode == LLMInt8:
		l.forwardMixed(y, x, n, w)
	default:
		bf16.W8A16(y, l.Out, x, l.In, l.Codes, l.In, l.Scale, l.Bias, n, l.Out, l.In)
	}
	if u := l.Update; u != nil && adapted {
		c := l.down(x, n, w)
		f32.Gemm(y, l.Out, c, u.Rank, u.B, u.Rank, n, l.Out, u.Rank, false, true, true)
	}
}

// down returns s·A·x, [n, Rank].
func (l *Linear) down(x []float32, n int, w *Work) []float32 {
	u := l.Update
	c := grow(&w.c, n*u.Rank)
	f32.Gemm(c, u.Rank, x, l.In, u.A, l.In, n, u.Rank, l.In, false, true, false)
	scale(c, u.Scale)
	return c
}

func scale(x []float32, s float32) {
	for i := range x {
		x[i] *= s
	}
}

// Trains reports whether the layer has factors that are trained: then [Linear.Backward] needs what the layer has read.
func (l *Linear) Trains() bool { return l.Update != nil && l.Update.GradA != nil }

// Backward adds the gradients of the factors to those of the update, and stores in dx [n, In] the gradient by x, or adds it if accumulate
// is set; nothing if dx is nil. dy is [n, Out], x is what the layer has read, which may be nil if it does not train.
//
//	dB += s·dyᵀ·(x·Aᵀ),   dA += s·(dy·B)ᵀ·x,   dx = dy·W + s·(dy·B)·A
//
// dx must not overlap dy or x.
func (l *Linear) Backward(dx, dy, x []float32, n int, accumulate bool, w *Work) {
	check(len(dy) == n*l.Out && (dx == nil || len(dx) == n*l.In))
	if dx != nil {
		switch {
		case l.Mode == F32:
			f32.Gemm(dx, l.In, dy, l.Out, l.Data, l.In, n, l.In, l.Out, false, false, accumulate)
		case l.Mode == BF16 && n > 0: // a chain goes on from one part to the next
			l.parts(w, func(rows []float32, from, to int) {
				f32.Gemm(dx, l.In, dy[from:], l.Out, rows, l.In, n, l.In, to-from, false, false, accumulate || from > 0)
			})
		case l.Mode.Int8():
			bf16.W8A16DX(dx, l.In, dy, l.Out, l.Codes, l.In, l.Scale, n, l.Out, l.In, accumulate)
		}
	}
	u := l.Update
	if u == nil {
		return
	}
	dc := grow(&w.dc, n*u.Rank)
	f32.Gemm(dc, u.Rank, dy, l.Out, u.B, u.Rank, n, u.Rank, l.Out, false, false, false)
	scale(dc, u.Scale)
	if u.GradA != nil {
		check(len(x) == n*l.In)
		c := l.down(x, n, w)
		f32.Gemm(u.GradB, u.Rank, dy, l.Out, c, u.Rank, l.Out, u.Rank, n, true, false, true)
		f32.Gemm(u.GradA, l.In, dc, u.Rank, x, l.In, u.Rank, l.In, n, true, false, true)
	}
	if dx != nil {
		f32.Gemm(dx, l.In, dc, u.Rank, u.A, l.In, n, l.In, u.Rank, false, false, true)
	}
}

func check(ok bool) {
	if !ok {
		panic("lora: lengths do not fit")
	}
}
