// Package checkpoint plants bugs in folders of weights: tiny folders in memory in the layouts of every framework, as correct
// programs leave them, and the faults of the checks of plumbline/verify/checkpoint planted in them.
package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"path"
	"slices"
	"strings"

	"plumbline/internal/arch"
	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/verify/checkpoint"
)

// scene is the folders of one input, in memory, as correct programs leave them: what faults are planted in and false
// alarms are counted on.
type scene struct {
	r                                *rand.Rand
	model                            *model
	lora                             loraShape
	dir, base, init, merged, against *tree
	size                             checkpoint.Size
	max                              int64
	needs                            []string
	stated                           *model
}

// model is an architecture that files are drawn for.
type model struct{ arch.Model }

// tree is a folder in memory whose files are edited.
type tree struct{ checkpoint.Memory }

// What PEFT and transformers write.
const (
	peftPrefix = "base_model.model." // in front of the names of the base
	indexFile  = "model.safetensors.index.json"
)

// loraShape is what an adapter of a scene is made with.
type loraShape struct {
	r       int
	alpha   float64
	rs      bool
	targets []string
	dtype   format.DType
}

// input opens the folders.
func (s *scene) input() *checkpoint.Input {
	open := func(m *tree) *checkpoint.Folder {
		if m == nil {
			return nil
		}
		f, err := checkpoint.NewFolder(&m.Memory)
		if err != nil {
			panic("checkpoint: " + err.Error()) // faults are planted in memory
		}
		return f
	}
	var stated *arch.Model
	if s.stated != nil {
		stated = &s.stated.Model
	}
	return &checkpoint.Input{Folder: open(s.dir), Base: open(s.base), Init: open(s.init), Merged: open(s.merged), Against: open(s.against), Size: s.size, MaxSize: s.max, Needs: s.needs, Model: stated}
}

// tiny is a model with all that a model of its type has, in a few thousand numbers.
func tiny(kind string, r *rand.Rand) *model {
	m := &model{arch.Model{Name: "tiny", Config: arch.Config{Type: kind, Layers: 2 + r.IntN(2), Hidden: 16, Heads: 2, KVHeads: 2, HeadDim: 8, Inner: 24, Vocab: 40}}}
	switch kind {
	case "gpt2":
		m.Positions, m.Tied, m.QKVBias, m.OutputBias, m.MLPBias = 12, true, true, true, true
	case "gptj":
		m.MLPBias, m.HeadBias = true, true
	case "llama":
		m.KVHeads, m.Tied = 1, true
	case "qwen2":
		m.KVHeads, m.QKVBias = 1, true
	}
	return m
}

// configJSON is the config.json of a model.
func (m *model) configJSON(dtype string) []byte {
	c := map[string]any{"model_type": m.Type, "vocab_size": m.Vocab, "tie_word_embeddings": m.Tied, "torch_dtype": dtype, "_name_or_path": "lab/tiny"}
	switch m.Type {
	case "gpt2", "gptj":
		c["n_embd"], c["n_layer"], c["n_head"], c["n_inner"], c["n_positions"] = m.Hidden, m.Layers, m.Heads, m.Inner, 12
		c["architectures"] = []string{"GPT2LMHeadModel"}
		if m.Type == "gptj" {
			c["architectures"], c["rotary_dim"] = []string{"GPTJForCausalLM"}, 4
		}
	default:
		c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"], c["num_key_value_heads"] = m.Hidden, m.Layers, m.Heads, m.KVHeads
		c["intermediate_size"], c["head_dim"], c["max_position_embeddings"], c["rms_norm_eps"] = m.Inner, m.HeadDim, 64, 1e-6
		c["architectures"] = []string{map[string]string{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[m.Type]}
	}
	return toJSON(c)
}

func toJSON(v any) []byte {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic("checkpoint: " + err.Error())
	}
	return text
}

// weights draws the tensors of a whole model.
func (m *model) weights(r *rand.Rand, dtype format.DType) []safetensors.Tensor {
	var list []safetensors.Tensor
	for _, x := range m.Tensors() {
		list = append(list, safetensors.Tensor{Name: x.Name, DType: dtype, Shape: x.Shape, Data: normal(r, x.Shape, 0.3)})
	}
	return rounded(list)
}

func normal(r *rand.Rand, shape []int, size float64) []float64 {
	x := make([]float64, format.Elements(shape))
	for i := range x {
		x[i] = size * r.NormFloat64()
	}
	return x
}

// rounded rounds the elements to their types, as a file does.
func rounded(list []safetensors.Tensor) []safetensors.Tensor {
	for _, t := range list {
		for i, v := range t.Data {
			t.Data[i] = format.Round(v, t.DType)
		}
	}
	return list
}

func pack(list []safetensors.Tensor) []byte {
	var b bytes.Buffer
	if err := safetensors.Write(&b, map[string]string{"format": "pt"}, list); err != nil {
		panic("checkpoint: " + err.Error())
	}
	return b.Bytes()
}

// unpack reads a file that pack wrote: floating-point tensors as Data, others as Raw.
func unpack(text []byte) []safetensors.Tensor {
	f, err := safetensors.ParseAt(bytes.NewReader(text), int64(len(text)), "memory")
	if err != nil {
		panic("checkpoint: " + err.Error())
	}
	var list []safetensors.Tensor
	for n, a := range f.Tensors() {
		t := safetensors.Tensor{Name: n, DType: a.DType, Shape: a.Shape}
		if a.DType.Float() {
			if t.Data, err = a.Float64s(); err != nil {
				panic("checkpoint: " + err.Error())
			}
		} else {
			t.Raw = text[a.Offset : a.Offset+a.Bytes()]
		}
		list = append(list, t)
	}
	return list
}

// adapter draws a trained adapter of PEFT.
func (s *scene) adapter(trained bool) []safetensors.Tensor {
	var list []safetensors.Tensor
	l := s.lora
	for _, x := range s.model.Linears() {
		if !slices.Contains(l.targets, x.Last()) {
			continue
		}
		key := peftPrefix + x.Name
		b := make([]float64, x.Out*l.r)
		if trained {
			b = normal(s.r, []int{x.Out, l.r}, 0.05)
		}
		list = append(list,
			safetensors.Tensor{Name: key + ".lora_A.weight", DType: l.dtype, Shape: []int{l.r, x.In}, Data: normal(s.r, []int{l.r, x.In}, 0.2)},
			safetensors.Tensor{Name: key + ".lora_B.weight", DType: l.dtype, Shape: []int{x.Out, l.r}, Data: b})
	}
	return rounded(list)
}

func (s *scene) adapterJSON() []byte {
	return toJSON(map[string]any{"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": s.lora.r, "lora_alpha": s.lora.alpha, "use_rslora": s.lora.rs, "target_modules": s.lora.targets,
		"fan_in_fan_out": s.model.Type == "gpt2", "bias": "none", "base_model_name_or_path": "lab/tiny", "rank_pattern": map[string]int{}, "alpha_pattern": map[string]float64{}, "inference_mode": true})
}

func (m *model) tokenizerJSON() []byte {
	vocab := map[string]int{}
	for i := range m.Vocab - 4 {
		vocab[fmt.Sprintf("t%d", i)] = i
	}
	return toJSON(map[string]any{"version": "1.0", "model": map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}}, "added_tokens": []map[string]any{{"id": m.Vocab - 4, "content": "<eos>"}}})
}

// peftFolder is what PeftModel.save_pretrained writes.
func (s *scene) peftFolder(tensors []safetensors.Tensor) map[string][]byte {
	return map[string][]byte{"adapter_config.json": s.adapterJSON(), "adapter_model.safetensors": pack(tensors), "README.md": []byte("---\nbase_model: lab/tiny\n---\n")}
}

// modelFolder is what PreTrainedModel.save_pretrained and the tokenizer's write, in one file or in shards.
func (m *model) modelFolder(list []safetensors.Tensor, shards int) map[string][]byte {
	name := map[format.DType]string{format.F32: "float32", format.F16: "float16", format.BF16: "bfloat16"}[list[0].DType]
	files := map[string][]byte{"config.json": m.configJSON(name), "generation_config.json": fmt.Appendf(nil, `{"eos_token_id": %d}`, m.Vocab-4), "tokenizer.json": m.tokenizerJSON(),
		"tokenizer_config.json": []byte(`{"eos_token": "<eos>"}`)}
	if shards == 1 {
		files["model.safetensors"] = pack(list)
		return files
	}
	index, total := map[string]string{}, int64(0)
	for i := range shards {
		part := list[i*len(list)/shards : (i+1)*len(list)/shards]
		shard := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, shards)
		files[shard] = pack(part)
		for _, t := range part {
			index[t.Name] = shard
			total += int64(format.Elements(t.Shape) * t.DType.Size())
		}
	}
	files[indexFile] = toJSON(map[string]any{"metadata": map[string]any{"total_size": total}, "weight_map": index})
	return files
}

// merge adds s·B·A to the weights, in float32 and rounded once to their type, as PEFT does.
func (s *scene) merge(weights, adapter []safetensors.Tensor, scaling float64) []safetensors.Tensor {
	out := make([]safetensors.Tensor, len(weights))
	for i, w := range weights {
		w.Data = slices.Clone(w.Data)
		out[i] = w
		key := peftPrefix + strings.TrimSuffix(w.Name, ".weight")
		a, b := find(adapter, key+".lora_A.weight"), find(adapter, key+".lora_B.weight")
		if a == nil || b == nil {
			continue
		}
		r, in, rows := a.Shape[0], a.Shape[1], b.Shape[0]
		for i := range rows {
			for j := range in {
				var d float32
				for k := range r {
					d += float32(b.Data[i*r+k]) * float32(a.Data[k*in+j])
				}
				at := i*in + j
				if s.model.Type == "gpt2" {
					at = j*rows + i
				}
				w.Data[at] = format.Round(float64(float32(w.Data[at])+d*float32(scaling)), w.DType)
			}
		}
	}
	return out
}

func find(list []safetensors.Tensor, name string) *safetensors.Tensor {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}

func (s *scene) scaling() float64 {
	if s.lora.rs {
		return s.lora.alpha / math.Sqrt(float64(s.lora.r))
	}
	return s.lora.alpha / float64(s.lora.r)
}

// quantised is what bitsandbytes makes of the linear layers: codes, absmax and format.
func (s *scene) quantised(weights []safetensors.Tensor) []safetensors.Tensor {
	linear := map[string]bool{}
	for _, l := range s.model.Linears() {
		if l.Layer >= 0 {
			linear[l.Name+".weight"] = true
		}
	}
	var out []safetensors.Tensor
	for _, w := range weights {
		if !linear[w.Name] {
			out = append(out, w)
			continue
		}
		rows, cols := w.Shape[0], w.Shape[1]
		codes, scb := make([]byte, rows*cols), make([]float64, rows)
		for i := range rows {
			for j := range cols {
				scb[i] = max(scb[i], math.Abs(format.Round(w.Data[i*cols+j], format.F16)))
			}
			for j := range cols {
				codes[i*cols+j] = byte(int8(math.RoundToEven(format.Round(w.Data[i*cols+j], format.F16) * 127 / scb[i])))
			}
		}
		name := strings.TrimSuffix(w.Name, ".weight")
		out = append(out, safetensors.Tensor{Name: w.Name, DType: format.I8, Shape: w.Shape, Raw: codes},
			safetensors.Tensor{Name: name + ".SCB", DType: format.F32, Shape: []int{rows}, Data: scb},
			safetensors.Tensor{Name: name + ".weight_format", DType: format.U8, Shape: []int{}, Raw: []byte{0}})
	}
	return out
}

// edit changes the tensors of a file.
func (m *tree) edit(file string, change func(list []safetensors.Tensor) []safetensors.Tensor) {
	m.Files[file] = pack(change(unpack(m.Files[file])))
}

// tensors changes every tensor of a file.
func (m *tree) tensors(file string, change func(t *safetensors.Tensor)) {
	m.edit(file, func(list []safetensors.Tensor) []safetensors.Tensor {
		for i := range list {
			change(&list[i])
		}
		return list
	})
}

// tensor changes the one tensor of a file whose name ends so.
func (m *tree) tensor(file, end string, change func(t *safetensors.Tensor)) {
	m.edit(file, func(list []safetensors.Tensor) []safetensors.Tensor {
		for i := range list {
			if strings.HasSuffix(list[i].Name, end) {
				change(&list[i])
				return list
			}
		}
		panic("checkpoint: no tensor ends in " + end)
	})
}

// editJSON changes the members of a JSON file.
func (m *tree) editJSON(file string, change func(o map[string]any)) {
	var o map[string]any
	if err := json.Unmarshal(m.Files[file], &o); err != nil {
		panic("checkpoint: " + err.Error())
	}
	change(o)
	m.Files[file] = toJSON(o)
}

// below returns files as those of the directory dir.
func below(dir string, files map[string][]byte) map[string][]byte {
	out := map[string][]byte{}
	for n, text := range files {
		out[path.Join(dir, n)] = text
	}
	return out
}

func memory(name string, sets ...map[string][]byte) *tree {
	m := &tree{checkpoint.Memory{Name: name, Files: map[string][]byte{}, Links: map[string]error{}}}
	for _, s := range sets {
		maps.Copy(m.Files, s)
	}
	return m
}

// seal writes the MANIFEST.json of a directory.
func (m *tree) seal(dir string, step int, fingerprint string) {
	files := map[string]any{}
	for n, text := range m.Files {
		if path.Dir(n) == dir && path.Base(n) != "MANIFEST.json" {
			sum := sha256.Sum256(text)
			files[path.Base(n)] = map[string]any{"size": len(text), "sha256": hex.EncodeToString(sum[:])}
		}
	}
	m.Files[path.Join(dir, "MANIFEST.json")] = toJSON(map[string]any{"schema": 1, "files": files, "step": step, "base_fingerprint": fingerprint})
}
