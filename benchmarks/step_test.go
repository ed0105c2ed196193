package benchmarks

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"plumbline/accel/cpu"
	"plumbline/accel/f32"
	"plumbline/accel/lora"
	"plumbline/accel/model"
	"plumbline/internal/arch"
	"plumbline/internal/rng"
)

// smol is the geometry of SmolLM2-135M: 134.5 million weights.
var smol = arch.Config{Type: "llama", Vocab: 49152, Hidden: 576, Layers: 30, Heads: 9, KVHeads: 3, HeadDim: 64, Inner: 1536, Positions: 8192, Eps: 1e-5, Activation: "silu",
	Tied: true, Rope: arch.Rope{Theta: 100000, Dim: 64, Type: "default", Factor: 1}}

// random are weights of the size that a trained model has: its speed does not depend on what they are.
func random(name string, dst []float32, first int) error {
	s := rng.New(uint64(len(name)), uint64(first))
	for i := range dst {
		dst[i] = float32(s.Uniform(uint64(i))-0.5) * 0.1
	}
	return nil
}

// smolModel has updates of rank 16 on the projections of queries and values; step clips their gradients, moves them by AdamW and clears the gradients.
func smolModel(b *testing.B, mode lora.Mode) (m *model.Model, step func()) {
	m, err := model.New(smol, mode, random)
	if err != nil {
		b.Fatal(err)
	}
	o := &f32.AdamW{LR: 1e-4, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Decay: 0.01}
	var params, grads, first, second [][]float32
	for _, l := range smol.Linears() {
		if l.Role != arch.Query && l.Role != arch.Value {
			continue
		}
		u := &lora.Update{Rank: 16, Scale: 1, A: make([]float32, 16*l.In), B: make([]float32, 16*l.Out), GradA: make([]float32, 16*l.In), GradB: make([]float32, 16*l.Out)}
		_ = random(l.Name, u.A, 0)
		_ = random(l.Name, u.B, 1)
		if err := m.Attach(l.Name, u); err != nil {
			b.Fatal(err)
		}
		params, grads = append(params, u.A, u.B), append(grads, u.GradA, u.GradB)
		for _, x := range [][]float32{u.A, u.B} {
			first, second = append(first, make([]float32, len(x))), append(second, make([]float32, len(x)))
		}
	}
	return m, func() {
		o.Step++
		_, scale := f32.Clip(grads, 1)
		for i, p := range params {
			o.Update(grads[i], p, grads[i], first[i], second[i], scale)
			f32.Apply(p, grads[i], nil, nil, 0, 1)
			clear(grads[i])
		}
	}
}

// peakMB is the largest resident memory of the process so far, in 10⁶ bytes; 0 where the system does not say.
func peakMB() float64 {
	text, _ := os.ReadFile("/proc/self/status")
	for _, line := range bytes.Split(text, []byte("\n")) {
		var kb float64
		if _, err := fmt.Sscanf(string(line), "VmHWM: %f kB", &kb); err == nil {
			return kb * 1.024e-3
		}
	}
	return 0
}

// BenchmarkStep measures a training step, forward, backward, clipping and AdamW, of SmolLM2-135M's geometry with 4 sequences of 256 tokens, and the scoring of
// as many. Metrics are tokens per second, CPU time and the peak memory of the process.
func BenchmarkStep(b *testing.B) {
	const rows, time = 4, 256
	ids := make([]int, rows*time)
	for i := range ids {
		ids[i] = i * 7919 % smol.Vocab
	}
	tokens, _ := model.Pack(rows, time, ids, nil)
	var before, targets []int
	slopes := []float64{}
	for i := range ids {
		if i%time > 0 {
			before, targets, slopes = append(before, i-1), append(targets, ids[i]), append(slopes, -1./float64(len(ids)))
		}
	}
	for _, mode := range []lora.Mode{lora.W8A16, lora.W8A8} {
		m, step := smolModel(b, mode)
		score := func(keep model.Keep) (*model.Pass, *model.Scores) {
			p := m.Forward(tokens, true, keep)
			return p, m.Score(p.Gather(before), targets, true, keep)
		}
		run := func(name string, f func()) {
			b.Run(name+"/"+mode.String(), func(b *testing.B) {
				f() // memory is taken and the caches are warm
				b.ResetTimer()
				start := cpu.Time()
				for b.Loop() {
					f()
				}
				b.ReportMetric(float64(rows*time*b.N)/b.Elapsed().Seconds(), "tok/s")
				b.ReportMetric(float64((cpu.Time()-start).Nanoseconds())/float64(b.N), "cpu-ns/op")
				b.ReportMetric(peakMB(), "peakMB")
			})
		}
		run("score", func() { p, _ := score(model.Nothing); p.Close() })
		for _, v := range []struct {
			name string
			keep model.Keep
		}{{"train", model.Everything}, {"train-recompute", model.Layers}} {
			run(v.name, func() {
				p, s := score(v.keep)
				p.Backward(before, s.Backward(slopes, nil))
				step()
			})
		}
	}
}
