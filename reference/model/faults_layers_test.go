package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"plumbline/reference/ad"
	"plumbline/reference/nn"
)

// changing changes the weights whose names end in suffix.
func changing(suffix string, f func(x []float64, shape []int) []float64) func(*plot) {
	return func(p *plot) {
		found := false
		for _, w := range p.m.tensors {
			if strings.HasSuffix(w.Name, suffix) {
				p.m.data[w.Name] = f(slices.Clone(p.m.data[w.Name]), w.Shape)
				found = true
			}
		}
		if !found {
			panic("no weight " + suffix)
		}
	}
}

func zero(x []float64, _ []int) []float64 { clear(x); return x }

// updating changes all updates of the adapter.
func updating(f func(l *LoRA)) func(*plot) {
	return func(p *plot) {
		for name, l := range p.adapter {
			f(&l)
			p.adapter[name] = l
		}
	}
}

func mean(x *ad.Var) *ad.Var { return ad.Mean(x, true, -1) }

// rms plants another RMSNorm.
func rms(f func(x, w *ad.Var, eps float64) *ad.Var) func(*plot) {
	return func(p *plot) { p.m.ops.rmsNorm = f }
}

// layer plants another LayerNorm, from the centred x, its square's mean and the rest.
func layer(f func(x, c, v, w, b *ad.Var, eps float64) *ad.Var) func(*plot) {
	return func(p *plot) {
		p.m.ops.layerNorm = func(x, w, b *ad.Var, eps float64) *ad.Var {
			c := ad.Sub(x, mean(x))
			return f(x, c, mean(ad.Mul(c, c)), w, b, eps)
		}
	}
}

// interleave returns x [..., n] with its halves dealt out in turns.
func interleave(x []float64, rows int) []float64 {
	n := len(x) / rows
	y := make([]float64, len(x))
	for r := range rows {
		for j := range n {
			y[r*n+j] = x[r*n+j%2*(n/2)+j/2]
		}
	}
	return y
}

func updatingDelta(f func(l nn.LoRA, x *ad.Var) *ad.Var) func(*plot) {
	return func(p *plot) { p.m.ops.delta = f }
}

// sequentialGPTJ is a block of GPT-J in which the MLP reads what the attention has added to.
func sequentialGPTJ(n *Net, p *pass, x *ad.Var, i int) *ad.Var {
	name := fmt.Sprintf("transformer.h.%d.", i)
	mlp := func(h *ad.Var) *ad.Var {
		return n.linear(n.act(n.linear(n.layerNorm(h, name+"ln_1"), name+"mlp.fc_in")), name+"mlp.fc_out")
	}
	attended := ad.Sub(n.blockGPTJ(p, x, i), mlp(x))
	return ad.Add(attended, mlp(attended))
}

// layerFaults are bugs in norms, blocks, weights, adapters and log-probabilities.
var layerFaults = []fault{
	// Norms.
	{"RMSNorm: ε outside the root", "qwen2,llama", rms(func(x, w *ad.Var, eps float64) *ad.Var {
		return ad.Mul(w, ad.Div(x, ad.AddScalar(ad.Sqrt(mean(ad.Mul(x, x))), eps)))
	})},
	{"RMSNorm: no ε", "qwen2,llama", rms(func(x, w *ad.Var, _ float64) *ad.Var { return nn.RMSNorm(x, w, 0) })},
	{"RMSNorm: ε of another model", "qwen2", func(p *plot) { p.m.Config.Eps = 1e-5 }},
	{"RMSNorm: weight plus 1, as Gemma has it", "qwen2", rms(func(x, w *ad.Var, eps float64) *ad.Var { return nn.RMSNorm(x, ad.AddScalar(w, 1), eps) })},
	{"RMSNorm: the mean taken off", "qwen2", rms(func(x, w *ad.Var, eps float64) *ad.Var { return nn.RMSNorm(ad.Sub(x, mean(x)), w, eps) })},
	{"RMSNorm: over the tokens as well", "law causality,law batch", rms(func(x, w *ad.Var, eps float64) *ad.Var {
		return ad.Mul(w, ad.Div(x, ad.Sqrt(ad.AddScalar(ad.Mean(ad.Mul(x, x), false), eps))))
	})},
	{"LayerNorm: ε outside the root", "gpt2,gptj", layer(func(_, c, v, w, b *ad.Var, eps float64) *ad.Var {
		return ad.Add(ad.Mul(ad.Div(c, ad.AddScalar(ad.Sqrt(v), eps)), w), b)
	})},
	{"LayerNorm: variance over n−1", "gpt2,gptj", layer(func(_, c, v, w, b *ad.Var, eps float64) *ad.Var {
		n := float64(w.Size())
		return ad.Add(ad.Mul(ad.Div(c, ad.Sqrt(ad.AddScalar(ad.Scale(v, n/(n-1)), eps))), w), b)
	})},
	{"LayerNorm: bias left out", "gpt2,gptj", layer(func(x, _, _, w, _ *ad.Var, eps float64) *ad.Var { return nn.LayerNorm(x, w, nil, eps) })},
	{"LayerNorm: bias before the weight", "gpt2,gptj", layer(func(_, c, v, w, b *ad.Var, eps float64) *ad.Var {
		return ad.Mul(ad.Add(ad.Div(c, ad.Sqrt(ad.AddScalar(v, eps))), b), w)
	})},
	{"LayerNorm: the mean not taken off", "gpt2,gptj", layer(func(x, _, _, w, b *ad.Var, eps float64) *ad.Var { return ad.Add(nn.RMSNorm(x, w, eps), b) })},
	{"the last norm left out", "gpt2,gptj,qwen2", func(p *plot) { p.m.ops.last = func(_ *Net, x *ad.Var) *ad.Var { return x } }},

	// Blocks.
	{"GPT-J: the MLP after the attention", "gptj", func(p *plot) {
		p.m.ops.block = sequentialGPTJ
	}},
	{"GPT-J: the residual after the norm", "gptj", func(p *plot) {
		p.m.ops.block = func(n *Net, s *pass, x *ad.Var, i int) *ad.Var {
			h := n.layerNorm(x, fmt.Sprintf("transformer.h.%d.ln_1", i))
			return ad.Add(ad.Sub(n.blockGPTJ(s, x, i), x), h)
		}
	}},
	{"the residual left out", "gpt2,gptj,qwen2", func(p *plot) {
		p.m.ops.residual = func(x, y *ad.Var) *ad.Var { return y }
		if p.m.Config.Kind == GPTJ { // which adds the residual last
			p.m.ops.residual = func(x, y *ad.Var) *ad.Var { return x }
		}
	}},
	{"a block twice, another not at all", "gpt2,gptj,qwen2", func(p *plot) {
		p.m.ops.block = func(n *Net, s *pass, x *ad.Var, _ int) *ad.Var { return n.block(s, x, 0) }
	}},
	{"GELU exact for its approximation", "gpt2,gptj", func(p *plot) { p.m.Config.Activation = "gelu" }},
	{"GELU's approximation for the exact one", "gpt2_inverse_erf,llama_gelu_linear", func(p *plot) { p.m.Config.Activation = "gelu_new" }},
	{"GELU for SiLU", "qwen2,llama", func(p *plot) { p.m.Config.Activation = "gelu" }},
	{"gate and up exchanged", "qwen2,llama", func(p *plot) {
		p.m.ops.swiglu = func(gate, up *ad.Var) *ad.Var { return nn.SwiGLU(up, gate) }
	}},

	// Weights.
	{"biases of q, k and v left out", "qwen2", func(p *plot) {
		for _, l := range []string{"q_proj.bias", "k_proj.bias", "v_proj.bias"} {
			changing(l, zero)(p)
		}
	}},
	{"biases of the MLP left out", "gptj,gpt2,llama_biases_llama3", func(p *plot) {
		own := p.m.ops
		p.m.ops.linear = func(x, w, b *ad.Var) *ad.Var {
			if s := w.Shape(); s[0] == p.m.Config.Intermediate {
				b = nil
			}
			return own.linear(x, w, b)
		}
		p.m.ops.conv1d = func(x, w, b *ad.Var) *ad.Var {
			if s := w.Shape(); s[1] == p.m.Config.Intermediate {
				b = nil
			}
			return own.conv1d(x, w, b)
		}
	}},
	{"bias of the head left out", "gptj,gptj_tied", changing("lm_head.bias", zero)},
	{"head not tied", "qwen2,gpt2", func(p *plot) {
		other, _ := random(rand.New(rand.NewPCG(1, 1)))("lm_head.weight", p.m.Config.Vocab, p.m.Config.Hidden)
		p.m.Config.Tied = false
		p.m.tensors = append(slices.Clone(p.m.tensors), blank(head, "weight", p.m.Config.Vocab, p.m.Config.Hidden))
		p.m.data["lm_head.weight"] = other
	}},
	{"head tied where it is not", "qwen2b,gptj", func(p *plot) { p.m.Config.Tied = true }},
	{"square Conv1D weight read as Linear", "gpt2", func(p *plot) {
		p.m.ops.conv1d = func(x, w, b *ad.Var) *ad.Var {
			if s := w.Shape(); s[0] == s[1] {
				return nn.Linear(x, w, b)
			}
			return nn.Conv1D(x, w, b)
		}
	}},
	{"queries, keys and values dealt out per head", "gpt2", func(p *plot) {
		changing("c_attn.weight", func(x []float64, s []int) []float64 { return interleave(x, s[0]) })(p)
	}},
	{"a weight transposed", "gptj,llama_gelu_linear", func(p *plot) {
		changing("q_proj.weight", func(x []float64, s []int) []float64 {
			if s[0] != s[1] {
				panic("not square")
			}
			return turned(x, s[0], s[1])
		})(p)
	}},
	{"one weight off by 1e-6 of itself", "gpt2,gptj,qwen2", func(p *plot) {
		for _, w := range p.m.tensors {
			if hasSuffix(w.Name, "v_proj.weight", "c_attn.weight") {
				x := slices.Clone(p.m.data[w.Name])
				x[len(x)-1] *= 1 + 1e-6
				p.m.data[w.Name] = x
				return
			}
		}
	}},

	// LoRA.
	{"alpha in place of alpha/r", "gpt2,gptj,llama", updating(func(l *LoRA) { l.Scale *= float64(l.Rank) })},
	{"rank stabilisation ignored", "qwen2", updating(func(l *LoRA) { l.Scale /= math.Sqrt(float64(l.Rank)) })},
	{"rank stabilised without being asked", "gpt2,gptj", updating(func(l *LoRA) { l.Scale *= math.Sqrt(float64(l.Rank)) })},
	{"LoRA A read as [in, R]", "gpt2,gptj,qwen2", updating(func(l *LoRA) { l.A = turned(l.A, len(l.A)/l.Rank, l.Rank) })},
	{"LoRA B read as [R, out]", "gpt2,gptj,qwen2", updating(func(l *LoRA) { l.B = turned(l.B, l.Rank, len(l.B)/l.Rank) })},
	{"the adapter ignored", "gpt2,gptj,qwen2,law adapter off,law merge", func(p *plot) {
		p.m.ops.delta = func(l nn.LoRA, x *ad.Var) *ad.Var {
			return ad.Scale(l.Delta(x), 0)
		}
	}},
	{"the adapter subtracted", "gpt2,gptj,qwen2,law merge", updatingDelta(func(l nn.LoRA, x *ad.Var) *ad.Var { return ad.Neg(l.Delta(x)) })},
	{"the update of one layer at another", "gptj,qwen2", func(p *plot) {
		q, v := "transformer.h.0.attn.q_proj", "transformer.h.0.attn.v_proj"
		if p.m.Config.Kind == Qwen2 {
			q, v = "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj"
		}
		p.adapter[q], p.adapter[v] = p.adapter[v], p.adapter[q]
	}},
	{"no gradient for A", "gpt2,gptj,qwen2", updatingDelta(func(l nn.LoRA, x *ad.Var) *ad.Var {
		l.A = ad.Detach(l.A)
		return l.Delta(x)
	})},
	{"the scale left out of B's gradient", "gpt2,gptj,qwen2", updatingDelta(func(l nn.LoRA, x *ad.Var) *ad.Var {
		c := nn.LoRA{A: l.A, B: ad.Detach(l.B), Scale: l.Scale}.Delta(x)
		d := nn.LoRA{A: ad.Detach(l.A), B: l.B, Scale: 1}.Delta(ad.Detach(x))
		return ad.Add(c, ad.Sub(d, ad.Detach(d)))
	})},
	{"no gradient between the layers", "gpt2,gptj,qwen2", func(p *plot) {
		p.m.ops.block = func(n *Net, s *pass, x *ad.Var, i int) *ad.Var { return n.block(s, ad.Detach(x), i) }
	}},
	{"no gradient through the attention weights", "gpt2,gptj,qwen2", scores(func(q, k, v *ad.Var, mask ad.Mask, scale float64, own func(_, _, _ *ad.Var, _ ad.Mask, _ float64) *ad.Var) *ad.Var {
		return own(ad.Detach(q), ad.Detach(k), v, mask, scale)
	})},

	// Log-probabilities.
	{"ids one place late", "gpt2,gptj,qwen2", func(p *plot) {
		ids := slices.Clone(p.in.IDs)
		p.in.IDs = append(ids[1:], ids[0])
	}},
	{"pairs with a padding token counted", "gpt2,qwen2", func(p *plot) { p.in.Real = nil }},
}
