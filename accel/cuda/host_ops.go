package cuda

import "errors"

// QuantizeRows is [Context.QuantizeRows].
func (h *Host) QuantizeRows(codes []int8, ldc int, absmax []float32, x []float32, ldx int, rows, cols int) {
	h.run(func(k *call) {
		px, pc, pa := in(k, x, rows, cols, ldx, cols), out(k, codes, rows, cols, ldc, false), flat(k, absmax[:rows])
		if cols == 0 {
			px, pc = scratch(k, 1), scratch(k, 1) // rows without columns: an address all the same
		}
		k.launch(func() error { return k.c.QuantizeRows(px, pc, pa, rows, cols, cols, cols) })
	})
}

// round16 is the leading dimension that copies of 16 bytes need.
func round16(k int) int { return (k + 15) / 16 * 16 }

// codes8 uploads codes with such rows; without columns there is an address all the same.
func codes8(k *call, x []int8, rows, cols, ld int) (Pointer, int) {
	to := round16(cols)
	if cols == 0 {
		return alloc[int8](k, 16), 0
	}
	return in(k, x, rows, cols, ld, to), to
}

// GemmInt8 is [Context.GemmInt8] into int32.
func (h *Host) GemmInt8(c []int32, ldc int, a []int8, lda int, b []int8, ldb int, m, n, kk int) {
	h.run(func(k *call) {
		pa, la := codes8(k, a, m, kk, lda)
		pb, lb := codes8(k, b, n, kk, ldb)
		pc := out(k, c, m, n, ldc, false)
		k.launch(func() error { return k.c.GemmInt8(pa, pb, pc, 0, 0, 0, m, n, kk, la, lb, n) })
	})
}

var errBias = errors.New("cuda: gemm_i8 has no bias")

// GemmScaled is [Context.GemmInt8] with its scales; bias must be nil.
func (h *Host) GemmScaled(y []float32, ldy int, a []int8, lda int, scaleA []float32, b []int8, ldb int, scaleB, bias []float32, m, n, kk int) {
	h.run(func(k *call) {
		if bias != nil {
			k.do(errBias)
			return
		}
		pa, la := codes8(k, a, m, kk, lda)
		pb, lb := codes8(k, b, n, kk, ldb)
		sa, sb, py := vector(k, scaleA), vector(k, scaleB), out(k, y, m, n, ldy, false)
		k.launch(func() error { return k.c.GemmInt8(pa, pb, 0, py, sa, sb, m, n, kk, la, lb, n) })
	})
}

// W8A16 is [Context.LinearForward].
func (h *Host) W8A16(y []float32, ldy int, x []float32, ldx int, w []int8, ldw int, scale, bias []float32, m, n, kk int) {
	h.run(func(k *call) {
		px, ps, pb, py := in(k, x, m, kk, ldx, kk), vector(k, scale), vector(k, bias), out(k, y, m, n, ldy, false)
		pw, lw := codes8(k, w, n, kk, ldw)
		k.launch(func() error { return k.c.LinearForward(px, pw, ps, pb, py, m, n, kk, lw, false) })
	})
}

// W8A16DX is [Context.LinearBackward].
func (h *Host) W8A16DX(dx []float32, lddx int, dy []float32, lddy int, w []int8, ldw int, scale []float32, m, n, kk int, accumulate bool) {
	h.run(func(k *call) {
		py, ps, px := in(k, dy, m, n, lddy, n), vector(k, scale), out(k, dx, m, kk, lddx, accumulate)
		pw, lw := codes8(k, w, n, kk, ldw)
		k.launch(func() error { return k.c.LinearBackward(py, pw, ps, px, m, n, kk, lw, accumulate) })
	})
}

// Gemm is [Context.Gemm] with a factor of 1.
func (h *Host) Gemm(c []float32, ldc int, a []float32, lda int, b []float32, ldb int, m, n, kk int, transA, transB, accumulate bool) {
	h.run(func(k *call) {
		ra, ca, rb, cb := m, kk, kk, n
		if transA {
			ra, ca = kk, m
		}
		if transB {
			rb, cb = n, kk
		}
		pa, pb, pc := in(k, a, ra, ca, lda, ca), in(k, b, rb, cb, ldb, cb), out(k, c, m, n, ldc, accumulate)
		k.launch(func() error { return k.c.Gemm(pa, pb, pc, m, n, kk, transA, transB, 1, accumulate) })
	})
}

// RMSNorm is [Context.RMSNormForward] of rows of len(w).
func (h *Host) RMSNorm(y, x, w []float32, eps float64, rstd []float32) {
	h.run(func(k *call) {
		n := len(w)
		px, pw, py, pr := vector(k, x), vector(k, w), flat(k, y), flat(k, rstd)
		k.launch(func() error { return k.c.RMSNormForward(px, pw, py, pr, len(x)/n, n, float32(eps)) })
	})
}

// RMSNormBackward is [Context.RMSNormBackward], added to dx.
func (h *Host) RMSNormBackward(dx, dy, x, w, rstd []float32) {
	h.run(func(k *call) {
		px, pw, pr, pdy, pdx := vector(k, x), vector(k, w), vector(k, rstd), vector(k, dy), inout(k, dx)
		k.launch(func() error { return k.c.RMSNormBackward(px, pw, pr, pdy, pdx, len(x)/len(w), len(w), true) })
	})
}

// LayerNorm is [Context.LayerNormForward] of rows of len(w).
func (h *Host) LayerNorm(y, x, w, b []float32, eps float64, mean []float64, rstd []float32) {
	rows, n := len(x)/len(w), len(w)
	stats := make([]float32, 2*rows)
	h.run(func(k *call) {
		px, pw, pb, py, ps := vector(k, x), vector(k, w), vector(k, b), flat(k, y), flat(k, stats)
		k.launch(func() error { return k.c.LayerNormForward(px, pw, pb, py, ps, rows, n, float32(eps)) })
	})
	for i := range rows {
		mean[i], rstd[i] = float64(stats[2*i]), stats[2*i+1]
	}
}

// LayerNormBackward runs the norm and its gradient.
func (h *Host) LayerNormBackward(dx, x, w, dy []float32, eps float64) {
	h.run(func(k *call) {
		n := len(w)
		rows := len(x) / n
		px, pw, pdy, py, ps, pdx := vector(k, x), vector(k, w), vector(k, dy), scratch(k, len(x)), scratch(k, 2*rows), flat(k, dx)
		k.launch(func() error { return k.c.LayerNormForward(px, pw, pw, py, ps, rows, n, float32(eps)) })
		k.launch(func() error { return k.c.LayerNormBackward(px, pw, ps, pdy, pdx, rows, n, false) })
	})
}

// SwiGLU is [Context.SiLUMulForward].
func (h *Host) SwiGLU(y, gate, up []float32) {
	h.run(func(k *call) {
		pg, pu, py := vector(k, gate), vector(k, up), flat(k, y)
		k.launch(func() error { return k.c.SiLUMulForward(pg, pu, py, len(y)) })
	})
}

// SwiGLUBackward is [Context.SiLUMulBackward].
func (h *Host) SwiGLUBackward(dgate, dup, dy, gate, up []float32) {
	h.run(func(k *call) {
		pg, pu, pd, dg, du := vector(k, gate), vector(k, up), vector(k, dy), flat(k, dgate), flat(k, dup)
		k.launch(func() error { return k.c.SiLUMulBackward(pg, pu, pd, dg, du, len(dy)) })
	})
}

// GELU is [Context.GELUForward] and [Context.GELUBackward].
func (h *Host) GELU(y, dx, x, dy []float32) {
	h.run(func(k *call) {
		px, pd, py, pdx := vector(k, x), vector(k, dy), flat(k, y), flat(k, dx)
		k.launch(func() error { return k.c.GELUForward(px, py, len(x)) })
		k.launch(func() error { return k.c.GELUBackward(px, pd, pdx, len(x)) })
	})
}

// RoPE is [Context.RoPE] of tokens whose positions are their numbers.
func (h *Host) RoPE(x []float32, heads, dim, rotated int, interleaved, inverse bool, cos, sin []float32) {
	tokens := len(x) / (heads * dim)
	position := make([]int32, tokens)
	for i := range position { // from the last row to the first and back: a position is no index of a token
		position[i] = int32(tokens - 1 - i)
	}
	turned := func(table []float32) []float32 {
		half, list := rotated/2, make([]float32, 0, len(table))
		for i := range tokens {
			at := (tokens - 1 - i) * half
			list = append(list, table[at:at+half]...)
		}
		return list
	}
	h.run(func(k *call) {
		px, pc, ps, pp := inout(k, x), vector(k, turned(cos)), vector(k, turned(sin)), vector(k, position)
		k.launch(func() error { return k.c.RoPE(px, pc, ps, pp, tokens, heads, dim, rotated/2, interleaved, inverse) })
	})
}

// Attention is [Context.AttentionForward], and [Context.AttentionBackward] where dout is not nil. Queries are the last of the keys; real is nil
// where no key is padding.
func (h *Host) Attention(y, dq, dk, dv, q, key, v, dout []float32, real []bool, batch, tq, tk, heads, kv, size int, causal bool, scale float32) {
	a := Attention{Batch: batch, TQ: tq, TK: tk, Heads: heads, KV: kv, Size: size, Causal: causal, Offset: tk - tq, Scale: scale}
	seen := make([]uint8, batch*tk)
	for i := range seen {
		if real == nil || real[i] {
			seen[i] = 1
		}
	}
	h.run(func(k *call) {
		rows := batch * tq * heads
		pq, pk, pv, pr, py, lse := vector(k, q), vector(k, key), vector(k, v), vector(k, seen), flat(k, y), scratch(k, rows)
		k.launch(func() error { return k.c.AttentionForward(pq, pk, pv, pr, py, lse, a) })
		if dout == nil {
			return
		}
		pd, delta, pdq, pdk, pdv := vector(k, dout), scratch(k, rows), flat(k, dq), flat(k, dk), flat(k, dv)
		k.launch(func() error {
			return k.c.AttentionBackward(pq, pk, pv, pr, py, lse, pd, pdq, pdk, pdv, delta, a)
		})
	})
}

// Head is [Context.HeadForward] and [Context.HeadBackward].
func (h *Host) Head(logp, entropy, dlogits, logits []float32, ids []int32, dlogp, dentropy []float32, vocab int, temperature float32) {
	copy(dlogits, logits) // the gradient takes their place
	h.run(func(k *call) {
		n := len(ids)
		pl, pi, lp, he, lse := inout(k, dlogits), vector(k, ids), flat(k, logp), flat(k, entropy), scratch(k, n)
		pd, ph := vector(k, dlogp), vector(k, dentropy)
		k.launch(func() error { return k.c.HeadForward(pl, pi, lp, he, lse, n, vocab, temperature) })
		k.launch(func() error { return k.c.HeadBackward(pl, pi, lse, he, pd, ph, n, vocab, temperature) })
	})
}

// PolicyLoss is [Context.PolicyLoss].
func (h *Host) PolicyLoss(loss, slope, logp, old, ref, advantage, w []float32, low, high, beta float32) {
	h.run(func(k *call) {
		pl, po, pr, pa, pw, out, ds := vector(k, logp), vector(k, old), vector(k, ref), vector(k, advantage), vector(k, w), flat(k, loss), flat(k, slope)
		k.launch(func() error { return k.c.PolicyLoss(pl, po, pr, pa, pw, out, ds, len(logp), low, high, beta) })
	})
}

// AdamW is [Context.AdamWStep].
func (h *Host) AdamW(p, m, v, g []float32, lr, beta1, beta2, eps, decay, clip float64, step int) {
	h.run(func(k *call) {
		pp, pm, pv, pg := inout(k, p), inout(k, m), inout(k, v), vector(k, g)
		k.launch(func() error {
			return k.c.AdamWStep(pp, pg, pm, pv, len(p), AdamW{LR: lr, Beta1: beta1, Beta2: beta2, Eps: eps, Decay: decay, Clip: clip, Step: step})
		})
	})
}

// Project is [Context.SumSquares] and [Context.Project].
func (h *Host) Project(g, q []float32, columns int) (squares float64) {
	h.run(func(k *call) {
		pg, pq := inout(k, g), vector(k, q)
		k.launch(func() (err error) { squares, err = k.c.SumSquares(pg, len(g)); return err })
		k.launch(func() error { return k.c.Project(pq, pg, len(g), columns) })
	})
	return squares
}

// Embedding is [Context.Embedding].
func (h *Host) Embedding(y []float32, codes []int8, scale, wpe []float32, ids, position []int32, n int) {
	h.run(func(k *call) {
		ld := round16(n)
		pc, ps, pw := in(k, codes, len(codes)/n, n, n, ld), vector(k, scale), vector(k, wpe)
		pi, pp, py := vector(k, ids), vector(k, position), flat(k, y)
		k.launch(func() error { return k.c.Embedding(pc, ps, pw, pi, pp, py, len(ids), n, ld) })
	})
}

// Add is [Context.Add].
func (h *Host) Add(y, x []float32, a float32) {
	h.run(func(k *call) {
		py, px := inout(k, y), vector(k, x)
		k.launch(func() error { return k.c.Add(py, px, a, len(y)) })
	})
}

// Sum is [Context.Sum].
func (h *Host) Sum(z, x, y []float32) {
	h.run(func(k *call) {
		px, py, pz := vector(k, x), vector(k, y), flat(k, z)
		k.launch(func() error { return k.c.Sum(px, py, pz, len(z)) })
	})
}

// Fill is [Context.Fill].
func (h *Host) Fill(y []float32, a float32) {
	h.run(func(k *call) {
		py := flat(k, y)
		k.launch(func() error { return k.c.Fill(py, a, len(y)) })
	})
}

// Gather is [Context.Gather].
func (h *Host) Gather(y, x []float32, rows []int32, n int) {
	h.run(func(k *call) {
		px, pr, py := vector(k, x), vector(k, rows), flat(k, y)
		k.launch(func() error { return k.c.Gather(px, pr, py, len(rows), n) })
	})
}

// Scatter is [Context.Scatter].
func (h *Host) Scatter(y, x []float32, rows []int32, n int) {
	h.run(func(k *call) {
		px, pr, py := vector(k, x), vector(k, rows), inout(k, y)
		k.launch(func() error { return k.c.Scatter(px, pr, py, len(rows), n) })
	})
}
