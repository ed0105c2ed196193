package model_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/accel/cuda"
	device "plumbline/accel/cuda/model"
	"plumbline/accel/cuda/ptxsim"
	"plumbline/accel/lora"
	"plumbline/internal/arch"
	"plumbline/reference/optim"
)

// runOn computes the results of a world by the kernels of a device, and takes a step of AdamW.
func (w *world) runOn(t require.TestingT, d cuda.Device, seed uint64, o cuda.AdamW) results {
	m, err := device.New(w.config, cuda.NewContext(d), weights(w.config, seed))
	require.NoError(t, err)
	for _, n := range w.names {
		u := *w.updates[n]
		u.A, u.B, u.GradA, u.GradB = slices.Clone(u.A), slices.Clone(u.B), make([]float32, len(u.A)), make([]float32, len(u.B))
		w.updates[n] = &u
		require.NoError(t, m.Attach(n, &u))
	}
	var before, targets []int
	for _, i := range w.at {
		before, targets = append(before, i-1), append(targets, w.in.IDs[i])
	}
	p, err := m.Forward(device.Batch{Rows: w.in.Batch, Time: w.in.Time, IDs: w.in.IDs, Real: w.in.Real}, true)
	require.NoError(t, err)
	x, err := p.Hidden(before)
	require.NoError(t, err)
	s, err := p.Score(before, targets, 1)
	require.NoError(t, err)
	out := results{"hidden": wide(x), "log-probability": wide(s.LogProbs), "entropy": wide(s.Entropies), "value": w.head.Forward(x)}
	extra, gradW, gradB := make([]float32, len(x)), make([]float64, len(w.head.W)), 0.0
	w.head.Backward(gradW, &gradB, extra, x, w.dv)
	require.NoError(t, s.Backward(narrow(w.dlp), narrow(w.dh), extra))
	require.NoError(t, p.Close())
	require.NoError(t, m.Download())
	out["value.weight"], out["value.bias"] = gradW, []float64{gradB}
	grads := map[string][]float64{}
	for _, n := range w.names {
		out[n+".A"], out[n+".B"] = wide(w.updates[n].GradA), wide(w.updates[n].GradB)
		grads[n+".A"], grads[n+".B"] = out[n+".A"], out[n+".B"]
	}
	w.step(t, m, o)
	require.NoError(t, m.Close())
	return out
}

// step takes a step on the device and holds the factors against the optimiser of the reference from the same gradients: tolerances 5.16.
func (w *world) step(t require.TestingT, m *device.Model, o cuda.AdamW) {
	const u = 0x1p-24
	want, scale := map[string][]float64{}, 0.0
	for _, n := range w.names {
		for _, g := range [][]float32{w.updates[n].GradA, w.updates[n].GradB} {
			for _, v := range g {
				scale += float64(v) * float64(v)
			}
		}
	}
	norm := math.Sqrt(scale)
	clip := math.Min(1, 0.5/(norm+1e-6))
	ref := optim.Adam{LR: o.LR, Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.Decay}
	move := func(x, g []float32) []float64 {
		p, d := wide(x), wide(g)
		for i := range d {
			d[i] *= clip
		}
		ref.Step(p, d, optim.NewState(len(p)))
		return p
	}
	for _, n := range w.names {
		up := w.updates[n]
		want[n+".A"], want[n+".B"] = move(up.A, up.GradA), move(up.B, up.GradB)
	}
	got, err := m.Step(o, 0.5)
	require.NoError(t, err)
	require.InDelta(t, norm, got, 1e-6*norm)
	require.NoError(t, m.Download())
	for _, n := range w.names {
		up := w.updates[n]
		for name, x := range map[string][]float32{n + ".A": up.A, n + ".B": up.B} {
			for i, v := range x {
				// The first step moves by lr·g/(|g| + eps): its own error is 20u of lr, that of a gradient near eps included.
				bound := 5*u*math.Abs(want[name][i]) + 40*u*o.LR + o.LR*1e-6
				if d := math.Abs(float64(v) - want[name][i]); !(d <= bound) {
					require.Failf(t, "beyond the bound", "%s[%d] = %v, want %v, bound %g", name, i, v, want[name][i], bound)
				}
			}
		}
	}
}

// A training step of tiny models on the simulated device is as near to the reference as the kernels' contract allows.
func TestModelOnDevice(t *testing.T) {
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		if n++; n > 12 { // the reference is run many times for each
			return
		}
		c := rapid.Custom(tiny).Filter(func(c arch.Config) bool { return c.Type != "gpt2" }).Draw(t, "model")
		c.Windows = nil
		w := drawOf(t, lora.W8A16, c)
		w.scorer.W = nil // a scorer is the host's
		w.agree(t, w.runOn(t, cuda.Simulator(ptxsim.Schedules[n%4], 0), w.seed, cuda.AdamW{LR: 1e-2, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Decay: 0.1, Step: 1}), 8)
	})
}

// Two layers with groups of queries, whose heads fill a kernel's size or leave a tail of it.
func TestModelOnDeviceHeads(t *testing.T) {
	for i, size := range []int{64, 100, 256} {
		c := arch.Config{Type: "qwen2", Vocab: 11, Layers: 2, KVHeads: 1, Heads: 2, HeadDim: size, Hidden: 20, Inner: 24, Positions: 64, Eps: 1e-5, Activation: "silu", QKVBias: true,
			Rope: arch.Rope{Theta: 10000, Dim: size, Type: "default", Factor: 1}}
		w := rapid.Custom(func(t *rapid.T) *world { return drawOf(t, lora.W8A16, c) }).Example(i)
		w.scorer.W = nil
		w.agree(t, w.runOn(t, cuda.Simulator(ptxsim.Schedules[i%4], 0), w.seed, cuda.AdamW{LR: 1e-2, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Decay: 0.1, Step: 1}), 8)
	}
}

// What the kernels do not compute is refused in words.
func TestDeviceRefuses(t *testing.T) {
	llama := arch.Config{Type: "llama", Vocab: 11, Layers: 1, Heads: 2, KVHeads: 2, HeadDim: 4, Hidden: 8, Inner: 16, Positions: 16, Eps: 1e-5, Activation: "silu", Tied: true,
		Rope: arch.Rope{Theta: 10000, Dim: 4, Type: "default", Factor: 1}}
	gpt2, activation, window, wide := llama, llama, llama, llama
	gpt2.Type, gpt2.Activation, gpt2.Rope = "gpt2", "gelu_new", arch.Rope{}
	gpt2.QKVBias, gpt2.OutputBias, gpt2.MLPBias = true, true, true
	activation.Activation = "gelu_new"
	window.Type, window.QKVBias, window.Windows = "qwen2", true, []int{3}
	wide.HeadDim, wide.Rope.Dim = 258, 258
	for why, c := range map[string]arch.Config{
		`no kernels for "gpt2"; there are some for gptj, llama and qwen2`: gpt2,
		`no kernel for the activation "gelu_new" of llama`:                activation,
		"no kernel for attention through a window":                        window,
		"heads of 258; the kernels take 256 at most":                      wide,
	} {
		_, err := device.New(c, cuda.NewContext(cuda.Simulator(ptxsim.Options{}, 0)), weights(c, 1))
		require.ErrorContains(t, err, why)
	}
}
