package op

import (
	"math"
	"math/rand/v2"
)

// finite are the families of ops whose formula is for numbers.
var finite = []string{Normal, Heavy, Uniform, Cancel, Sparse, Whole, Constant}

// RMSNormFunc is the type of f32.RMSNorm: rstd may be nil.
type RMSNormFunc = func(y, x, w []float32, eps float64, rstd []float32)

// RMSNorm is the root-mean-square normalisation of rows.
var RMSNorm = &Spec[RMSNormFunc]{
	Name:        "f32.RMSNorm",
	Doc:         "y_i = w_i·x_i/√(Σx²/C + ε), rows of C",
	Bound:       "4u·|y|: the root, its reciprocal's rounding and two products; the sum is of float64",
	DeviceBound: "Σx² of C terms in float32, pushed through the root",
	Source:      "reference/nn RMSNorm",
	Families:    finite,
	Dims:        func(r *rand.Rand) []int { return []int{r.IntN(5), 1 + r.IntN(70), r.IntN(2)} },
	Run: func(f RMSNormFunc, c Case, t *Trial) {
		n, cols := c.Dims[0], c.Dims[1]
		eps := [...]float64{1e-6, 1e-5}[c.Dims[2]]
		x, w := Input(t, n, cols, cols, value(c, 1)), Input(t, 1, cols, cols, value(c, 2))
		y, rstd := Output[float32](t, n, cols, cols), Output[float32](t, n, 1, 1)
		f(y.Data, x.Data, w.Data, eps, rstd.Data)
		for i := range n {
			var sum double
			for j := range cols {
				sum = sum.addProduct(float64(x.At(i, j)), float64(x.At(i, j)))
			}
			r := 1 / math.Sqrt(sum.value()/float64(cols)+eps)
			eR, bounds := 2*u32*r, []float64(nil)
			if t.contract == Device {
				e := normErrors(row64(x, i), eps, false)
				eR, bounds = e.r, e.forward(row64(x, i), row64(w, 0), make([]float64, cols))
			}
			t.Within("rstd", float64(rstd.At(i, 0)), r, eR, i, 0)
			for j := range cols {
				want := float64(w.At(0, j)) * float64(x.At(i, j)) * r
				bound := 4*u32*math.Abs(want) + (2+math.Abs(float64(w.At(0, j))))*eta32
				if bounds != nil {
					bound = bounds[j]
				}
				t.Within("y", float64(y.At(i, j)), want, bound, i, j)
			}
		}
		t.exact++ // an input without rows is compared by its memory
	},
	Faults: []Fault[RMSNormFunc]{
		{"rmsnorm-eps-outside", "ε is added to the root and not under it", rmsNormWith(func(ms, eps float64) float64 { return 1 / (math.Sqrt(ms) + eps) }, 0)},
		{"rmsnorm-sum", "the sum is not divided by the number of channels", rmsNormWith(nil, -1)},
		{"rmsnorm-last", "the last channel is left out of the mean", rmsNormWith(nil, 1)},
		{"rmsnorm-no-eps", "ε is left out", rmsNormWith(func(ms, _ float64) float64 { return 1 / math.Sqrt(ms) }, 0)},
	},
}

// rmsNormWith is the norm with another root, and without the last skip channels in the mean; −1 takes the sum for the mean.
func rmsNormWith(root func(ms, eps float64) float64, skip int) RMSNormFunc {
	return func(y, x, w []float32, eps float64, rstd []float32) {
		c := len(w)
		for i := range len(x) / c {
			sum := 0.0
			for _, v := range x[i*c : (i+1)*c-max(skip, 0)] {
				sum += float64(v) * float64(v)
			}
			if skip >= 0 {
				sum /= float64(c)
			}
			r := 1 / math.Sqrt(sum+eps)
			if root != nil {
				r = root(sum, eps)
			}
			rstd[i] = float32(r)
			for j, v := range x[i*c : (i+1)*c] {
				y[i*c+j] = w[j] * (v * float32(r))
			}
		}
	}
}

// LayerNormFunc is the type of f32.LayerNorm: mean and rstd may be nil together.
type LayerNormFunc = func(y, x, w, b []float32, eps float64, mean []float64, rstd []float32)

// LayerNorm is the layer normalisation of rows.
var LayerNorm = &Spec[LayerNormFunc]{
	Name:        "f32.LayerNorm",
	Doc:         "y_i = w_i·(x_i − μ)/√(v + ε) + b_i, v the mean of (x − μ)², rows of C",
	Bound:       "3u·|w·x̂| + u·|y|, and what float64 leaves of μ: |w|·r·(C+4)·2⁻⁵²·mean|x|",
	DeviceBound: "e_μ = C·u·mean|x|, e_v = (C+5)·u·v + e_μ², pushed through the root",
	Source:      "reference/nn LayerNorm",
	Families:    finite,
	Dims:        func(r *rand.Rand) []int { return []int{r.IntN(5), 1 + r.IntN(70)} },
	Run: func(f LayerNormFunc, c Case, t *Trial) {
		n, cols := c.Dims[0], c.Dims[1]
		const eps = 1e-5
		x, w, b := Input(t, n, cols, cols, value(c, 1)), Input(t, 1, cols, cols, value(c, 2)), Input(t, 1, cols, cols, value(c, 3))
		y, mean, rstd := Output[float32](t, n, cols, cols), Output[float64](t, n, 1, 1), Output[float32](t, n, 1, 1)
		f(y.Data, x.Data, w.Data, b.Data, eps, mean.Data, rstd.Data)
		for i := range n {
			var sum, squares double
			size := 0.0
			for j := range cols {
				sum = sum.addProduct(float64(x.At(i, j)), 1)
				size += math.Abs(float64(x.At(i, j))) / float64(cols)
			}
			mu := sum.value() / float64(cols)
			for j := range cols {
				d := float64(x.At(i, j)) - mu
				squares = squares.addProduct(d, d)
			}
			r := 1 / math.Sqrt(squares.value()/float64(cols)+eps)
			left := r * float64(cols+4) * 0x1p-52 * size
			var bounds []float64
			if t.contract == Device {
				bounds = normErrors(row64(x, i), eps, true).forward(row64(x, i), row64(w, 0), row64(b, 0))
			}
			for j := range cols {
				scaled := float64(w.At(0, j)) * (float64(x.At(i, j)) - mu) * r
				want := scaled + float64(b.At(0, j))
				bound := 3*u32*math.Abs(scaled) + u32*math.Abs(want) + math.Abs(float64(w.At(0, j)))*(left+eta32) + 2*eta32
				if bounds != nil {
					bound = bounds[j]
				}
				t.Within("y", float64(y.At(i, j)), want, bound, i, j)
			}
		}
		t.exact++
	},
	Faults: []Fault[LayerNormFunc]{
		{"layernorm-unbiased", "the variance is divided by C − 1", layerNormWith(func(c int) float64 { return float64(max(1, c-1)) }, false, false)},
		{"layernorm-one-pass", "the variance is E[x²] − μ² in float32", layerNormWith(func(c int) float64 { return float64(c) }, true, false)},
		{"layernorm-no-bias", "the bias is left out", layerNormWith(func(c int) float64 { return float64(c) }, false, true)},
	},
}

func layerNormWith(n func(c int) float64, onePass, bare bool) LayerNormFunc {
	return func(y, x, w, b []float32, eps float64, mean []float64, rstd []float32) {
		c := len(w)
		for i := range len(x) / c {
			row := x[i*c : (i+1)*c]
			var sum, squares float64
			var raw float32
			for _, v := range row {
				sum += float64(v)
				raw += v * v
			}
			mu := sum / float64(c)
			for _, v := range row {
				squares += (float64(v) - mu) * (float64(v) - mu)
			}
			v := squares / n(c)
			if onePass {
				v = float64(raw/float32(c) - float32(mu)*float32(mu))
			}
			r := 1 / math.Sqrt(v+eps)
			mean[i], rstd[i] = mu, float32(r)
			for j, e := range row {
				y[i*c+j] = w[j] * float32((float64(e)-mu)*r)
				if !bare {
					y[i*c+j] += b[j]
				}
			}
		}
	}
}
