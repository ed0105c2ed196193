package op

import (
	"math"
	"math/rand/v2"
)

// SoftmaxBackwardFunc stores in ds the gradient by the logits from dp, that by the probabilities p.
type SoftmaxBackwardFunc = func(ds, dp, p []float32)

// SoftmaxBackward is the gradient of a row of [Softmax].
var SoftmaxBackward = &Spec[SoftmaxBackwardFunc]{
	Name:     "f32.SoftmaxBackward",
	Doc:      "ds_j = p_j·(dp_j − Σ_i p_i·dp_i)",
	Bound:    "u·p·(|dot| + 2·|dp − dot|) + n·2⁻⁵³·p·Σ|p·dp|: one rounding of the dot, two of the row; the sum is of float64",
	Source:   "reference/nn Softmax",
	Families: finite,
	Dims:     func(r *rand.Rand) []int { return dims(r, 1) },
	Run: func(f SoftmaxBackwardFunc, c Case, t *Trial) {
		n, v := c.Dims[0], value(c, 1)
		total := 0.0
		for i := range n {
			total += math.Abs(float64(v(i)))
		}
		p := Input(t, 1, n, n, func(i int) float32 { return float32(math.Abs(float64(v(i))) / max(total, 1e-30)) })
		dp, ds := Input(t, 1, n, n, value(c, 2)), Output[float32](t, 1, n, n)
		f(ds.Data[:n], dp.Data[:n], p.Data[:n])
		var dot double
		size := 0.0
		for i := range n {
			x := float64(p.At(0, i)) * float64(dp.At(0, i))
			dot, size = dot.addProduct(float64(p.At(0, i)), float64(dp.At(0, i))), size+math.Abs(x)
		}
		d := dot.value()
		for i := range n {
			a, b := float64(p.At(0, i)), float64(dp.At(0, i))-d
			t.Within("ds", float64(ds.At(0, i)), a*b, (1+8*u32)*a*(u32*(math.Abs(d)+2*math.Abs(b))+float64(n)*0x1p-53*size)+2*eta32, 0, i)
		}
		t.exact++
	},
	Faults: []Fault[SoftmaxBackwardFunc]{
		{"softmax-backward-no-dot", "the mean is not taken off: p·dp", softmaxBackWith(func(x []float32) []float32 { return nil })},
		{"softmax-backward-last", "the last entry is left out of the mean", softmaxBackWith(func(x []float32) []float32 { return x[:max(0, len(x)-1)] })},
	},
}

func softmaxBackWith(part func(p []float32) []float32) SoftmaxBackwardFunc {
	return func(ds, dp, p []float32) {
		dot := 0.0
		for i, v := range part(p) {
			dot += float64(v) * float64(dp[i])
		}
		for i, v := range p {
			ds[i] = v * (dp[i] - float32(dot))
		}
	}
}

// GatedBackwardFunc stores the gradients of [SwiGLU] from dy.
type GatedBackwardFunc = func(dgate, dup, dy, gate, up []float32)

// SwiGLUBackward is the gradient of [SwiGLU].
var SwiGLUBackward = &Spec[GatedBackwardFunc]{
	Name:        "f32.SwiGLUBackward",
	Doc:         "dgate = dy·up·(σ + g·σ·(1 − σ)), dup = dy·g·σ with σ = 1/(1 + e^−g)",
	Bound:       "u·|dgate| + 2⁻²⁶·|dy·up|·(2σ + 4·|g|·σ·(1 − σ)), 1.5u·|dup|: e^−g to 2⁻²⁶, one rounding each",
	DeviceBound: "the same with e = e_exp + 4u of the sigmoid: (3e + 8u)·|dy·up|·(σ + |g|·σ·(1 − σ)), (e + 3u)·|dup|, and 2⁻¹²⁷ of a sigmoid whose e^−g is infinite",
	Source:      "reference/nn SwiGLU",
	Families:    append([]string{Edge}, finite...),
	Dims:        func(r *rand.Rand) []int { return dims(r, 1) },
	Run: func(f GatedBackwardFunc, c Case, t *Trial) {
		n := c.Dims[0]
		dy, gate, up := Input(t, 1, n, n, value(c, 1)), Input(t, 1, n, n, value(c, 2)), Input(t, 1, n, n, value(c, 3))
		dgate, dup := Output[float32](t, 1, n, n), Output[float32](t, 1, n, n)
		f(dgate.Data[:n], dup.Data[:n], dy.Data[:n], gate.Data[:n], up.Data[:n])
		for i := range n {
			g, d, w := float64(gate.At(0, i)), float64(dy.At(0, i)), float64(up.At(0, i))
			e := math.Exp(-g)
			s, curve := 1/(1+e), g/(1+e)*e/(1+e)
			if g > 700 {
				curve = 0
			}
			value, slope := g*s, s+curve
			if g < -100 {
				value, slope, s, curve = 0, 0, 0, 0 // below what float32 holds
			}
			if want := d * w * slope; math.Abs(want) <= math.MaxFloat32 {
				bound := u32*math.Abs(want) + 0x1p-26*math.Abs(d*w)*(2*s+4*math.Abs(curve)) + eta32*(1+math.Abs(d*w))
				if t.contract == Device {
					bound += (3*(eExp+4*u32)+8*u32)*math.Abs(d*w)*(s+math.Abs(curve)) + sigmoidLost*(1+math.Abs(g))*math.Abs(d*w) + tiny + eta32*(math.Abs(d)+math.Abs(w)+1)
				}
				t.Within("dgate", float64(dgate.At(0, i)), want, bound, 0, i)
			}
			if want := d * value; math.Abs(want) <= math.MaxFloat32 {
				bound := 1.5*u32*math.Abs(want) + eta32*(1+math.Abs(d))
				if t.contract == Device {
					bound += (eExp+7*u32)*math.Abs(want) + sigmoidLost*math.Abs(g*d) + tiny
				}
				t.Within("dup", float64(dup.At(0, i)), want, bound, 0, i)
			}
		}
		t.exact++
	},
	Faults: []Fault[GatedBackwardFunc]{
		{"swiglu-backward-slope", "σ alone is the slope", gatedBackWith(func(g, s float64) float64 { return s })},
		{"swiglu-backward-sigmoid", "the slope is that of σ", gatedBackWith(func(g, s float64) float64 { return s * (1 - s) })},
		{"swiglu-backward-swapped", "the gradients are each other's", func(dgate, dup, dy, gate, up []float32) {
			gatedBackWith(func(g, s float64) float64 { return s + g*s*(1-s) })(dup, dgate, dy, gate, up)
		}},
	},
}

func gatedBackWith(slope func(g, s float64) float64) GatedBackwardFunc {
	return func(dgate, dup, dy, gate, up []float32) {
		for i, v := range gate {
			g, d := float64(v), float64(dy[i])
			s := 1 / (1 + math.Exp(-g))
			dgate[i], dup[i] = float32(d*float64(up[i])*slope(g, s)), float32(d*g*s)
		}
	}
}

// RMSNormBackwardFunc adds to dx the gradient of [RMSNorm] by x.
type RMSNormBackwardFunc = func(dx, dy, x, w, rstd []float32)

// RMSNormBackward is the gradient of [RMSNorm] by x.
var RMSNormBackward = &Spec[RMSNormBackwardFunc]{
	Name:        "f32.RMSNormBackward",
	Doc:         "dx_i += r·(g_i − x_i·r²·Σ_j g_j·x_j/C), g = w·dy, rows of C",
	DeviceBound: "that of the processor's, and with r given: C·u of the sum, and of each n = x·r",
	Bound:       "u·(r·(2·|g| + |x|·(3·|s| + S)) + |t| + |dx|) with s = r²·Σ g·x/C, S = r²·Σ|g·x|/C and t what is added; the sum is of float64",
	Source:      "reference/nn RMSNorm",
	Families:    finite,
	Dims:        func(r *rand.Rand) []int { return []int{r.IntN(5), 1 + r.IntN(70)} },
	Run: func(f RMSNormBackwardFunc, c Case, t *Trial) {
		n, cols := c.Dims[0], c.Dims[1]
		dy, x, w := Input(t, n, cols, cols, value(c, 1)), Input(t, n, cols, cols, value(c, 2)), Input(t, 1, cols, cols, value(c, 3))
		squares := func(i int) (s float64) {
			for j := range cols {
				s += float64(x.At(i, j)) * float64(x.At(i, j))
			}
			return s
		}
		rstd := Input(t, n, 1, 1, func(i int) float32 { return float32(1 / math.Sqrt(squares(i)/float64(cols)+1e-5)) })
		dx, start := Output[float32](t, n, cols, cols), value(c, 4)
		for i := range n * cols {
			dx.Data[i] = start(i)
		}
		f(dx.Data, dy.Data, x.Data, w.Data, rstd.Data)
		for i := range n {
			r := float64(rstd.At(i, 0))
			var device []float64
			dot, size, low := 0.0, 0.0, 0.0
			for j := range cols {
				p := float64(w.At(0, j)) * float64(dy.At(i, j)) * float64(x.At(i, j))
				dot, size, low = dot+p, size+math.Abs(p), low+math.Abs(float64(x.At(i, j)))
			}
			s, most := r*r*dot/float64(cols), r*r*size/float64(cols)
			for j := range cols {
				g, v, old := float64(w.At(0, j))*float64(dy.At(i, j)), float64(x.At(i, j)), float64(start(i*cols+j))
				add := r * (g - v*s)
				want := old + add
				bound := u32*(r*(2*math.Abs(g)+math.Abs(v)*(3*math.Abs(s)+most))+math.Abs(add)+math.Abs(want))*(1+8*u32) +
					math.Abs(r*v)*float64(cols)*0x1p-50*most + eta32*(4+r*(2+math.Abs(v)*(1+r*r*low/float64(cols))))
				if t.contract == Device {
					if device == nil { // r is given: it has no error
						device = normError{n: float64(cols), rstd: r}.backward(row64(x, i), row64(w, 0), row64(dy, i), false)
					}
					bound += device[j]
				}
				t.Within("dx", float64(dx.At(i, j)), want, bound, i, j)
			}
		}
		t.exact++
	},
	Faults: []Fault[RMSNormBackwardFunc]{
		{"rmsnorm-backward-overwrites", "dx is stored where it should be added to", rmsNormBackWith(0, 0)},
		{"rmsnorm-backward-no-mean", "the term through the root is left out", rmsNormBackWith(1, -1)},
		{"rmsnorm-backward-last", "the last channel is left out of the sum", rmsNormBackWith(1, 1)},
	},
}

// rmsNormBackWith keeps that share of dx and leaves that many channels out of the sum; −1 leaves all out.
func rmsNormBackWith(keep float32, skip int) RMSNormBackwardFunc {
	return func(dx, dy, x, w, rstd []float32) {
		c := len(w)
		for i, r32 := range rstd {
			r, dot := float64(r32), 0.0
			for j := range w[:c-max(skip, 0)] {
				dot += float64(w[j]) * float64(dy[i*c+j]) * float64(x[i*c+j])
			}
			if skip < 0 {
				dot = 0
			}
			for j := range w {
				k := i*c + j
				dx[k] = keep*dx[k] + float32(r*(float64(w[j])*float64(dy[k])-float64(x[k])*r*r*dot/float64(c)))
			}
		}
	}
}

// RowFunc scales a row in place.
type RowFunc = func(x []float32, by float32)

// Scale is the product of a row and a number.
var Scale = &Spec[RowFunc]{
	Name:     "f32.Scale",
	Doc:      "x_j·s, in place",
	Bound:    "the same bits: one rounding",
	Source:   "IEEE 754",
	Families: plain,
	Dims:     func(r *rand.Rand) []int { return dims(r, 1) },
	Run: func(f RowFunc, c Case, t *Trial) {
		n, v, by := c.Dims[0], value(c, 1), value(c, 2)(0)
		x := Output[float32](t, 1, n, n)
		for i := range n {
			x.Data[i] = v(i)
		}
		f(x.Data[:n], by)
		for i := range n {
			Equal(t, "x", x.At(0, i), v(i)*by, 0, i)
		}
		t.exact++
	},
	Faults: []Fault[RowFunc]{
		{"scale-last", "the last element stays", func(x []float32, by float32) {
			for i := range max(0, len(x)-1) {
				x[i] *= by
			}
		}},
		{"scale-reciprocal", "the elements are divided by 1/s", func(x []float32, by float32) {
			for i := range x {
				x[i] /= 1 / by
			}
		}},
	},
}

// AddFunc stores x + y.
type AddFunc = func(dst, x, y []float32)

// Add is the sum of two rows.
var Add = &Spec[AddFunc]{
	Name:     "f32.Add",
	Doc:      "x_j + y_j",
	Bound:    "the same bits: one rounding",
	Source:   "IEEE 754",
	Families: plain,
	Dims:     func(r *rand.Rand) []int { return dims(r, 1) },
	Run: func(f AddFunc, c Case, t *Trial) {
		n := c.Dims[0]
		x, y := Input(t, 1, n, n, value(c, 1)), Input(t, 1, n, n, value(c, 2))
		dst := Output[float32](t, 1, n, n)
		f(dst.Data[:n], x.Data[:n], y.Data[:n])
		for i := range n {
			Equal(t, "dst", dst.At(0, i), x.At(0, i)+y.At(0, i), 0, i)
		}
		t.exact++
	},
	Faults: []Fault[AddFunc]{
		{"add-last", "the last element is not written", func(dst, x, y []float32) {
			for i := range max(0, len(x)-1) {
				dst[i] = x[i] + y[i]
			}
		}},
		{"add-second", "the second row is added twice", func(dst, x, y []float32) {
			for i := range x {
				dst[i] = y[i] + y[i]
			}
		}},
	},
}

// MaxFunc returns the largest element of a row.
type MaxFunc = func(x []float32) float32

// Max is the largest element of a row.
var Max = &Spec[MaxFunc]{
	Name:     "f32.Max",
	Doc:      "max x_j; NaN if there is one, −Inf of none",
	Bound:    "the same number",
	Source:   "reference/nn Softmax",
	Families: plain,
	Dims:     func(r *rand.Rand) []int { return dims(r, 1) },
	Run: func(f MaxFunc, c Case, t *Trial) {
		n := c.Dims[0]
		x := Input(t, 1, n, n, value(c, 1))
		want := math.Inf(-1)
		for i := range n {
			if v := float64(x.At(0, i)); v != v {
				want = v
			} else {
				want = max(want, v)
			}
		}
		Equal(t, "max", float64(f(x.Data[:n]))+0, want+0, 0, 0) // one zero is as good as the other
	},
	Faults: []Fault[MaxFunc]{
		{"max-nan", "NaN is passed over", func(x []float32) float32 { return top32(notNaN(x)) }},
		{"max-last", "the last element is left out", func(x []float32) float32 { return top32(x[:max(0, len(x)-1)]) }},
		{"max-zero", "the search starts at 0", func(x []float32) float32 { return max(0, top32(x)) }},
	},
}

func notNaN(x []float32) (y []float32) {
	for _, v := range x {
		if v == v {
			y = append(y, v)
		}
	}
	return y
}
