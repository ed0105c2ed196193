package op

import (
	"math"
	"math/rand/v2"
)

// GatedFunc stores silu(gate)·up in y.
type GatedFunc = func(y, gate, up []float32)

// SwiGLU is the gated unit with SiLU.
var SwiGLU = &Spec[GatedFunc]{
	Name:        "f32.SwiGLU",
	Doc:         "y = g/(1 + e^−g)·up, elementwise",
	Bound:       "1.5u·|y|: e^−g to 2⁻²⁶, one rounding",
	DeviceBound: "(e_exp + 7u)·|y|, e_exp = 2⁻²² + 4u, and 2⁻¹²⁷·|g·up| where e^−g is infinite in float32",
	Source:      "reference/nn SwiGLU",
	Families:    append([]string{Edge}, finite...),
	Dims:        func(r *rand.Rand) []int { return dims(r, 1) },
	Run: func(f GatedFunc, c Case, t *Trial) {
		n := c.Dims[0]
		gate, up := Input(t, 1, n, n, value(c, 1)), Input(t, 1, n, n, value(c, 2))
		y := Output[float32](t, 1, n, n)
		f(y.Data, gate.Data, up.Data)
		for i := range n {
			g := float64(gate.At(0, i))
			want := g * float64(up.At(0, i)) / (1 + math.Exp(-g))
			if g < -100 {
				want = 0 // below what float32 holds
			}
			if math.IsNaN(want) || math.Abs(want) > math.MaxFloat32 {
				continue
			}
			bound := 1.5*u32*math.Abs(want) + eta32*(1+math.Abs(float64(up.At(0, i))))
			if t.contract == Device {
				bound = (eExp+7*u32)*math.Abs(want) + sigmoidLost*math.Abs(g*float64(up.At(0, i))) + tiny + eta32*math.Abs(float64(up.At(0, i)))
			}
			t.Within("y", float64(y.At(0, i)), want, bound, 0, i)
		}
		t.exact++
	},
	Faults: []Fault[GatedFunc]{
		{"swiglu-swapped", "the activation is on the other half", func(y, gate, up []float32) { swiGLUWith(y, up, gate, 1) }},
		{"swiglu-gelu", "e^−1.702g, the sigmoid approximation of GELU, takes the place of e^−g", func(y, gate, up []float32) { swiGLUWith(y, gate, up, 1.702) }},
		{"swiglu-bf16", "the activation is rounded to bfloat16", func(y, gate, up []float32) {
			swiGLUWith(y, gate, up, 1)
			for i, v := range y {
				y[i] = roundBF16(v)
			}
		}},
	},
}

// sigmoidLost is what 1/(1 + e^−x) of float32 may be when e^−x is infinite.
const sigmoidLost = 0x1p-127

func swiGLUWith(y, gate, up []float32, rate float64) {
	for i, g := range gate {
		y[i] = float32(float64(g) * float64(up[i]) / (1 + math.Exp(-rate*float64(g))))
	}
}

// SoftmaxFunc turns a row into probabilities, in place.
type SoftmaxFunc = func(x []float32)

// Softmax is that of a row, some of whose entries are −Inf.
var Softmax = &Spec[SoftmaxFunc]{
	Name:     "f32.Softmax",
	Doc:      "p_j = e^{x_j − max x}/Σ_i e^{x_i − max x}; −Inf gives 0, and a row of nothing else 0 throughout",
	Bound:    "4u·p: the exponential to 2⁻²⁶ and three roundings; the sum is of float64",
	Source:   "reference/nn Softmax",
	Families: finite,
	Dims:     func(r *rand.Rand) []int { return append(dims(r, 1), r.IntN(3)) },
	Run: func(f SoftmaxFunc, c Case, t *Trial) {
		n, v, hidden := c.Dims[0], value(c, 1), words(c, 2)
		row := Output[float32](t, 1, n, n)
		x := make([]float64, n)
		top := math.Inf(-1)
		for i := range n {
			row.Data[i] = v(i)
			if c.Dims[1] == 2 || c.Dims[1] == 1 && hidden(i)%3 == 0 {
				row.Data[i] = float32(math.Inf(-1))
			}
			x[i] = float64(row.Data[i])
			top = max(top, x[i])
		}
		f(row.Data[:n])
		sum := 0.0
		for _, v := range x {
			sum += math.Exp(v - max(top, -math.MaxFloat64))
		}
		for i := range n {
			want := 0.0
			if !math.IsInf(x[i], -1) {
				want = math.Exp(x[i]-top) / sum
			}
			if want == 0 {
				Equal(t, "p", row.At(0, i), 0, 0, i)
				continue
			}
			t.Within("p", float64(row.At(0, i)), want, (4+float64(n)*0x1p-26)*u32*want+eta32, 0, i)
		}
		t.exact++
	},
	Faults: []Fault[SoftmaxFunc]{
		{"softmax-no-max", "the maximum is not taken off", softmaxWith(func(x []float32) float32 { return 0 }, 0)},
		{"softmax-dead-row", "a row of nothing but −Inf gives NaN", softmaxWith(func(x []float32) float32 { return top32(x) }, 0)},
		{"softmax-last", "the last entry is left out of the sum", softmaxWith(func(x []float32) float32 { return max(top32(x), -math.MaxFloat32) }, 1)},
	},
}

func top32(x []float32) float32 {
	top := float32(math.Inf(-1))
	for _, v := range x {
		top = max(top, v)
	}
	return top
}

func softmaxWith(shift func(x []float32) float32, skip int) SoftmaxFunc {
	return func(x []float32) {
		m, sum := shift(x), float32(0)
		for i, v := range x {
			x[i] = float32(math.Exp(float64(v - m)))
			if i < len(x)-skip {
				sum += x[i]
			}
		}
		for i := range x {
			x[i] /= sum
		}
	}
}

// RotateFunc rotates heads in place: x [N, heads·dim] by the rows of cos and sin [N, pairs].
type RotateFunc = func(x []float32, heads, dim, rotated int, interleaved, inverse bool, cos, sin []float32)

// Rotate is the rotation of a rotary embedding.
var Rotate = &Spec[RotateFunc]{
	Name:     "f32.RoPE",
	Doc:      "x' = x·cos − y·sin, y' = y·cos + x·sin for pairs (2j, 2j+1), or (j, j + rotated/2); inverse: the sine has the other sign",
	Bound:    "3u·(|x·cos| + |y·sin|); what is not rotated stays bit by bit",
	Source:   "reference/nn RoPE",
	Families: finite,
	Dims: func(r *rand.Rand) []int {
		half := []int{1 + r.IntN(12), 1 + r.IntN(12), 17, 40}[r.IntN(4)]
		return []int{r.IntN(5), 1 + r.IntN(3), 2 * half, 2 * (1 + r.IntN(half)), r.IntN(2), r.IntN(2)}
	},
	Run: func(f RotateFunc, c Case, t *Trial) {
		n, heads, dim, rotated, interleaved, inverse := c.Dims[0], c.Dims[1], c.Dims[2], c.Dims[3], c.Dims[4] == 1, c.Dims[5] == 1
		half, angle := rotated/2, words(c, 5)
		turn := func(f func(float64) float64) func(i int) float32 {
			return func(i int) float32 { return float32(f(float64(angle(i)>>40) * 1e-5)) }
		}
		cos, sin := Input(t, n, half, half, turn(math.Cos)), Input(t, n, half, half, turn(math.Sin))
		x, v := Output[float32](t, n, heads*dim, heads*dim), value(c, 1)
		old := make([]float32, n*heads*dim)
		for i := range old {
			old[i] = v(i)
		}
		copy(x.Data, old)
		f(x.Data[:len(old)], heads, dim, rotated, interleaved, inverse, cos.Data, sin.Data)
		for i := range n {
			for h := range heads {
				at := h * dim
				for j := range half {
					a, b := at+j, at+j+half
					if interleaved {
						a, b = at+2*j, at+2*j+1
					}
					p, q := float64(old[i*heads*dim+a]), float64(old[i*heads*dim+b])
					co, si := float64(cos.At(i, j)), float64(sin.At(i, j))
					if inverse {
						si = -si
					}
					t.Within("x", float64(x.At(i, a)), p*co-q*si, 3*u32*(math.Abs(p*co)+math.Abs(q*si))+3*eta32, i, a)
					t.Within("x", float64(x.At(i, b)), q*co+p*si, 3*u32*(math.Abs(q*co)+math.Abs(p*si))+3*eta32, i, b)
				}
				for j := rotated; j < dim; j++ {
					Equal(t, "x", x.At(i, at+j), old[i*heads*dim+at+j], i, at+j)
				}
			}
		}
		t.exact++
	},
	Faults: []Fault[RotateFunc]{
		{"rope-pairing", "pairs of Llama and of GPT-J are taken for one another", func(x []float32, heads, dim, rotated int, interleaved, inverse bool, cos, sin []float32) {
			rotateWith(x, heads, dim, rotated, !interleaved, inverse, cos, sin)
		}},
		{"rope-inverse", "the gradient is rotated forward", func(x []float32, heads, dim, rotated int, interleaved, _ bool, cos, sin []float32) {
			rotateWith(x, heads, dim, rotated, interleaved, false, cos, sin)
		}},
		{"rope-whole-head", "the second of a pair lies half a head away, not half of what is rotated", func(x []float32, heads, dim, rotated int, interleaved, inverse bool, cos, sin []float32) {
			if interleaved || rotated == dim {
				rotateWith(x, heads, dim, rotated, interleaved, inverse, cos, sin)
				return
			}
			rotateApart(x, heads, dim, rotated/2, dim/2, 1, inverse, cos, sin)
		}},
	},
}

func rotateWith(x []float32, heads, dim, rotated int, interleaved, inverse bool, cos, sin []float32) {
	if interleaved {
		rotateApart(x, heads, dim, rotated/2, 1, 2, inverse, cos, sin)
	} else {
		rotateApart(x, heads, dim, rotated/2, rotated/2, 1, inverse, cos, sin)
	}
}

// rotateApart rotates pairs whose second lies apart from the first; firsts lie step from one another.
func rotateApart(x []float32, heads, dim, half, apart, step int, inverse bool, cos, sin []float32) {
	for i := range len(x) / (heads * dim) {
		for h := range heads {
			head := x[(i*heads+h)*dim : (i*heads+h+1)*dim]
			for j := range half {
				c, s := cos[i*half+j], sin[i*half+j]
				if inverse {
					s = -s
				}
				p, q := head[j*step], head[j*step+apart]
				head[j*step], head[j*step+apart] = p*c-q*s, q*c+p*s
			}
		}
	}
}
