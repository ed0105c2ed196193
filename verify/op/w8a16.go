package op

import (
	"math"
	"math/rand/v2"
)

// W8A16Func is the type of bf16.W8A16.
type W8A16Func = func(y []float32, ldy int, x []float32, ldx int, w []int8, ldw int, scale, bias []float32, m, n, k int)

// W8A16DXFunc is the type of bf16.W8A16DX.
type W8A16DXFunc = func(dx []float32, lddx int, dy []float32, lddy int, w []int8, ldw int, scale []float32, m, n, k int, accumulate bool)

// W8A16 is the linear layer of bfloat16 activations and int8 weights.
var W8A16 = &Spec[W8A16Func]{
	Name:        "bf16.W8A16",
	Doc:         "y_ij = Σ_k bf16(x_ik)·w_jk · scale_j + bias_j, the sum a float32 chain in the order of k (AMX: in steps of 32, even and odd k apart)",
	Bound:       "bit by bit that sum; against float64 |scale|·(k·u·S + k·2⁻¹⁴⁹) + u·|y|, S = Σ|bf16(x)·w|",
	DeviceBound: "|scale|·2u·(k + k/8 + 1)·S + u·|y|, S = Σ|bf16(x)·w|",
	Source:      "reference/quant Linear in mode W8A16",
	Families:    append([]string{Tie, Tiny}, plain...),
	Dims: func(r *rand.Rand) []int {
		d := products(r)
		return append(d, padding(r, d), r.IntN(2))
	},
	Run: func(f W8A16Func, c Case, t *Trial) {
		m, n, k, pad := c.Dims[0], c.Dims[1], c.Dims[2], c.Dims[3]
		x := Input(t, m, k, stride(k, pad), activations(c, 1))
		w := Input(t, n, k, stride(k, pad), codes(c, 2))
		scale := Input(t, n, 1, 1, scales(c, 3))
		var bias []float32
		if c.Dims[4] == 1 {
			bias = Input(t, n, 1, 1, value(c, 4)).Data
		}
		out := Output[float32](t, m, n, stride(n, pad))
		f(out.Data, out.LD, x.Data, x.LD, w.Data, w.LD, scale.Data, bias, m, n, k)
		read := make([]float32, k) // a row of x as it is read
		for i := range m {
			for l := range k {
				read[l] = roundBF16(x.At(i, l))
			}
			sum := t.contract.orderOf(k, func(l int) float32 { return x.At(i, l) })
			rounded := func(l int) float32 { return read[l] }
			for j := range n {
				s := sum(0, k, rounded, func(l int) float32 { return float32(w.At(j, l)) })
				var ref, size float64
				for l, a := range read {
					p := float64(a) * float64(w.At(j, l))
					ref += p
					size += math.Abs(p)
				}
				by := float64(scale.Data[j])
				want, exact := float32(s*scale.Data[j]), ref*by
				bound := math.Abs(by)*float64(k)*((u32+u64)*size+eta32) + u32*math.Abs(exact) + eta32
				if t.contract == Device {
					bound = math.Abs(by)*(tensorCore(k)*size+float64(k)*eta32) + u32*math.Abs(exact) + eta32
				}
				if bias != nil {
					want += bias[j]
					exact += float64(bias[j])
					bound += u32 * (math.Abs(exact) + bound)
				}
				if t.contract != Device {
					Equal(t, "y", out.At(i, j), want, i, j)
				}
				t.Within("y", float64(out.At(i, j)), exact, bound*(1+8*u32), i, j)
			}
		}
	},
	Faults: w8a16Faults(),
}

// tensorCore is the error of a sum of k exact products in blocks of eight, aligned and cut, as a part of the sum of their magnitudes.
func tensorCore(k int) float64 { return 2 * u32 * float64(k+k/8+1) }

// activations are the family's values, or in the family Tie halves of the grid of bfloat16.
func activations(c Case, tensor uint64) func(i int) float32 {
	w := words(c, tensor)
	if c.Family == Tie {
		return func(i int) float32 {
			v := w(i)
			return math.Float32frombits(uint32(v)&0x807f0000 | uint32(120+v>>32%16)<<23 | 1<<15)
		}
	}
	return value(c, tensor)
}

// scales are positive, over a wide range, and such that no output overflows.
func scales(c Case, tensor uint64) func(i int) float32 {
	w := words(c, tensor)
	return func(i int) float32 {
		if c.Family == Whole {
			return float32(1+int(w(i)%4)) / 4
		}
		if c.Family == Tie { // a power of two keeps a half a half
			return float32(math.Exp2(float64(int(w(i)%9)) - 6))
		}
		return float32(math.Exp2(float64(w(i)>>11)*0x1p-53*20 - 16))
	}
}

// W8A16DX is the gradient of that layer for its activations.
var W8A16DX = &Spec[W8A16DXFunc]{
	Name:        "bf16.W8A16DX",
	Doc:         "dx_ik = (accumulate ? dx_ik : 0) + Σ_j bf16(dy_ij·scale_j)·w_jk, a float32 chain in the order of j (AMX: in steps of 32, even and odd j apart)",
	Bound:       "bit by bit that sum; against float64 n·u·S + n·2⁻¹⁴⁹, S = |dx| + Σ|bf16(dy·scale)·w|",
	DeviceBound: "2u·(n + n/8 + 1)·S, and u·|dx| where it is added",
	Source:      "reference/quant Linear Backward",
	Families:    append([]string{Tie, Tiny}, plain...),
	Dims: func(r *rand.Rand) []int {
		d := products(r)
		pad := padding(r, d)
		if crowded(d) { // the sum goes over n here, and k is the width of dx
			d[1], d[2] = d[2], d[1]
		}
		return append(d, pad, r.IntN(2))
	},
	Run: func(f W8A16DXFunc, c Case, t *Trial) {
		m, n, k, pad, accumulate := c.Dims[0], c.Dims[1], c.Dims[2], c.Dims[3], c.Dims[4] == 1
		dy := Input(t, m, n, stride(n, pad), activations(c, 1))
		w := Input(t, n, k, stride(k, pad), codes(c, 2))
		scale := Input(t, n, 1, 1, scales(c, 3))
		out := Output[float32](t, m, k, stride(k, pad))
		old, v := make([]float32, m*k), value(c, 4)
		if accumulate {
			for i := range m {
				for l := range k {
					old[i*k+l] = v(i*k + l)
					out.Data[i*out.LD+l] = old[i*k+l]
				}
			}
		}
		f(out.Data, out.LD, dy.Data, dy.LD, w.Data, w.LD, scale.Data, m, n, k, accumulate)
		read := make([]float32, n) // a row of dy as it is read
		for i := range m {
			scaled := func(j int) float32 { return float32(dy.At(i, j) * scale.Data[j]) }
			for j := range n {
				read[j] = roundBF16(scaled(j))
			}
			sum := t.contract.orderOf(n, scaled, old[i*k:][:k]...)
			rounded := func(j int) float32 { return read[j] }
			for l := range k {
				s := sum(old[i*k+l], n, rounded, func(j int) float32 { return float32(w.At(j, l)) })
				ref, size := float64(old[i*k+l]), math.Abs(float64(old[i*k+l]))
				for j, g := range read {
					p := float64(g) * float64(w.At(j, l))
					ref += p
					size += math.Abs(p)
				}
				bound := float64(n) * ((u32+u64)*size + eta32) * (1 + 8*u32)
				if t.contract != Device {
					Equal(t, "dx", out.At(i, l), s, i, l)
				} else {
					bound = (tensorCore(n)*size+float64(n)*eta32+u32*math.Abs(ref))*(1+8*u32) + eta32
				}
				t.Within("dx", float64(out.At(i, l)), ref, bound, i, l)
			}
		}
	},
	Faults: w8a16DXFaults(),
}

func w8a16Faults() []Fault[W8A16Func] {
	with := func(round func(float32) float32, add func(s float32, l, k int, a, b float32) float32, end func(s float32, scale []float32, j int) float32) W8A16Func {
		return func(y []float32, ldy int, x []float32, ldx int, w []int8, ldw int, scale, bias []float32, m, n, k int) {
			for i := range m {
				for j := range n {
					var s float32
					for l := range k {
						s = add(s, l, k, round(x[i*ldx+l]), float32(w[j*ldw+l]))
					}
					s = end(s, scale, j)
					if bias != nil {
						s += bias[j]
					}
					y[i*ldy+j] = s
				}
			}
		}
	}
	add := func(s float32, _, _ int, a, b float32) float32 { return fma32(a, b, s) }
	end := func(s float32, scale []float32, j int) float32 { return float32(s * scale[j]) }
	cut := func(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ 0xffff) }
	return []Fault[W8A16Func]{
		{"Truncated", "activations are cut to bfloat16, not rounded", with(cut, add, end)},
		{"NotRounded", "activations stay float32", with(func(x float32) float32 { return x }, add, end)},
		{"HalfAway", "halves of bfloat16 are rounded away from zero", with(func(x float32) float32 {
			if x != x {
				return x
			}
			return math.Float32frombits((math.Float32bits(x) + 0x8000) &^ 0xffff)
		}, add, end)},
		{"Bf16Accum", "sums are kept in bfloat16", with(roundBF16, func(s float32, _, _ int, a, b float32) float32 { return roundBF16(fma32(a, b, s)) }, end)},
		{"TailMod8", "the last k mod 8 products are left out", with(roundBF16, func(s float32, l, k int, a, b float32) float32 {
			if k > 8 && l >= k/8*8 {
				return s
			}
			return fma32(a, b, s)
		}, end)},
		{"WrongScaleRow", "the scale of the neighbouring row of the weight is taken", with(roundBF16, add, func(s float32, scale []float32, j int) float32 {
			return float32(s * scale[j^1%len(scale)])
		})},
		{"ScaleForgotten", "the scale is left out", with(roundBF16, add, func(s float32, _ []float32, _ int) float32 { return s })},
	}
}

func w8a16DXFaults() []Fault[W8A16DXFunc] {
	with := func(g func(dy float32, scale []float32, j int) float32, start func(old float32, accumulate bool) float32, end func(s float32, scale []float32) float32) W8A16DXFunc {
		return func(dx []float32, lddx int, dy []float32, lddy int, w []int8, ldw int, scale []float32, m, n, k int, accumulate bool) {
			for i := range m {
				for l := range k {
					s := start(dx[i*lddx+l], accumulate)
					for j := range n {
						s = fma32(g(dy[i*lddy+j], scale, j), float32(w[j*ldw+l]), s)
					}
					dx[i*lddx+l] = end(s, scale)
				}
			}
		}
	}
	g := func(dy float32, scale []float32, j int) float32 { return roundBF16(float32(dy * scale[j])) }
	start := func(old float32, accumulate bool) float32 {
		if accumulate {
			return old
		}
		return 0
	}
	end := func(s float32, _ []float32) float32 { return s }
	return []Fault[W8A16DXFunc]{
		{"ScaleAfter", "dy is rounded before its scale", with(func(dy float32, scale []float32, j int) float32 {
			return float32(roundBF16(dy) * scale[j])
		}, start, end)},
		{"ScaleOfRow", "one scale is taken out of the sum", with(func(dy float32, _ []float32, _ int) float32 { return roundBF16(dy) }, start,
			func(s float32, scale []float32) float32 {
				if len(scale) == 0 {
					return s
				}
				return s * scale[0]
			})},
		{"StaleBlock", "the gradient is added to what was there", with(g, func(old float32, _ bool) float32 { return old }, end)},
		{"AccumulateIgnored", "what was there is overwritten", with(g, func(float32, bool) float32 { return 0 }, end)},
		{"NotRounded", "dy·scale stays float32", with(func(dy float32, scale []float32, j int) float32 { return float32(dy * scale[j]) }, start, end)},
	}
}
