package op

import (
	"math"
	"math/rand/v2"
	"unsafe"
)

// GemmFunc is the type of f32.Gemm and f64.Gemm.
type GemmFunc[T Number] = func(c []T, ldc int, a []T, lda int, b []T, ldb int, m, n, k int, transA, transB, accumulate bool)

// F32Gemm is the product of float32 matrices.
var F32Gemm = &Spec[GemmFunc[float32]]{
	Name:        "f32.Gemm",
	Doc:         "c_ij = (accumulate ? c_ij : 0) + Σ_k op(a)_ik·op(b)_kj, a chain of fused multiply-adds in the order of k",
	Bound:       "bit by bit the chain; against float64 k·u·S + k·2⁻¹⁴⁹, S = |c| + Σ|a·b|",
	DeviceBound: "bit by bit the chain; where it is added to c, (k + 1)·u·S + k·2⁻¹⁴⁹",
	Source:      "Higham 2002, Section 3.1; the chain of fused multiply-adds",
	Families:    plain,
	Dims:        gemmDims,
	Run: func(f GemmFunc[float32], c Case, t *Trial) {
		runGemm(f, c, t, fma32, u32, eta32, func(v float32, _ uint64) float32 { return v })
	},
	Faults: gemmFaults(fma32, func(v float32) float32 { return roundBF16(v) }),
}

// F64Gemm is the product of float64 matrices.
var F64Gemm = &Spec[GemmFunc[float64]]{
	Name:     "f64.Gemm",
	Doc:      F32Gemm.Doc,
	Bound:    "bit by bit the chain; against twice the precision k·u·S + k·2⁻¹⁰⁷⁴",
	Source:   "shielded PPO, Projection Not Working",
	Families: plain,
	Dims:     gemmDims,
	Run: func(f GemmFunc[float64], c Case, t *Trial) {
		runGemm(f, c, t, math.FMA, u64, eta64, func(v float32, word uint64) float64 {
			if c.Family == Whole {
				return float64(v)
			}
			return float64(v) * (1 + float64(word>>11)*0x1p-77) // the low bits of a float64 are used, too
		})
	},
	Faults: gemmFaults(math.FMA, func(v float64) float64 { return float64(float32(v)) }),
}

// gemmDims draws m, n, k, three switches and the distance between rows.
func gemmDims(r *rand.Rand) []int {
	d := products(r)
	return append(d, r.IntN(8), padding(r, d))
}

// products draws m, n and k; one case of 30 is large in both m and n, beyond the blocks of both, one of 40 beyond those of all three, and one of 40 has rows of
// c that fall into few sets of a cache, if nothing lies between them, and sums of several blocks.
func products(r *rand.Rand) []int {
	d := dims(r, 3)
	if r.IntN(30) == 0 {
		d[0], d[1], d[2] = 193+r.IntN(8), []int{449, 512, 513}[r.IntN(3)], 1+r.IntN(9)
	} else if r.IntN(40) == 0 {
		d[0], d[1], d[2] = 97+r.IntN(8), 65+r.IntN(4), 257+r.IntN(4)
	} else if r.IntN(40) == 0 {
		d[0], d[1], d[2] = 53+r.IntN(8), crowd, []int{161, 321, 641}[r.IntN(3)]+r.IntN(4)
	}
	return d
}

// crowd is a number of columns whose rows fall into few sets of a cache.
const crowd = 256

// crowded reports whether d is such a case.
func crowded(d []int) bool { return d[1] == crowd && d[2] > 160 }

// padding draws how many elements lie between the rows of a case.
func padding(r *rand.Rand, d []int) int {
	pad := r.IntN(4)
	if crowded(d) {
		return 0
	}
	return pad
}

func runGemm[T float32 | float64](f GemmFunc[T], c Case, t *Trial, fma func(a, b, c T) T, u, eta float64, full func(v float32, word uint64) T) {
	m, n, k, pad := c.Dims[0], c.Dims[1], c.Dims[2], c.Dims[4]
	transA, transB, accumulate := c.Dims[3]&1 != 0, c.Dims[3]&2 != 0, c.Dims[3]&4 != 0
	draw := func(tensor uint64) func(i int) T {
		v, w := value(c, tensor), words(c, tensor+100)
		return func(i int) T { return full(v(i), w(i)) }
	}
	matrix := func(tensor uint64, rows, cols int, turned bool) (Matrix[T], func(i, j int) T) {
		if turned {
			x := Input(t, cols, rows, stride(rows, pad), draw(tensor))
			return x, func(i, j int) T { return x.At(j, i) }
		}
		x := Input(t, rows, cols, stride(cols, pad), draw(tensor))
		return x, x.At
	}
	a, atA := matrix(1, m, k, transA)
	b, atB := matrix(2, k, n, transB)
	out := Output[T](t, m, n, stride(n, pad))
	old := make([]T, m*n)
	if accumulate {
		v := draw(3)
		for i := range m {
			for j := range n {
				old[i*n+j] = v(i*n + j)
				out.Data[i*out.LD+j] = old[i*n+j]
			}
		}
	}
	f(out.Data, out.LD, a.Data, a.LD, b.Data, b.LD, m, n, k, transA, transB, accumulate)
	for i := range m {
		for j := range n {
			s := old[i*n+j]
			ref, size := double{hi: float64(s)}, math.Abs(float64(s))
			for l := range k {
				x, y := atA(i, l), atB(l, j)
				s = fma(x, y, s)
				ref = ref.addProduct(float64(x), float64(y))
				size += math.Abs(float64(x) * float64(y))
			}
			got := out.At(i, j)
			bound := float64(k)*(u*size+eta)*(1+8*u) + 0x1p-100*size
			if t.contract == Device && accumulate { // the sum starts at 0, and what was there is added last
				bound += u * math.Abs(ref.value()) * (1 + 8*u)
			} else {
				Equal(t, "c", got, s, i, j)
			}
			t.Within("c", float64(got), ref.value(), bound, i, j)
		}
	}
}

// gemmFaults are products with one mistake each; coarse rounds to a format of fewer bits.
func gemmFaults[T float32 | float64](fma func(a, b, c T) T, coarse func(T) T) []Fault[GemmFunc[T]] {
	type hooks struct {
		sum    func(s T, l, k int, x, y T) T
		start  func(old T, accumulate bool) T
		before func(c []T, ldc, m, n int)
		column func(j, n int) int
		turn   func(transA, transB bool) (bool, bool)
	}
	with := func(h hooks) GemmFunc[T] {
		return func(c []T, ldc int, a []T, lda int, b []T, ldb int, m, n, k int, transA, transB, accumulate bool) {
			if h.before != nil {
				h.before(c, ldc, m, n)
			}
			if h.turn != nil {
				transA, transB = h.turn(transA, transB)
			}
			at := func(x []T, ld, i, j int, turned bool) T {
				if turned {
					i, j = j, i
				}
				return x[i*ld+j]
			}
			for i := range m {
				for j := range n {
					var s T
					if accumulate {
						s = c[i*ldc+j]
					}
					if h.start != nil {
						s = h.start(c[i*ldc+j], accumulate)
					}
					jb := j
					if h.column != nil {
						jb = h.column(j, n)
					}
					for l := range k {
						x, y := at(a, lda, i, l, transA), at(b, ldb, l, jb, transB)
						if h.sum != nil {
							s = h.sum(s, l, k, x, y)
						} else {
							s = fma(x, y, s)
						}
					}
					c[i*ldc+j] = s
				}
			}
		}
	}
	return []Fault[GemmFunc[T]]{
		{"TailMod16", "the last k mod 16 products are left out", with(hooks{sum: func(s T, l, k int, x, y T) T {
			if l >= k/16*16 && k > 16 {
				return s
			}
			return fma(x, y, s)
		}})},
		{"StaleBlock", "a sum starts with what the output held", with(hooks{start: func(old T, _ bool) T { return old }})},
		{"AccumulateIgnored", "the output is overwritten where it should be added to", with(hooks{start: func(T, bool) T { return 0 }})},
		{"CoarseAccumulator", "sums are kept in a format of fewer bits", with(hooks{sum: func(s T, _, _ int, x, y T) T { return coarse(fma(x, y, s)) }})},
		{"CoarseInput", "an operand is rounded to a format of fewer bits", with(hooks{sum: func(s T, _, _ int, x, y T) T { return fma(coarse(x), y, s) }})},
		{"Unfused", "products are rounded before they are added", with(hooks{sum: func(s T, _, _ int, x, y T) T { return T(x*y) + s }})},
		{"ZeroSkip", "products with a zero are skipped, so that 0·NaN is lost", with(hooks{sum: func(s T, _, _ int, x, y T) T {
			if x == 0 || y == 0 {
				return s
			}
			return fma(x, y, s)
		}})},
		{"EdgeColumn", "the last column of an odd number repeats the one before", with(hooks{column: func(j, n int) int {
			if n%2 == 1 && j == n-1 && j > 0 {
				return j - 1
			}
			return j
		}})},
		{"TransposeSwapped", "the switches of the transposes are exchanged", with(hooks{turn: func(a, b bool) (bool, bool) { return b, a }})},
		{"OutOfBoundsWrite", "one element after the output is written", with(hooks{before: func(c []T, ldc, m, n int) {
			if m > 0 && n > 0 {
				var v T
				end := unsafe.Add(unsafe.Pointer(&c[0]), uintptr((m-1)*ldc+n)*unsafe.Sizeof(v))
				*(*T)(end) = 1
			}
		}})},
		{"RowGap", "what lies between rows is written", with(hooks{before: func(c []T, ldc, m, n int) {
			if m > 1 && ldc > n && n > 0 {
				c[n] = 0
			}
		}})},
	}
}
