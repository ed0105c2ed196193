package optim_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/reference/optim"
)

// Demands of the systems document (chapters 0, B, C) and identities of the conventions document (2.12) about optimisers.

// bf16 rounds to the nearest bfloat16, ties to even.
func bf16(x float64) float64 {
	b := math.Float32bits(float32(x))
	b += 0x7fff + b>>16&1
	return float64(math.Float32frombits(b &^ 0xffff))
}

// TestBF16Weights: beside a bfloat16 weight of .02 the neighbours are 1.2e-4 away, so that a step at learning rate 2e-6 is
// rounded away, however many there are; float32 masters keep it (C.7).
func TestBF16Weights(t *testing.T) {
	w := bf16(.02)
	next := bf16(w * (1 + 0x1p-7))
	require.InDelta(t, 1.2e-4, next-w, 3e-6)
	stored, master := []float64{w}, []float64{w}
	o, s, m := optim.AdamWDefaults(2e-6), optim.NewState(1), optim.NewState(1)
	o.WeightDecay = 0
	for range 50 {
		o.Step(stored, []float64{1}, s)
		stored[0] = bf16(stored[0])
		o.Step(master, []float64{1}, m)
		master[0] = float64(float32(master[0]))
	}
	require.Equal(t, w, stored[0])
	require.InDelta(t, w-50*2e-6, master[0], 1e-7)
	require.Less(t, bf16(master[0]), w, "fifty of them reach the next bfloat16")
}

// TestTutorialSchedule has the schedule of the tutorial, 6400 steps: 100 rollouts, 2 epochs, 32 steps (C.1).
func TestTutorialSchedule(t *testing.T) {
	s := optim.Schedule{Decay: optim.Cosine, LR: 2e-6, MinLR: 1e-7, Warmup: 5, Total: 6400}
	for step := range 5 {
		require.InDelta(t, 2e-6*float64(step)/5, s.At(step), 1e-21)
	}
	require.Equal(t, 2e-6, s.At(5))
	for _, step := range []int{6, 500, 3202, 3203, 6000, 6399} {
		progress := float64(step-5) / 6395
		require.InDelta(t, 1e-7+(2e-6-1e-7)*.5*(1+math.Cos(math.Pi*progress)), s.At(step), 1e-20, "step %d", step)
	}
	require.InDelta(t, 1e-7, s.At(6400), 1e-21)
	require.Equal(t, 1e-7, s.At(6401), "constant after the end")
	// Between warm-up and end it falls at every step.
	for step := 6; step <= 6400; step++ {
		require.Less(t, s.At(step), s.At(step-1))
	}
}

// TestTensorFlowEps: TensorFlow 1's Adam is PyTorch's with eps/√(1 − β₂ᵗ) in step t, and differs from it with the same eps.
func TestTensorFlowEps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := draw(t)
		x.o.Form, x.o.Eps = optim.TensorFlow1, 1e-2
		y, z := x.copy(), x.copy()
		y.o.Form, z.o.Form = optim.PyTorch, optim.PyTorch
		for step := 1; step <= 4; step++ {
			x.run(1)
			z.run(1)
			y.o.Eps = 1e-2 / math.Sqrt(1-math.Pow(x.o.Beta2, float64(step)))
			y.run(1)
		}
		differ := false
		for i := range x.p {
			near(t, y.p[i], x.p[i], 1e-12)
			differ = differ || math.Abs(z.p[i]-x.p[i]) > 1e-9
		}
		if !differ {
			t.Fatal("the place of eps does not show")
		}
	})
}

// TestClipThenStep: clipping is of one vector over all parameters, before the step, and the norm that is logged is the one
// before it (C.0, 23).
func TestClipThenStep(t *testing.T) {
	g := [][]float64{{3, 4}, {12}}
	require.Equal(t, 13.0, optim.ClipGlobalNorm(g, 1))
	for i, want := range []float64{3, 4, 12} {
		require.InDelta(t, want/(13+1e-6), append(append([]float64{}, g[0]...), g[1]...)[i], 1e-15)
	}
	apart := [][]float64{{3, 4}, {12}}
	optim.ClipGlobalNorm(apart[:1], 1)
	optim.ClipGlobalNorm(apart[1:], 1)
	require.Greater(t, apart[0][0]-g[0][0], .1, "each parameter by its own norm")
}
