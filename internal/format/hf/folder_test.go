package hf

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
)

func TestRead(t *testing.T) {
	f := open(t, sharded(t))
	require.Equal(t, []string{"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"}, f.Names())
	require.Equal(t, []string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}, f.Shards())
	require.Empty(t, f.Notes)
	stored, shard := f.Stored("norm.weight")
	require.Equal(t, "model.norm.weight", stored)
	require.Equal(t, "model-00002-of-00002.safetensors", shard)
	stored, _ = f.Stored("model.absent")
	require.Empty(t, stored)
	v, err := f.Read("lm_head.weight", 1, 2)
	require.NoError(t, err)
	require.Equal(t, []float64{7, 8}, v)

	_, err = f.Read("lm_head.weight", 2, 1)
	refused(t, err, "model-00002-of-00002.safetensors:lm_head.weight: shape (1, 2), want (2, 1)")
	_, err = f.Read("lm_head.weight", 2)
	refused(t, err, "shape (1, 2), want (2,)")
	_, err = f.Read("lm_head.weight")
	refused(t, err, "shape (1, 2), want ()")
	_, err = f.Read("layers.0.mlp.up_proj.weight", 1, 2)
	refused(t, err, f.Path, `tensor "model.layers.0.mlp.up_proj.weight": is missing from the 3 of model-00001-of-00002.safetensors, model-00002-of-00002.safetensors`)
	_, err = f.Shape("model.absent")
	refused(t, err, "is missing")
	_, ok := f.Tensor("model.absent")
	require.False(t, ok)
}

// Names with and without prefix, and whose order is not the order of the file.
func TestPrefixes(t *testing.T) {
	for _, c := range []struct{ config, stored, name string }{
		{gptjConfig, "h.0.attn.q_proj.weight", "transformer.h.0.attn.q_proj.weight"},
		{gptjConfig, "transformer.wte.weight", "transformer.wte.weight"},
		{gptjConfig, "base_model.model.transformer.wte.weight", "transformer.wte.weight"},
		{gptjConfig, "lm_head.bias", "lm_head.bias"},
		{llamaConfig, "layers.0.input_layernorm.weight", "model.layers.0.input_layernorm.weight"},
		{llamaConfig, "_orig_mod.model.norm.weight", "model.norm.weight"},
		{llamaConfig, "module.base_model.model.model.norm.weight", "model.norm.weight"},
		{llamaConfig, "v_head.summary.weight", "v_head.summary.weight"},
		{`{"model_type": "mamba"}`, "layers.0.mixer", "layers.0.mixer"},
	} {
		f := open(t, single(t, c.config, values{c.stored: {1, 2}}))
		require.Equal(t, []string{c.name}, f.Names(), c.stored)
		for _, asked := range []string{c.stored, c.name} {
			v, err := f.Read(asked, 1, 2)
			require.NoError(t, err)
			require.Equal(t, []float64{1, 2}, v)
		}
	}
	// Two stored tensors that are one weight.
	_, err := Open(single(t, llamaConfig, values{"model.norm.weight": {1, 2}, "norm.weight": {3, 4}}))
	refused(t, err, `model.safetensors: tensor "norm.weight": is the same weight as "model.norm.weight" in model.safetensors`)
	_, err = Open(single(t, gptjConfig, values{"module.lm_head.bias": {1, 2}, "lm_head.bias": {1, 2}}))
	refused(t, err, "is the same weight as")
}

// attn.bias is a causal mask in GPT-2 and GPT-J, and may be a weight elsewhere.
func TestIgnored(t *testing.T) {
	v := values{"transformer.h.0.attn.bias": {1, 2}, "h.1.attn.masked_bias": {1, 2}, "transformer.h.0.attn.c_attn.bias": {1, 2}}
	f := open(t, single(t, gptjConfig, v))
	require.Equal(t, []string{"transformer.h.0.attn.c_attn.bias"}, f.Names())
	require.Equal(t, []string{"h.1.attn.masked_bias", "transformer.h.0.attn.bias"}, f.Ignored)
	f = open(t, single(t, `{"model_type": "other"}`, v))
	require.Len(t, f.Names(), 3)
	f = open(t, single(t, llamaConfig, values{"model.layers.0.self_attn.rotary_emb.inv_freq": {1, 2}}))
	require.Empty(t, f.Names())
}

func TestTied(t *testing.T) {
	nan := math.NaN()
	embed := []float64{1, nan, 3, 4, 5, 6}
	for _, c := range []struct {
		name   string
		config string
		v      values
		tie    Tie
		head   []float64 // nil: refused
		embed  []float64
		msg    string
	}{
		{"only the embedding", tiedConfig, values{"model.embed_tokens.weight": embed}, TiedEmbed, embed, embed, ""},
		{"only the head", tiedConfig, values{"lm_head.weight": embed}, TiedHead, embed, embed, ""},
		{"both", tiedConfig, values{"lm_head.weight": embed, "embed_tokens.weight": embed}, TiedEqual, embed, embed, ""},
		{"both and different", tiedConfig, values{"lm_head.weight": {1, nan, 3, 4, 5, 7}, "model.embed_tokens.weight": embed}, TiedDiffer, nil, nil,
			"tie_word_embeddings: is true, but lm_head.weight and model.embed_tokens.weight are both stored and differ"},
		{"both and of different shapes", tiedConfig, values{"lm_head.weight": {1, nan}, "model.embed_tokens.weight": embed}, TiedDiffer, nil, nil, "are both stored and differ"},
		{"neither", tiedConfig, values{"model.norm.weight": embed}, TiedAbsent, nil, nil, "which it is tied to"},
		{"not tied, no head", llamaConfig, values{"model.embed_tokens.weight": embed}, TiedEmbed, nil, embed, `tensor "lm_head.weight": is missing from the 1 of model.safetensors, and tie_word_embeddings is false`},
		{"not tied, both", llamaConfig, values{"lm_head.weight": {1, nan, 3, 4, 5, 7}, "model.embed_tokens.weight": embed}, TiedDiffer, []float64{1, nan, 3, 4, 5, 7}, embed, ""},
		{"not tied, no embedding", llamaConfig, values{"lm_head.weight": embed}, TiedHead, embed, nil, "is missing"},
		{"unknown", `{}`, values{"lm_head.weight": embed}, TiedUnknown, embed, nil, "is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := open(t, single(t, c.config, c.v))
			tie, err := f.Tied()
			require.NoError(t, err)
			require.Equal(t, c.tie, tie)
			for name, want := range map[string][]float64{"lm_head.weight": c.head, "model.embed_tokens.weight": c.embed} {
				got, err := f.Read(name, 3, 2)
				if want == nil {
					refused(t, err, c.msg)
					continue
				}
				require.NoError(t, err)
				require.Equal(t, fmt.Sprint(want), fmt.Sprint(got), name)
			}
		})
	}
	// A difference in the last of many elements is found.
	a, b := make([]float64, 10_000), make([]float64, 10_000)
	b[9_999] = 1
	f := open(t, single(t, tiedConfig, values{"lm_head.weight": a, "model.embed_tokens.weight": b}))
	tie, err := f.Tied()
	require.NoError(t, err)
	require.Equal(t, TiedDiffer, tie)
}

func TestVariants(t *testing.T) {
	dir := t.TempDir()
	file(t, dir, "config.json", llamaConfig)
	write(t, dir, "model.fp16.safetensors", values{"lm_head.weight": {1, 2}})
	write(t, dir, "model.x-00001-of-00001.safetensors", values{"lm_head.weight": {3, 4}})
	file(t, dir, "model.safetensors.index.x.json", index(t, map[string]string{"lm_head.weight": "model.x-00001-of-00001.safetensors"}, nil))
	for variant, want := range map[string]float64{"fp16": 1, "x": 3} {
		f, err := OpenVariant(dir, variant)
		require.NoError(t, err)
		v, err := f.Read("lm_head.weight", 1, 2)
		require.NoError(t, err)
		require.Equal(t, want, v[0])
		require.NoError(t, f.Close())
	}
	_, err := Open(dir)
	refused(t, err, "holds neither model.safetensors nor its index, but model.fp16.safetensors, model.safetensors.index.x.json, model.x-00001")
	_, err = OpenVariant(dir, "../x")
	refused(t, err, `variant "../x" is no part of a file name`)
	_, err = OpenVariant(dir, "bf16")
	refused(t, err, "holds neither model.bf16.safetensors")
	// With a single file and an index, the file counts.
	write(t, dir, "model.safetensors", values{"lm_head.weight": {5, 6}})
	file(t, dir, "model.safetensors.index.json", "nonsense")
	f := open(t, dir)
	require.Len(t, f.Notes, 1)
	require.Contains(t, f.Notes[0], "model.safetensors.index.json is not read")
}

func TestNotes(t *testing.T) {
	dir := sharded(t)
	write(t, dir, "model-00001-of-00003.safetensors", values{"x": {1, 2}})
	write(t, dir, "optimizer.safetensors", values{"x": {1, 2}})
	file(t, dir, "model.safetensors.index.json", index(t, map[string]string{
		"model.embed_tokens.weight": "model-00001-of-00002.safetensors",
		"lm_head.weight":            "model-00002-of-00002.safetensors",
		"model.norm.weight":         "model-00002-of-00002.safetensors",
	}, 41.5))
	f := open(t, dir)
	require.Len(t, f.Notes, 2)
	require.Contains(t, f.Notes[0], "metadata.total_size is 41, the tensors of the shards have 40 bytes")
	require.Contains(t, f.Notes[1], "model-00001-of-00003.safetensors is not in the weight_map")
}

func TestGeneration(t *testing.T) {
	dir := single(t, llamaConfig, values{"lm_head.weight": {1, 2}})
	require.Nil(t, open(t, dir).Generation)
	file(t, dir, "generation_config.json", `{"eos_token_id": [2, 7], "do_sample": true, "temperature": 0.6, "top_p": 0.9, "pad_token_id": 0}`)
	g := open(t, dir).Generation
	g.Object = nil
	require.Equal(t, &Generation{BOS: -1, PAD: 0, EOS: []int{2, 7}, DoSample: true, Temperature: 0.6, TopK: 50, TopP: 0.9, RepetitionPenalty: 1, MaxLength: 20}, g)
	file(t, dir, "generation_config.json", `{"top_p": 2}`)
	_, err := Open(dir)
	refused(t, err, "generation_config.json: top_p: is 2, want a number in [0, 1]")
	file(t, dir, "generation_config.json", `[]`)
	_, err = Open(dir)
	refused(t, err, "generation_config.json", "found an array")
}

func TestBytes(t *testing.T) {
	dir := single(t, llamaConfig, values{"lm_head.weight": {1, 2}})
	file(t, dir, "tokenizer.json", "{}")
	f := open(t, dir)
	require.True(t, f.Has("tokenizer.json"))
	b, err := f.Bytes("tokenizer.json", 2)
	require.NoError(t, err)
	require.Equal(t, "{}", string(b))
	_, err = f.Bytes("tokenizer.json", 1)
	refused(t, err, "want at most 1")
	_, err = f.Bytes("../x", 1)
	refused(t, err, "escapes")
	_, err = f.Bytes("absent", 1)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// The parts of the fingerprint by hand, and that a change of each part changes it.
func TestFingerprint(t *testing.T) {
	dir := single(t, llamaConfig, values{"lm_head.weight": {1, 2}})
	b, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
	require.NoError(t, err)
	size := []byte{byte(len(b)), 0, 0, 0, 0, 0, 0, 0}
	sum := sha256.Sum256(append(append(append(size, b[8:len(b)-8]...), b[len(b)-8:]...), b[len(b)-8:]...))
	got, err := open(t, dir).Fingerprint()
	require.NoError(t, err)
	require.Equal(t, hex.EncodeToString(sum[:]), got)

	seen := map[string]bool{got: true}
	big := make([]float64, 1<<19+2)
	for i := range 3 {
		v := append([]float64(nil), big...)
		if i > 0 {
			v[[]int{0, 0, len(v) - 1}[i]] = 1
		}
		write(t, dir, "model.safetensors", values{"lm_head.weight": v})
		got, err := open(t, dir).Fingerprint()
		require.NoError(t, err)
		require.False(t, seen[got])
		seen[got] = true
	}
	two, err := open(t, sharded(t)).Fingerprint()
	require.NoError(t, err)
	require.False(t, seen[two])
}

func TestConcurrent(t *testing.T) {
	f := open(t, sharded(t))
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for _, n := range f.Names() {
				s, _ := f.Shape(n)
				if _, err := f.Read(n, s...); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
}

// An int8 weight whose parts do not fit is refused.
func TestInt8Refused(t *testing.T) {
	sound := func() []safetensors.Tensor {
		return []safetensors.Tensor{
			{Name: "lm_head.weight", DType: format.I8, Shape: []int{2, 2}, Raw: []byte{1, 0xff, 0, 0}},
			{Name: "lm_head.SCB", DType: format.F32, Shape: []int{2}, Data: []float64{0.5, 0}},
			{Name: "lm_head.weight_format", DType: format.U8, Raw: []byte{0}},
		}
	}
	read := func(list []safetensors.Tensor) (*Int8, error) {
		dir := t.TempDir()
		file(t, dir, "config.json", llamaConfig)
		require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), nil, list))
		return open(t, dir).Int8("lm_head.weight", 2, 2)
	}
	want := &Int8{Out: 2, In: 2, Codes: []int8{1, -1, 0, 0}, AbsMax: []float64{0.5, 0}}
	q, err := read(sound())
	require.NoError(t, err)
	require.Equal(t, want, q)
	q, err = read(sound()[:2])
	require.NoError(t, err, "without weight_format the layout is rows")
	require.Equal(t, want, q)
	for _, c := range []struct {
		plant func(l []safetensors.Tensor) []safetensors.Tensor
		want  string
	}{
		{func(l []safetensors.Tensor) []safetensors.Tensor { return l[:1] }, `tensor "lm_head.SCB": is missing`},
		{func(l []safetensors.Tensor) []safetensors.Tensor { l[2].Raw[0] = 2; return l }, "lm_head.weight_format: is [2], want 0: rows"},
		{func(l []safetensors.Tensor) []safetensors.Tensor {
			l[1].Shape, l[1].Data = []int{1}, l[1].Data[:1]
			return l
		}, "lm_head.SCB: F32 (1,), want F32 (2,)"},
		{func(l []safetensors.Tensor) []safetensors.Tensor { l[1].DType = format.F16; return l }, "lm_head.SCB: F16 (2,), want F32 (2,)"},
		{func(l []safetensors.Tensor) []safetensors.Tensor { l[1].Data[1] = math.NaN(); return l }, "lm_head.SCB: element 1: is NaN"},
		{func(l []safetensors.Tensor) []safetensors.Tensor { l[1].Data[0] = math.Inf(1); return l }, "element 0: is +Inf"},
		{func(l []safetensors.Tensor) []safetensors.Tensor { l[1].Data[0] = -1; return l }, "element 0: is -1"},
		{func(l []safetensors.Tensor) []safetensors.Tensor { l[1].Data[0] = 0; return l }, "element 0: is 0"},
		{func(l []safetensors.Tensor) []safetensors.Tensor { l[0].DType = format.U8; return l }, "lm_head.weight: U8 (2, 2), want I8 (2, 2)"},
	} {
		_, err := read(c.plant(sound()))
		refused(t, err, c.want)
	}
}

// Stored returns the name that the weight called name has in its file, and the file; both are "" if it is not stored.
func (f *Folder) Stored(name string) (stored, shard string) {
	if w := f.find(name); w != nil {
		return w.stored, f.shards[w.shard].name
	}
	return "", ""
}

// Shape returns the shape of the weight called name; that of a tied head that is not stored is the embedding's.
func (f *Folder) Shape(name string) ([]int, error) {
	a, err := f.weight(name)
	if err != nil {
		return nil, err
	}
	return a.Shape, nil
}
