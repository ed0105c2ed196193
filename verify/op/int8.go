package op

import (
	"math"
	"math/rand/v2"

	"plumbline/reference/quant"
)

// I8GemmFunc is the type of i8.Gemm.
type I8GemmFunc = func(c []int32, ldc int, a []int8, lda int, b []int8, ldb int, m, n, k int)

// I8ScaledFunc is the type of i8.GemmScaled.
type I8ScaledFunc = func(y []float32, ldy int, a []int8, lda int, scaleA []float32, b []int8, ldb int, scaleB, bias []float32, m, n, k int)

// QuantizeFunc is the type of i8.QuantizeRows.
type QuantizeFunc = func(codes []int8, ldc int, absmax []float32, x []float32, ldx int, rows, cols int)

// I8Gemm is the exact product of int8 matrices.
var I8Gemm = &Spec[I8GemmFunc]{
	Name:     "i8.Gemm",
	Doc:      "c_ij = Σ_k a_ik·b_jk, exact in int32",
	Bound:    "0: every sum is exact",
	Source:   "the sums are those of reference/quant Product, in int64",
	Families: []string{Normal, Saturate, Sparse, Whole},
	Dims:     i8Dims,
	Run: func(f I8GemmFunc, c Case, t *Trial) {
		m, n, k, pad := c.Dims[0], c.Dims[1], c.Dims[2], c.Dims[3]
		a := Input(t, m, k, stride(k, pad), codes(c, 1))
		b := Input(t, n, k, stride(k, pad), codes(c, 2))
		out := Output[int32](t, m, n, stride(n, pad))
		f(out.Data, out.LD, a.Data, a.LD, b.Data, b.LD, m, n, k)
		for i := range m {
			for j := range n {
				Equal(t, "c", out.At(i, j), int32(exactSum(&a, &b, i, j)), i, j)
			}
		}
	},
	Faults: i8GemmFaults(),
}

// i8Dims draws m, n, k and the distance between rows. One case of eight has sums of up to 133,144 products, the most that int32
// holds, for one row of a and for several, which kernels may treat apart.
func i8Dims(r *rand.Rand) []int {
	d := products(r)
	d = append(d, padding(r, d))
	if r.IntN(8) == 0 {
		d[0], d[1], d[2] = []int{1, 5}[r.IntN(2)], 1+r.IntN(2), []int{8193, 65537, 133143, 133144}[r.IntN(4)]
	}
	return d
}

func exactSum(a, b *Matrix[int8], i, j int) (s int64) {
	if a.Cols == 0 {
		return 0
	}
	x, y := a.Data[i*a.LD:], b.Data[j*b.LD:]
	for l := range a.Cols {
		s += int64(x[l]) * int64(y[l])
	}
	return s
}

// I8Scaled is the product of quantised matrices with its scales: a linear layer in mode w8a8.
var I8Scaled = &Spec[I8ScaledFunc]{
	Name:     "i8.GemmScaled",
	Doc:      "y_ij = Σ_k a_ik·b_jk · scaleA_i · scaleB_j + bias_j",
	Bound:    "bit by bit the roundings in that order; against float64 |y|·(2u + [|sum| > 2²⁴]·u), and u·|y| with a bias",
	Source:   "reference/quant Linear in mode W8A8",
	Families: []string{Normal, Saturate, Sparse, Whole, NonFinite},
	Dims:     func(r *rand.Rand) []int { return append(i8Dims(r), r.IntN(2)) },
	Run: func(f I8ScaledFunc, c Case, t *Trial) {
		m, n, k, pad := c.Dims[0], c.Dims[1], c.Dims[2], c.Dims[3]
		a := Input(t, m, k, stride(k, pad), codes(c, 1))
		b := Input(t, n, k, stride(k, pad), codes(c, 2))
		scale := func(tensor uint64) func(i int) float32 {
			w := words(c, tensor)
			return func(i int) float32 {
				switch v := w(i); {
				case c.Family == NonFinite && v%7 == 0:
					return []float32{float32(math.NaN()), float32(math.Inf(1)), 0}[v>>8%3]
				case c.Family == Whole:
					return float32(int(v%5)) / 4
				default:
					return float32(math.Exp2(float64(v>>11)*0x1p-53*24 - 14))
				}
			}
		}
		sa, sb := Input(t, m, 1, 1, scale(3)), Input(t, n, 1, 1, scale(4))
		var bias []float32
		if c.Dims[4] == 1 {
			bias = Input(t, n, 1, 1, value(c, 5)).Data
			if c.Family == Saturate {
				bias = Input(t, n, 1, 1, func(int) float32 { return 0.1 }).Data
			}
		}
		out := Output[float32](t, m, n, stride(n, pad))
		f(out.Data, out.LD, a.Data, a.LD, sa.Data, b.Data, b.LD, sb.Data, bias, m, n, k)
		for i := range m {
			for j := range n {
				sum := exactSum(&a, &b, i, j)
				want := float32(float32(float32(sum)*sa.Data[i]) * sb.Data[j])
				ref := float64(sum) * float64(sa.Data[i]) * float64(sb.Data[j])
				roundings := 2.0
				if max(sum, -sum) > 1<<24 {
					roundings = 3
				}
				bound := roundings * u32 * math.Abs(ref)
				if bias != nil {
					want += bias[j]
					ref += float64(bias[j])
					bound += u32 * (math.Abs(ref) + bound)
				}
				Equal(t, "y", out.At(i, j), want, i, j)
				t.Within("y", float64(out.At(i, j)), ref, bound*(1+8*u32)+4*eta32, i, j)
			}
		}
	},
	Faults: i8ScaledFaults(),
}

// Quantize is the quantisation of rows to int8.
var Quantize = &Spec[QuantizeFunc]{
	Name:     "i8.QuantizeRows",
	Doc:      "absmax_i = max_j|x_ij|, code_ij = round(x_ij·fl(fl(1/absmax_i)·127)), half to even; rows of zeros, NaN and infinities defined",
	Bound:    "0: absmax and codes are those of the reference, bit by bit; |x − code·absmax/127| ≤ absmax/254 + 4u·|x|",
	Source:   "reference/quant Quantize, bitsandbytes@0.50.2 int8_vectorwise_quant",
	Families: append([]string{Tie}, plain...),
	Dims:     func(r *rand.Rand) []int { return append(dims(r, 2), r.IntN(4)) },
	Run: func(f QuantizeFunc, c Case, t *Trial) {
		rows, cols, pad := c.Dims[0], c.Dims[1], c.Dims[2]
		x := Input(t, rows, cols, stride(cols, pad), quantizeValues(c, cols))
		out := Output[int8](t, rows, cols, stride(cols, pad))
		absmax := Output[float32](t, rows, 1, 1)
		f(out.Data, out.LD, absmax.Data, x.Data, x.LD, rows, cols)
		plain := make([]float64, rows*cols)
		for i := range rows {
			for j := range cols {
				plain[i*cols+j] = float64(x.At(i, j))
			}
		}
		want := quant.Quantize(plain, rows, cols, quant.Float32)
		for i := range rows {
			m := want.AbsMax[i]
			Equal(t, "absmax", absmax.Data[i], float32(m), i, 0)
			if rows*cols == 0 {
				continue
			}
			coded := m-m == 0 && m >= 127*0x1p-126 // else a row of codes 0, by definition
			for j := range cols {
				code := out.At(i, j)
				Equal(t, "code", code, want.Codes[i*cols+j], i, j)
				if v := plain[i*cols+j]; coded {
					t.Within("x", float64(code)*m/127, v, m/254+4*u32*math.Abs(v), i, j)
				}
			}
		}
	},
	Faults: quantizeFaults(),
}

// quantizeValues are the family's, with rows that need a rule of their own among them: zeros, subnormal absmax, and in the family
// Tie halves of the grid of codes.
func quantizeValues(c Case, cols int) func(i int) float32 {
	v, w := value(c, 1), words(c, 2)
	return func(i int) float32 {
		row, col := i/max(cols, 1), i%max(cols, 1)
		switch w(row) >> 8 % 8 {
		case 0:
			return 0
		case 1:
			return v(i) * 0x1p-130
		}
		if c.Family == Tie { // absmax 127·2ⁿ, so that s is a power of two and x·s a half
			unit := math.Exp2(float64(int(w(row)%20)) - 10)
			if col == 0 {
				return float32(127 * unit)
			}
			return float32((float64(int(w(i)%253)-126) + 0.5) * unit)
		}
		return v(i)
	}
}
