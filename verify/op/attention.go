package op

import (
	"math"
	"math/rand/v2"
)

// AttentionShape is what a call of attention is for: one sequence of T queries, the last of S keys.
type AttentionShape struct {
	Heads, KVHeads, Dim int
	Scale               float32
	Causal              bool
	Window              int    // 0: none
	Real                []bool // [S], nil: all
}

// sees reports whether query t of T sees key s of S.
func (a AttentionShape) sees(t, s, queries, keys int) bool {
	at := keys - queries + t
	return (!a.Causal || s <= at) && (a.Window == 0 || s > at-a.Window) && (a.Real == nil || a.Real[s])
}

// AttentionFunc stores in y [T, Heads·Dim] what the queries q read from the keys k and values v [S, KVHeads·Dim].
type AttentionFunc = func(a AttentionShape, y, q, k, v []float32)

// Attention is scaled dot-product attention with grouped key-value heads.
var Attention = &Spec[AttentionFunc]{
	Name: "f32.Attention",
	Doc:  "y_t = Σ_s p_ts·v_s, p_t the softmax over the visible s of scale·⟨q_t, k_s⟩; head h reads key-value head h·KVHeads/Heads",
	Bound: "Σ_s p_s·r_s·|v_s| + (S+1)·u·Σ_s p_s·|v_s| with r_s = B_s + Σ p·B + 6u and B_s = (D+2)·u·scale·Σ|q·k_s|; " +
		"exactly 0 where nothing is visible",
	DeviceBound: "that of the processor's, block by block: to every r_s are added e_exp + (S/32 + 1)·(2u + e_exp) + S·u and 2u of the score's distance from the largest",
	Source:      "reference/nn Attention",
	Families:    []string{Normal, Uniform, Sparse, Whole, Constant},
	Dims: func(r *rand.Rand) []int {
		keys := []int{1, 2, 7, 9, 33, 70}[r.IntN(6)]
		return []int{1 + r.IntN(keys), keys, 1 + r.IntN(3), 1 + r.IntN(3), []int{1, 4, 7, 8, 16}[r.IntN(5)], r.IntN(2), r.IntN(2) * (1 + r.IntN(keys)), r.IntN(2)}
	},
	Run: func(f AttentionFunc, c Case, t *Trial) {
		queries, keys := c.Dims[0], c.Dims[1]
		a := AttentionShape{KVHeads: c.Dims[2], Heads: c.Dims[2] * c.Dims[3], Dim: c.Dims[4], Causal: c.Dims[5] == 1, Window: c.Dims[6]}
		a.Scale = float32(1 / math.Sqrt(float64(a.Dim)))
		if c.Dims[7] == 1 {
			a.Real = make([]bool, keys)
			hidden := words(c, 9)
			for i := range a.Real {
				a.Real[i] = hidden(i)%4 > 0
			}
		}
		qw, kw := a.Heads*a.Dim, a.KVHeads*a.Dim
		q, k, v := Input(t, queries, qw, qw, value(c, 1)), Input(t, keys, kw, kw, value(c, 2)), Input(t, keys, kw, kw, value(c, 3))
		y := Output[float32](t, queries, qw, qw)
		f(a, y.Data, q.Data, k.Data, v.Data)
		p, bs := make([]float64, keys), make([]float64, keys)
		for i := range queries {
			for h := range a.Heads {
				from := h * a.KVHeads / a.Heads * a.Dim
				top, total, mean := math.Inf(-1), 0.0, 0.0
				for s := range keys {
					dot, size := 0.0, 0.0
					for d := range a.Dim {
						x := float64(q.At(i, h*a.Dim+d)) * float64(k.At(s, from+d))
						dot, size = dot+x, size+math.Abs(x)
					}
					p[s], bs[s] = float64(a.Scale)*dot, float64(a.Dim+2)*u32*float64(a.Scale)*size
					if !a.sees(i, s, queries, keys) {
						p[s] = math.Inf(-1)
					}
					top = max(top, p[s])
				}
				if math.IsInf(top, -1) {
					for d := range a.Dim {
						Equal(t, "y", y.At(i, h*a.Dim+d), 0, i, h*a.Dim+d)
					}
					continue
				}
				for s := range keys {
					p[s] = math.Exp(p[s] - top)
					total += p[s]
				}
				for s := range keys {
					p[s] /= total
					mean += p[s] * bs[s]
				}
				for d := range a.Dim {
					want, bound := 0.0, float64(keys+1)*eta32
					for s := range keys {
						x := p[s] * float64(v.At(s, from+d))
						r := bs[s] + mean + 6*u32
						if t.contract == Device && p[s] > 0 { // blocks of 32 keys, each with an exponential; differences of scores rounded
							r += eExp + float64(keys/32+1)*(2*u32+eExp) + 2*u32*(1-math.Log(p[s])) + float64(keys)*u32
							bound += tiny * math.Abs(float64(v.At(s, from+d)))
						}
						want += x
						bound += math.Abs(x) * (r/(1-r) + float64(keys+1)*u32)
					}
					t.Within("y", float64(y.At(i, h*a.Dim+d)), want, bound*(1+8*u32), i, h*a.Dim+d)
				}
			}
		}
	},
	Faults: attentionFaults(),
}

func attentionFaults() []Fault[AttentionFunc] {
	plain := func(a AttentionShape, t, s, queries, keys int) bool { return a.sees(t, s, queries, keys) }
	group := func(a AttentionShape, h int) int { return h * a.KVHeads / a.Heads }
	scale := func(a AttentionShape) float32 { return a.Scale }
	return []Fault[AttentionFunc]{
		{"attention-mask-off-by-one", "a query sees the key after its own", attentionWith(func(a AttentionShape, t, s, queries, keys int) bool {
			return a.sees(t, s, queries, keys) || a.Causal && s == keys-queries+t+1 && (a.Real == nil || a.Real[s])
		}, group, scale, true)},
		{"attention-mask-from-start", "the first queries are taken for the last of a cache", attentionWith(func(a AttentionShape, t, s, queries, keys int) bool {
			return (!a.Causal || s <= t) && (a.Window == 0 || s > t-a.Window) && (a.Real == nil || a.Real[s])
		}, group, scale, true)},
		{"attention-padding", "padding is seen", attentionWith(func(a AttentionShape, t, s, queries, keys int) bool {
			a.Real = nil
			return a.sees(t, s, queries, keys)
		}, group, scale, true)},
		{"attention-window", "the window is one key too wide", attentionWith(func(a AttentionShape, t, s, queries, keys int) bool {
			if a.Window > 0 {
				a.Window++
			}
			return a.sees(t, s, queries, keys)
		}, group, scale, true)},
		{"attention-head-mapping", "heads are dealt to key-value heads in turn", attentionWith(plain, func(a AttentionShape, h int) int { return h % a.KVHeads }, scale, true)},
		{"attention-scale", "scores are divided by the size of a head", attentionWith(plain, group, func(a AttentionShape) float32 { return 1 / float32(a.Dim) }, true)},
		{"attention-bf16", "probabilities are rounded to bfloat16", attentionWith(plain, group, scale, false)},
	}
}

// attentionWith is attention in float64 with another mask, mapping of heads or scale, or with probabilities in bfloat16.
func attentionWith(sees func(a AttentionShape, t, s, queries, keys int) bool, group func(a AttentionShape, h int) int, scale func(AttentionShape) float32, exact bool) AttentionFunc {
	return func(a AttentionShape, y, q, k, v []float32) {
		qw, kw := a.Heads*a.Dim, a.KVHeads*a.Dim
		queries, keys := len(q)/qw, len(k)/kw
		for i := range queries {
			for h := range a.Heads {
				from := group(a, h) * a.Dim
				p, total := make([]float64, keys), 0.0
				for s := range keys {
					dot := 0.0
					for d := range a.Dim {
						dot += float64(q[i*qw+h*a.Dim+d]) * float64(k[s*kw+from+d])
					}
					if sees(a, i, s, queries, keys) {
						p[s] = math.Exp(dot * float64(scale(a)))
					}
					total += p[s]
				}
				for d := range a.Dim {
					sum := 0.0
					for s := range keys {
						w := p[s] / math.Max(total, 1e-300)
						if !exact {
							w = float64(roundBF16(float32(w)))
						}
						sum += w * float64(v[s*kw+from+d])
					}
					y[i*qw+h*a.Dim+d] = float32(sum)
				}
			}
		}
	}
}
