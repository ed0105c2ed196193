package optim_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/reference/optim"
)

const u = 0x1p-53

type trial struct {
	o    optim.Adam
	p, g []float64
	s    *optim.State
}

func draw(t *rapid.T) trial {
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	n := rapid.IntRange(1, 9).Draw(t, "n")
	x := trial{s: optim.NewState(n), o: optim.Adam{
		LR: math.Pow(10, rapid.Float64Range(-6, -1).Draw(t, "log10 lr")), Beta1: rapid.SampledFrom([]float64{0, 0.8, 0.9}).Draw(t, "β₁"),
		Beta2: rapid.SampledFrom([]float64{0.9, 0.99, 0.999}).Draw(t, "β₂"), Eps: 1e-8,
		WeightDecay: rapid.SampledFrom([]float64{0, 0.01, 0.1}).Draw(t, "decay"), AMSGrad: rapid.Bool().Draw(t, "amsgrad"),
		Form: rapid.SampledFrom([]optim.Form{optim.PyTorch, optim.TensorFlow1}).Draw(t, "form"),
	}}
	for range n {
		x.p = append(x.p, r.NormFloat64())
		x.g = append(x.g, r.NormFloat64()+math.Copysign(0.1, r.NormFloat64()))
	}
	return x
}

func (x trial) copy() trial {
	s := *x.s
	s.M, s.V, s.VMax = clone(s.M), clone(s.V), clone(s.VMax)
	return trial{x.o, clone(x.p), clone(x.g), &s}
}

func clone(x []float64) []float64 { return append([]float64(nil), x...) }

func (x trial) run(steps int) trial {
	for range steps {
		x.o.Step(x.p, x.g, x.s)
	}
	return x
}

func near(t *rapid.T, got, want, bound float64) {
	if !(math.Abs(got-want) <= bound) {
		t.Fatalf("got %v, want %v within %g", got, want, bound)
	}
}

// Laws of an Adam step (tolerances 8.12).
func TestLaws(t *testing.T) {
	for name, law := range map[string]func(*rapid.T, trial){
		"the first step has the size of the learning rate": func(t *rapid.T, x trial) {
			y := x.copy().run(1)
			for i, g := range x.g {
				eps := x.o.Eps // TensorFlow 1's eps counts 1/√c₂ = 1/√(1 − β₂) times
				if x.o.Form == optim.TensorFlow1 {
					eps /= math.Sqrt(1 - x.o.Beta2)
				}
				want := x.p[i]*(1-x.o.LR*x.o.WeightDecay) - x.o.LR*math.Copysign(1, g)/(1+eps/math.Abs(g))
				// c₂ = 1 − β₂ loses 1/(1 − β₂) of a unit roundoff: 1000u for β₂ = 0.999.
				near(t, y.p[i], want, 8*u*math.Abs(x.p[i])+4096*u*x.o.LR)
			}
		},
		"without gradient only the decay acts": func(t *rapid.T, x trial) {
			clear(x.g)
			y := x.copy().run(1)
			for i := range x.p {
				near(t, y.p[i], x.p[i]*(1-x.o.LR*x.o.WeightDecay), 0)
			}
		},
		"decay leaves the moments": func(t *rapid.T, x trial) {
			y := x.copy()
			y.o.WeightDecay += 0.3
			x, y = x.run(3), y.run(3)
			require.Equal(t, x.s, y.s)
		},
		"the scale of the gradient does not matter with eps 0": func(t *rapid.T, x trial) {
			x.o.Eps = 0
			y := x.copy()
			for i := range y.g {
				y.g[i] *= 8 // a power of two: exact
			}
			x, y = x.run(3), y.run(3)
			require.Equal(t, x.p, y.p)
		},
		"elements are independent": func(t *rapid.T, x trial) {
			y := x.copy()
			for i, j := 0, len(y.p)-1; i < j; i, j = i+1, j-1 {
				y.p[i], y.p[j], y.g[i], y.g[j] = y.p[j], y.p[i], y.g[j], y.g[i]
			}
			x, y = x.run(2), y.run(2)
			for i := range x.p {
				near(t, y.p[len(y.p)-1-i], x.p[i], 0)
			}
		},
		"a restored state goes on": func(t *rapid.T, x trial) {
			whole := x.copy().run(5)
			half := x.copy().run(2)
			rest := half.copy().run(3)
			require.Equal(t, whole.p, rest.p)
			require.Equal(t, whole.s, rest.s)
		},
		"no learning rate, no change": func(t *rapid.T, x trial) {
			x.o.LR = 0
			require.Equal(t, x.p, x.copy().run(3).p)
		},
		"no memory is the sign": func(t *rapid.T, x trial) {
			x.o.Beta1, x.o.Beta2, x.o.Eps, x.o.WeightDecay, x.o.AMSGrad = 0, 0, 0, 0, false
			y := x.copy().run(1)
			for i := range x.p {
				near(t, y.p[i], x.p[i]-math.Copysign(x.o.LR, x.g[i]), 2*u*math.Abs(x.p[i])+4*u*x.o.LR)
			}
		},
		"amsgrad never grows the step": func(t *rapid.T, x trial) {
			x.o.WeightDecay, x.o.AMSGrad = 0, false
			y := x.copy()
			y.o.AMSGrad = true
			x, y = x.run(1), y.run(1)
			clear(x.g)
			clear(y.g)
			a, b := x.copy().run(4), y.copy().run(4)
			for i := range a.p {
				if !(math.Abs(b.p[i]-y.p[i]) <= math.Abs(a.p[i]-x.p[i])*(1+64*u)+u*math.Abs(x.p[i])) {
					t.Fatalf("element %d moved %g with amsgrad, %g without", i, b.p[i]-y.p[i], a.p[i]-x.p[i])
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { law(t, draw(t)) }) })
	}
}

// The two forms differ by where eps stands, and visibly so where it matters.
func TestFormsDiffer(t *testing.T) {
	torch, tf := []float64{0}, []float64{0}
	o := optim.Adam{LR: 1, Beta1: 0.9, Beta2: 0.999, Eps: 1e-5}
	o.Step(torch, []float64{1e-5}, optim.NewState(1))
	o.Form = optim.TensorFlow1
	o.Step(tf, []float64{1e-5}, optim.NewState(1))
	require.InDelta(t, -0.5, torch[0], 1e-12)                  // g/(|g| + eps)
	require.InDelta(t, -1/(1+1/math.Sqrt(1e-3)), tf[0], 1e-12) // g/(|g| + eps/√(1 − β₂))
	require.Panics(t, func() { o.Step(tf, nil, optim.NewState(1)) })
}

func TestCoupledDecayGoesThroughTheMoments(t *testing.T) {
	p := []float64{2}
	s := optim.NewState(1)
	optim.Adam{LR: 0.1, Beta1: 0.9, Beta2: 0.999, WeightDecay: 0.5, Coupled: true}.Step(p, []float64{0}, s)
	require.InDelta(t, 0.1, s.M[0], 1e-15) // (1 − β₁)·wd·p
	require.InDelta(t, 1.9, p[0], 1e-9)    // a step of lr against the sign of p
}

func TestClipGlobalNorm(t *testing.T) {
	g := [][]float64{{3, 0}, {}, {-4}}
	require.Equal(t, 5.0, optim.ClipGlobalNorm(g, 10))
	require.Equal(t, [][]float64{{3, 0}, {}, {-4}}, g, "below the limit nothing changes")
	require.Equal(t, 5.0, optim.ClipGlobalNorm(g, 1))
	require.InDelta(t, 3/(5+1e-6), g[0][0], 1e-15)
	require.InDelta(t, -4/(5+1e-6), g[2][0], 1e-15)
	g = [][]float64{{math.NaN(), 1}}
	require.True(t, math.IsNaN(optim.ClipGlobalNorm(g, 1)))
	require.True(t, math.IsNaN(g[0][1]), "as torch: NaN everywhere")
	require.Zero(t, optim.ClipGlobalNorm(nil, 1))

	rapid.Check(t, func(t *rapid.T) {
		x := draw(t)
		limit := rapid.Float64Range(0.01, 10).Draw(t, "limit")
		before := optim.ClipGlobalNorm([][]float64{x.g}, limit)
		after := optim.ClipGlobalNorm([][]float64{x.g}, math.Inf(1))
		if !(after <= min(before, limit)*(1+8*u)) {
			t.Fatalf("norm %g after clipping %g to %g", after, before, limit)
		}
	})
}

func TestSGD(t *testing.T) {
	p := []float64{1, 2}
	optim.SGD(p, []float64{10, -10}, 0.1)
	require.Equal(t, []float64{0, 3}, p)
	require.Panics(t, func() { optim.SGD(p, nil, 1) })
}

func TestSchedule(t *testing.T) {
	s := optim.Schedule{Decay: optim.Cosine, LR: 1e-5, MinLR: 1e-6, Warmup: 100, Total: 10000}
	require.Zero(t, s.At(0))
	require.InDelta(t, 5e-6, s.At(50), 1e-20)
	require.InDelta(t, 1e-5, s.At(100), 1e-20)
	require.InDelta(t, 5.5e-6, s.At(5050), 1e-20) // half way: the mean of LR and MinLR
	require.InDelta(t, 1e-6, s.At(10000), 1e-20)
	require.Equal(t, 1e-6, s.At(20000))
	s.Rebound = true
	require.InDelta(t, 1e-5, s.At(19900), 1e-20) // transformers' cosine goes up again

	l := optim.Schedule{Decay: optim.Linear, LR: 2, Warmup: 0, Total: 4}
	require.Equal(t, []float64{2, 1.5, 1, 0.5, 0, 0}, []float64{l.At(0), l.At(1), l.At(2), l.At(3), l.At(4), l.At(5)})
	c := optim.Schedule{LR: 3, Warmup: 2}
	require.Equal(t, []float64{0, 1.5, 3, 3}, []float64{c.At(0), c.At(1), c.At(2), c.At(1000)})
}

func ExampleSchedule() {
	s := optim.Schedule{Decay: optim.Cosine, LR: 2e-6, MinLR: 1e-7, Warmup: 5, Total: 100}
	fmt.Printf("%.2e %.2e %.2e\n", s.At(1), s.At(5), s.At(100))
	// Output: 4.00e-07 2.00e-06 1.00e-07
}
