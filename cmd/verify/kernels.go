package main

import (
	"fmt"
	"slices"

	"plumbline/accel"
	"plumbline/accel/bf16"
	"plumbline/accel/cpu"
	"plumbline/accel/f32"
	"plumbline/accel/f64"
	"plumbline/accel/i8"
	"plumbline/verify/op"
)

// kernel is an accelerated op with its specification and a piece of work to time it on.
type kernel struct {
	op.Op
	probe string  // what its speed is a share of; "": it is not timed
	work  float64 // operations of run
	run   func()  // under the variant in use
}

// kernels hands the accelerated ops to their specifications, in the order of verify ops.
func kernels() []kernel {
	const m, n, k = 96, 256, 512
	const work = 2 * m * n * k
	ints := func(n int) []int8 { return pattern[int8](n) }
	single := func(n int) []float32 { return pattern[float32](n) }
	x8, w8, sums := ints(m*k), ints(n*k), make([]int32, m*n)
	x, w, y, dx, scale := single(m*k), single(n*k), make([]float32, m*n), make([]float32, m*k), single(max(m, n))
	xd, wd, yd := pattern[float64](m*k), pattern[float64](n*k), make([]float64, m*n)
	return []kernel{
		{op.Quantize.With(i8.QuantizeRows), "", 0, nil},
		{op.I8Gemm.With(i8.Gemm), "peak/i8", work, func() { i8.Gemm(sums, n, x8, k, w8, k, m, n, k) }},
		{op.I8Scaled.With(i8.GemmScaled), "peak/i8", work, func() { i8.GemmScaled(y, n, x8, k, scale, w8, k, scale, nil, m, n, k) }},
		{op.W8A16.With(bf16.W8A16), "peak/bf16", work, func() { bf16.W8A16(y, n, x, k, w8, k, scale, nil, m, n, k) }},
		{op.W8A16DX.With(bf16.W8A16DX), "peak/bf16", work, func() { bf16.W8A16DX(dx, k, y, n, w8, k, scale, m, n, k, false) }},
		{op.F32Gemm.With(f32.Gemm), "peak/f32", work, func() { f32.Gemm(y, n, x, k, w, k, m, n, k, false, true, false) }},
		{op.F64Gemm.With(f64.Gemm), "peak/f64", work, func() { f64.Gemm(yd, n, xd, k, wd, k, m, n, k, false, true, false) }},
		{op.RMSNorm.With(f32.RMSNorm), "", 0, nil},
		{op.LayerNorm.With(f32.LayerNorm), "", 0, nil},
		{op.Softmax.With(f32.Softmax), "", 0, nil},
		{op.SwiGLU.With(swiGLU), "", 0, nil},
		{op.SwiGLUBackward.With(swiGLUBack), "", 0, nil},
		{op.SoftmaxBackward.With(f32.SoftmaxBackward), "", 0, nil},
		{op.RMSNormBackward.With(f32.RMSNormBackward), "", 0, nil},
		{op.Head.With(head), "", 0, nil},
		{op.HeadBackward.With(headBack), "", 0, nil},
		{op.Add.With(f32.Add), "", 0, nil},
		{op.Scale.With(f32.Scale), "", 0, nil},
		{op.Max.With(f32.Max), "", 0, nil},
		{op.Rotate.With(rotate), "", 0, nil},
		{op.Attention.With(attend), "", 0, nil},
		{op.AttentionBackward.With(f32.AttentionBatch), "", 0, nil},
	}
}

// eachVariant calls f for the variants of an op; one that is not in the registry has one, portable Go.
func eachVariant(name string, f func(accel.Variant)) {
	if slices.Contains(accel.Ops(), name) {
		accel.Each(name, f)
	} else {
		f(accel.Variant{Op: name, Name: accel.Generic, Used: true})
	}
}

func silu() f32.Activation {
	a, err := f32.FindActivation("silu")
	if err != nil {
		panic(err)
	}
	return a
}

func swiGLU(y, gate, up []float32) { silu().Gated(y, gate, up) }

func swiGLUBack(dgate, dup, dy, gate, up []float32) { silu().GatedBackward(dgate, dup, dy, gate, up) }

// chunks takes the logits of a row in parts.
func chunks(z []float32, chunk, target int) (h f32.Head) {
	for first := 0; first < len(z); first += chunk {
		h.Add(z[first:min(len(z), first+chunk)], first, target)
	}
	return h
}

func head(z []float32, chunk, target int) (logp, entropy float64) {
	h := chunks(z, chunk, target)
	return h.LogProb(), h.Entropy()
}

func headBack(z []float32, chunk, target int, dlp, dh float64) {
	h := chunks(z, chunk, target)
	for first := 0; first < len(z); first += chunk {
		h.Slopes(z[first:min(len(z), first+chunk)], first, target, dlp, dh)
	}
}

func rotate(x []float32, heads, dim, rotated int, interleaved, inverse bool, cos, sin []float32) {
	f32.RoPE{Dim: rotated, Interleaved: interleaved, Frequencies: make([]float64, rotated/2)}.Apply(x, heads, dim, cos, sin, inverse)
}

func attend(a op.AttentionShape, y, q, k, v []float32) {
	b := f32.Attention{Heads: a.Heads, KVHeads: a.KVHeads, Dim: a.Dim, Scale: a.Scale, Causal: a.Causal, Window: a.Window, Real: a.Real}
	var w f32.Scratch
	for kv := range a.KVHeads {
		b.Forward(y, q, k, v, kv, &w)
	}
}

func pattern[T int8 | float32 | float64](n int) []T {
	x := make([]T, n)
	for i := range x {
		x[i] = T(float64(i*7919%251-125) / float64(1+i%3))
	}
	return x
}

// share is the speed of k per second of CPU time as a share of its probe, the best of three; "" if it has none here.
func (k *kernel) share() string {
	peak := 0.0
	if k.probe != "" {
		peak = cpu.Peak(k.probe)
	}
	if peak == 0 {
		return ""
	}
	best := 0.0
	for range 3 {
		before, done := cpu.Time(), 0.0
		for done == 0 || cpu.Time()-before < 5e6 {
			k.run()
			done += k.work
		}
		best = max(best, done/(cpu.Time()-before).Seconds())
	}
	return fmt.Sprintf("%.1f %%", 100*best/max(peak, cpu.Peak(k.probe)))
}
