package op

import (
	"math"
	"math/rand/v2"

	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

// AttentionBackwardFunc computes attention of batches of padded sequences and its gradients: q, y, dout, dq [batch, tq, heads, size], k, v, dk, dv
// [batch, tk, kv, size], real [batch, tk]. A causal query t sees the keys up to t + tk − tq.
type AttentionBackwardFunc = func(y, dq, dk, dv, q, k, v, dout []float32, real []bool, batch, tq, tk, heads, kv, size int, causal bool, scale float32)

// AttentionBackward is attention with its gradients.
var AttentionBackward = &Spec[AttentionBackwardFunc]{
	Name: "f32.AttentionBackward",
	Doc:  "y = Σ_s p_s·v_s as f32.Attention; dv_s = Σ p_s·dout, ds = p·(⟨dout, v_s⟩ − ⟨dout, y⟩)·scale, dq = Σ ds·k_s, dk_s = Σ ds·q",
	Bound: "that of the processor's for y, with e_p the relative error of a probability; the errors of p, dp = ⟨dout, v⟩ and δ = Σ p·dp carried through " +
		"ds, and the sums over keys and queries",
	Source:   "reference/nn Attention on the tape",
	Families: mild,
	Dims: func(r *rand.Rand) []int {
		tk, kv := 1+r.IntN(36), 1+r.IntN(2)
		return []int{1 + r.IntN(2), 1 + r.IntN(min(tk, 3)), tk, kv * (1 + r.IntN(2)), kv, []int{1, 5, 16, 31, 64, 64, 80, 128, 130, 256}[r.IntN(10)], r.IntN(2), r.IntN(2)}
	},
	Run: func(f AttentionBackwardFunc, c Case, t *Trial) {
		a := attentionCase{c.Dims[0], c.Dims[1], c.Dims[2], c.Dims[3], c.Dims[4], c.Dims[5], c.Dims[6] == 1}
		spread := [...]float32{1, 40}[c.Dims[7]&1] // of the scores: whether one key has nearly all
		if c.Dims[7] > 1 {
			spread = 200 // exponentials overflow unless the largest is taken off
		}
		scale := float32(1 / math.Sqrt(float64(a.size)))
		wide, narrow := a.heads*a.size, a.kv*a.size
		v1 := value(c, 1)
		q := Input(t, a.batch*a.tq, wide, wide, func(i int) float32 { return spread * v1(i) })
		k, v := Input(t, a.batch*a.tk, narrow, narrow, value(c, 2)), Input(t, a.batch*a.tk, narrow, narrow, value(c, 3))
		dout := Input(t, a.batch*a.tq, wide, wide, value(c, 4))
		y, dq := Output[float32](t, a.batch*a.tq, wide, wide), Output[float32](t, a.batch*a.tq, wide, wide)
		dk, dv := Output[float32](t, a.batch*a.tk, narrow, narrow), Output[float32](t, a.batch*a.tk, narrow, narrow)
		real, hidden := make([]bool, a.batch*a.tk), words(c, 9)
		for i := range real {
			real[i] = hidden(i)%4 > 0
		}
		f(y.Data, dq.Data, dk.Data, dv.Data, q.Data, k.Data, v.Data, dout.Data, real, a.batch, a.tq, a.tk, a.heads, a.kv, a.size, a.causal, scale)
		var tape ad.Tape
		vq := tape.Param(widen(q.Data), a.batch, a.tq, a.heads, a.size)
		vk, vv := tape.Param(widen(k.Data), a.batch, a.tk, a.kv, a.size), tape.Param(widen(v.Data), a.batch, a.tk, a.kv, a.size)
		want := nn.Attention(vq, vk, vv, nn.Visible{Batch: a.batch, Queries: a.tq, Keys: a.tk, Causal: a.causal, Real: real}.Mask(), float64(scale))
		ad.Backward(want, widen(dout.Data))
		bound := a.bounds(float64(scale), widen(q.Data), widen(k.Data), widen(v.Data), widen(dout.Data), real)
		for n, out := range []struct {
			name string
			got  Matrix[float32]
			want []float64
		}{{"y", y, want.Data()}, {"dq", dq, vq.Grad()}, {"dk", dk, vk.Grad()}, {"dv", dv, vv.Grad()}} {
			for i, w := range out.want {
				t.Within(out.name, float64(out.got.Data[i]), w, bound[n][i], i/out.got.Cols, i%out.got.Cols)
			}
		}
	},
	Faults: []Fault[AttentionBackwardFunc]{
		{"attention-backward-delta", "⟨dout, y⟩ is not taken off", attentionBackwardWith(0, 1, false)},
		{"attention-backward-scale", "the scale is left out of dq and dk", attentionBackwardWith(1, 0, false)},
		{"attention-backward-group", "the gradient of a key is that of the last head that reads it", attentionBackwardWith(1, 1, true)},
	},
}

type attentionCase struct {
	batch, tq, tk, heads, kv, size int
	causal                         bool
}

func (a attentionCase) sees(real []bool, b, t, s int) bool {
	return real[b*a.tk+s] && (!a.causal || s <= t+a.tk-a.tq)
}

// eachRow calls f for every query and head: where its row begins, and where that of key s does.
func (a attentionCase) eachRow(f func(b, t, h, row int, at func(s int) int)) {
	for b := range a.batch {
		for t := range a.tq {
			for h := range a.heads {
				f(b, t, h, ((b*a.tq+t)*a.heads+h)*a.size, func(s int) int { return ((b*a.tk+s)*a.kv + h*a.kv/a.heads) * a.size })
			}
		}
	}
}

// probabilities of a row, from its scores; dots are Σ|q·k|. ok is false where nothing is seen.
func (a attentionCase) probabilities(scale float64, q, k []float64, real []bool, b, t, row int, at func(int) int) (x, abs, p []float64, top, sum float64, ok bool) {
	x, abs, p = make([]float64, a.tk), make([]float64, a.tk), make([]float64, a.tk)
	top = math.Inf(-1)
	for s := range a.tk {
		x[s] = math.Inf(-1)
		if !a.sees(real, b, t, s) {
			continue
		}
		dot := 0.0
		for d := range a.size {
			v := q[row+d] * k[at(s)+d]
			dot, abs[s] = dot+v, abs[s]+math.Abs(v)
		}
		x[s] = scale * dot
		top = math.Max(top, x[s])
	}
	if math.IsInf(top, -1) {
		return x, abs, p, top, 0, false
	}
	for s := range x {
		sum += math.Exp(x[s] - top)
	}
	for s := range x {
		p[s] = math.Exp(x[s]-top) / sum
	}
	return x, abs, p, top, sum, true
}

// bounds are those of y, dq, dk and dv.
func (a attentionCase) bounds(scale float64, q, k, v, dout []float64, real []bool) [4][]float64 {
	out := [4][]float64{make([]float64, len(q)), make([]float64, len(q)), make([]float64, len(k)), make([]float64, len(k))}
	size, terms, keys := float64(a.size), float64(a.tq*a.heads/a.kv+1), float64(a.tk)
	a.eachRow(func(b, t, _, row int, at func(int) int) {
		x, abs, p, top, sum, ok := a.probabilities(scale, q, k, real, b, t, row, at)
		if !ok {
			return // all exactly 0
		}
		ex, mean := make([]float64, a.tk), 0.0
		for s := range x {
			ex[s] = (size + 2) * u32 * abs[s] * scale
			mean += p[s] * ex[s]
		}
		// The logarithm of the sum adds 2^−22 and its own rounding, which p of the backward pass inherits.
		lse := top + math.Log(sum)
		common := mean + keys*u32 + float64(a.tk/32+1)*(2*u32+eExp) + 0x1p-22 + 3*u32*(math.Abs(lse)+math.Abs(top)+1)
		var delta, eDelta float64
		dp, edp, ep := make([]float64, a.tk), make([]float64, a.tk), make([]float64, a.tk)
		for s := range x {
			if p[s] == 0 {
				continue
			}
			var size1 float64
			for d := range a.size {
				g := dout[row+d] * v[at(s)+d]
				dp[s], size1 = dp[s]+g, size1+math.Abs(g)
			}
			ep[s] = ex[s] + u32*math.Abs(x[s]-lse) + eExp + common
			edp[s] = size * u32 * size1
			delta += p[s] * dp[s]
			eDelta += p[s]*size1*(ep[s]+(keys+size+4)*u32) + p[s]*edp[s]
		}
		// dp and δ are sums of a.size products; y, which δ reads, lost up to tiny·Σ|v| and a rounding a key.
		lostDelta := 2 * size * eta32
		for d := range a.size {
			lostY := keys * eta32
			for s := range x {
				if p[s] > 0 {
					lostY += tiny * math.Abs(v[at(s)+d])
				}
			}
			lostDelta += math.Abs(dout[row+d]) * lostY
		}
		for s := range x {
			if p[s] == 0 {
				continue
			}
			ds := p[s] * math.Abs(dp[s]-delta) * scale
			eds := ds*(ep[s]+4*u32) + p[s]*scale*(edp[s]+eDelta+u32*(math.Abs(dp[s])+math.Abs(delta)))
			// Underflow: what a product or a step of a sum loses is at most eta32, a probability loses tiny (the exponential and the division by the sum).
			eds += eta32*(1+scale) + scale*(tiny*math.Abs(dp[s]-delta)+p[s]*lostDelta)
			for d := range a.size {
				out[0][row+d] += p[s]*math.Abs(v[at(s)+d])*(ep[s]+(keys+4)*u32) + tiny*math.Abs(v[at(s)+d]) + eta32
				out[1][row+d] += math.Abs(k[at(s)+d])*(eds+(keys+1)*u32*ds) + eta32
				out[2][at(s)+d] += math.Abs(q[row+d])*(eds+terms*u32*ds) + eta32
				out[3][at(s)+d] += math.Abs(dout[row+d])*(p[s]*(ep[s]+terms*u32)+tiny) + eta32
			}
		}
	})
	for _, b := range out {
		for i := range b {
			b[i] *= 1 + 0x1p-10 // second order
		}
	}
	return out
}

// attentionBackwardWith is attention and its gradients in float64 with delta and scale multiplied, or with the last head's part of dk and dv only.
func attentionBackwardWith(delta, scaled float64, last bool) AttentionBackwardFunc {
	return func(y, dq, dk, dv, q, k, v, dout []float32, real []bool, batch, tq, tk, heads, kv, size int, causal bool, scale float32) {
		a := attentionCase{batch, tq, tk, heads, kv, size, causal}
		sc, wide := float64(scale), [4][]float64{widen(q), widen(k), widen(v), widen(dout)}
		out := [4][]float64{make([]float64, len(q)), make([]float64, len(q)), make([]float64, len(k)), make([]float64, len(k))}
		a.eachRow(func(b, t, h, row int, at func(int) int) {
			_, _, p, _, _, _ := a.probabilities(sc, wide[0], wide[1], real, b, t, row, at)
			dp, del := make([]float64, tk), 0.0
			for s := range p {
				for d := range size {
					dp[s] += wide[3][row+d] * wide[2][at(s)+d]
				}
				del += p[s] * dp[s]
			}
			for s := range p {
				ds := p[s] * (dp[s] - delta*del)
				if scaled != 0 {
					ds *= sc
				}
				for d := range size {
					out[0][row+d] += p[s] * wide[2][at(s)+d]
					out[1][row+d] += ds * wide[1][at(s)+d]
					if last && (h+1)%(heads/kv) != 0 {
						continue
					}
					out[2][at(s)+d] += ds * wide[0][row+d]
					out[3][at(s)+d] += p[s] * wide[3][row+d]
				}
			}
		})
		for i, dst := range [][]float32{y, dq, dk, dv} {
			for j, x := range out[i] {
				dst[j] = float32(x)
			}
		}
	}
}
