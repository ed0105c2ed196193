package checkpoint

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/safetensors"
	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
)

const strangers = "../../../golden/checkpoint/strangers"

// stranger is a folder of strangers.json (golden/gen/checkpoint/strangers.py).
type stranger struct{ Base, Adapter string }

func strangerList(t *testing.T) map[string]stranger {
	text, err := os.ReadFile(filepath.Join(strangers, "strangers.json"))
	require.NoError(t, err)
	list := map[string]stranger{}
	require.NoError(t, json.Unmarshal(text, &list))
	for name := range list {
		if _, err := os.Stat(filepath.Join(strangers, name)); err != nil {
			delete(list, name) // made and not stored
		}
	}
	require.Greater(t, len(list), 40)
	return list
}

// onDisk reads a folder into memory, so that its files can be edited.
func onDisk(t *testing.T, name string) *tree {
	files := map[string][]byte{}
	entries, err := os.ReadDir(filepath.Join(strangers, name))
	require.NoError(t, err)
	for _, e := range entries {
		if files[e.Name()], err = os.ReadFile(filepath.Join(strangers, name, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return memory(name, files)
}

// strangerScene is the folder of that name as a user gives it: with --base, and with --merged where it is a merged model.
func strangerScene(t *testing.T, name string, s stranger) *scene {
	out := &scene{dir: onDisk(t, name)}
	if s.Base != "" {
		out.base = onDisk(t, s.Base)
	}
	if s.Adapter != "" {
		out.merged, out.dir = out.dir, onDisk(t, s.Adapter)
	}
	return out
}

func findings(t *testing.T, s *scene, verdicts ...check.Verdict) (list []string) {
	in := s.input()
	results, err := checkpoint.Suite.Run(in, check.Selection{})
	require.NoError(t, err)
	require.NoError(t, in.Refused())
	for _, r := range results {
		if slices.Contains(verdicts, r.Verdict) {
			text := r.Verdict.String() + " " + r.Check + ": " + r.Reason
			for _, e := range r.Explanations {
				text += " [" + e.Fault + "]"
			}
			list = append(list, text)
		}
	}
	return list
}

// unjudged are the folders of libraries that some check cannot judge, and what it says.
var unjudged = map[string]string{"peft_tying_merged": "tied by ensure_weight_tying"}

// No folder that a library saved fails, whatever its architecture, its options and its optimiser.
func TestStrangersAreHealthy(t *testing.T) {
	for name, s := range strangerList(t) {
		require.Empty(t, findings(t, strangerScene(t, name, s), check.Fail), name)
		for _, f := range findings(t, strangerScene(t, name, s), check.Undetermined) {
			why := unjudged[name]
			if strings.HasPrefix(name, "base_") {
				why = "names and shapes of its tensors are not known here"
			}
			require.True(t, why != "" && strings.Contains(f, why), "%s: %s", name, f)
		}
	}
}

// baseTensor puts tensors of the base into a merged model, those whose names end so.
func baseTensor(t *testing.T, s *scene, end string) {
	from, n := unpack(s.base.Files["model.safetensors"]), 0
	s.merged.edit("model.safetensors", func(list []safetensors.Tensor) []safetensors.Tensor {
		for i := range list {
			for _, b := range from {
				if b.Name == list[i].Name && strings.HasSuffix(b.Name, end) {
					list[i].Data, list[i].Raw = slices.Clone(b.Data), slices.Clone(b.Raw)
					n++
				}
			}
		}
		return list
	})
	require.NotZero(t, n)
}

// One fault in a folder of a library is found and named.
func TestStrangersFaults(t *testing.T) {
	all := strangerList(t)
	scaled := func(factor float64) func(t *testing.T, s *scene) {
		return func(t *testing.T, s *scene) { // B·factor in the adapter: the merged model was made with another scaling
			s.dir.edit("adapter_model.safetensors", func(list []safetensors.Tensor) []safetensors.Tensor {
				for i := range list {
					if strings.Contains(list[i].Name, "lora_B") {
						for j := range list[i].Data {
							list[i].Data[j] *= factor
						}
					}
				}
				return list
			})
		}
	}
	config := func(key string, v any) func(*testing.T, *scene) {
		return func(_ *testing.T, s *scene) {
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { o[key] = v })
		}
	}
	configJSON := func(key string, v any) func(*testing.T, *scene) {
		return func(_ *testing.T, s *scene) { s.dir.editJSON("config.json", func(o map[string]any) { o[key] = v }) }
	}
	for _, c := range []struct {
		name, want string
		plant      func(t *testing.T, s *scene)
	}{
		{"peft_save_head_merged", "MERGE-LEFT-OUT", func(t *testing.T, s *scene) { baseTensor(t, s, "lm_head.weight") }},
		{"peft_tokens_merged", "MERGE-LEFT-OUT", func(t *testing.T, s *scene) { baseTensor(t, s, "embed_tokens.weight") }},
		{"peft_tokens_tied_merged", "MERGE-LEFT-OUT", func(t *testing.T, s *scene) { baseTensor(t, s, "embed_tokens.weight") }},
		{"peft_bias_lora_merged", "MERGE-LEFT-OUT", func(t *testing.T, s *scene) { baseTensor(t, s, "q_proj.bias") }},
		{"peft_tokens_merged", "MERGE-OTHER", func(t *testing.T, s *scene) {
			s.merged.tensor("model.safetensors", "embed_tokens.weight", func(w *safetensors.Tensor) { w.Data[20*w.Shape[1]] += 1 })
		}},
		{"peft_save_head_merged", "MERGE-OTHER", func(t *testing.T, s *scene) {
			s.merged.tensor("model.safetensors", "lm_head.weight", func(w *safetensors.Tensor) { w.Data[3] += 1 })
		}},
		{"peft_bf16_merged", "MERGE-TWICE", scaled(0.5)},
		{"peft_f16_merged", "MERGE-TWICE", scaled(0.5)},
		{"peft_f16_merged", "MERGE-SIGN", scaled(-1)},
		{"peft_bf16_merged", "MERGE-OTHER", func(t *testing.T, s *scene) {
			s.merged.tensor("model.safetensors", "layers.1.mlp.down_proj.weight", func(w *safetensors.Tensor) {
				for i := range w.Data {
					w.Data[i] = -w.Data[i]
				}
			})
		}},
		{"peft_replication", "LAYER-MISSING", func(t *testing.T, s *scene) { without(s.dir, "adapter_model.safetensors", "layers.2.") }},
		{"peft_parameters", "RANK-PAIR", config("r", 3)},
		{"lora_mistral", "H4a", config("target_modules", []string{"q_proj", "v_proj", "down_proj", "out_proj"})}, // the base is known by its tensors
		{"lora_mistral", "WRONG-BASE", func(t *testing.T, s *scene) {
			s.base.edit("model.safetensors", func(list []safetensors.Tensor) []safetensors.Tensor {
				w := find(list, "model.layers.1.mlp.down_proj.weight")
				w.Shape, w.Data = []int{w.Shape[0], w.Shape[1] / 2}, w.Data[:len(w.Data)/2]
				return list
			})
		}},
		{"base_gemma2", "TENSOR-MISSING", func(t *testing.T, s *scene) { without(s.dir, "model.safetensors", "layers.0.post_feedforward") }},
		{"base_mixtral", "TENSOR-MISSING", func(t *testing.T, s *scene) {
			without(s.dir, "model.safetensors", "layers.1.block_sparse_moe.experts.3.w1")
		}},
		{"base_phi3", "TENSOR-SHAPE", configJSON("intermediate_size", 48)},
		{"base_olmo2", "TENSOR-SHAPE", configJSON("num_key_value_heads", 2)},
		{"base_qwen3", "TENSOR-SHAPE", configJSON("head_dim", 4)},
		{"base_gpt_neox", "TENSOR-SHAPE", configJSON("vocab_size", 80)},
		{"base_opt", "TENSOR-SHAPE", configJSON("hidden_size", 24)},
		{"base_gpt_neox", "TENSOR-SHAPE", configJSON("intermediate_size", 40)},
		{"base_falcon", "TENSOR-MISSING", func(t *testing.T, s *scene) {
			without(s.dir, "model.safetensors", "h.1.mlp.dense_h_to_4h")
		}},
		{"base_bloom", "TENSOR-SHAPE", func(t *testing.T, s *scene) {
			s.dir.tensor("model.safetensors", "h.1.mlp.dense_h_to_4h.weight", func(w *safetensors.Tensor) {
				w.Shape, w.Data = []int{w.Shape[0] / 2, w.Shape[1]}, w.Data[:len(w.Data)/2]
			})
		}},
		{"base_t5", "TENSOR-MISSING", configJSON("num_decoder_layers", 3)},
		{"base_falcon", "TENSOR-MISSING", func(t *testing.T, s *scene) { without(s.dir, "model.safetensors", "h.1.") }},
		{"base_qwen3", "LAYERS-CUT", func(t *testing.T, s *scene) {
			s.dir.editJSON("config.json", func(o map[string]any) { o["num_hidden_layers"] = 1 })
		}},
		{"opt_adafactor/checkpoint-3", "D14", func(t *testing.T, s *scene) {
			s.dir.edit("adapter_model.safetensors", func(list []safetensors.Tensor) []safetensors.Tensor { // more is trained than the optimiser holds
				extra := list[0]
				extra.Name = strings.Replace(extra.Name, "down_proj", "up_proj", 1)
				return append(list, extra)
			})
		}},
	} {
		s := strangerScene(t, c.name, all[c.name])
		c.plant(t, s)
		found := findings(t, s, check.Fail)
		require.True(t, slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, "["+c.want+"]") }), "%s: want %s, found %q", c.name, c.want, found)
	}
}
