package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/arch"
	"plumbline/internal/format"
	"plumbline/internal/format/hf"
	"plumbline/internal/format/safetensors"
	"plumbline/verify/check"
)

// Every pattern of the 16-bit types, in every place of a word: what the masks say is what decoding says.
func TestLookSixteenBits(t *testing.T) {
	for _, d := range []format.DType{format.F16, format.BF16} {
		for h := range 1 << 16 {
			x := []float64{0}
			var b [2]byte
			binary.LittleEndian.PutUint16(b[:], uint16(h))
			format.Decode(x, b[:], d, binary.LittleEndian)
			buf := make([]byte, 38) // four words, one more, and three elements
			at := 2 * (h % 19)
			copy(buf[at:], b[:])
			bad, nonzero := look(buf, floatMasks[d])
			require.Equal(t, math.IsNaN(x[0]) || math.IsInf(x[0], 0), bad, "%s %#x", d, h)
			require.Equal(t, x[0] != 0, nonzero, "%s %#x", d, h)
		}
	}
}

// The same for wider types, with values drawn from the edges of the format.
func TestLookWide(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		d := rapid.SampledFrom([]format.DType{format.F32, format.F64}).Draw(r, "type")
		edge := []float64{0, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat32, -math.MaxFloat32, math.MaxFloat64, math.SmallestNonzeroFloat32, 1}
		n := rapid.IntRange(0, 40).Draw(r, "n")
		x := make([]float64, n)
		if rapid.Bool().Draw(r, "zeros") {
			n = 0
		}
		for i := range n {
			if rapid.IntRange(0, 3).Draw(r, "edge") == 0 {
				x[i] = rapid.SampledFrom(edge).Draw(r, "x")
			}
		}
		b := format.Encode(nil, x, d)
		format.Decode(x, b, d, binary.LittleEndian)
		bad, nonzero := look(b, floatMasks[d])
		finite := func(v float64) bool { return v-v == 0 }
		require.Equal(r, slices.ContainsFunc(x, func(v float64) bool { return !finite(v) }), bad)
		require.Equal(r, slices.ContainsFunc(x, func(v float64) bool { return v != 0 }), nonzero)
		count, first, _ := count(b, d)
		require.Equal(r, slices.IndexFunc(x, func(v float64) bool { return !finite(v) }), func() int {
			if count == 0 {
				return -1
			}
			return first
		}())
	})
}

// pack returns a file that holds the tensors.
func pack(t *testing.T, list []safetensors.Tensor) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, nil, list))
	return b.Bytes()
}

func memory(name string, files map[string][]byte) *Memory { return &Memory{Name: name, Files: files} }

// A tensor of several pieces with its bad elements in two of them: the first is named, and all are counted.
func TestManyPieces(t *testing.T) {
	const n = 3*piece/4 + 11
	x := make([]float64, n)
	x[n-1], x[piece/4+3], x[piece/4+4] = math.Inf(1), math.NaN(), math.Inf(-1)
	m := memory("model", map[string][]byte{"model.safetensors": pack(t, []safetensors.Tensor{{Name: "w.weight", DType: format.F32, Shape: []int{1, n}, Data: x}}), "config.json": []byte(`{"model_type": "other"}`)})
	f, err := NewFolder(m)
	require.NoError(t, err)
	results, err := Suite.Run(&Input{Folder: f, Threads: 3}, check.Selection{Select: []string{"weights/finite"}})
	require.NoError(t, err)
	require.Len(t, results, 1)
	require.Contains(t, results[0].Reason, "3 of 786,443")
	require.Equal(t, "element [0, 262147]: NaN", results[0].Where)
}

func TestLoraKey(t *testing.T) {
	for _, c := range []struct {
		key, module, adapter string
		kind                 part
		embed                bool
	}{
		{"base_model.model.transformer.h.0.attn.q_proj.lora_A.weight", "base_model.model.transformer.h.0.attn.q_proj", "", partA, false},
		{"base_model.model.h.0.q.lora_B.default.weight", "base_model.model.h.0.q", "default", partB, false},
		{"base_model.model.h.0.q.lora_B.bias", "base_model.model.h.0.q", "", partBias, false},
		{"base_model.model.wte.lora_embedding_A", "base_model.model.wte", "", partA, true},
		{"base_model.model.wte.lora_embedding_B.default", "base_model.model.wte", "default", partB, true},
		{"base_model.model.h.0.q.lora_magnitude_vector", "base_model.model.h.0.q", "", partOther, false},
		{"base_model.model.score.weight", "", "", partNone, false},
		{"base_model.model.lora_Armature.weight", "", "", partNone, false},
	} {
		module, adapter, kind, embed := loraKey(c.key)
		require.Equal(t, c.kind, kind, c.key)
		require.Equal(t, []any{c.module, c.adapter, c.embed}, []any{module, adapter, embed}, c.key)
	}
}

// Targets are matched as PEFT does (tuners/tuners_utils.py check_target_module_exists).
func TestTargeted(t *testing.T) {
	for _, c := range []struct {
		config string
		yes    []string
		no     []string
	}{
		{`"target_modules": ["q_proj", "mlp.fc_in"]`, []string{"q_proj", "h.0.attn.q_proj", "h.3.mlp.fc_in"}, []string{"h.0.attn.xq_proj", "h.0.fc_in", "h.0.attn.q_proj.x"}},
		{`"target_modules": ".*\\.(q|v)_proj"`, []string{"h.0.attn.q_proj"}, []string{"q_proj", "h.0.attn.q_proj.x"}},
		{`"target_modules": "all-linear"`, []string{"h.0.attn.q_proj"}, []string{"lm_head"}},
		{`"target_modules": ["q_proj"], "layers_to_transform": [1, 10]`, []string{"h.1.attn.q_proj", "h.10.attn.q_proj"}, []string{"h.0.attn.q_proj", "q_proj"}},
		{`"target_modules": ["q_proj"], "layers_to_transform": 2`, []string{"h.2.attn.q_proj"}, []string{"h.1.attn.q_proj"}},
		{`"target_modules": ["q_proj"], "exclude_modules": ["h.1.attn.q_proj"]`, []string{"x.h.0.attn.q_proj"}, []string{"x.h.1.attn.q_proj"}},
	} {
		o, err := format.ParseObject("adapter_config.json", []byte("{"+c.config+"}"))
		require.NoError(t, err)
		l, err := parseLora(o)
		require.NoError(t, err)
		match, unknown := l.targeted()
		require.Empty(t, unknown)
		for _, m := range c.yes {
			require.True(t, match(m), "%s %s", c.config, m)
		}
		for _, m := range c.no {
			require.False(t, match(m), "%s %s", c.config, m)
		}
	}
}

func TestScaling(t *testing.T) {
	o, err := format.ParseObject("c", []byte(`{"r": 8, "lora_alpha": 16, "rank_pattern": {"h.1.attn.q_proj": 2, "v_proj": 4}, "alpha_pattern": {"v_proj": 3}}`))
	require.NoError(t, err)
	l, err := parseLora(o)
	require.NoError(t, err)
	require.Equal(t, 2.0, l.Scaling("h.0.attn.q_proj"))
	require.Equal(t, 8.0, l.Scaling("transformer.h.1.attn.q_proj"))
	require.Equal(t, 0.75, l.Scaling("h.1.attn.v_proj"))
	l.RSLora = true
	require.Equal(t, 16/math.Sqrt(8), l.Scaling("h.0.attn.q_proj"))
}

// The tensors of a known model have as many numbers as its authors say.
func TestModelSizes(t *testing.T) {
	for name, want := range map[string]int{
		"EleutherAI/gpt-j-6b": 6_050_882_784, "openai-community/gpt2": 124_439_808, "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
		"Qwen/Qwen2.5-0.5B": 494_032_768, "Qwen/Qwen1.5-1.8B-Chat": 1_836_828_672, "meta-llama/Llama-3.2-1B": 1_235_814_400,
	} {
		m := arch.Find(name)
		require.NotNil(t, m, name)
		n := 0
		for _, x := range m.Tensors() {
			k := 1
			for _, d := range x.Shape {
				k *= d
			}
			n += k
		}
		require.Equal(t, want, n, name)
	}
	require.Nil(t, arch.Find("lab/tiny"))
}

func TestNearestLayer(t *testing.T) {
	gptj, llama := arch.Find("gpt-j-6b"), arch.Find("smollm2-135m")
	require.Equal(t, "out_proj", nearest(gptj, "o_proj"))
	require.Equal(t, "o_proj", nearest(llama, "out_proj"))
	require.Equal(t, "c_attn", nearest(arch.Find("gpt2"), "q_proj"))
	require.Equal(t, "down_proj", nearest(llama, "dwn_proj"))
}

// The families of folders that libraries wrote, as the report names them.
func TestFamilies(t *testing.T) {
	want := map[string][]string{"hf": {"hugging face"}, "peft": {"peft"}, "verl": {"verl"}, "trl": {"trl", "transformers trainer"}, "openrlhf": {"hugging face", "peft", "openrlhf"}}
	for name, m := range producers(t) {
		in := load(t, Paths{Dir: goldens + "/" + name})
		require.Contains(t, want[m.Family], in.Folder.Family(), name)
		require.True(t, strings.HasPrefix(in.Lines()[0], "layout: "+in.Folder.Family()), name)
	}
}

// The folders of an actor and its critic, and a head that a configuration names, are OpenRLHF's: each alone.
func TestFamilyOfActorAndCritic(t *testing.T) {
	critic, err := hf.ParseConfig("config.json", []byte(`{"model_type": "other", "value_head_prefix": "score"}`))
	require.NoError(t, err)
	for _, u := range []*Unit{{Dir: "run/_actor"}, {Dir: "run/_actor/global_step1"}, {Dir: "rm", Config: critic}} {
		require.Equal(t, "openrlhf", (&Folder{Units: []*Unit{u}}).Family(), u.Dir)
	}
	require.Empty(t, (&Folder{Units: []*Unit{{Dir: "actor"}}}).Family())
}

// A stack of layers is whole where all of its modules are named; that is a part of the model only where another stack has none of them.
func TestStacksOfLayers(t *testing.T) {
	text := []string{"text.layers.0.q_proj", "text.layers.1.q_proj"}
	vision := []string{"vision.layers.0.q_proj", "vision.layers.1.q_proj"}
	u := &Unit{}
	for _, m := range slices.Concat(text, vision) {
		u.pairs = append(u.pairs, &pair{module: m})
	}
	require.True(t, stacks(u, vision))
	require.False(t, stacks(u, vision[:1]))
	require.False(t, stacks(u, slices.Concat(vision, text[:1])))
	require.False(t, stacks(u, slices.Concat(vision, text)))
}

// Targets that are an expression are matched with every linear layer of the base, and a table of tokens that is named with the tables.
func TestTargetsOfABase(t *testing.T) {
	base := &arch.Model{Name: "base", Config: arch.Config{Type: "llama", Layers: 3, Hidden: 4, Heads: 1, KVHeads: 1, HeadDim: 4, Inner: 8, Vocab: 6}}
	pairOf := func(module string) []safetensors.Tensor {
		x := []float64{1, 2, 3, 4}
		return []safetensors.Tensor{{Name: peftPrefix + module + ".lora_A.weight", DType: format.F32, Shape: []int{1, 4}, Data: x}, {Name: peftPrefix + module + ".lora_B.weight", DType: format.F32, Shape: []int{4, 1}, Data: x}}
	}
	for _, c := range []struct {
		targets string
		layers  int
		want    string
	}{
		{`".*\\.q_proj"`, 3, ""},
		{`".*\\.q_proj"`, 2, "1 of 3 modules that the targets match have no A and B: model.layers.2.self_attn.q_proj"},
		{`["q_proj"]`, 2, "1 of 3 modules that the targets match have no A and B: model.layers.2.self_attn.q_proj"},
		{`["q_proj", "embed_tokens"]`, 3, "1 of 4 modules that the targets match have no A and B: model.embed_tokens"},
		{`["q_proj", "wte"]`, 3, `target "wte" matches no module of llama`},
	} {
		var list []safetensors.Tensor
		for i := range c.layers {
			list = append(list, pairOf(fmt.Sprintf("model.layers.%d.self_attn.q_proj", i))...)
		}
		f, err := NewFolder(memory("adapter", map[string][]byte{"adapter_config.json": fmt.Appendf(nil, `{"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": %s}`, c.targets), "adapter_model.safetensors": pack(t, list)}))
		require.NoError(t, err)
		bad := failures(judge(t, &Input{Folder: f, Model: base}, "adapter/targets"))
		if c.want == "" {
			require.Empty(t, bad, c.targets)
			continue
		}
		require.Len(t, bad, 1, c.targets)
		require.Contains(t, bad[0], c.want)
	}
}

// Rows wider than what is held at a time are compared in parts, and the last element of the last part is looked at.
func TestWideRows(t *testing.T) {
	const n = widest + 3
	vector := func(name string, first, last float64) safetensors.Tensor {
		x := make([]float64, n)
		x[0], x[n-1] = first, last
		return safetensors.Tensor{Name: name, DType: format.F32, Shape: []int{1, n}, Data: x}
	}
	open := func(m *Memory) *Folder {
		f, err := NewFolder(m)
		require.NoError(t, err)
		return f
	}
	model := func(first, last float64) *Folder {
		return open(memory("model", map[string][]byte{"config.json": []byte(`{"model_type": "other"}`), "model.safetensors": pack(t, []safetensors.Tensor{vector("h.0.q_proj.weight", first, last)})}))
	}
	adapter := open(memory("adapter", map[string][]byte{"adapter_config.json": []byte(`{"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"]}`),
		"adapter_model.safetensors": pack(t, []safetensors.Tensor{vector(peftPrefix+"h.0.q_proj.lora_A.weight", 1, 2), {Name: peftPrefix + "h.0.q_proj.lora_B.weight", DType: format.F32, Shape: []int{1, 1}, Data: []float64{3}}})}))
	for last, want := range map[float64]check.Verdict{11: check.Pass, 12: check.Fail} { // 5 + 3·2
		results, err := Suite.Run(&Input{Folder: adapter, Base: model(1, 5), Merged: model(4, last)}, check.Selection{Select: []string{"merge/delta"}})
		require.NoError(t, err)
		require.Equal(t, want, results[0].Verdict)
		if want == check.Fail {
			require.Contains(t, results[0].Where, "[0, 1048578]: got 12, want 5 + 6")
		}
	}
}

// A folder with more files of weights than may be open at a time, and many others beside.
func TestManyFiles(t *testing.T) {
	dir := t.TempDir()
	index := map[string]string{}
	const shards = 3 * maxOpen
	for i := range shards {
		name, tensor := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, shards), fmt.Sprintf("h.%d.weight", i)
		index[tensor] = name
		file := pack(t, []safetensors.Tensor{{Name: tensor, DType: format.F32, Shape: []int{1}, Data: []float64{1}}})
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), file, 0o644))
	}
	text, err := json.Marshal(map[string]any{"weight_map": index})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, indexFile), text, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type": "other"}`), 0o644))
	for i := range 2000 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("log-%d.txt", i)), nil, 0o644))
	}
	in := load(t, Paths{Dir: dir})
	bad := failures(judge(t, in)) // of a model_type that is not known
	require.Len(t, bad, 1)
	require.Contains(t, bad[0], "UNDETERMINED model/tensors")
	require.LessOrEqual(t, len(in.Folder.pool.open), maxOpen)
	require.Len(t, in.Folder.Entries, shards+2002)
}
