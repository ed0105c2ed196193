package model_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/accel/cuda"
	device "plumbline/accel/cuda/model"
	"plumbline/accel/cuda/ptxsim"
	"plumbline/accel/lora"
	"plumbline/internal/arch"
)

// runOn computes the results of a world by the kernels of a device.
func (w *world) runOn(t require.TestingT, d cuda.Device, seed uint64) results {
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
	for _, n := range w.names {
		out[n+".A"], out[n+".B"] = wide(w.updates[n].GradA), wide(w.updates[n].GradB)
	}
	require.NoError(t, m.Close())
	return out
}

// Forward and backward passes of tiny models on the simulated device are as near to the reference as the kernels' contract allows.
func TestModelOnDevice(t *testing.T) {
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		if n++; n > 12 { // the reference is run many times for each
			return
		}
		c := rapid.Custom(tiny).Filter(func(c arch.Config) bool { return c.Type != "gpt2" }).Draw(t, "model")
		c.Windows = nil
		w := drawOf(t, lora.W8A16, c)
		w.agree(t, w.runOn(t, cuda.Simulator(ptxsim.Schedules[n%4], 0), w.seed), 8)
	})
}

// Two layers with groups of queries, whose heads fill a kernel's size or leave a tail of it.
func TestModelOnDeviceHeads(t *testing.T) {
	for i, size := range []int{64, 100, 256} {
		c := arch.Config{Type: "qwen2", Vocab: 11, Layers: 2, KVHeads: 1, Heads: 2, HeadDim: size, Hidden: 20, Inner: 24, Positions: 64, Eps: 1e-5, Activation: "silu", QKVBias: true,
			Rope: arch.Rope{Theta: 10000, Dim: size, Type: "default", Factor: 1}}
		w := rapid.Custom(func(t *rapid.T) *world { return drawOf(t, lora.W8A16, c) }).Example(i)
		w.agree(t, w.runOn(t, cuda.Simulator(ptxsim.Schedules[i%4], 0), w.seed), 8)
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
