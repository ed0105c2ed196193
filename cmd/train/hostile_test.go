//go:build unix

package main

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
)

// tensors reads those of a safetensors file into memory.
func tensors(t testing.TB, path string) []safetensors.Tensor {
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	defer f.Close()
	var list []safetensors.Tensor
	for name, a := range f.Tensors() {
		data, err := a.Float64s()
		require.NoError(t, err)
		list = append(list, safetensors.Tensor{Name: name, DType: a.DType, Shape: a.Shape, Data: data})
	}
	return list
}

// rewrite changes the tensors of a safetensors file.
func rewrite(t testing.TB, path string, change func(list []safetensors.Tensor) []safetensors.Tensor) {
	require.NoError(t, safetensors.WriteFile(path, map[string]string{"format": "pt"}, change(tensors(t, path))))
}

// edit changes the one tensor whose name ends in suffix.
func edit(suffix string, change func(x *safetensors.Tensor)) func(t testing.TB, path string) {
	return func(t testing.TB, path string) {
		rewrite(t, path, func(list []safetensors.Tensor) []safetensors.Tensor {
			i := slices.IndexFunc(list, func(x safetensors.Tensor) bool { return strings.HasSuffix(x.Name, suffix) })
			require.GreaterOrEqual(t, i, 0, suffix)
			change(&list[i])
			return list
		})
	}
}

// replace changes the text of a file, where old must be.
func replace(t testing.TB, path, old, new string) {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(b), old)
	write(t, path, strings.Replace(string(b), old, new, 1))
}

// split turns a folder's weights into two shards with an index.
func split(t testing.TB, dir string) {
	list := tensors(t, filepath.Join(dir, "model.safetensors"))
	require.NoError(t, os.Remove(filepath.Join(dir, "model.safetensors")))
	var index strings.Builder
	for i, part := range [][]safetensors.Tensor{list[:4], list[4:]} {
		name := "model-0000" + string('1'+rune(i)) + "-of-00002.safetensors"
		require.NoError(t, safetensors.WriteFile(filepath.Join(dir, name), nil, part))
		for _, x := range part {
			index.WriteString(`,"` + x.Name + `":"` + name + `"`)
		}
	}
	write(t, filepath.Join(dir, "model.safetensors.index.json"), `{"metadata":{},"weight_map":{`+index.String()[1:]+`}}`)
}

const second = "model-00002-of-00002.safetensors"

// hostileModels are folders that must be refused with exit code 4: how a healthy one is broken, and a part of the message.
var hostileModels = []struct {
	name  string
	spoil func(t testing.TB, dir string)
	says  []string
}{
	{"unsupported architecture", func(t testing.TB, dir string) { replace(t, dir+"/config.json", `"llama"`, `"mamba2"`) },
		[]string{`config.json: model_type: "mamba2" is not a supported architecture, want one of gpt2, gptj, llama, qwen2`}},
	{"weights that are a link in a circle", func(t testing.TB, dir string) {
		require.NoError(t, os.Remove(dir+"/model.safetensors"))
		require.NoError(t, os.Symlink("model.safetensors", dir+"/model.safetensors"))
	}, []string{"/model.safetensors: is a symbolic link that leads back to itself"}},
	{"weights that are a link to nowhere", func(t testing.TB, dir string) {
		require.NoError(t, os.Remove(dir+"/model.safetensors"))
		require.NoError(t, os.Symlink("blob", dir+"/model.safetensors"))
	}, []string{"/model.safetensors: is a symbolic link that leads nowhere"}},
	{"no architecture", func(t testing.TB, dir string) { replace(t, dir+"/config.json", `"model_type"`, `"modeltype"`) }, []string{"model_type: is missing"}},
	{"a classifier", func(t testing.TB, dir string) {
		replace(t, dir+"/config.json", "LlamaForCausalLM", "LlamaForSequenceClassification")
	}, []string{"architectures", "want a language model"}},
	{"config no JSON", func(t testing.TB, dir string) { write(t, dir+"/config.json", "model_type: llama") }, []string{"config.json: byte 0"}},
	{"config of 2 MB", func(t testing.TB, dir string) { write(t, dir+"/config.json", strings.Repeat(" ", 2<<20)+"{}") }, []string{"config.json: has 2097154 bytes"}},
	{"config with a key twice", func(t testing.TB, dir string) {
		replace(t, dir+"/config.json", `"vocab_size"`, `"hidden_size": 8, "vocab_size"`)
	},
		[]string{`duplicate key "hidden_size"`}},
	{"config without a size", func(t testing.TB, dir string) { replace(t, dir+"/config.json", `"hidden_size"`, `"hidden"`) }, []string{"hidden_size: is missing"}},
	{"config of a huge model", func(t testing.TB, dir string) {
		replace(t, dir+"/config.json", `"hidden_size": 16`, `"hidden_size": 16777216`)
		replace(t, dir+"/config.json", `"intermediate_size": 24`, `"intermediate_size": 16777216`)
	}, []string{"want (29, 16777216)"}},
	{"4 bits", func(t testing.TB, dir string) {
		replace(t, dir+"/config.json", `"vocab_size"`, `"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}, "vocab_size"`)
	}, []string{"quantization_config"}},
	{"GPTQ", func(t testing.TB, dir string) {
		replace(t, dir+"/config.json", `"vocab_size"`, `"quantization_config": {"quant_method": "gptq"}, "vocab_size"`)
	}, []string{`quantization_config: quant_method "gptq"`}},
	{"rotary of no defined value", func(t testing.TB, dir string) {
		replace(t, dir+"/config.json", `"rope_type": "default"`, `"rope_type": "dynamic", "factor": 2.0`)
	}, []string{`rope_type "dynamic" is not one of default, linear, llama3, yarn`}},
	{"unknown activation", func(t testing.TB, dir string) { replace(t, dir+"/config.json", `"silu"`, `"swoosh"`) }, []string{"swoosh"}},

	{"no weights", func(t testing.TB, dir string) { require.NoError(t, os.Remove(dir+"/model.safetensors")) }, []string{"holds no weights"}},
	{"pickled weights", func(t testing.TB, dir string) {
		require.NoError(t, os.Rename(dir+"/model.safetensors", dir+"/pytorch_model.bin"))
	}, []string{"is a pickle", "python -c", "weights_only=True"}},
	{"weights cut", func(t testing.TB, dir string) { require.NoError(t, os.Truncate(dir+"/model.safetensors", 9000)) }, []string{"model.safetensors"}},
	{"weights empty", func(t testing.TB, dir string) { require.NoError(t, os.Truncate(dir+"/model.safetensors", 0)) }, []string{"has 0 bytes"}},
	{"header of 2^63 bytes", func(t testing.TB, dir string) {
		write(t, dir+"/model.safetensors", "\x00\x00\x00\x00\x00\x00\x00\x80{}")
	}, []string{"header length 9223372036854775808"}},
	{"weights a FIFO", func(t testing.TB, dir string) {
		require.NoError(t, os.Remove(dir+"/model.safetensors"))
		require.NoError(t, syscall.Mkfifo(dir+"/model.safetensors", 0o644))
	}, []string{"is a FIFO"}},
	{"weights /dev/zero", func(t testing.TB, dir string) {
		require.NoError(t, os.Remove(dir+"/model.safetensors"))
		require.NoError(t, os.Symlink("/dev/zero", dir+"/model.safetensors"))
	}, []string{"path escapes"}},
	{"missing tensor", func(t testing.TB, dir string) {
		rewrite(t, dir+"/model.safetensors", func(l []safetensors.Tensor) []safetensors.Tensor {
			return slices.DeleteFunc(l, func(x safetensors.Tensor) bool { return x.Name == "model.layers.1.mlp.up_proj.weight" })
		})
	}, []string{`tensor "model.layers.1.mlp.up_proj.weight": is missing`}},
	{"head missing", func(t testing.TB, dir string) {
		rewrite(t, dir+"/model.safetensors", func(l []safetensors.Tensor) []safetensors.Tensor {
			return slices.DeleteFunc(l, func(x safetensors.Tensor) bool { return x.Name == "lm_head.weight" })
		})
	}, []string{`tensor "lm_head.weight": is missing`, "tie_word_embeddings is false"}},
	{"head tied and different", func(t testing.TB, dir string) {
		replace(t, dir+"/config.json", `"tie_word_embeddings": false`, `"tie_word_embeddings": true`)
	}, []string{"tie_word_embeddings", "differ"}},
	{"transposed tensor", onWeights(edit("0.mlp.up_proj.weight", func(x *safetensors.Tensor) { slices.Reverse(x.Shape) })),
		[]string{"model.safetensors:model.layers.0.mlp.up_proj.weight", "shape (16, 24), want (24, 16)"}},
	{"embedding too short", onWeights(edit("embed_tokens.weight", func(x *safetensors.Tensor) { x.Shape, x.Data = []int{28, 16}, x.Data[:28*16] })),
		[]string{"embed_tokens.weight", "shape (28, 16), want (29, 16)"}},
	{"zero-length tensor", onWeights(edit("0.mlp.up_proj.weight", func(x *safetensors.Tensor) { x.Shape, x.Data = []int{0}, nil })),
		[]string{"up_proj.weight", "shape (0,), want (24, 16)"}},
	{"NaN", onWeights(edit("1.mlp.up_proj.weight", func(x *safetensors.Tensor) { x.Data[7] = math.NaN() })),
		[]string{`tensor "model.layers.1.mlp.up_proj.weight": element 7 is NaN, want finite weights`}},
	{"infinite", onWeights(edit("model.norm.weight", func(x *safetensors.Tensor) { x.Data[15] = math.Inf(-1) })),
		[]string{`tensor "model.norm.weight": element 15 is -Inf`}},
	{"integers", onWeights(edit("0.mlp.up_proj.weight", func(x *safetensors.Tensor) { x.DType, x.Data = format.I64, make([]float64, len(x.Data)) })),
		[]string{"up_proj.weight", "element type I64"}},
	{"a layer too many", func(t testing.TB, dir string) {
		replace(t, dir+"/config.json", `"num_hidden_layers": 2`, `"num_hidden_layers": 1`)
	},
		[]string{`"model.layers.1.`, "is stored, but", "1 layers"}},
	{"biases that are not read", onWeights(func(t testing.TB, path string) {
		rewrite(t, path, func(l []safetensors.Tensor) []safetensors.Tensor {
			return append(l, safetensors.Tensor{Name: "model.layers.0.self_attn.q_proj.bias", DType: format.F32, Shape: []int{1}, Data: []float64{1}})
		})
	}), []string{`"model.layers.0.self_attn.q_proj.bias"`, "is stored, but"}},

	{"missing shard", func(t testing.TB, dir string) {
		split(t, dir)
		require.NoError(t, os.Remove(filepath.Join(dir, second)))
	},
		[]string{`weight_map: shard "` + second + `" is missing`}},
	{"shard outside", func(t testing.TB, dir string) {
		split(t, dir)
		replace(t, dir+"/model.safetensors.index.json", `"`+second, `"../`+second)
	}, []string{`shard "../` + second + `"`, "is not the name of a safetensors file in the folder"}},
	{"shard absolute", func(t testing.TB, dir string) {
		split(t, dir)
		replace(t, dir+"/model.safetensors.index.json", `"`+second, `"/etc/`+second)
	}, []string{"is not the name of a safetensors file in the folder"}},
	{"shard a link outside", func(t testing.TB, dir string) {
		split(t, dir)
		out := filepath.Join(t.TempDir(), "x")
		require.NoError(t, os.Rename(filepath.Join(dir, second), out))
		require.NoError(t, os.Symlink(out, filepath.Join(dir, second)))
	}, []string{"path escapes"}},
	{"shard a pickle", func(t testing.TB, dir string) {
		split(t, dir)
		replace(t, dir+"/model.safetensors.index.json", second, "pytorch_model-00002.bin")
	}, []string{"is a pickle and is never loaded"}},
	{"tensor in the other shard", func(t testing.TB, dir string) {
		split(t, dir)
		replace(t, dir+"/model.safetensors.index.json", second, "model-00001-of-00002.safetensors")
	}, []string{"weight_map, tensor", "is in"}},
	{"index of brackets", func(t testing.TB, dir string) {
		split(t, dir)
		write(t, dir+"/model.safetensors.index.json", strings.Repeat("[", 1<<20))
	}, []string{"want an object"}},

	{"no tokenizer", func(t testing.TB, dir string) { require.NoError(t, os.Remove(dir+"/tokenizer.json")) }, []string{"has no tokenizer.json"}},
	{"tokenizer of a larger model", func(t testing.TB, dir string) {
		copyFile(t, "../../golden/tokenizer/gpt2.json", dir+"/tokenizer.json")
	}, []string{"tokenizer", "29"}},
	{"end of text unknown", func(t testing.TB, dir string) { write(t, dir+"/tokenizer_config.json", `{"eos_token": "</s>"}`) },
		[]string{`eos_token: is "</s>", which tokenizer.json does not have: the tokenizer is another model's`}},
	{"end of text beyond the tokenizer", func(t testing.TB, dir string) {
		replace(t, dir+"/config.json", `"eos_token_id": 0`, `"eos_token_id": [0, 31]`)
	}, []string{"eos_token_id: is 31, which the tokenizer does not have"}},
	{"merge of an unknown token", func(t testing.TB, dir string) { replace(t, dir+"/tokenizer.json", `"u",`, `"zz",`) }, []string{"tokenizer.json"}},
	{"unknown pre-tokenizer", func(t testing.TB, dir string) { replace(t, dir+"/tokenizer.json", `"Digits"`, `"Metaspace"`) }, []string{"tokenizer.json", "Metaspace"}},
	{"tokenizer cut", func(t testing.TB, dir string) { require.NoError(t, os.Truncate(dir+"/tokenizer.json", 500)) }, []string{"tokenizer.json: "}},
	{"tokenizer_config an array", func(t testing.TB, dir string) { write(t, dir+"/tokenizer_config.json", "[]") }, []string{"tokenizer_config.json: byte 0"}},
	{"chat template a folder", func(t testing.TB, dir string) {
		require.NoError(t, os.Remove(dir+"/chat_template.jinja"))
		require.NoError(t, os.Mkdir(dir+"/chat_template.jinja", 0o755))
	}, []string{"is a directory"}},
}

func onWeights(f func(t testing.TB, path string)) func(t testing.TB, dir string) {
	return func(t testing.TB, dir string) { f(t, filepath.Join(dir, "model.safetensors")) }
}

// refuse demands exit code 4 within seconds, nothing on stdout and the parts of the message.
func refuse(t *testing.T, says []string, args ...string) {
	t.Helper()
	start := time.Now()
	out, errs, code := program(t, append([]string{"sample", "--prompt", "a"}, args...)...)
	require.Equal(t, 4, code, errs)
	require.Empty(t, out)
	require.Less(t, time.Since(start), 20*time.Second)
	require.NotContains(t, errs, "internal error")
	for _, s := range says {
		require.Contains(t, errs, s)
	}
}

func TestHostileModels(t *testing.T) {
	for _, c := range hostileModels {
		t.Run(c.name, func(t *testing.T) {
			dir := healthy(t)
			c.spoil(t, dir)
			refuse(t, c.says, "--model", dir)
		})
	}
	refuse(t, []string{"is no folder of a model: it holds no config.json"}, "--model", t.TempDir())
	refuse(t, []string{"is an adapter of PEFT and holds no model"}, "--model", filepath.Join(goldens, "cases", "list"))

	dir := healthy(t)
	for range 2 { // in the vocabulary and among the added tokens
		replace(t, dir+"/tokenizer.json", "<|im_end|>", "<|im_stop|>")
	}
	refuse(t, []string{"chat template", "<|im_end|> is not a special token"}, "--model", dir, "--chat")

	// the same folder, unbroken, whole and in shards
	dir = healthy(t)
	whole, _, code := program(t, "sample", "--model", dir, "--prompt", "a")
	require.Zero(t, code)
	split(t, dir)
	sharded, _, code := program(t, "sample", "--model", dir, "--prompt", "a")
	require.Zero(t, code)
	require.Equal(t, whole, sharded)
}

// gguf is a small model that gguf-py wrote.
const gguf = "../../internal/format/gguf/testdata/llama.gguf"

func TestHostileFiles(t *testing.T) {
	whole, err := os.ReadFile(gguf)
	require.NoError(t, err)
	u64 := func(b []byte, at int, v uint64) []byte { binary.LittleEndian.PutUint64(b[at:], v); return b }
	u32 := func(b []byte, at int, v uint32) []byte { binary.LittleEndian.PutUint32(b[at:], v); return b }
	for _, c := range []struct {
		name  string
		bytes func(b []byte) []byte
		says  string
	}{
		{"empty.gguf", func([]byte) []byte { return nil }, "empty.gguf: is empty"},
		{"magic.gguf", func(b []byte) []byte { return b[:4] }, "magic.gguf: "},
		{"version.gguf", func(b []byte) []byte { return u32(b, 4, 99) }, "99, want 2 or 3"},
		{"tensors.gguf", func(b []byte) []byte { return u64(b, 8, 1<<63) }, "9223372036854775808"},
		{"keys.gguf", func(b []byte) []byte { return u64(b, 16, 1<<63) }, "9223372036854775808"},
		{"string.gguf", func(b []byte) []byte { return u64(b, 24, 1<<63) }, "9223372036854775808"},
		{"million.gguf", func(b []byte) []byte { return u64(b, 8, 999_999) }, "million.gguf: "},
		{"dimensions.gguf", func(b []byte) []byte { return u32(b, bytes.Index(b, []byte("token_embd.weight"))+17, 5) }, "token_embd.weight"},
		{"huge.gguf", func(b []byte) []byte { return u64(b, bytes.Index(b, []byte("token_embd.weight"))+21, 1<<62) }, "token_embd.weight"},
		{"type.gguf", func(b []byte) []byte { return u32(b, bytes.Index(b, []byte("token_embd.weight"))+37, 77) }, "token_embd.weight"},
		{"offset.gguf", func(b []byte) []byte { return u64(b, bytes.Index(b, []byte("token_embd.weight"))+41, 1<<40) }, "token_embd.weight"},
		{"half.gguf", func(b []byte) []byte { return b[:len(b)/2] }, "half.gguf: "},
		{"last.gguf", func(b []byte) []byte { return b[:len(b)-1] }, "last.gguf: "},
		{"architecture.gguf", func(b []byte) []byte {
			return bytes.Replace(b, []byte("\x05\x00\x00\x00\x00\x00\x00\x00llama"), []byte("\x05\x00\x00\x00\x00\x00\x00\x00mamba"), 1)
		},
			"is not a supported architecture, want one of llama, qwen2"},
		{"pre.gguf", func(b []byte) []byte { return bytes.Replace(b, []byte("smollm"), []byte("smollN"), 1) }, `"smollN" is not known`},
		{"renamed.gguf", func(b []byte) []byte { return bytes.Replace(b, []byte("blk.1.ffn_up"), []byte("blk.7.ffn_up"), 1) }, "blk.7.ffn_up"},
		{"model.safetensors", func([]byte) []byte { return []byte("\x02\x00\x00\x00\x00\x00\x00\x00{}") }, "holds weights only"},
		{"pytorch_model.bin", func([]byte) []byte { return []byte("anything") }, "python -c"},
		{"model.pt", func([]byte) []byte { return []byte("PK\x03\x04 a zip") }, "is a pickle"},
		{"unnamed", func([]byte) []byte { return []byte("\x80\x02}q\x00.") }, "is a pickle"},
		{"text.txt", func([]byte) []byte { return []byte("Hello, this is no model") }, `starts with "Hell"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), c.name)
			write(t, path, string(c.bytes(slices.Clone(whole))))
			refuse(t, []string{c.says}, "--model", path)
		})
	}
	refuse(t, []string{"is a device"}, "--model", "/dev/zero")
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o644))
	refuse(t, []string{"is a FIFO"}, "--model", fifo)

	// Its tokenizer is a toy that cannot be built, so tokens go in and out.
	bare := func(path string) (string, string, int) {
		return program(t, "sample", "--model", path, "--prompt-ids", "1,2,3", "--ids", "--tokens", "4")
	}
	out, errs, code := bare(gguf)
	require.Zero(t, code, errs)
	require.NotEmpty(t, out)
	nan := filepath.Join(t.TempDir(), "nan.gguf")
	copy(whole[len(whole)-4:], "\x00\x00\xc0\x7f") // the file ends with F32
	write(t, nan, string(whole))
	out, errs, code = bare(nan)
	require.Equal(t, 4, code)
	require.Empty(t, out)
	require.Contains(t, errs, "is NaN, want finite weights")
}

// A file without read permission is the environment's failure, and an interrupt has a code of its own.
func TestEnvironment(t *testing.T) {
	if os.Getuid() != 0 {
		dir := healthy(t)
		require.NoError(t, os.Chmod(dir+"/model.safetensors", 0))
		_, errs, code := program(t, "sample", "--model", dir, "--prompt", "a")
		require.Equal(t, 3, code, errs)
		require.Contains(t, errs, "permission denied")
	}
	roomy := t.TempDir()
	copyFile(t, goldens+"/tied/config.json", roomy+"/config.json")
	copyFile(t, goldens+"/tied/model.safetensors", roomy+"/model.safetensors")
	replace(t, roomy+"/config.json", `"max_position_embeddings": 32`, `"max_position_embeddings": 2000000`)
	replace(t, roomy+"/config.json", `"eos_token_id": 0`, `"eos_token_id": null`)
	cmd := exec.Command(binaryPath, "sample", "--model", roomy, "--prompt-ids", "1,2", "--ids", "--tokens", "1000000", "--temperature", "1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = out.Read(make([]byte, 1)) // it is at work
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.Error(t, cmd.Wait())
	require.Equal(t, 130, cmd.ProcessState.ExitCode())
}
