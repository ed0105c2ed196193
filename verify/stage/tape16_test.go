package stage_test

import (
	"math"
	"slices"
)

// A tape of torch's operations on tensors of bfloat16 and float32: every result is rounded to the type that the operands are promoted to,
// every gradient to that of what it reaches. Gradients that meet at a tensor are added in the order in which autograd's engine delivers them,
// each sum rounded: of the nodes that are ready it runs the one that was recorded last (torch/csrc/autograd/engine.cpp, CompareNodeTaskTime).

// bfTensor is a node of the tape.
type bfTensor struct {
	x      []float64
	narrow bool // bfloat16, else float32
	seq    int
	in     []*bfTensor
	back   func(g []float64) [][]float64 // of each input, nil where it has none
	grad   []float64
}

// bfTape counts its nodes.
type bfTape struct{ n int }

func (t *bfTape) leaf(x []float64, narrow bool) *bfTensor { return &bfTensor{x: x, narrow: narrow} }

// to rounds a number of the type.
func to(narrow bool, x float64) float64 {
	if narrow {
		return bf(x)
	}
	return float64(float32(x))
}

func (t *bfTape) node(narrow bool, n int, f func(i int) float64, back func(g []float64) [][]float64, in ...*bfTensor) *bfTensor {
	y := &bfTensor{x: make([]float64, n), narrow: narrow, in: in, back: back}
	t.n++
	y.seq = t.n
	for i := range y.x {
		y.x[i] = to(narrow, f(i))
	}
	return y
}

// each is an operation on every element of a by f, of derivative d·g, which has the type of a.
func (t *bfTape) each(a *bfTensor, f func(x float64) float64, d func(i int, y, g float64) float64) *bfTensor {
	var y *bfTensor
	y = t.node(a.narrow, len(a.x), func(i int) float64 { return f(a.x[i]) }, func(g []float64) [][]float64 {
		out := make([]float64, len(g))
		for i := range g {
			out[i] = to(a.narrow, d(i, y.x[i], g[i]))
		}
		return [][]float64{out}
	}, a)
	return y
}

func (t *bfTape) exp(a *bfTensor) *bfTensor {
	return t.each(a, func(x float64) float64 { return float64(float32(math.Exp(x))) }, func(_ int, y, g float64) float64 { return y * g })
}

func (t *bfTape) expm1(a *bfTensor) *bfTensor {
	return t.each(a, func(x float64) float64 { return float64(float32(math.Expm1(x))) }, func(_ int, y, g float64) float64 { return g * to(a.narrow, y+1) })
}

func (t *bfTape) neg(a *bfTensor) *bfTensor {
	return t.each(a, func(x float64) float64 { return -x }, func(_ int, _, g float64) float64 { return -g })
}

// scale multiplies by a number of Python, which is float32 in the kernel.
func (t *bfTape) scale(a *bfTensor, c float64) *bfTensor {
	c = float64(float32(c))
	return t.each(a, func(x float64) float64 { return x * c }, func(_ int, _, g float64) float64 { return g * c })
}

// over divides by a number of Python, or by an integer tensor, which leaves the type as it is.
func (t *bfTape) over(a *bfTensor, c float64) *bfTensor {
	return t.each(a, func(x float64) float64 { return x / c }, func(_ int, _, g float64) float64 { return g / c })
}

func (t *bfTape) plus(a *bfTensor, c float64) *bfTensor {
	return t.each(a, func(x float64) float64 { return x + c }, func(_ int, _, g float64) float64 { return g })
}

// clamp passes no gradient on its bounds, as torch 2.15 does.
func (t *bfTape) clamp(a *bfTensor, low, high float64) *bfTensor {
	low, high = to(a.narrow, low), to(a.narrow, high)
	return t.each(a, func(x float64) float64 { return min(max(x, low), high) }, func(i int, _, g float64) float64 {
		if a.x[i] > low && a.x[i] < high {
			return g
		}
		return 0
	})
}

// two is an operation on two tensors of one shape; d gives the gradients of both before they are cast.
func (t *bfTape) two(a, b *bfTensor, f func(x, y float64) float64, d func(i int, g float64) (float64, float64)) *bfTensor {
	narrow := a.narrow && b.narrow
	return t.node(narrow, len(a.x), func(i int) float64 { return f(a.x[i], b.x[i]) }, func(g []float64) [][]float64 {
		x, y := make([]float64, len(g)), make([]float64, len(g))
		for i := range g {
			p, q := d(i, g[i])
			x[i], y[i] = to(a.narrow, to(narrow, p)), to(b.narrow, to(narrow, q))
		}
		return [][]float64{x, y}
	}, a, b)
}

func (t *bfTape) add(a, b *bfTensor) *bfTensor {
	return t.two(a, b, func(x, y float64) float64 { return x + y }, func(_ int, g float64) (float64, float64) { return g, g })
}

func (t *bfTape) sub(a, b *bfTensor) *bfTensor {
	return t.two(a, b, func(x, y float64) float64 { return x - y }, func(_ int, g float64) (float64, float64) { return g, -g })
}

func (t *bfTape) mul(a, b *bfTensor) *bfTensor {
	return t.two(a, b, func(x, y float64) float64 { return x * y }, func(i int, g float64) (float64, float64) { return g * b.x[i], g * a.x[i] })
}

// min passes half of the gradient to each of two equal operands.
func (t *bfTape) min(a, b *bfTensor) *bfTensor {
	return t.two(a, b, math.Min, func(i int, g float64) (float64, float64) {
		switch {
		case a.x[i] < b.x[i]:
			return g, 0
		case a.x[i] > b.x[i]:
			return 0, g
		}
		return g / 2, g / 2
	})
}

// rows sums each row of cols elements in float32 and rounds once.
func (t *bfTape) rows(a *bfTensor, cols int) *bfTensor {
	return t.node(a.narrow, len(a.x)/cols, func(r int) float64 {
		var s float32
		for _, x := range a.x[r*cols : (r+1)*cols] {
			s += float32(x)
		}
		return float64(s)
	}, func(g []float64) [][]float64 {
		out := make([]float64, len(a.x))
		for i := range out {
			out[i] = g[i/cols]
		}
		return [][]float64{out}
	}, a)
}

// spread repeats each element cols times; the gradients of a row are summed in float32 and rounded once.
func (t *bfTape) spread(a *bfTensor, cols int) *bfTensor {
	return t.node(a.narrow, len(a.x)*cols, func(i int) float64 { return a.x[i/cols] }, func(g []float64) [][]float64 {
		out := make([]float64, len(a.x))
		for r := range out {
			var s float32
			for _, x := range g[r*cols : (r+1)*cols] {
				s += float32(x)
			}
			out[r] = to(a.narrow, float64(s))
		}
		return [][]float64{out}
	}, a)
}

// lengths divides rows by their lengths, which are integers or have the type of a.
func (t *bfTape) lengths(a *bfTensor, n []float64) *bfTensor {
	return t.node(a.narrow, len(a.x), func(i int) float64 { return a.x[i] / n[i] }, func(g []float64) [][]float64 {
		out := make([]float64, len(g))
		for i := range g {
			out[i] = to(a.narrow, g[i]/n[i])
		}
		return [][]float64{out}
	}, a)
}

// mean is one sum in float32, divided and rounded once; its gradient is divided and rounded.
func (t *bfTape) mean(a *bfTensor) *bfTensor {
	n := float64(len(a.x))
	var s float32
	for _, x := range a.x {
		s += float32(x)
	}
	return t.node(a.narrow, 1, func(int) float64 { return float64(s) / n }, func(g []float64) [][]float64 {
		out := make([]float64, len(a.x))
		for i := range out {
			out[i] = to(a.narrow, g[0]/n)
		}
		return [][]float64{out}
	}, a)
}

func (t *bfTape) sum(a *bfTensor) *bfTensor { return t.rows(a, len(a.x)) }

// wide casts to float32.
func (t *bfTape) wide(a *bfTensor) *bfTensor {
	return t.node(false, len(a.x), func(i int) float64 { return a.x[i] }, func(g []float64) [][]float64 {
		out := make([]float64, len(g))
		for i := range g {
			out[i] = to(a.narrow, g[i])
		}
		return [][]float64{out}
	}, a)
}

// backward fills in the gradients of all that y depends on.
func (t *bfTape) backward(y *bfTensor) {
	waits := map[*bfTensor]int{}
	var count func(n *bfTensor)
	seen := map[*bfTensor]bool{}
	count = func(n *bfTensor) {
		if seen[n] {
			return
		}
		seen[n] = true
		for _, in := range n.in {
			waits[in]++
			count(in)
		}
	}
	count(y)
	y.grad = make([]float64, len(y.x))
	for i := range y.grad {
		y.grad[i] = 1
	}
	ready := []*bfTensor{y}
	for len(ready) > 0 {
		slices.SortFunc(ready, func(a, b *bfTensor) int { return b.seq - a.seq })
		n := ready[0]
		ready = ready[1:]
		if n.back == nil {
			continue
		}
		for k, g := range n.back(n.grad) {
			in := n.in[k]
			if in.grad == nil {
				in.grad = g
			} else {
				for i := range g {
					in.grad[i] = to(in.narrow, in.grad[i]+g[i])
				}
			}
			if waits[in]--; waits[in] == 0 {
				ready = append(ready, in)
			}
		}
	}
}
