package projection

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/format"
	"plumbline/reference/linalg"
	"plumbline/verify/check"
	"plumbline/verify/projection"
)

func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

var plain = Scenario{D: 1024, K: 16, Norm: 1, Basis: format.F32, Vector: format.F32, Passes: 1, Steps: 30}

func judge(t *testing.T, in *projection.Input, ids ...string) []check.Result {
	t.Helper()
	results, err := projection.Suite.Run(in, check.Selection{Select: ids})
	require.NoError(t, err)
	return results
}

func one(t *testing.T, in *projection.Input, id string) check.Result {
	t.Helper()
	results := judge(t, in, id)
	require.NotEmpty(t, results)
	return results[0]
}

// Every executable fault is caught by the check that ships it, and explained first as itself.
func TestFaults(t *testing.T) {
	for seed := uint64(1); seed <= 3; seed++ {
		planted, err := PlantAll(seed)
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(planted), 40)
		withFault := map[string]bool{}
		for _, p := range planted {
			require.True(t, p.Caught, "seed %d: %s %s (%s) is not caught; seen by %v", seed, p.Check, p.Fault.ID, p.Fault.Title, p.By)
			require.Equal(t, p.Fault.ID, p.Named, "seed %d: %s (%s)", seed, p.Check, p.Fault.Title)
			require.NotEmpty(t, p.Fault.Cause)
			require.NotEmpty(t, p.Fault.Source)
			withFault[p.Check] = true
		}
		for _, c := range projection.Suite {
			require.True(t, withFault[c.Name], "%s ships no fault: a check never seen failing is no check", c.Name)
		}
	}
}

// Healthy data of all types and norms raise no alarm.
func TestNoFalseAlarms(t *testing.T) {
	n := 10000 / cases.Every
	if testing.Short() {
		n = 500
	}
	r := random(11)
	for range n {
		s := RandomScenario(r)
		require.Empty(t, Alarm(s, judge(t, s.Draw(r))))
	}
}

// The same gradients without projection never leave with exit code 0, with or without the projected file.
func TestUnprojectedNeverPasses(t *testing.T) {
	r := random(12)
	for range 1000 {
		s := RandomScenario(r)
		s.Steps = 0
		in := s.Draw(r)
		if s.Vector == format.F16 && s.Norm < 1e-3 {
			continue // below the normal numbers of float16 nothing can be told
		}
		if c := linalg.Components(numbers(in.Basis), s.K, in.Grads[0].Tensors[0].Data, 1); norm(c) < 0.5*s.Norm*math.Sqrt(float64(s.K)/float64(s.D)) {
			continue // by chance the gradient has hardly a component
		}
		alone := in.With(func(c *projection.Input) { c.Projected = nil })
		require.NotEqual(t, check.ExitPass, check.Exit(judge(t, alone), check.Policy{}), "%+v", s)
		same := in.With(func(c *projection.Input) { c.Projected = c.Grads })
		require.Equal(t, check.ExitFail, check.Exit(judge(t, same), check.Policy{}), "%+v", s)
	}
}

// A gradient so small that the limit passes it whatever it holds.
func TestTinyGradients(t *testing.T) {
	s := plain
	s.Norm, s.Steps = 1e-6, 0
	in := s.Draw(random(4))
	raw := in.With(func(c *projection.Input) { c.Projected = nil })
	require.Equal(t, check.Undetermined, one(t, raw, "gradient/component").Verdict)
	done := in.With(func(c *projection.Input) { c.Grads, c.Projected = c.Projected, nil })
	require.Equal(t, check.Pass, one(t, done, "gradient/component").Verdict)
	both := one(t, in, "projection/formula")
	require.Equal(t, check.Pass, both.Verdict, both.Reason)
}

// The limit of projection/formula inside span(Q), one hundredth of the component and a millionth of the norm, from both sides: for a
// gradient that had 3e-4 of its norm inside, the limit of gradient/component would pass a thirtieth of it.
func TestOneHundredthOfTheComponent(t *testing.T) {
	s := plain
	s.Steps = 0
	for seed := range uint64(20) {
		in := s.Draw(random(seed))
		q, g := numbers(in.Basis), append([]float64(nil), in.Grads[0].Tensors[0].Data...)
		inside := norm(linalg.Components(q, s.K, g, 1))
		g = combine(g, q, linalg.Components(q, s.K, g, 1), s.K, 1, 3e-4/inside)
		keeping := func(share float64) *projection.Input {
			p := combine(append([]float64(nil), g...), q, linalg.Components(q, s.K, g, 1), s.K, 1, share)
			return in.With(func(x *projection.Input) {
				x.Grads, x.Projected = []projection.Set{vectorSet("g", format.F64, g)}, []projection.Set{vectorSet("p", format.F64, p)}
			})
		}
		require.Equal(t, check.Pass, one(t, keeping(0.0125), "projection/formula").Verdict)
		require.Equal(t, check.Fail, one(t, keeping(0.0145), "projection/formula").Verdict)
	}
}

// A gradient projected with the formula and a basis that is not orthonormal keeps components of which the basis is the cause: they
// are not held against the projection. What is not projected with the same basis is.
func TestBrokenBasisExplainsWhatItLeaves(t *testing.T) {
	r := random(21)
	s := plain
	s.Steps = 0
	in := s.Draw(r)
	q, g := numbers(in.Basis), in.Grads[0].Tensors[0].Data
	for i := range q {
		q[i] *= 1.02
	}
	p := combine(append([]float64(nil), g...), q, linalg.Components(q, s.K, g, 1), s.K, 1, 0)
	with := func(v []float64) *projection.Input {
		return in.With(func(c *projection.Input) {
			c.Basis = projection.DenseBasis(q, s.D, s.K, format.F64)
			c.Grads, c.Projected = []projection.Set{vectorSet("p", format.F64, v)}, nil
		})
	}
	require.Equal(t, check.Undetermined, one(t, with(p), "gradient/component").Verdict)
	require.Equal(t, check.Fail, one(t, with(g), "gradient/component").Verdict)
}

// Gradients of the same name but another shape are no pair: nothing is compared by position.
func TestPairsOfAnotherWidthAreNotJoined(t *testing.T) {
	s := plain
	s.Steps = 0
	in := s.Draw(random(22))
	g := in.Grads[0].Tensors[0].Data
	wide := append(append([]float64(nil), g...), g...)
	in = in.With(func(c *projection.Input) {
		c.Grads = []projection.Set{{Name: "g", Tensors: []projection.Tensor{{Name: "w", Shape: []int{s.D, 2}, DType: format.F64, Data: wide}}}}
		c.Projected = []projection.Set{{Name: "p", Tensors: []projection.Tensor{{Name: "w", Shape: []int{s.D, 1}, DType: format.F64, Data: g}}}}
	})
	require.NotPanics(t, func() {
		for _, r := range judge(t, in, "projection/formula", "projection/norm", "projection/no-op") {
			require.NotEqual(t, check.Pass, r.Verdict, "%+v", r)
		}
	})
}

// A norm that overflows makes every component look small.
func TestOverflowingNormDecidesNothing(t *testing.T) {
	in := plain.Draw(random(4))
	huge := make([]float64, plain.D)
	for i := range huge {
		huge[i] = 1e200
	}
	in = in.With(func(c *projection.Input) {
		c.Grads, c.Projected = []projection.Set{vectorSet("g", format.F64, huge)}, nil
	})
	require.Equal(t, check.Undetermined, one(t, in, "gradient/component").Verdict)
}

// Clipping by one scalar after projecting is safe, and said to be that.
func TestClippedAfterwards(t *testing.T) {
	in := plain.Draw(random(8))
	p := append([]float64(nil), in.Projected[0].Tensors[0].Data...)
	for i := range p {
		p[i] = float64(float32(p[i] * 0.37))
	}
	r := one(t, in.With(func(c *projection.Input) { c.Projected = []projection.Set{vectorSet("p", format.F32, p)} }), "projection/formula")
	require.Equal(t, check.Warn, r.Verdict)
	require.Contains(t, r.Reason, "0.37")
}

// With a basis that is not orthonormal, what follows from that is not a second fault.
func TestOneFaultOneFailure(t *testing.T) {
	for _, f := range projection.Orthonormal.Faults[:2] {
		failed := 0
		for _, r := range judge(t, f.Plant(random(9), plain.Draw(random(9)))) {
			if r.Verdict == check.Fail {
				failed++
				require.Equal(t, "basis/orthonormal", r.Check, "%s: %+v", f.ID, r)
			}
		}
		require.Equal(t, 1, failed, f.ID)
	}
}

// A recorded order that is the one the basis was made for is used, and passes.
func TestRecordedOrder(t *testing.T) {
	in := plain.Draw(random(3))
	b := *in.Basis
	cut := plain.D / 4
	b.Order = []projection.Span{{Name: loraA, Len: cut}, {Name: loraB, Len: plain.D - cut}}
	require.Equal(t, check.Pass, one(t, in.With(func(c *projection.Input) { c.Basis = &b }), "adapter/drift").Verdict)
}
