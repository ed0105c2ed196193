package nn_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

// convCase is one convolution of random numbers.
type convCase struct {
	b, i, o, h, w, m, n, pad int
	x, k, bias               []float64
}

func drawConv(t *rapid.T) convCase {
	size := func(lo, hi int, name string) int { return rapid.IntRange(lo, hi).Draw(t, name) }
	c := convCase{b: size(1, 3, "B"), i: size(1, 3, "I"), o: size(1, 4, "O"), m: size(1, 3, "M"), n: size(1, 3, "N"), pad: size(0, 2, "pad")}
	c.h, c.w = size(max(1, c.m-2*c.pad), 5, "H"), size(max(1, c.n-2*c.pad), 5, "W")
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	c.x, c.k, c.bias = convNormals(rng, c.b*c.i*c.h*c.w), convNormals(rng, c.o*c.i*c.m*c.n), convNormals(rng, c.o)
	return c
}

func convNormals(rng *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = rng.NormFloat64()
	}
	return x
}

func (c convCase) high() int { return c.h + 2*c.pad - c.m + 1 }
func (c convCase) wide() int { return c.w + 2*c.pad - c.n + 1 }

// run returns Conv2D and its three parameters.
func (c convCase) run() (y, x, k, b *ad.Var) {
	var tape ad.Tape
	x, k, b = tape.Param(c.x, c.b, c.i, c.h, c.w), tape.Param(c.k, c.o, c.i, c.m, c.n), tape.Param(c.bias, c.o)
	return nn.Conv2D(x, k, b, c.pad), x, k, b
}

// each calls f for every product w·x of the definition, in the order of its sums: at in y, in x and in w.
func (c convCase) each(f func(y, x, k int)) {
	for b := range c.b {
		for o := range c.o {
			for r := range c.high() {
				for s := range c.wide() {
					for i := range c.i {
						for m := range c.m {
							for n := range c.n {
								h, w := r+m-c.pad, s+n-c.pad
								if h >= 0 && h < c.h && w >= 0 && w < c.w {
									f(((b*c.o+o)*c.high()+r)*c.wide()+s, ((b*c.i+i)*c.h+h)*c.w+w, ((o*c.i+i)*c.m+m)*c.n+n)
								}
							}
						}
					}
				}
			}
		}
	}
}

// definition is the formula of Conv2D, term by term.
func (c convCase) definition() []float64 {
	plane := c.high() * c.wide()
	y := make([]float64, c.b*c.o*plane)
	c.each(func(at, x, k int) { y[at] += float64(c.k[k] * c.x[x]) })
	for i := range y {
		y[i] += c.bias[i/plane%c.o]
	}
	return y
}

// The bits are those of the definition, and the gradients those of its derivative: x̄ and w̄ by the same seven loops.
func TestConv2D(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConv(t)
		y, x, k, b := c.run()
		require.Equal(t, []int{c.b, c.o, c.high(), c.wide()}, y.Shape())
		require.Equal(t, c.definition(), y.Data())

		dy := convNormals(rand.New(rand.NewPCG(1, 2)), y.Size())
		ad.Backward(y, dy)
		dx, dk, db := make([]float64, len(c.x)), make([]float64, len(c.k)), make([]float64, c.o)
		c.each(func(at, x, k int) {
			dx[x] += dy[at] * c.k[k]
			dk[k] += dy[at] * c.x[x]
		})
		for i, d := range dy {
			db[i/(c.high()*c.wide())%c.o] += d
		}
		for what, pair := range map[string][2][]float64{"x": {dx, x.Grad()}, "w": {dk, k.Grad()}, "b": {db, b.Grad()}} {
			require.InDeltaSlice(t, pair[0], pair[1], 1e-12, what)
		}
	})
}

func TestConv2DGradients(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, c := range []convCase{
		{b: 2, i: 2, o: 3, h: 4, w: 3, m: 3, n: 3, pad: 1},
		{b: 1, i: 3, o: 2, h: 2, w: 2, m: 1, n: 1},
		{b: 1, i: 1, o: 1, h: 1, w: 1, m: 2, n: 3, pad: 1},
	} {
		in := []ad.Tensor{{Shape: []int{c.b, c.i, c.h, c.w}}, {Shape: []int{c.o, c.i, c.m, c.n}}, {Shape: []int{c.o}}}
		for k := range in {
			n := 1
			for _, d := range in[k].Shape {
				n *= d
			}
			in[k].Data = convNormals(rng, n)
		}
		require.NoError(t, ad.CheckGrad("conv2d", func(x []*ad.Var) *ad.Var { return nn.Conv2D(x[0], x[1], x[2], c.pad) }, in, rng))
		require.NoError(t, ad.CheckGrad("conv2d", func(x []*ad.Var) *ad.Var { return nn.Conv2D(x[0], x[1], nil, c.pad) }, in[:2], rng))
	}
}

// An image of a batch has the bits it has alone.
func TestConv2DBatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConv(t)
		y, _, _, _ := c.run()
		size, out := len(c.x)/c.b, y.Size()/c.b
		for b := range c.b {
			one := c
			one.b, one.x = 1, c.x[b*size:(b+1)*size]
			alone, _, _, _ := one.run()
			require.Equal(t, y.Data()[b*out:(b+1)*out], alone.Data())
		}
	})
}

// A kernel of one place is Linear over the channels of every cell.
func TestConv2DOfOnePlace(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	c := convCase{b: 2, i: 3, o: 4, h: 3, w: 2, m: 1, n: 1, x: convNormals(rng, 36), k: convNormals(rng, 12), bias: convNormals(rng, 4)}
	y, _, _, _ := c.run()
	var tape ad.Tape
	cells := ad.Permute(tape.Const(c.x, 2, 3, 3, 2), 0, 2, 3, 1)
	linear := nn.Linear(cells, tape.Const(c.k, 4, 3), tape.Const(c.bias, 4))
	require.Equal(t, ad.Permute(linear, 0, 3, 1, 2).Data(), y.Data())
}

// Moving the picture within the zeros around it moves the result.
func TestConv2DMoves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConv(t)
		down, right := rapid.IntRange(0, 3).Draw(t, "down"), rapid.IntRange(0, 3).Draw(t, "right")
		frame := func(top, left int) convCase { // the picture with 3 + pad zeros around, moved
			f := c
			edge := 3 + max(c.m, c.n)
			f.h, f.w = c.h+2*edge, c.w+2*edge
			f.x = make([]float64, c.b*c.i*f.h*f.w)
			for p := range c.b * c.i {
				for r := range c.h {
					copy(f.x[(p*f.h+r+edge+top)*f.w+edge+left:], c.x[(p*c.h+r)*c.w:(p*c.h+r+1)*c.w])
				}
			}
			f.bias = make([]float64, c.o)
			return f
		}
		still, moved := frame(0, 0), frame(down, right)
		a, _, _, _ := still.run()
		b, _, _, _ := moved.run()
		h, w := still.high(), still.wide()
		for p := range c.b * c.o {
			for r := range h - down {
				for s := range w - right {
					require.Equal(t, a.Data()[(p*h+r)*w+s], b.Data()[(p*h+r+down)*w+s+right])
				}
			}
		}
	})
}

// Each way in which a convolution is often wrong leaves the definition.
func TestConv2DFaults(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	c := convCase{b: 1, i: 2, o: 2, h: 4, w: 4, m: 3, n: 3, pad: 1, x: convNormals(rng, 32), k: convNormals(rng, 36), bias: convNormals(rng, 2)}
	want := c.definition()
	place := func(f func(o, i, m, n int) int) []float64 {
		k := make([]float64, len(c.k))
		for o := range 2 {
			for i := range 2 {
				for m := range 3 {
					for n := range 3 {
						k[((o*2+i)*3+m)*3+n] = c.k[f(o, i, m, n)]
					}
				}
			}
		}
		return k
	}
	at := func(o, i, m, n int) int { return ((o*2+i)*3+m)*3 + n }
	for name, plant := range map[string]func(f *convCase){
		"kernel flipped":          func(f *convCase) { f.k = place(func(o, i, m, n int) int { return at(o, i, 2-m, 2-n) }) },
		"rows and columns of it":  func(f *convCase) { f.k = place(func(o, i, m, n int) int { return at(o, i, n, m) }) },
		"channels in and out":     func(f *convCase) { f.k = place(func(o, i, m, n int) int { return at(i, o, m, n) }) },
		"bias left out":           func(f *convCase) { f.bias = make([]float64, 2) },
		"bias of another channel": func(f *convCase) { f.bias = []float64{c.bias[1], c.bias[0]} },
		"channels last":           func(f *convCase) { f.x = slices.Clone(c.x); f.x[0], f.x[1] = c.x[0], c.x[16] },
	} {
		f := c
		plant(&f)
		y, _, _, _ := f.run()
		require.NotEqual(t, want, y.Data(), name)
	}
	f := c
	f.k = place(at)
	y, _, _, _ := f.run()
	require.Equal(t, want, y.Data(), "nothing planted")
}

func TestConv2DPanics(t *testing.T) {
	var tape ad.Tape
	of := func(shape ...int) *ad.Var {
		n := 1
		for _, d := range shape {
			n *= d
		}
		return tape.Const(make([]float64, n), shape...)
	}
	for name, f := range map[string]func(){
		"three axes":       func() { nn.Conv2D(of(1, 2, 3), of(1, 1, 1, 1), nil, 0) },
		"channels":         func() { nn.Conv2D(of(1, 2, 3, 3), of(1, 1, 1, 1), nil, 0) },
		"large kernel":     func() { nn.Conv2D(of(1, 1, 2, 3), of(1, 1, 3, 3), nil, 0) },
		"empty kernel":     func() { nn.Conv2D(of(1, 1, 2, 3), of(1, 1, 0, 3), nil, 0) },
		"negative padding": func() { nn.Conv2D(of(1, 1, 3, 3), of(1, 1, 1, 1), nil, -1) },
		"bias":             func() { nn.Conv2D(of(1, 1, 3, 3), of(2, 1, 1, 1), of(1), 0) },
	} {
		func() {
			defer func() { require.Contains(t, recover(), "nn: conv2d: ", name) }()
			f()
		}()
	}
}

// The padding is zeros that are multiplied: 0·Inf is NaN.
func TestConv2DNotFinite(t *testing.T) {
	c := convCase{b: 1, i: 1, o: 1, h: 2, w: 2, m: 3, n: 3, pad: 1, x: []float64{1, 2, 3, 4}, k: []float64{math.Inf(1), 0, 0, 0, 1, 0, 0, 0, 0}, bias: []float64{0}}
	y, _, _, _ := c.run()
	require.True(t, math.IsNaN(y.Data()[0]))
	require.Equal(t, math.Inf(1), y.Data()[3])
}
