package model

import (
	"math"
	"slices"
	"testing"

	"plumbline/reference/ad"
	"plumbline/reference/nn"

	"github.com/stretchr/testify/require"
)

// Faults of a masked language model and of its judge, and the golden value that shows each.
func TestMaskedFaults(t *testing.T) {
	g, j := readMasked(t, "maskedgpt"), readMasked(t, "judge")
	rope := func(f func(*nn.RoPE)) func(*MaskedGPT, *usage) {
		return func(m *MaskedGPT, _ *usage) {
			m.ops.rotate = func(r nn.RoPE, x *ad.Var, pos []int) *ad.Var { f(&r); return r.Apply(x, pos) }
		}
	}
	mask := func(f func(*nn.Visible)) func(*MaskedGPT, *usage) {
		return func(m *MaskedGPT, _ *usage) {
			m.ops.mask = func(v nn.Visible) ad.Mask { f(&v); return v.Mask() }
		}
	}
	for _, f := range []struct {
		fault, caught string
		plant         func(m *MaskedGPT, u *usage)
	}{
		{"causal attention", "hidden", mask(func(v *nn.Visible) { v.Causal = true })},
		{"padding is attended to", "hidden", mask(func(v *nn.Visible) { v.Real = nil })},
		{"padding mask inverted, as the original hands it to SDPA", "hidden", mask(func(v *nn.Visible) {
			v.Real = slices.Clone(v.Real)
			for i := range v.Real {
				v.Real[i] = !v.Real[i]
			}
		})},
		{"rotary pairs interleaved", "hidden", rope(func(r *nn.RoPE) { r.Interleaved = true })},
		{"rotary base 1e6", "hidden", rope(func(r *nn.RoPE) { r.Theta = 1e6 })},
		{"half of a head rotated", "hidden", rope(func(r *nn.RoPE) { r.Dim /= 2 })},
		{"no positions", "hidden", func(m *MaskedGPT, _ *usage) {
			m.ops.rotate = func(_ nn.RoPE, x *ad.Var, _ []int) *ad.Var { return x }
		}},
		{"values rotated", "hidden", func(m *MaskedGPT, _ *usage) {
			m.ops.attention = func(q, k, v *ad.Var, mask ad.Mask, scale float64) *ad.Var {
				s := v.Shape()
				return nn.Attention(q, k, nn.RoPE{Dim: s[3], Theta: 10000}.Apply(v, nn.Positions(s[0], s[1], nil, nil)), mask, scale)
			}
		}},
		{"scores divided by √C", "hidden", func(m *MaskedGPT, _ *usage) {
			m.ops.attention = func(q, k, v *ad.Var, mask ad.Mask, _ float64) *ad.Var {
				return nn.Attention(q, k, v, mask, 1/math.Sqrt(float64(m.Config.Hidden)))
			}
		}},
		{"scores not divided", "hidden", func(m *MaskedGPT, _ *usage) {
			m.ops.attention = func(q, k, v *ad.Var, mask ad.Mask, _ float64) *ad.Var { return nn.Attention(q, k, v, mask, 1) }
		}},
		{"keys before queries in c_attn", "hidden", func(m *MaskedGPT, _ *usage) {
			m.ops.split = func(x *ad.Var) (q, k, v *ad.Var) { k, q, v = thirds(x); return q, k, v }
		}},
		{"values before keys in c_attn", "hidden", func(m *MaskedGPT, _ *usage) {
			m.ops.split = func(x *ad.Var) (q, k, v *ad.Var) { q, v, k = thirds(x); return q, k, v }
		}},
		{"c_attn split head by head", "hidden", func(m *MaskedGPT, _ *usage) {
			m.ops.split = func(x *ad.Var) (q, k, v *ad.Var) {
				s := x.Shape()
				d := s[2] / 3 / m.Config.Heads
				x = ad.Permute(ad.Reshape(x, s[0], s[1], m.Config.Heads, 3, d), 0, 1, 3, 2, 4)
				return thirds(ad.Reshape(x, s[0], s[1], s[2]))
			}
		}},
		{"GELU by tanh", "hidden", func(m *MaskedGPT, _ *usage) { m.ops.gelu = nn.GELUTanh }},
		{"biases of linear layers dropped", "hidden", func(m *MaskedGPT, _ *usage) {
			m.ops.linear = func(x, w, _ *ad.Var) *ad.Var { return nn.Linear(x, w, nil) }
		}},
		{"biases of LayerNorm dropped", "hidden", func(m *MaskedGPT, _ *usage) {
			m.ops.layerNorm = func(x, w, _ *ad.Var, eps float64) *ad.Var { return nn.LayerNorm(x, w, nil, eps) }
		}},
		{"epsilon 1e-6", "hidden", func(m *MaskedGPT, _ *usage) {
			m.ops.layerNorm = func(x, w, b *ad.Var, _ float64) *ad.Var { return nn.LayerNorm(x, w, b, 1e-6) }
		}},
		{"RMSNorm for LayerNorm", "hidden", func(m *MaskedGPT, _ *usage) {
			m.ops.layerNorm = func(x, w, b *ad.Var, eps float64) *ad.Var { return ad.Add(nn.RMSNorm(x, w, eps), b) }
		}},
		{"no residual", "hidden", func(m *MaskedGPT, _ *usage) { m.ops.residual = func(_, y *ad.Var) *ad.Var { return y } }},
		{"gradient stopped at the residual", "grad", func(m *MaskedGPT, _ *usage) {
			m.ops.residual = func(x, y *ad.Var) *ad.Var { return ad.Add(ad.Detach(x), y) }
		}},
		{"gradient stopped at the attention weights' keys", "grad", func(m *MaskedGPT, _ *usage) {
			m.ops.attention = func(q, k, v *ad.Var, mask ad.Mask, scale float64) *ad.Var {
				return nn.Attention(q, ad.Detach(k), v, mask, scale)
			}
		}},
		{"temperature in the log-probabilities", "logp", func(_ *MaskedGPT, u *usage) {
			u.logits = func(x *ad.Var) *ad.Var { return ad.Scale(x, 1/0.8) }
		}},
		{"special tokens taken out of the logits", "logits", func(m *MaskedGPT, u *usage) {
			u.logits = func(x *ad.Var) *ad.Var {
				on := make([]bool, m.Config.Vocab)
				on[m.Config.Mask], on[m.Config.Pad] = true, true
				return ad.Where(ad.Mask{Shape: []int{len(on)}, On: on}, x.Tape().Scalar(math.Inf(-1)), x)
			}
		}},
		{"tokens shifted by one, as for a causal model", "logp", func(_ *MaskedGPT, u *usage) {
			u.tokens = func(in Input, completion []int) []int {
				next := slices.Clone(completion)
				copy(next, completion[1:])
				return next
			}
		}},
		{"log-probability of MASK itself", "logp", func(_ *MaskedGPT, u *usage) {
			u.tokens = func(in Input, _ []int) []int { return in.IDs }
		}},
		{"summed over all positions", "sequence_logp", func(_ *MaskedGPT, u *usage) {
			u.sequence = func(n *MaskedNet, in Input, completion []int) *ad.Var {
				return ad.Sum(n.LogProbs(in, completion), false, 1)
			}
		}},
		{"mean over positions for a sum", "sequence_logp", func(_ *MaskedGPT, u *usage) {
			u.sequence = func(n *MaskedNet, in Input, completion []int) *ad.Var {
				return ad.Scale(n.SequenceLogProb(in, completion), 1/float64(in.Time))
			}
		}},
		{"first position only, as logits without targets leave it", "sequence_logp", func(_ *MaskedGPT, u *usage) {
			u.sequence = func(n *MaskedNet, in Input, completion []int) *ad.Var {
				first := Input{Batch: in.Batch, Time: 1}
				var tokens []int
				for i := range in.Batch {
					first.IDs, tokens = append(first.IDs, in.IDs[i*in.Time]), append(tokens, completion[i*in.Time])
				}
				return n.SequenceLogProb(first, tokens)
			}
		}},
		{"completions scored in place of the masked text", "sequence_logp", func(_ *MaskedGPT, u *usage) {
			u.sequence = func(n *MaskedNet, in Input, completion []int) *ad.Var {
				seen := in
				seen.IDs = completion
				lp := n.LogProbs(seen, completion)
				on := make([]bool, len(in.IDs))
				for i, id := range in.IDs {
					on[i] = id == n.Config.Mask
				}
				return ad.Sum(ad.Where(ad.Mask{Shape: []int{in.Batch, in.Time}, On: on}, lp, lp.Tape().Scalar(0)), false, 1)
			}
		}},
	} {
		t.Run(f.fault, func(t *testing.T) {
			m, u := g.model(t), healthy
			f.plant(m, &u)
			w := g.compareGenerator(m, u)
			require.False(t, math.IsNaN(w[f.caught]))
			require.Contains(t, w.outside(), f.caught)
		})
	}

	head := func(f func(h, w, a, b *ad.Var) *ad.Var) func(*MaskedGPT, *usage) {
		return func(m *MaskedGPT, _ *usage) { m.ops.score = f }
	}
	input := func(f func(n *MaskedNet, text Input) Input) func(*MaskedGPT, *usage) {
		return func(_ *MaskedGPT, u *usage) {
			u.judge = func(n *MaskedNet, text Input) *ad.Var {
				in := f(n, text)
				return n.ops.score(n.Forward(in).Hidden, n.Var("sequence_head.base_predictor.weight"), n.Var("sequence_head.A"), n.Var("sequence_head.B"))
			}
		}
	}
	one := func(x *ad.Var) *ad.Var { return x.Tape().Const([]float64{1}, 1) }
	zero := func(x *ad.Var) *ad.Var { return x.Tape().Const([]float64{0}, 1) }
	for _, f := range []struct {
		fault, caught string
		plant         func(m *MaskedGPT, u *usage)
	}{
		{"A left out", "score", head(func(h, w, a, b *ad.Var) *ad.Var { return nn.SequenceScore(h, w, one(a), b) })},
		{"B left out", "score", head(func(h, w, a, b *ad.Var) *ad.Var { return nn.SequenceScore(h, w, a, zero(b)) })},
		{"B scaled by A", "score", head(func(h, w, a, b *ad.Var) *ad.Var { return nn.SequenceScore(h, w, a, ad.Mul(a, b)) })},
		{"A outside the sigmoid", "score", head(func(h, w, a, b *ad.Var) *ad.Var {
			return ad.Mul(a, nn.SequenceScore(h, w, one(a), b))
		})},
		{"no sigmoid", "score", head(func(h, w, a, b *ad.Var) *ad.Var {
			y := nn.SequenceScore(h, w, a, b)
			return ad.Log(ad.Div(y, ad.AddScalar(ad.Neg(y), 1)))
		})},
		{"mean over positions for CLS", "score", head(func(h, w, a, b *ad.Var) *ad.Var {
			return nn.SequenceScore(ad.Mean(h, true, 1), w, a, b)
		})},
		{"last position for CLS", "score", head(func(h, w, a, b *ad.Var) *ad.Var {
			n := h.Shape()[1]
			return nn.SequenceScore(ad.Slice(h, 1, n-1, n), w, a, b)
		})},
		{"gradient stopped at the trunk", "grad", head(func(h, w, a, b *ad.Var) *ad.Var { return nn.SequenceScore(ad.Detach(h), w, a, b) })},
		{"the last block_size tokens, CLS among the lost", "long_score", input(func(n *MaskedNet, text Input) Input {
			in := n.Config.JudgeInput(text)
			if text.Time >= n.Config.MaxPositions {
				for i := range in.Batch {
					from := (i+1)*text.Time - in.Time
					copy(in.IDs[i*in.Time:(i+1)*in.Time], text.IDs[from:])
				}
			}
			return in
		})},
		{"the end of a long text cut off", "long_score", input(func(n *MaskedNet, text Input) Input {
			in := n.Config.JudgeInput(text)
			for i := range in.Batch {
				copy(in.IDs[i*in.Time+1:(i+1)*in.Time], text.IDs[i*text.Time:])
			}
			return in
		})},
		{"no CLS", "score", input(func(n *MaskedNet, text Input) Input {
			text.Time = min(text.Time, n.Config.MaxPositions)
			text.IDs = text.IDs[:text.Batch*text.Time]
			return text
		})},
		{"CLS is the padding", "score", input(func(n *MaskedNet, text Input) Input {
			in := n.Config.JudgeInput(text)
			for i := range in.Batch {
				in.IDs[i*in.Time] = n.Config.Pad
			}
			return in
		})},
		{"CLS from the table of embeddings", "score", func(m *MaskedGPT, _ *usage) { m.Config.CLSEmbedding = false }},
		{"padding is attended to", "score", mask(func(v *nn.Visible) { v.Real = nil })},
		{"causal attention", "score", mask(func(v *nn.Visible) { v.Causal = true })},
	} {
		t.Run("judge: "+f.fault, func(t *testing.T) {
			m, u := j.model(t), healthy
			f.plant(m, &u)
			w := j.compareJudge(m, u)
			require.False(t, math.IsNaN(w[f.caught]))
			require.Contains(t, w.outside(), f.caught)
		})
	}
}
