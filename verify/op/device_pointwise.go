package op

import (
	"math"
	"math/rand/v2"
	"slices"

	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

// moderate draws a scale for a case: arguments of exponentials from small to where they overflow.
func moderate(c Case, v func(int) float32) func(int) float32 {
	scale := float32(math.Ldexp(1, int(c.Seed>>3%16)-8))
	return func(i int) float32 { return scale * v(i) }
}

// GELUFunc stores GELU(x) in y and its gradient dy·GELU′(x) in dx.
type GELUFunc = func(y, dx, x, dy []float32)

// GELU is the approximation by tanh, with its gradient.
var GELU = &Spec[GELUFunc]{
	Name:     "f32.GELU",
	Doc:      "y = x/2·(1 + tanh z), z = √(2/π)·(x + 0.044715x³), and dx = dy·y′",
	Bound:    "with e = e_exp + 4u + 12u·|z| of the sigmoid σ(2z): (e·(1 − σ) + 4u)·|y|; for dx the same of both terms of y′",
	Source:   "reference/nn GELUTanh on the tape",
	Families: mild,
	Dims:     func(r *rand.Rand) []int { return []int{1 + r.IntN(600)} },
	Run: func(f GELUFunc, c Case, t *Trial) {
		n := c.Dims[0]
		x, dy := Input(t, 1, n, n, moderate(c, value(c, 1))), Input(t, 1, n, n, value(c, 2))
		y, dx := Output[float32](t, 1, n, n), Output[float32](t, 1, n, n)
		f(y.Data, dx.Data, x.Data, dy.Data)
		var tape ad.Tape
		vx := tape.Param(widen(x.Data), n)
		z := nn.GELUTanh(vx)
		ad.Backward(z, widen(dy.Data))
		for i := range n {
			v, a, d := float64(x.Data[i]), math.Abs(float64(x.Data[i])), math.Abs(float64(dy.Data[i]))
			// z has a relative error of 6u, which e^(−2z) multiplies by 2|z|.
			zz := math.Sqrt(2/math.Pi) * (a + 0.044715*a*a*a)
			e := eExp + 4*u32 + 12*u32*zz
			s := 1 / (1 + math.Exp(-2*math.Copysign(zz, v)))
			slope := math.Sqrt(2/math.Pi) * (1 + 3*0.044715*a*a)
			t.Within("y", float64(y.Data[i]), z.Data()[i], math.Min(e*(1-s)+4*u32, 1)*math.Abs(z.Data()[i])+(sigmoidLost+0x1p-52)*a+tiny, 0, i) // 1 + tanh cancels in the reference
			t.Within("dx", float64(dx.Data[i]), vx.Grad()[i], d*((e*(1-s)+4*u32)*s+(2*e+10*u32)*2*a*s*(1-s)*slope+(sigmoidLost+0x1p-50)*(1+2*a*slope))+tiny, 0, i)
		}
	},
	Faults: []Fault[GELUFunc]{
		{"gelu-erf", "the exact GELU takes the place of the approximation", geluWith(func(x float64) (y, d float64) {
			p := 0.5 * (1 + math.Erf(x/math.Sqrt2))
			return x * p, p + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
		})},
		{"gelu-slope", "the slope of tanh is left out", geluWith(func(x float64) (y, d float64) {
			p := 0.5 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
			return x * p, p
		})},
	},
}

func geluWith(f func(x float64) (y, d float64)) GELUFunc {
	return func(y, dx, x, dy []float32) {
		for i, v := range x {
			a, d := f(float64(v))
			y[i], dx[i] = float32(a), float32(d*float64(dy[i]))
		}
	}
}

// EmbeddingFunc stores in y [len(ids), n] the rows of the codes [V, n] by their scales, plus wpe of the position where wpe is not nil.
type EmbeddingFunc = func(y []float32, codes []int8, scale, wpe []float32, ids, position []int32, n int)

// Embedding looks rows of int8 codes up.
var Embedding = &Spec[EmbeddingFunc]{
	Name:     "i8.Embedding",
	Doc:      "y_tj = code[id_t, j]·scale[id_t] (+ wpe[position_t, j])",
	Bound:    "0: one product, one sum, each rounded",
	Source:   "the same two roundings in Go",
	Families: []string{Normal, Saturate, Whole},
	Dims:     func(r *rand.Rand) []int { return []int{1 + r.IntN(9), 1 + r.IntN(12), 1 + r.IntN(70), r.IntN(2)} },
	Run: func(f EmbeddingFunc, c Case, t *Trial) {
		tokens, vocab, n := c.Dims[0], c.Dims[1], c.Dims[2]
		table, scale := Input(t, vocab, n, n, codes(c, 1)), Input(t, vocab, 1, 1, scales(c, 2))
		draw := words(c, 3)
		index := func(most int) func(i int) int32 {
			return func(i int) int32 { return int32(draw(i) >> 7 % uint64(most)) }
		}
		ids, position := Input(t, tokens, 1, 1, index(vocab)), Input(t, tokens, 1, 1, index(tokens))
		var wpe Matrix[float32]
		if c.Dims[3] == 1 {
			wpe = Input(t, tokens, n, n, func(i int) float32 { return float32(draw(i)%1000) / 64 })
		}
		y := Output[float32](t, tokens, n, n)
		f(y.Data, table.Data, scale.Data, wpe.Data, ids.Data, position.Data, n)
		for i := range tokens {
			for j := range n {
				id := int(ids.Data[i])
				want := float32(table.At(id, j)) * scale.Data[id]
				if wpe.Data != nil {
					want = float32(want) + wpe.At(int(position.Data[i]), j)
				}
				Equal(t, "y", y.At(i, j), want, i, j)
			}
		}
	},
	Faults: []Fault[EmbeddingFunc]{
		{"embedding-scale", "the scale of the neighbour is taken", embeddingWith(1, true)},
		{"embedding-position", "the position's row is left out", embeddingWith(0, false)},
	},
}

func embeddingWith(shift int, position bool) EmbeddingFunc {
	return func(y []float32, codes []int8, scale, wpe []float32, ids, at []int32, n int) {
		for i, id := range ids {
			for j := range n {
				v := float32(codes[int(id)*n+j]) * scale[(int(id)+shift)%len(scale)]
				if wpe != nil && position {
					v = float32(v) + wpe[int(at[i])*n+j]
				}
				y[i*n+j] = v
			}
		}
	}
}

// Moves are the ops that add, set and copy on a device; its Sum is what [Add] is on the processor, where Go itself sets and copies.
type Moves interface {
	// Add computes y += a·x, Sum z = x + y, Fill y = a.
	Add(y, x []float32, a float32)
	Sum(z, x, y []float32)
	Fill(y []float32, a float32)
	// Gather stores in y [len(rows), n] the rows of x whose numbers are given, Scatter x [len(rows), n] in those of y.
	Gather(y, x []float32, rows []int32, n int)
	Scatter(y, x []float32, rows []int32, n int)
}

// Move is the spec of the ops that add, set and copy.
var Move = &Spec[Moves]{
	Name:     "f32.Move",
	Doc:      "y += a·x; z = x + y; y = a; rows gathered and scattered",
	Bound:    "0: one fused multiply-add, one sum, and copies",
	Source:   "the same roundings in Go",
	Families: []string{Normal, Heavy, Whole, NonFinite},
	Dims:     func(r *rand.Rand) []int { return []int{1 + r.IntN(12), 1 + r.IntN(70), r.IntN(12)} },
	Run: func(f Moves, c Case, t *Trial) {
		rows, n := c.Dims[0], c.Dims[1]
		a, v := value(c, 4)(0), value(c, 2)
		x := Input(t, rows, n, n, value(c, 1))
		y, z, filled := Output[float32](t, rows, n, n), Output[float32](t, rows, n, n), Output[float32](t, rows, n, n)
		for i := range y.Data {
			y.Data[i] = v(i)
		}
		f.Sum(z.Data, x.Data, y.Data)
		f.Add(y.Data, x.Data, a)
		f.Fill(filled.Data, a)
		picked := min(rows, 1+c.Dims[2])
		list := make([]int32, 0, picked)
		for i := range picked { // each at most once
			row := int32((i*5 + int(c.Seed>>9%uint64(rows))) % rows)
			for slices.Contains(list, row) {
				row = (row + 1) % int32(rows)
			}
			list = append(list, row)
		}
		index := Input(t, picked, 1, 1, func(i int) int32 { return list[i] })
		some, back := Output[float32](t, picked, n, n), Output[float32](t, rows, n, n)
		for i := range back.Data {
			back.Data[i] = v(i)
		}
		f.Gather(some.Data, x.Data, index.Data, n)
		f.Scatter(back.Data, some.Data, index.Data, n)
		for i := range rows {
			for j := range n {
				at := i*n + j
				Equal(t, "z", z.Data[at], x.Data[at]+v(at), i, j)
				Equal(t, "y", y.Data[at], fma32(a, x.Data[at], v(at)), i, j)
				Equal(t, "filled", filled.Data[at], a, i, j)
				want := v(at)
				if slices.Contains(index.Data, int32(i)) {
					want = x.Data[at]
				}
				Equal(t, "scattered", back.Data[at], want, i, j)
			}
		}
		for i, row := range index.Data {
			for j := range n {
				Equal(t, "gathered", some.At(i, j), x.At(int(row), j), i, j)
			}
		}
	},
	Faults: []Fault[Moves]{
		{"move-unfused", "the product is rounded before the sum", movesWith{unfused: true}},
		{"move-row", "rows are gathered from the next one", movesWith{shift: 1}},
	},
}

type movesWith struct {
	unfused bool
	shift   int
}

func (m movesWith) Add(y, x []float32, a float32) {
	for i := range y {
		if m.unfused {
			y[i] += float32(a * x[i])
		} else {
			y[i] = fma32(a, x[i], y[i])
		}
	}
}

func (m movesWith) Sum(z, x, y []float32) {
	for i := range z {
		z[i] = x[i] + y[i]
	}
}

func (m movesWith) Fill(y []float32, a float32) {
	for i := range y {
		y[i] = a
	}
}

func (m movesWith) Gather(y, x []float32, rows []int32, n int) {
	for i, r := range rows {
		from := (int(r) + m.shift) % (len(x) / n)
		copy(y[i*n:(i+1)*n], x[from*n:(from+1)*n])
	}
}

func (m movesWith) Scatter(y, x []float32, rows []int32, n int) {
	for i, r := range rows {
		copy(y[int(r)*n:(int(r)+1)*n], x[i*n:(i+1)*n])
	}
}
