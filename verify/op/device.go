package op

// Kernels are the ops of a device as functions on slices of the host: each uploads its operands, launches, and copies the results back. One that
// fails panics with an [OnDeviceError].
type Kernels interface {
	QuantizeRows(codes []int8, ldc int, absmax []float32, x []float32, ldx int, rows, cols int)
	GemmInt8(c []int32, ldc int, a []int8, lda int, b []int8, ldb int, m, n, k int)
	GemmScaled(y []float32, ldy int, a []int8, lda int, scaleA []float32, b []int8, ldb int, scaleB, bias []float32, m, n, k int)
	W8A16(y []float32, ldy int, x []float32, ldx int, w []int8, ldw int, scale, bias []float32, m, n, k int)
	W8A16DX(dx []float32, lddx int, dy []float32, lddy int, w []int8, ldw int, scale []float32, m, n, k int, accumulate bool)
	Gemm(c []float32, ldc int, a []float32, lda int, b []float32, ldb int, m, n, k int, transA, transB, accumulate bool)
	RMSNorm(y, x, w []float32, eps float64, rstd []float32)
	RMSNormBackward(dx, dy, x, w, rstd []float32)
	LayerNorm(y, x, w, b []float32, eps float64, mean []float64, rstd []float32)
	LayerNormBackward(dx, x, w, dy []float32, eps float64)
	SwiGLU(y, gate, up []float32)
	SwiGLUBackward(dgate, dup, dy, gate, up []float32)
	GELU(y, dx, x, dy []float32)
	RoPE(x []float32, heads, dim, rotated int, interleaved, inverse bool, cos, sin []float32)
	Attention(y, dq, dk, dv, q, k, v, dout []float32, real []bool, batch, tq, tk, heads, kv, size int, causal bool, scale float32)
	Head(logp, entropy, dlogits, logits []float32, ids []int32, dlogp, dentropy []float32, vocab int, temperature float32)
	PolicyLoss(loss, slope, logp, old, ref, advantage, w []float32, low, high, beta float32)
	AdamW(p, m, v, g []float32, lr, beta1, beta2, eps, decay, clip float64, step int)
	Project(g, q []float32, k int) float64
	Embedding(y []float32, codes []int8, scale, wpe []float32, ids, position []int32, n int)
	Moves
}

// OnDevice joins the specs to the kernels of a device. What most > 0 allows is the work of a case: a simulator takes no large ones.
func OnDevice(k Kernels, most int) []Op {
	takes := func(also func(d []int) bool, work func(d []int) int) Terms {
		return Terms{Contract: Device, Takes: func(c Case) bool {
			return (also == nil || also(c.Dims)) && (most <= 0 || work(c.Dims) <= most)
		}}
	}
	// Products come in tiles of 64×64 at least.
	tiles := func(d []int) int { return (d[0] + 63) / 64 * ((d[1] + 63) / 64) * 64 * 64 * d[2] }
	small := takes(nil, func([]int) int { return 0 })
	return []Op{
		Quantize.On(takes(nil, func(d []int) int { return d[0] * max(d[1], 128) * 64 }), k.QuantizeRows),
		I8Gemm.On(takes(nil, tiles), k.GemmInt8),
		I8Scaled.On(takes(func(d []int) bool { return d[4] == 0 }, tiles), k.GemmScaled), // the kernel has no bias
		W8A16.On(takes(nil, tiles), k.W8A16),
		W8A16DX.On(takes(nil, tiles), k.W8A16DX),
		F32Gemm.On(takes(nil, tiles), k.Gemm),
		RMSNorm.On(small, k.RMSNorm),
		RMSNormBackward.On(small, k.RMSNormBackward),
		LayerNorm.On(small, k.LayerNorm),
		LayerNormBackward.On(small, k.LayerNormBackward),
		SwiGLU.On(small, k.SwiGLU),
		SwiGLUBackward.On(small, k.SwiGLUBackward),
		GELU.On(small, k.GELU),
		Rotate.On(small, k.RoPE),
		Attention.On(takes(func(d []int) bool { return d[6] == 0 }, func([]int) int { return 0 }), forwardOf(k)), // no window
		AttentionBackward.On(small, k.Attention),
		HeadBatch.On(small, k.Head),
		PolicyLoss.On(small, k.PolicyLoss),
		AdamW.On(small, k.AdamW),
		Project.On(small, k.Project),
		Embedding.On(small, k.Embedding),
		Move.On(small, k),
	}
}

// forwardOf is the forward pass alone.
func forwardOf(k Kernels) AttentionFunc {
	return func(a AttentionShape, y, q, key, v []float32) {
		wide, narrow := a.Heads*a.Dim, a.KVHeads*a.Dim
		k.Attention(y, nil, nil, nil, q, key, v, nil, a.Real, 1, len(q)/wide, len(key)/narrow, a.Heads, a.KVHeads, a.Dim, a.Causal, a.Scale)
	}
}
