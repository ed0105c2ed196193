//go:build unix

package checkpoint

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
)

// faults returns the first explanation of every result of that verdict.
func faults(results []check.Result, verdict check.Verdict) (ids []string) {
	for _, r := range results {
		if r.Verdict == verdict && len(r.Explanations) > 0 {
			ids = append(ids, r.Explanations[0].Fault)
		}
	}
	return ids
}

func judgeFolder(t *testing.T, files map[string][]byte, paths checkpoint.Paths) []check.Result {
	paths.Dir = write(t, t.TempDir(), &checkpoint.Memory{Name: "folder", Files: files})
	return judge(t, load(t, paths))
}

// copyOf reads the files of a stored folder.
func copyOf(t *testing.T, dir string) map[string][]byte {
	files := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		files[e.Name()] = text
	}
	return files
}

// edit changes a document of JSON.
func edit(t *testing.T, files map[string][]byte, name string, change func(o map[string]any)) {
	var o map[string]any
	require.NoError(t, json.Unmarshal(files[name], &o))
	change(o)
	text, err := json.Marshal(o)
	require.NoError(t, err)
	files[name] = text
}

func matrix(name string, value float64, shape ...int) safetensors.Tensor {
	x := safetensors.Tensor{Name: name, DType: format.F32, Shape: shape, Data: make([]float64, shape[0]*shape[1])}
	for i := range x.Data {
		x.Data[i] = value * float64(1+i%7)
	}
	return x
}

// AdaLoRA as PEFT lays it out: A, B and E of every module, as many singular values as rank_pattern leaves.
func TestAdaLoRA(t *testing.T) {
	adapter := func(change func(list []safetensors.Tensor) []safetensors.Tensor, config string) map[string][]byte {
		var list []safetensors.Tensor
		for i, module := range []string{"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"} {
			r, scale := 2+i, float64(1+i)
			list = append(list, matrix(peftPrefix+module+".lora_A", 0.1*scale, r, 8), matrix(peftPrefix+module+".lora_B", 0.2*scale, 8, r), matrix(peftPrefix+module+".lora_E", 0.3*scale, r, 1))
		}
		return map[string][]byte{adapterFile: pack(change(list)), "adapter_config.json": []byte(config)}
	}
	const config = `{"peft_type": "ADALORA", "task_type": "CAUSAL_LM", "init_r": 4, "lora_alpha": 8, "r": 8, "target_modules": ["q_proj"], "bias": "none", "rank_pattern":
		{"model.layers.0.self_attn.q_proj.lora_E": [true, false, true, false], "model.layers.1.self_attn.q_proj.lora_E": [true, true, true, false]}}`
	same := func(list []safetensors.Tensor) []safetensors.Tensor { return list }
	results := judgeFolder(t, adapter(same, config), checkpoint.Paths{})
	require.Empty(t, faults(results, check.Fail))
	require.Empty(t, faults(results, check.Undetermined))
	base := strangers + "/base_llama"
	results = judgeFolder(t, adapter(same, config), checkpoint.Paths{Base: base, Merged: base})
	said := false
	for _, r := range results {
		said = said || r.Verdict == check.Undetermined && strings.Contains(r.Reason, "ADALORA is not merged as base + s·B·A")
	}
	require.True(t, said, "B·diag(E)·A is not judged as B·A")
	for want, files := range map[string]map[string][]byte{
		"RANK-CONFIG": adapter(same, strings.Replace(config, "[true, false, true, false]", "[true, false, false, false]", 1)),
		"RANK-PAIR": adapter(func(list []safetensors.Tensor) []safetensors.Tensor {
			return append(list[:5:5], matrix(list[5].Name, 1, 2, 1))
		}, config),
		"P183": adapter(func(list []safetensors.Tensor) []safetensors.Tensor {
			clear(list[2].Data)
			clear(list[5].Data)
			return list
		}, config),
	} {
		require.Contains(t, faults(judgeFolder(t, files, checkpoint.Paths{}), check.Fail), want)
	}
	without := strings.Split(config, `, "rank_pattern"`)[0] + "}"
	require.Contains(t, faults(judgeFolder(t, adapter(same, without), checkpoint.Paths{}), check.Fail), "RANK-CONFIG", "before any is dropped all have init_r")
}

// The table of a model whose architecture is not known has the rows that its configuration says, and one for every token.
func TestTableOfUnknown(t *testing.T) {
	files := copyOf(t, strangers+"/base_mamba")
	require.Empty(t, faults(judgeFolder(t, files, checkpoint.Paths{}), check.Fail))
	edit(t, files, "config.json", func(o map[string]any) { o["vocab_size"] = o["vocab_size"].(float64) + 32 })
	require.Contains(t, faults(judgeFolder(t, files, checkpoint.Paths{}), check.Fail), "TENSOR-SHAPE")
	files = copyOf(t, strangers+"/base_mamba")
	edit(t, files, "tokenizer.json", func(o map[string]any) {
		added := o["added_tokens"].([]any)
		last := map[string]any{}
		for k, v := range added[len(added)-1].(map[string]any) {
			last[k] = v
		}
		last["id"], last["content"] = 64, "<think>"
		o["added_tokens"] = append(added, last)
	})
	require.Contains(t, faults(judgeFolder(t, files, checkpoint.Paths{}), check.Fail), "ADDED-TOKEN")
}

// Biases that bias=lora_only trains and that equal their start while A and B moved are in no optimiser.
func TestBiasesStandStill(t *testing.T) {
	files := copyOf(t, strangers+"/peft_bias_lora")
	start := copyOf(t, strangers+"/peft_bias_lora")
	list := unpack(start[adapterFile])
	biases := 0
	for _, x := range list {
		if strings.Contains(x.Name, ".lora_") {
			for i := range x.Data {
				x.Data[i] += 0.5
			}
		} else {
			biases++
		}
	}
	require.Positive(t, biases)
	start[adapterFile] = pack(list)
	init := write(t, t.TempDir(), &checkpoint.Memory{Name: "init", Files: start})
	require.Contains(t, faults(judgeFolder(t, files, checkpoint.Paths{Init: init}), check.Fail), "PART-STILL")
	for _, x := range list {
		for i := range x.Data {
			x.Data[i] += 0.25
		}
	}
	start[adapterFile] = pack(list)
	init = write(t, t.TempDir(), &checkpoint.Memory{Name: "init", Files: start})
	require.Empty(t, faults(judgeFolder(t, files, checkpoint.Paths{Init: init}), check.Fail))
}

// What frameworks leave in pickles alone is undetermined and no failure; what they leave out is one.
func TestShardsOfFrameworks(t *testing.T) {
	shard := func(names ...string) []byte {
		var list []member
		for _, n := range names {
			list = append(list, member{n, []int{2, 4}})
		}
		return torchFile(list)
	}
	verl := map[string][]byte{"actor/lora_train_meta.json": []byte(`{"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"}`), "actor/huggingface/config.json": []byte(`{"model_type": "mamba"}`),
		"actor/model_world_size_1_rank_0.pt": shard(peftPrefix+"model.layers.0.self_attn.q_proj.lora_A.default.weight", peftPrefix+"model.layers.0.self_attn.q_proj.base_layer.weight")}
	results := judgeFolder(t, verl, checkpoint.Paths{})
	require.Empty(t, faults(results, check.Fail))
	require.Contains(t, faults(results, check.Undetermined), "PICKLE-ONLY")
	verl["actor/model_world_size_1_rank_0.pt"] = shard("model.layers.0.self_attn.q_proj.weight")
	require.Contains(t, faults(judgeFolder(t, verl, checkpoint.Paths{}), check.Fail), "P076")

	fsdp := map[string][]byte{"config.json": []byte(`{"model_type": "mamba"}`), "pytorch_model_fsdp_0/.metadata": shard("model.norm.weight"), "pytorch_model_fsdp_0/__0_0.distcp": []byte("x")}
	require.Empty(t, faults(judgeFolder(t, fsdp, checkpoint.Paths{}), check.Fail))
	delete(fsdp, "pytorch_model_fsdp_0/.metadata")
	delete(fsdp, "pytorch_model_fsdp_0/__0_0.distcp")
	require.Contains(t, faults(judgeFolder(t, fsdp, checkpoint.Paths{}), check.Fail), "CONFIG-ONLY")

	state := map[string][]byte{"model.safetensors": pack([]safetensors.Tensor{matrix(peftPrefix+"model.layers.0.self_attn.q_proj.lora_A.default.weight", 0.1, 2, 4),
		matrix(peftPrefix+"model.layers.0.self_attn.q_proj.base_layer.weight", 0.1, 4, 4)}), "sampler.bin": torchFile(nil)}
	require.Empty(t, faults(judgeFolder(t, state, checkpoint.Paths{}), check.Fail))
	delete(state, "sampler.bin")
	require.Contains(t, faults(judgeFolder(t, state, checkpoint.Paths{}), check.Fail), "UNMERGED")
}
