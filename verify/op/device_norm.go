package op

import (
	"math"
	"math/rand/v2"

	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

// normError are the errors that float32 sums leave of a row's mean and of its reciprocal root (tolerances 5.9, 5.10).
type normError struct {
	n, mu, rstd, mean, r float64 // mean and r are the errors of mu and rstd
}

// normErrors bounds them for a row: the variance is known to e_v, and [v − e_v, v + e_v] is pushed through 1/√(v + eps). A division, and a square, lose
// eta at most where they underflow.
func normErrors(x []float64, eps float64, layer bool) normError {
	e := normError{n: float64(len(x))}
	var meanAbs, v float64
	for _, a := range x {
		e.mu, meanAbs = e.mu+a/e.n, meanAbs+math.Abs(a)/e.n
	}
	if layer {
		e.mean = e.n*u32*meanAbs + u32*math.Abs(e.mu) + eta32
	} else {
		e.mu = 0
	}
	for _, a := range x {
		v += (a - e.mu) * (a - e.mu) / e.n
	}
	eV := (e.n+5)*u32*v + e.mean*e.mean + u32*(v+2*eps) + 2*eta32
	root := func(v float64) float64 { return 1 / math.Sqrt(math.Max(v, 0)+eps) }
	e.rstd = root(v)
	e.r = math.Max(root(v-eV)-e.rstd, e.rstd-root(v+eV)) + 3*u32*e.rstd
	return e
}

// normalised is the normalised element of x and its error.
func (e normError) normalised(x float64) (n, err float64) {
	c := x - e.mu
	n = c * e.rstd
	return n, (e.mean+u32*math.Abs(c))*(e.rstd+e.r) + math.Abs(c)*e.r + u32*math.Abs(n) + eta32
}

// forward bounds y = w·n + b.
func (e normError) forward(x, w, b []float64) []float64 {
	out := make([]float64, len(x))
	for i := range x {
		n, dn := e.normalised(x[i])
		out[i] = (dn+2*u32*math.Abs(n))*math.Abs(w[i])*(1+8*u32) + 2*u32*math.Abs(n*w[i]+b[i]) + 2*eta32
	}
	return out
}

// backward bounds dx = r·(g − mean g − n·mean(n·g)), g = w·dy: the errors of r and n carried through its three terms, and the rounding of
// sums of n terms in any order. Without centring mean g is no part of it. Underflow takes eta of every product and quotient: of g and of the mean of g,
// and of each term and the quotient of mean(n·g), which n multiplies.
func (e normError) backward(x, w, dy []float64, layer bool) []float64 {
	var meanG, meanNG, meanDN, meanN float64
	for i := range x {
		g := w[i] * dy[i]
		n, dn := e.normalised(x[i])
		meanG += math.Abs(g) / e.n
		meanNG += math.Abs(n*g) / e.n
		meanDN += dn * math.Abs(g) / e.n
		meanN += math.Abs(n) / e.n
	}
	if !layer {
		meanG = 0
	}
	out := make([]float64, len(x))
	for i := range x {
		n, dn := e.normalised(x[i])
		all := math.Abs(w[i]*dy[i]) + meanG + math.Abs(n)*meanNG
		lost := eta32 * (4 + math.Abs(n)*(2+meanN))
		out[i] = (e.rstd+e.r)*((e.n+6)*u32*(meanG+math.Abs(n)*meanNG)+3*u32*all+dn*meanNG+math.Abs(n)*meanDN+lost) + (e.r+2*u32*e.rstd)*all + eta32
	}
	return out
}

// row64 is row i of a matrix in float64.
func row64(m Matrix[float32], i int) []float64 {
	return widen(m.Data[i*m.LD : i*m.LD+m.Cols])
}

func widen(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// mild are families of numbers near 1, for gradients whose terms cancel.
var mild = []string{Normal, Uniform, Sparse, Whole, Constant}

// LayerNormBackwardFunc stores in dx the gradient through [LayerNorm] of rows of len(w); x is what the norm read.
type LayerNormBackwardFunc = func(dx, x, w, dy []float32, eps float64)

// LayerNormBackward is the gradient of [LayerNorm] by its input.
var LayerNormBackward = &Spec[LayerNormBackwardFunc]{
	Name:     "f32.LayerNormBackward",
	Doc:      "dx = r·(g − mean g − n·mean(n·g)), g = w·dy, n = (x − μ)·r, r = 1/√(v + ε)",
	Bound:    "the errors of μ and r carried through the three terms, sums of C terms in any order",
	Source:   "reference/nn on the tape of reference/ad",
	Families: mild,
	Dims:     func(r *rand.Rand) []int { return []int{1 + r.IntN(3), 1 + r.IntN(300)} },
	Run: func(f LayerNormBackwardFunc, c Case, t *Trial) {
		const eps = 1e-5
		rows, n := c.Dims[0], c.Dims[1]
		x, w, dy := Input(t, rows, n, n, shifted(value(c, 1))), Input(t, 1, n, n, value(c, 2)), Input(t, rows, n, n, value(c, 3))
		dx := Output[float32](t, rows, n, n)
		f(dx.Data, x.Data, w.Data, dy.Data, eps)
		var tape ad.Tape
		vx, vw := tape.Param(widen(x.Data), rows, n), tape.Const(widen(w.Data), n)
		y := nn.LayerNorm(vx, vw, tape.Const(make([]float64, n), n), eps)
		ad.Backward(y, widen(dy.Data))
		for i := range rows {
			bound := normErrors(row64(x, i), eps, true).backward(row64(x, i), row64(w, 0), row64(dy, i), true)
			for j := range n {
				t.Within("dx", float64(dx.At(i, j)), vx.Grad()[i*n+j], bound[j], i, j)
			}
		}
	},
	Faults: []Fault[LayerNormBackwardFunc]{
		{"layernorm-backward-projection", "the part along the normalised row is not taken off", layerNormBackwardWith(0, 1)},
		{"layernorm-backward-mean", "the mean is not taken off", layerNormBackwardWith(1, 0)},
	},
}

// shifted moves values off 0, so that a mean is there to be taken off.
func shifted(v func(int) float32) func(int) float32 {
	return func(i int) float32 { return 2*v(i) + 0.5 }
}

// layerNormBackwardWith is the gradient in float64 with shares of its projections.
func layerNormBackwardWith(projection, mean float64) LayerNormBackwardFunc {
	return func(dx, x, w, dy []float32, eps float64) {
		n := len(w)
		for i := range len(x) / n {
			row := widen(x[i*n : (i+1)*n])
			e := normErrors(row, eps, true)
			var meanG, meanNG float64
			g := make([]float64, n)
			for j := range row {
				g[j] = float64(w[j]) * float64(dy[i*n+j])
				c, _ := e.normalised(row[j])
				meanG, meanNG = meanG+g[j]/float64(n), meanNG+g[j]*c/float64(n)
			}
			for j := range row {
				c, _ := e.normalised(row[j])
				dx[i*n+j] = float32(e.rstd * (g[j] - mean*meanG - projection*c*meanNG))
			}
		}
	}
}
