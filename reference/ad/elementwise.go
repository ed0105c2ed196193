package ad

import "slices"

// align broadcasts a and b to their common shape.
func align(op string, a, b *Var) (*Var, *Var) {
	if slices.Equal(a.shape, b.shape) {
		return a, b
	}
	shape := broadcastShape(op, a.shape, b.shape)
	return BroadcastTo(a, shape...), BroadcastTo(b, shape...)
}

// Add returns y = a + b elementwise. Like every function of two tensors here
// it broadcasts its operands to their common shape with [BroadcastTo], whose
// rule sums the cotangent back.
//
//	JVP  ẏ = ȧ + ḃ
//	VJP  ā = ȳ, b̄ = ȳ
func Add(a, b *Var) *Var {
	a, b = align("add", a, b)
	y := make([]float64, len(a.data))
	for i := range y {
		y[i] = a.data[i] + b.data[i]
	}
	return record("add", a.shape, y, []*Var{a, b},
		func(dx [][]float64, dy []float64) {
			for _, d := range dx {
				for i := range d {
					dy[i] += d[i]
				}
			}
		},
		func(dy []float64, dx [][]float64) {
			for _, d := range dx {
				for i := range d {
					d[i] += dy[i]
				}
			}
		})
}

// Sub returns y = a − b elementwise.
//
//	JVP  ẏ = ȧ − ḃ
//	VJP  ā = ȳ, b̄ = −ȳ
func Sub(a, b *Var) *Var {
	a, b = align("sub", a, b)
	y := make([]float64, len(a.data))
	for i := range y {
		y[i] = a.data[i] - b.data[i]
	}
	return record("sub", a.shape, y, []*Var{a, b},
		func(dx [][]float64, dy []float64) {
			for i, d := range dx[0] {
				dy[i] += d
			}
			for i, d := range dx[1] {
				dy[i] -= d
			}
		},
		func(dy []float64, dx [][]float64) {
			for i := range dx[0] {
				dx[0][i] += dy[i]
			}
			for i := range dx[1] {
				dx[1][i] -= dy[i]
			}
		})
}

// Mul returns y = a·b elementwise.
//
//	JVP  ẏ = ȧ·b + a·ḃ
//	VJP  ā = ȳ·b, b̄ = ȳ·a
//
// It is not a mask: 0·NaN is NaN, in the value and in both rules. To mask, use
// [Where].
func Mul(a, b *Var) *Var {
	a, b = align("mul", a, b)
	y := make([]float64, len(a.data))
	for i := range y {
		y[i] = a.data[i] * b.data[i]
	}
	return record("mul", a.shape, y, []*Var{a, b},
		func(dx [][]float64, dy []float64) {
			for i, d := range dx[0] {
				dy[i] += float64(d * b.data[i])
			}
			for i, d := range dx[1] {
				dy[i] += float64(a.data[i] * d)
			}
		},
		func(dy []float64, dx [][]float64) {
			for i := range dx[0] {
				dx[0][i] += float64(dy[i] * b.data[i])
			}
			for i := range dx[1] {
				dx[1][i] += float64(dy[i] * a.data[i])
			}
		})
}

// Div returns y = a/b elementwise.
//
//	JVP  ẏ = ȧ/b − y·ḃ/b
//	VJP  ā = ȳ/b, b̄ = −(ȳ/b)·(a/b)
func Div(a, b *Var) *Var {
	a, b = align("div", a, b)
	y := make([]float64, len(a.data))
	for i := range y {
		y[i] = a.data[i] / b.data[i]
	}
	return record("div", a.shape, y, []*Var{a, b},
		func(dx [][]float64, dy []float64) {
			for i, d := range dx[0] {
				dy[i] += d / b.data[i]
			}
			for i, d := range dx[1] {
				dy[i] -= float64(y[i]*d) / b.data[i]
			}
		},
		func(dy []float64, dx [][]float64) {
			for i := range dx[0] {
				dx[0][i] += dy[i] / b.data[i]
			}
			for i := range dx[1] {
				dx[1][i] -= float64((dy[i] / b.data[i]) * (a.data[i] / b.data[i]))
			}
		})
}

// Max returns y = max(a, b) elementwise, NaN if either is.
//
//	JVP  ẏ = ȧ if a > b, ḃ if a < b, (ȧ + ḃ)/2 if a = b
//	VJP  ȳ goes to the larger operand, half to each if a = b
//
// Splitting a tie is what torch.maximum and torch.max(a, b) do; like theirs,
// both rules pass everything to both operands if one is NaN. max(x, 0) thus has
// the slope 1/2 at 0, where torch.relu has 0: that is [Clamp] to [0, +Inf].
func Max(a, b *Var) *Var {
	a, b = align("max", a, b)
	y := make([]float64, len(a.data))
	for i := range y {
		y[i] = max(a.data[i], b.data[i])
	}
	return choose("max", a, b, y, func(p, q float64) bool { return p < q })
}

// Min returns y = min(a, b) elementwise, NaN if either is.
//
//	JVP  ẏ = ȧ if a < b, ḃ if a > b, (ȧ + ḃ)/2 if a = b
//	VJP  ȳ goes to the smaller operand, half to each if a = b
//
// For ties and NaN see [Max].
func Min(a, b *Var) *Var {
	a, b = align("min", a, b)
	y := make([]float64, len(a.data))
	for i := range y {
		y[i] = min(a.data[i], b.data[i])
	}
	return choose("min", a, b, y, func(p, q float64) bool { return p > q })
}

// choose records y, which is a or b elementwise; loses(p, q) tells that p is
// not chosen next to q.
func choose(op string, a, b *Var, y []float64, loses func(p, q float64) bool) *Var {
	// share returns the part of element i that belongs to p, of p and q.
	share := func(p, q *Var, i int, d float64) float64 {
		switch {
		case loses(p.data[i], q.data[i]):
			return 0
		case p.data[i] == q.data[i]:
			return float64(d / 2)
		}
		return d
	}
	return record(op, a.shape, y, []*Var{a, b},
		func(dx [][]float64, dy []float64) {
			for i, d := range dx[0] {
				dy[i] += share(a, b, i, d)
			}
			for i, d := range dx[1] {
				dy[i] += share(b, a, i, d)
			}
		},
		func(dy []float64, dx [][]float64) {
			for i := range dx[0] {
				dx[0][i] += share(a, b, i, dy[i])
			}
			for i := range dx[1] {
				dx[1][i] += share(b, a, i, dy[i])
			}
		})
}

// A Mask is a constant boolean tensor.
type Mask struct {
	Shape []int
	On    []bool // row-major
}

// Where returns y = a where the mask is on and b where it is off, elementwise;
// mask and operands are broadcast to their common shape.
//
//	JVP  ẏ = ȧ or ḃ
//	VJP  ā = ȳ where on, else 0; b̄ = ȳ where off, else 0
//
// It selects and never multiplies: what is not selected has no influence on the
// value and gets a cotangent of exactly 0, even if it is NaN or Inf. The rules
// of what was computed before it still apply to that 0: log(x) at x = 0 turns it
// into 0/0 = NaN, here as in torch. So mask the inputs of a formula, not only
// its result.
//
// It panics if mask.On does not fill mask.Shape.
func Where(mask Mask, a, b *Var) *Var {
	if n := size(mask.Shape); n != len(mask.On) {
		panic("ad: where: the mask does not fill its shape")
	}
	a, b = align("where", a, b)
	shape := broadcastShape("where", a.shape, mask.Shape)
	a, b = BroadcastTo(a, shape...), BroadcastTo(b, shape...)

	on := make([]bool, len(a.data))
	walk(shape, spread("where", mask.Shape, shape), func(i, j, n, s int) {
		for k := range n {
			on[i+k] = mask.On[j+k*s]
		}
	})
	y := make([]float64, len(on))
	for i := range y {
		if on[i] {
			y[i] = a.data[i]
		} else {
			y[i] = b.data[i]
		}
	}
	return record("where", shape, y, []*Var{a, b},
		func(dx [][]float64, dy []float64) {
			for i, d := range dx[0] {
				if on[i] {
					dy[i] = d
				}
			}
			for i, d := range dx[1] {
				if !on[i] {
					dy[i] = d
				}
			}
		},
		func(dy []float64, dx [][]float64) {
			for i := range dx[0] {
				if on[i] {
					dx[0][i] += dy[i]
				}
			}
			for i := range dx[1] {
				if !on[i] {
					dx[1][i] += dy[i]
				}
			}
		})
}
