package model

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"plumbline/reference/ad"
	"plumbline/reference/nn"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A fault is a bug that code like this has had, planted in a healthy model, and what must catch it: goldens by name, laws by
// "law" and name.
type fault struct {
	name  string
	by    string // comma-separated
	plant func(p *plot)
}

// plot is what a fault may change: the model, and the adapter and the input of a golden.
type plot struct {
	m       *Model
	adapter Adapter
	in      *Input
}

// scores plants another attention, given the healthy one.
func scores(f func(q, k, v *ad.Var, mask ad.Mask, scale float64, own func(q, k, v *ad.Var, mask ad.Mask, scale float64) *ad.Var) *ad.Var) func(*plot) {
	return func(p *plot) {
		own := p.m.ops.attention
		p.m.ops.attention = func(q, k, v *ad.Var, mask ad.Mask, scale float64) *ad.Var { return f(q, k, v, mask, scale, own) }
	}
}

// seeing plants another mask.
func seeing(f func(v *nn.Visible)) func(*plot) {
	return func(p *plot) {
		p.m.ops.mask = func(v nn.Visible) ad.Mask { f(&v); return v.Mask() }
	}
}

// shifted plants a mask in which a query sees the keys by places further on.
func shifted(by int) func(*plot) {
	return func(p *plot) {
		p.m.ops.mask = func(v nn.Visible) ad.Mask {
			m := v.Mask()
			t, s := v.Queries, v.Keys
			for i := range m.Shape[0] {
				for q := range t {
					for k := range s {
						m.On[(i*t+q)*s+k] = k <= s-t+q+by && (v.Real == nil || v.Real[i*s+k])
					}
				}
			}
			return m
		}
	}
}

// rotating plants another rotation of a head.
func rotating(f func(r nn.RoPE, x *ad.Var, pos []int) *ad.Var) func(*plot) {
	return func(p *plot) { p.m.ops.rotate = f }
}

// float32s rounds to float32, with the derivative of the identity.
func float32s(x *ad.Var) *ad.Var {
	y := slices.Clone(x.Data())
	for i, v := range y {
		y[i] = float64(float32(v)) - v
	}
	return ad.Add(x, x.Tape().Const(y, x.Shape()...))
}

// sequenceFaults are bugs in what the tokens of a sequence know of each other.
var sequenceFaults = []fault{
	// Rotary positions.
	{"pairs half-split where they are interleaved", "gptj", rotating(func(r nn.RoPE, x *ad.Var, pos []int) *ad.Var {
		r.Interleaved = false
		return r.Apply(x, pos)
	})},
	{"pairs interleaved where they are half-split", "qwen2,llama", rotating(func(r nn.RoPE, x *ad.Var, pos []int) *ad.Var {
		r.Interleaved = true
		return r.Apply(x, pos)
	})},
	{"the whole head rotated in place of rotary_dim", "gptj", rotating(func(r nn.RoPE, x *ad.Var, pos []int) *ad.Var {
		r.Dim = x.Shape()[3]
		return r.Apply(x, pos)
	})},
	{"frequencies over the head in place of rotary_dim", "gptj", rotating(func(r nn.RoPE, x *ad.Var, pos []int) *ad.Var {
		r.Theta = math.Pow(r.Theta, float64(r.Dim)/float64(x.Shape()[3]))
		return r.Apply(x, pos)
	})},
	{"rope_theta of another model", "qwen2,llama,gptj", func(p *plot) { p.m.Config.RoPE.Theta *= 50 }},
	{"rotation the other way round", "qwen2,gptj", rotating(func(r nn.RoPE, x *ad.Var, pos []int) *ad.Var {
		back := make([]int, len(pos))
		for i, v := range pos {
			back[i] = -v
		}
		return r.Apply(x, back)
	})},
	{"no rotation", "qwen2,gptj", rotating(func(_ nn.RoPE, x *ad.Var, _ []int) *ad.Var { return x })},
	{"only queries rotated", "qwen2,law position shift", rotating(func(r nn.RoPE, x *ad.Var, pos []int) *ad.Var {
		if x.Shape()[2] == 2 { // the key-value heads of qwen2, and of some tiny models
			return x
		}
		return r.Apply(x, pos)
	})},
	{"values rotated too", "qwen2,gptj,law position shift", func(p *plot) {
		c, own := p.m.Config, p.m.ops.attention
		var pos []int
		p.m.ops.rotate = func(r nn.RoPE, x *ad.Var, at []int) *ad.Var { pos = at; return r.Apply(x, at) }
		p.m.ops.attention = func(q, k, v *ad.Var, mask ad.Mask, scale float64) *ad.Var {
			if c.RoPE.Dim > 0 && v.Shape()[1]*v.Shape()[0] == len(pos) {
				v = c.RoPE.Apply(v, pos)
			}
			return own(q, k, v, mask, scale)
		}
	}},
	{"llama3 scaling ignored", "llama,llama_biases_llama3", func(p *plot) { p.m.Config.RoPE.Scaling = nn.RoPEScaling{} }},
	{"linear scaling multiplies", "llama_gelu_linear", func(p *plot) {
		p.m.Config.RoPE.Scaling = nn.RoPEScaling{}
		p.m.ops.rotate = func(r nn.RoPE, x *ad.Var, pos []int) *ad.Var {
			r.Theta /= 6.25
			return r.Apply(x, pos)
		}
	}},
	{"yarn's factor on the cosines left out", "qwen2_window_yarn", func(p *plot) { p.m.Config.RoPE.Scaling.AttentionFactor = 1 }},
	{"yarn's ramp not rounded", "qwen2_window_yarn", func(p *plot) { p.m.Config.RoPE.Scaling.NoTruncate = true }},
	{"rotary table in float32", "qwen2,gptj,llama", rotating(func(r nn.RoPE, x *ad.Var, pos []int) *ad.Var {
		return ad.Add(ad.Sub(r.Apply(x, pos), r.Apply(ad.Detach(x), pos)), float32s(r.Apply(ad.Detach(x), pos)))
	})},

	// Positions and padding.
	{"positions not shifted under left padding", "gpt2,law padding", func(p *plot) {
		own := p.m.ops.places
		p.m.ops.places = func(in Input) ([]bool, []int) {
			real, _ := own(in)
			in.Real = nil
			_, pos := own(in)
			return real, pos
		}
	}},
	{"positions from 2 on, as OPT has them", "gpt2", func(p *plot) {
		own := p.m.ops.places
		p.m.ops.places = func(in Input) ([]bool, []int) {
			real, pos := own(in)
			for i := range pos {
				pos[i] += 2
			}
			return real, pos
		}
	}},
	{"no position embedding", "gpt2", changing("transformer.wpe.weight", zero)},
	{"padding is seen", "qwen2,law padding", seeing(func(v *nn.Visible) { v.Real = nil })},
	{"padding masked in one row only", "qwen2", seeing(func(v *nn.Visible) {
		if v.Real != nil {
			v.Real = slices.Repeat(v.Real[:v.Keys], v.Batch)
		}
	})},
	{"padding mask inverted", "qwen2,gpt2", seeing(func(v *nn.Visible) {
		v.Real = slices.Clone(v.Real)
		for i := range v.Real {
			v.Real[i] = !v.Real[i]
		}
	})},

	// Attention.
	{"not causal", "gpt2,gptj,qwen2,law causality,law causal gradient,law cache", seeing(func(v *nn.Visible) { v.Causal = false })},
	{"the next token is seen", "gpt2,gptj,law causality,law causal gradient", shifted(1)},
	{"a token does not see itself", "gpt2,gptj", shifted(-1)},
	{"scores not divided by √D", "gpt2,gptj,qwen2", scores(func(q, k, v *ad.Var, mask ad.Mask, _ float64, own func(_, _, _ *ad.Var, _ ad.Mask, _ float64) *ad.Var) *ad.Var {
		return own(q, k, v, mask, 1)
	})},
	{"scores divided by the root of the hidden size", "gpt2,gptj,qwen2", scores(func(q, k, v *ad.Var, mask ad.Mask, scale float64, own func(_, _, _ *ad.Var, _ ad.Mask, _ float64) *ad.Var) *ad.Var {
		return own(q, k, v, mask, scale/math.Sqrt(float64(q.Shape()[2])))
	})},
	{"scores divided by D", "gpt2,gptj,qwen2", scores(func(q, k, v *ad.Var, mask ad.Mask, scale float64, own func(_, _, _ *ad.Var, _ ad.Mask, _ float64) *ad.Var) *ad.Var {
		return own(q, k, v, mask, scale*scale)
	})},
	{"head size from hidden/heads where head_dim is given", "llama,llama_biases_llama3", scores(func(q, k, v *ad.Var, mask ad.Mask, _ float64, own func(_, _, _ *ad.Var, _ ad.Mask, _ float64) *ad.Var) *ad.Var {
		return own(q, k, v, mask, 1/math.Sqrt(8))
	})},
	{"key-value heads tiled, not repeated", "qwen2,llama_biases_llama3,law grouped heads", scores(func(q, k, v *ad.Var, mask ad.Mask, scale float64, own func(_, _, _ *ad.Var, _ ad.Mask, _ float64) *ad.Var) *ad.Var {
		n := q.Shape()[2] / k.Shape()[2]
		return own(q, ad.Concat(2, slices.Repeat([]*ad.Var{k}, n)...), ad.Concat(2, slices.Repeat([]*ad.Var{v}, n)...), mask, scale)
	})},
	{"heads joined channel first", "gpt2,gptj,qwen2", func(p *plot) {
		own := p.m.ops.attention
		p.m.ops.attention = func(q, k, v *ad.Var, mask ad.Mask, scale float64) *ad.Var {
			y := own(q, k, v, mask, scale)
			s := y.Shape()
			return ad.Reshape(ad.Transpose(y, 2, 3), s...)
		}
	}},
	{"keys and values exchanged", "gpt2,gptj,qwen2", scores(func(q, k, v *ad.Var, mask ad.Mask, scale float64, own func(_, _, _ *ad.Var, _ ad.Mask, _ float64) *ad.Var) *ad.Var {
		return own(q, v, k, mask, scale)
	})},
	{"softmax in float32", "gpt2,gptj,qwen2", scores(func(q, k, v *ad.Var, mask ad.Mask, scale float64, own func(_, _, _ *ad.Var, _ ad.Mask, _ float64) *ad.Var) *ad.Var {
		return float32s(own(q, k, v, mask, scale))
	})},
	{"packed sequences see each other", "qwen2_packed,law packing", seeing(func(v *nn.Visible) { v.Segment = nil })},
	{"packed sequences share their positions", "law packing", func(p *plot) {
		own := p.m.ops.places
		p.m.ops.places = func(in Input) ([]bool, []int) { in.Segment = nil; return own(in) }
	}},
	{"window of one key too many", "qwen2_window_yarn,law window", seeing(func(v *nn.Visible) {
		if v.Window > 0 {
			v.Window++
		}
	})},
	{"window in all layers", "qwen2_window_yarn", func(p *plot) { p.m.Config.Windows = []int{3, 3} }},
	{"window ignored", "qwen2_window_yarn,law window", seeing(func(v *nn.Visible) { v.Window = 0 })},
	{"inverse layer index left out", "gpt2_inverse_erf", func(p *plot) { p.m.Config.InverseLayerIdx = false }},
	{"scale_attn_weights false ignored", "gpt2_unscaled", func(p *plot) { p.m.Config.Unscaled = false }},

	// The cache.
	{"cached tokens rotated from position 0", "law cache,law teacher forcing", func(p *plot) {
		own := p.m.ops.places
		p.m.ops.places = func(in Input) ([]bool, []int) {
			real, _ := own(in)
			return real, nn.Positions(in.Batch, in.Time, in.Real, in.Segment)
		}
	}},
	{"mask of a chunk aligned at the first key", "law cache", func(p *plot) {
		p.m.ops.mask = func(v nn.Visible) ad.Mask {
			m := v.Mask()
			for i := range m.On {
				m.On[i] = i%v.Keys <= i/v.Keys%v.Queries
			}
			return m
		}
	}},
}

// breaks reports whether a law breaks for one of the first tiny models with the fault.
func breaks(name string, plant func(*plot)) bool {
	models := rapid.Custom(drawTiny)
	for seed := range 60 {
		c := models.Example(seed)
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		m, err := New(c, random(r))
		if err != nil {
			panic(err)
		}
		in := tokens(c, r, 2, 6)
		plant(&plot{m: m, adapter: Adapter{}, in: &in})
		if laws[name](m, in, r) != nil {
			return true
		}
	}
	return false
}

// Every fault is caught by all that the table names; the same goldens and laws pass without it, see TestGoldens and TestLaws.
func TestFaults(t *testing.T) {
	all := slices.Concat(sequenceFaults, layerFaults)
	require.GreaterOrEqual(t, len(all), 30)
	for _, f := range all {
		t.Run(f.name, func(t *testing.T) {
			for _, by := range strings.Split(f.by, ",") {
				if name, ok := strings.CutPrefix(by, "law "); ok {
					require.Contains(t, laws, name)
					require.True(t, breaks(name, f.plant), "the law %q does not catch it", name)
					continue
				}
				g := readGolden(t, by)
				p := &plot{m: g.model(t), adapter: g.adapter, in: &g.input}
				f.plant(p)
				w := g.compare(p.m)
				require.False(t, w.ok(), "the golden %s does not catch it: %+v", by, w)
			}
		})
	}
}
