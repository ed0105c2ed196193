package nn

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
)

// entry is one call of a layer of torch or transformers, see golden/gen/nn/layers.py.
type entry struct {
	Layer, Function string
	Options         struct {
		Eps         float64
		Name        string
		Mask        []int
		Targets     []int
		Pos         []int
		Dim         int
		Interleaved bool
		Frequencies []float64
		Attention   float64 `json:"attention_scaling"`
		Type        string  `json:"rope_type"`
		Theta       float64 `json:"rope_theta"`
		Factor      float64 `json:"factor"`
		Low         float64 `json:"low_freq_factor"`
		High        float64 `json:"high_freq_factor"`
		Original    float64 `json:"original_max_position_embeddings"`
		Fast        float64 `json:"beta_fast"`
		Slow        float64 `json:"beta_slow"`
		Truncate    *bool   `json:"truncate"`
		MScale      float64 `json:"mscale"`
		MScaleAll   float64 `json:"mscale_all_dim"`
		Given       float64 `json:"attention_factor"`
	}
	Inputs, Grads     map[string]tensor
	Output, Cotangent tensor
}

// tensor is [shape, elements].
type tensor struct {
	shape []int
	data  []float64
}

func (x *tensor) UnmarshalJSON(raw []byte) error {
	return json.Unmarshal(raw, &[]any{&x.shape, &x.data})
}

func readEntries(t testing.TB) []entry {
	raw, err := os.ReadFile("testdata/layers.json")
	require.NoError(t, err)
	var file struct{ Entries []entry }
	require.NoError(t, json.Unmarshal(raw, &file))
	require.NotEmpty(t, file.Entries)
	return file.Entries
}

func (e entry) rope() RoPE {
	o := e.Options
	return RoPE{Dim: o.Dim, Theta: o.Theta, Interleaved: o.Interleaved, Scaling: RoPEScaling{Type: o.Type, Factor: o.Factor,
		LowFreqFactor: o.Low, HighFreqFactor: o.High, OriginalMaxPositions: o.Original, BetaFast: o.Fast, BetaSlow: o.Slow,
		MScale: o.MScale, MScaleAllDim: o.MScaleAll, AttentionFactor: o.Given, NoTruncate: o.Truncate != nil && !*o.Truncate}}
}

// layers computes an entry with the operations of this package.
var layers = map[string]func(e entry, x map[string]*ad.Var) *ad.Var{
	"layernorm": func(e entry, x map[string]*ad.Var) *ad.Var { return LayerNorm(x["x"], x["w"], x["b"], e.Options.Eps) },
	"rmsnorm":   func(e entry, x map[string]*ad.Var) *ad.Var { return RMSNorm(x["x"], x["w"], e.Options.Eps) },
	"linear":    func(_ entry, x map[string]*ad.Var) *ad.Var { return Linear(x["x"], x["w"], x["b"]) },
	"activation": func(e entry, x map[string]*ad.Var) *ad.Var {
		f, err := Activation(e.Options.Name)
		if err != nil {
			panic(err)
		}
		return f(x["x"])
	},
	"attention": func(e entry, x map[string]*ad.Var) *ad.Var {
		on := make([]bool, len(e.Options.Mask))
		for i, v := range e.Options.Mask {
			on[i] = v != 0
		}
		mask := ad.Mask{Shape: []int{2, 1, 3, 5}, On: on}
		return Attention(x["q"], x["k"], x["v"], mask, 1/math.Sqrt(6))
	},
	"crossentropy": func(e entry, x map[string]*ad.Var) *ad.Var { return CrossEntropy(x["x"], e.Options.Targets, -100) },
	"rope":         func(e entry, x map[string]*ad.Var) *ad.Var { return e.rope().Apply(x["x"], e.Options.Pos) },
}

// miss returns how far f is from the entry in value and gradient, relative to the largest element.
func (e entry) miss(f func(e entry, x map[string]*ad.Var) *ad.Var) (worst float64) {
	var tape ad.Tape
	x := map[string]*ad.Var{}
	for name, in := range e.Inputs {
		x[name] = tape.Param(in.data, in.shape...)
	}
	y := f(e, x)
	worst = far(y.Data(), e.Output.data)
	ad.Backward(y, e.Cotangent.data)
	for name, g := range e.Grads {
		worst = max(worst, far(x[name].Grad(), g.data))
	}
	return worst
}

// far returns the largest |got − want| over the largest |want|; NaN if one is not a number.
func far(got, want []float64) float64 {
	if len(got) != len(want) || len(want) == 0 {
		return math.Inf(1)
	}
	diff, scale := 0.0, math.SmallestNonzeroFloat64
	for i, w := range want {
		diff, scale = max(diff, math.Abs(got[i]-w)), max(scale, math.Abs(w))
	}
	return diff / scale
}

// torch's float64 differs from ours by the order of sums and by the last places of its elementary functions; at position 700
// the sine of an angle has the rounding error of the angle, 700·2⁻⁵³.
const tolerance = 1e-12

func TestGoldens(t *testing.T) {
	count := map[string]int{}
	for i, e := range readEntries(t) {
		count[e.Layer]++
		w := e.miss(layers[e.Layer])
		require.LessOrEqual(t, w, tolerance, "entry %d: %s by %s", i, e.Layer, e.Function)
		if e.Options.Frequencies == nil {
			continue
		}
		freq, factor := e.rope().Frequencies()
		require.InDelta(t, e.Options.Attention, factor, 1e-15)
		for j, f := range e.Options.Frequencies {
			require.InEpsilon(t, f, freq[j], 1e-14, "%s: pair %d", e.Options.Type, j)
		}
	}
	for name := range layers {
		require.NotZero(t, count[name], "no golden of %s", name)
	}
}

func detachMean(x *ad.Var) *ad.Var { return ad.Detach(ad.Mean(x, true, -1)) }

// Bugs that layers have had; each is caught by a golden of its layer.
func TestFaultsAgainstGoldens(t *testing.T) {
	rope := func(change func(r *RoPE)) func(e entry, x map[string]*ad.Var) *ad.Var {
		return func(e entry, x map[string]*ad.Var) *ad.Var {
			r := e.rope()
			change(&r)
			return r.Apply(x["x"], e.Options.Pos)
		}
	}
	for name, f := range map[string]func(e entry, x map[string]*ad.Var) *ad.Var{
		"layernorm: no derivative of the mean": func(e entry, x map[string]*ad.Var) *ad.Var {
			c := ad.Sub(x["x"], detachMean(x["x"]))
			v := ad.Mean(ad.Mul(c, c), true, -1)
			return ad.Add(ad.Mul(ad.Div(c, ad.Sqrt(ad.AddScalar(v, e.Options.Eps))), x["w"]), x["b"])
		},
		"layernorm: eps outside the root": func(e entry, x map[string]*ad.Var) *ad.Var {
			c := ad.Sub(x["x"], ad.Mean(x["x"], true, -1))
			v := ad.Mean(ad.Mul(c, c), true, -1)
			return ad.Add(ad.Mul(ad.Div(c, ad.AddScalar(ad.Sqrt(v), e.Options.Eps)), x["w"]), x["b"])
		},
		"rmsnorm: no derivative of the root": func(e entry, x map[string]*ad.Var) *ad.Var {
			ms := ad.Mean(ad.Mul(x["x"], x["x"]), true, -1)
			return ad.Mul(x["w"], ad.Div(x["x"], ad.Detach(ad.Sqrt(ad.AddScalar(ms, e.Options.Eps)))))
		},
		"rmsnorm: eps off by 1 %": func(e entry, x map[string]*ad.Var) *ad.Var { return RMSNorm(x["x"], x["w"], 1.01*e.Options.Eps) },
		"linear: bias left out": func(_ entry, x map[string]*ad.Var) *ad.Var {
			return ad.Add(Linear(x["x"], x["w"], nil), ad.Scale(x["b"], 0))
		},
		"activation: relu everywhere": func(_ entry, x map[string]*ad.Var) *ad.Var { return ad.Clamp(x["x"], 0, math.Inf(1)) },
		"activation: tanh's constant from memory": func(e entry, x map[string]*ad.Var) *ad.Var {
			if !strings.HasPrefix(e.Options.Name, "gelu_") {
				return layers["activation"](e, x)
			}
			v := x["x"]
			cube := ad.Mul(ad.Mul(v, v), v)
			return ad.Mul(ad.Scale(v, 0.5), ad.AddScalar(ad.Tanh(ad.Scale(ad.Add(v, ad.Scale(cube, 0.044715)), 0.7978845608)), 1))
		},
		"attention: a mask of ones": func(e entry, x map[string]*ad.Var) *ad.Var {
			e.Options.Mask = append([]int{}, e.Options.Mask...)
			for i := range e.Options.Mask {
				e.Options.Mask[i] = 1
			}
			return layers["attention"](e, x)
		},
		"attention: a mask for all rows": func(e entry, x map[string]*ad.Var) *ad.Var {
			e.Options.Mask = append(append([]int{}, e.Options.Mask[:15]...), e.Options.Mask[:15]...)
			return layers["attention"](e, x)
		},
		"attention: tiled heads": func(e entry, x map[string]*ad.Var) *ad.Var {
			k, v := x["k"], x["v"]
			for k.Shape()[2] < 4 {
				k, v = ad.Concat(2, k, k), ad.Concat(2, v, v)
			}
			return layers["attention"](e, map[string]*ad.Var{"q": x["q"], "k": k, "v": v})
		},
		"crossentropy: ignored rows in the denominator": func(e entry, x map[string]*ad.Var) *ad.Var {
			return ad.Scale(CrossEntropy(x["x"], e.Options.Targets, -100), 4./6)
		},
		"crossentropy: ignored rows taken for token 0": func(e entry, x map[string]*ad.Var) *ad.Var {
			targets := append([]int{}, e.Options.Targets...)
			for i, v := range targets {
				targets[i] = max(v, 0)
			}
			return CrossEntropy(x["x"], targets, -100)
		},
		"rope: pairing exchanged":        rope(func(r *RoPE) { r.Interleaved = !r.Interleaved }),
		"rope: scaling ignored":          rope(func(r *RoPE) { r.Scaling = RoPEScaling{} }),
		"rope: factor on cosines":        rope(func(r *RoPE) { r.Scaling.AttentionFactor = 1 }),
		"rope: yarn's ends rounded":      rope(func(r *RoPE) { r.Scaling.NoTruncate = false }),
		"rope: another high_freq_factor": rope(func(r *RoPE) { r.Scaling.HighFreqFactor *= 1.5 }),
		"rope: mscale ignored":           rope(func(r *RoPE) { r.Scaling.MScale = 0 }),
	} {
		layer, _, _ := strings.Cut(name, ":")
		require.Contains(t, layers, layer)
		caught := false
		for _, e := range readEntries(t) {
			if e.Layer == layer && !(e.miss(f) <= tolerance) {
				caught = true
			}
		}
		require.True(t, caught, name)
	}
}
