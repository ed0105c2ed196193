package model

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"plumbline/reference/ad"
	"plumbline/reference/nn"

	"github.com/stretchr/testify/require"
)

// tinies are the smallest models in which every weight counts, one of each family.
func tinies() map[Kind]Config {
	base := Config{Vocab: 5, Hidden: 4, Layers: 1, Heads: 2, KVHeads: 2, HeadDim: 2, Intermediate: 3, MaxPositions: 4, Eps: 1e-2}
	gpt2, gptj, llama := base, base, base
	gpt2.Kind, gpt2.Activation, gpt2.Tied = GPT2, "gelu_new", true
	gpt2.QKVBias, gpt2.OutputBias, gpt2.MLPBias = true, true, true
	gptj.Kind, gptj.Activation, gptj.MLPBias = GPTJ, "gelu_new", true
	gptj.RoPE = nn.RoPE{Dim: 2, Theta: 10, Interleaved: true}
	llama.Kind, llama.Activation, llama.KVHeads = Llama, "silu", 1
	llama.RoPE = nn.RoPE{Dim: 2, Theta: 10}
	qwen2 := llama
	qwen2.Kind, qwen2.QKVBias, qwen2.Tied = Qwen2, true, true
	return map[Kind]Config{GPT2: gpt2, GPTJ: gptj, Llama: llama, Qwen2: qwen2}
}

// onVars returns the model on the tape of x, which are its weights in order and then the factors A and B of the layers named.
func (m *Model) onVars(x []*ad.Var, layers []string) *Net {
	p := &params{tape: x[0].Tape(), vars: map[string]*ad.Var{}, lora: map[string]nn.LoRA{}}
	for i, w := range m.tensors {
		p.vars[w.Name] = x[i]
	}
	for i, name := range layers {
		p.lora[name] = nn.LoRA{A: x[len(m.tensors)+2*i], B: x[len(m.tensors)+2*i+1], Scale: 0.7}
	}
	return m.net(p)
}

// checkModel checks the gradient of the logits for every weight and LoRA factor by ad.CheckGrad.
func checkModel(c Config, seed uint64, change func(m *Model)) error {
	r := rand.New(rand.NewPCG(seed, 0))
	m, err := New(c, random(r))
	if err != nil {
		return err
	}
	if change != nil {
		change(m)
	}
	var inputs []ad.Tensor
	for _, w := range m.tensors {
		inputs = append(inputs, ad.Tensor{Shape: w.Shape, Data: m.data[w.Name]})
	}
	a := adapterFor(c, r, false)
	layers := slices.Sorted(maps.Keys(a))
	for _, name := range layers {
		l := a[name]
		inputs = append(inputs, ad.Tensor{Shape: []int{l.Rank, len(l.A) / l.Rank}, Data: l.A},
			ad.Tensor{Shape: []int{len(l.B) / l.Rank, l.Rank}, Data: l.B})
	}
	in := Input{Batch: 2, Time: 3, IDs: []int{4, 1, 2, 0, 3, 1}, Real: []bool{true, true, true, false, true, true}}
	return ad.CheckGrad(string(c.Kind), func(x []*ad.Var) *ad.Var {
		n := m.onVars(x, layers)
		h := n.Forward(in).Hidden
		return n.Logits(ad.Where(ad.Mask{Shape: []int{2, 3, 1}, On: in.Real}, h, h.Tape().Scalar(0)))
	}, inputs, r)
}

// The whole model against central differences and against its own tangents, for all of its weights.
func TestGradients(t *testing.T) {
	seeds := uint64(3)
	if testing.Short() {
		seeds = 1
	}
	for kind, c := range tinies() {
		t.Run(string(kind), func(t *testing.T) {
			for seed := range seeds {
				require.NoError(t, checkModel(c, seed, nil))
			}
		})
	}
}

// The check sees a derivative that is missing: whatever is taken for a constant.
func TestMissingDerivatives(t *testing.T) {
	for name, f := range map[string]struct {
		kind  Kind
		plant func(m *Model)
	}{
		"the root of RMSNorm": {Llama, func(m *Model) {
			m.ops.rmsNorm = func(x, w *ad.Var, eps float64) *ad.Var {
				ms := ad.Mean(ad.Mul(x, x), true, -1)
				return ad.Mul(w, ad.Div(x, ad.Detach(ad.Sqrt(ad.AddScalar(ms, eps)))))
			}
		}},
		"the variance of LayerNorm": {GPT2, func(m *Model) {
			m.ops.layerNorm = func(x, w, b *ad.Var, eps float64) *ad.Var {
				c := ad.Sub(x, ad.Mean(x, true, -1))
				v := ad.Detach(ad.Mean(ad.Mul(c, c), true, -1))
				return ad.Add(ad.Mul(ad.Div(c, ad.Sqrt(ad.AddScalar(v, eps))), w), b)
			}
		}},
		"the keys": {GPTJ, func(m *Model) {
			own := m.ops.attention
			m.ops.attention = func(q, k, v *ad.Var, mask ad.Mask, scale float64) *ad.Var {
				return own(q, ad.Detach(k), v, mask, scale)
			}
		}},
		"the gate": {Qwen2, func(m *Model) {
			m.ops.swiglu = func(gate, up *ad.Var) *ad.Var { return ad.Mul(ad.Detach(nn.SiLU(gate)), up) }
		}},
		"the factor A": {Qwen2, func(m *Model) {
			m.ops.delta = func(l nn.LoRA, x *ad.Var) *ad.Var {
				l.A = ad.Detach(l.A)
				return l.Delta(x)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, checkModel(tinies()[f.kind], 0, f.plant), "central differences")
		})
	}
}
