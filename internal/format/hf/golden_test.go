package hf

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/arch"
	"plumbline/internal/format/safetensors"
)

// expected is testdata/expect.json, written by golden/gen/smollm2/tiny_hf.py beside the folders: what transformers@5.23.0
// says about the models that it wrote.
type expected struct {
	Folders map[string]struct {
		Config  map[string]any
		Tensors map[string]struct {
			Shape  []int
			SHA256 string
		}
	}
	Int8 map[string]struct {
		Shape              []int
		Codes              []int8
		Scale, Dequantized []float64
	}
}

func expect(t *testing.T) (e expected) {
	text, err := os.ReadFile("testdata/expect.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &e))
	require.Len(t, e.Folders, 7)
	require.Len(t, e.Int8, 14)
	return e
}

// digest is the sha256 of the little-endian float64 elements.
func digest(v []float64) string {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func openGolden(t *testing.T, name string) *Folder {
	variant := ""
	if name == "gptj_variant" {
		variant = "fp16"
	}
	f, err := OpenVariant(filepath.Join("testdata", name), variant)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

// Every tensor of the state dict of transformers has its shape and its bits, by each of its names, and there is no other.
func TestTransformersWeights(t *testing.T) {
	for name, want := range expect(t).Folders {
		t.Run(name, func(t *testing.T) {
			f := openGolden(t, name)
			for tensor, w := range want.Tensors {
				shape, err := f.Shape(tensor)
				require.NoError(t, err)
				require.Equal(t, w.Shape, shape, tensor)
				short, _ := cutPrefix(tensor, map[bool]string{true: "transformer.", false: "model."}[f.Config.Type[:3] == "gpt"])
				for _, asked := range []string{tensor, short, "base_model.model." + tensor, "module." + tensor} {
					v, err := f.Read(asked, shape...)
					require.NoError(t, err)
					require.Equal(t, w.SHA256, digest(v), asked)
				}
			}
			names := slices.Sorted(maps.Keys(want.Tensors))
			if f.Config.Tied {
				names = slices.DeleteFunc(names, func(s string) bool { return s == "lm_head.weight" })
				tie, err := f.Tied()
				require.NoError(t, err)
				require.Equal(t, TiedEmbed, tie)
			}
			require.Equal(t, names, f.Names())
			var listed []string // the geometry lists what transformers has
			for _, w := range f.Config.Tensors() {
				listed = append(listed, w.Name)
				require.Equal(t, want.Tensors[w.Name].Shape, w.Shape, w.Name)
			}
			require.ElementsMatch(t, names, listed)
			require.Empty(t, f.Notes)
			buffers := map[string]int{"gptj": 4}
			require.Len(t, f.Ignored, buffers[name])
			shards := map[string]int{"qwen2_sharded": 4}
			require.Len(t, f.Shards(), max(1, shards[name]))
		})
	}
}

func cutPrefix(s, prefix string) (string, bool) {
	if len(s) > len(prefix) && s[:len(prefix)] == prefix {
		return s[len(prefix):], true
	}
	return s, false
}

// The tensors of a geometry are those that transformers stored, by name and shape: no more and no fewer.
func TestTransformersTensors(t *testing.T) {
	seen := 0
	folders, err := filepath.Glob("../../../golden/checkpoint/strangers/base_*")
	require.NoError(t, err)
	for _, dir := range folders {
		c, err := ReadConfig(dir)
		require.NoError(t, err)
		if !arch.Known(c.Type) {
			continue
		}
		seen++
		require.NoError(t, c.Validate(), dir)
		st, err := safetensors.Open(filepath.Join(dir, "model.safetensors"))
		require.NoError(t, err)
		got, want := map[string][]int{}, map[string][]int{}
		for name, a := range st.Tensors() {
			got[name] = a.Shape
		}
		for _, w := range c.Tensors() {
			want[w.Name] = w.Shape
		}
		require.Equal(t, want, got, dir)
		require.NoError(t, st.Close())
	}
	require.GreaterOrEqual(t, seen, 13)
}

// Every field equals the attribute of the configuration that transformers loaded.
func TestTransformersConfig(t *testing.T) {
	for name, want := range expect(t).Folders {
		t.Run(name, func(t *testing.T) {
			f := openGolden(t, name)
			c, w := f.Config, want.Config
			integer := func(key string, absent int) int {
				v, ok := w[key].(float64)
				if !ok {
					return absent
				}
				return int(v)
			}
			require.Equal(t, w["model_type"], c.Type)
			require.NoError(t, c.OneOf(arch.Types()))
			require.Equal(t, w["architectures"], []any{c.Architectures[0]})
			require.Equal(t, w["dtype"], c.DType)
			require.Equal(t, integer("hidden_size", 0), c.Hidden)
			require.Equal(t, integer("num_hidden_layers", 0), c.Layers)
			require.Equal(t, integer("num_attention_heads", 0), c.Heads)
			require.Equal(t, integer("num_key_value_heads", c.Heads), c.KVHeads)
			require.Equal(t, integer("head_dim", c.Hidden/c.Heads), c.HeadDim)
			require.Equal(t, integer("vocab_size", 0), c.Vocab)
			require.Equal(t, integer("max_position_embeddings", 0), c.Positions)
			require.Equal(t, integer("intermediate_size", integer("n_inner", 4*c.Hidden)), c.Inner)
			require.Equal(t, integer("bos_token_id", -1), c.BOS)
			require.Equal(t, integer("pad_token_id", -1), c.PAD)
			if eos, ok := w["eos_token_id"].(float64); ok {
				require.Equal(t, []int{int(eos)}, c.EOS)
			} else {
				require.Nil(t, c.EOS)
			}
			require.Equal(t, w["tie_word_embeddings"], c.Tied)
			if w := integer("sliding_window", 0); w > 0 {
				require.Equal(t, []int{0, w}, c.Windows)
			} else {
				require.Nil(t, c.Windows)
			}
			eps, act := "rms_norm_eps", "hidden_act"
			if c.Type[:3] == "gpt" {
				eps, act = "layer_norm_epsilon", "activation_function"
			}
			require.Equal(t, w[eps], c.Eps)
			require.Equal(t, w[act], c.Activation)
			// A bias is there if and only if the model has the tensor.
			layer := map[string][4]string{
				"gpt2": {"attn.c_attn", "attn.c_proj", "mlp.c_fc"}, "gptj": {"attn.q_proj", "attn.out_proj", "mlp.fc_in"},
				"llama": {"self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj"}, "qwen2": {"self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj"},
			}[c.Type]
			prefix := map[bool]string{true: "transformer.h.0.", false: "model.layers.0."}[c.Type[:3] == "gpt"]
			has := func(name string) bool { _, ok := want.Tensors[name+".bias"]; return ok }
			require.Equal(t, has(prefix+layer[0]), c.QKVBias)
			require.Equal(t, has(prefix+layer[1]), c.OutputBias)
			require.Equal(t, has(prefix+layer[2]), c.MLPBias)
			require.Equal(t, has("lm_head"), c.HeadBias)

			rope, ok := w["rope_parameters"].(map[string]any)
			if !ok {
				require.Equal(t, integer("rotary_dim", 0), c.Rope.Dim)
				require.Equal(t, c.Type == "gptj", c.Rope.Interleaved)
				return
			}
			require.Equal(t, rope["rope_theta"], c.Rope.Theta)
			require.Equal(t, rope["rope_type"], c.Rope.Type)
			require.Equal(t, c.HeadDim, c.Rope.Dim)
			require.False(t, c.Rope.Interleaved)
			if c.Rope.Type == "llama3" {
				require.Equal(t, []any{rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]},
					[]any{c.Rope.Factor, c.Rope.LowFreqFactor, c.Rope.HighFreqFactor, float64(c.Rope.OriginalPositions)})
			}
		})
	}
}

// The codes and scales of bitsandbytes@0.50.2, and that its dequantised weight is code·scale/127 up to the rounding of its
// float32 product and of its constant for 1/127, which is 3.7e-9 off: 3 roundings of 2⁻²⁴ cover both.
func TestInt8(t *testing.T) {
	f := openGolden(t, "llama_int8")
	require.Equal(t, &Quantization{Method: "bitsandbytes", Int8: true}, f.Config.Quantization)
	require.Empty(t, f.Ignored)
	for name, want := range expect(t).Int8 {
		require.True(t, f.IsInt8(name))
		out, in := want.Shape[0], want.Shape[1]
		q, err := f.Int8(name, out, in)
		require.NoError(t, err)
		require.Equal(t, want.Codes, q.Codes[:len(want.Codes)], name)
		require.Equal(t, want.Scale, q.AbsMax[:len(want.Scale)], name)
		require.Len(t, q.Codes, out*in)
		require.Len(t, q.AbsMax, out)
		for i, w := range want.Dequantized {
			got := float64(q.Codes[i]) * q.AbsMax[i/in] / 127
			require.LessOrEqual(t, math.Abs(got-w), 3*0x1p-24*math.Abs(w), name)
		}
		_, err = f.Read(name, out, in)
		refused(t, err, name+": element type I8, want F16, BF16, F32 or F64: it is int8 of bitsandbytes")
		_, err = f.Int8(name, out, in+1)
		refused(t, err, name, "I8 (", "want I8 (")
	}
	require.False(t, f.IsInt8("model.norm.weight"))
	_, err := f.Int8("model.norm.weight", 16, 1)
	refused(t, err, "model.norm.weight", "F16 (16,), want I8 (16, 1)")
	_, err = f.Int8("model.absent.weight", 16, 1)
	refused(t, err, `tensor "model.absent.weight": is missing`)
}
