package checkpoint

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/verify/checkpoint"
)

// partFaults are faults in a part of a folder while the rest is in order.
func partFaults() {
	// kept gives the tensors of s.dir whose names hold part the values that they have in another folder.
	kept := func(file string, from func(s *scene) *tree, part func(s *scene) string) func(s *scene) {
		return func(s *scene) {
			old, n := unpack(from(s).Files[file]), 0
			s.dir.tensors(file, func(t *safetensors.Tensor) {
				if strings.Contains(t.Name, part(s)) {
					t.Data = find(old, t.Name).Data
					n++
				}
			})
			if n == 0 {
				panic("checkpoint: no tensor of " + part(s))
			}
		}
	}
	against := func(s *scene) *tree { return s.against }
	first := func(s *scene) *tree { return s.init }
	lastLayer := func(s *scene) string { return s.model.BlockName(s.model.Layers - 1) }
	config := func(key string, v any) func(s *scene) {
		return func(s *scene) { s.dir.editJSON("adapter_config.json", func(o map[string]any) { o[key] = v }) }
	}
	const model = "model.safetensors"
	checkpoint.Moved.Faults = append(checkpoint.Moved.Faults,
		planted("LAYER-STILL", "the last layer stands still", "the groups of the optimiser end one layer early", "faults D14, P195", againstScene, kept(adapterFile, against, lastLayer)),
		planted("LAYER-STILL", "the last layer of a model stands still", "the groups of the optimiser end one layer early", "faults D14, P195", wholeAgainstFile, kept(model, against, lastLayer)),
		planted("PART-STILL", "the embedding stands still", "in no group of the optimiser", "fault D14", wholeAgainstFile, kept(model, against, func(s *scene) string {
			return s.model.Modules()[0].Name
		})),
		planted("MODULE-STILL", "one module of the adapter stands still", "copied from an earlier save", "fault D14", manyTargets(againstScene), kept(adapterFile, against, func(s *scene) string {
			return s.model.BlockName(0) + s.target()
		})),
	)
	checkpoint.Trained.Faults = append(checkpoint.Trained.Faults,
		planted("PART-STILL", "a norm of modules_to_save equals its start", "in no group of the optimiser", "faults D14, P158", initScene, func(s *scene) {
			extra := safetensors.Tensor{Name: peftPrefix + "model.extra_norm.weight", DType: format.F32, Shape: []int{s.model.Hidden}, Data: normal(s.r, []int{s.model.Hidden}, 1)}
			for _, m := range []*tree{s.dir, s.init} {
				m.edit(adapterFile, func(list []safetensors.Tensor) []safetensors.Tensor { return append(list, extra) })
				m.editJSON("adapter_config.json", func(o map[string]any) { o["modules_to_save"] = []string{"extra_norm"} })
			}
		}),
		planted("LAYER-STILL", "the last layer equals its start", "the groups of the optimiser end one layer early", "faults D14, P183", trainedInitScene, kept(adapterFile, first, lastLayer)),
		planted("CONFIG-SCALING", "another α than at the start", "written from the defaults of the script", "fault P086", initScene, config("lora_alpha", 96)),
	)
	checkpoint.Layout.Faults = append(checkpoint.Layout.Faults,
		planted("CONFIG-SCALING", "another α", "written from the defaults of the script", "fault P086", againstScene, config("lora_alpha", 96)),
		planted("CONFIG-SCALING", "rsLoRA turned over", "the flag was lost on a resume", "fault P197", againstScene, func(s *scene) {
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["use_rslora"] = !s.lora.rs })
		}),
		planted("CONFIG-CHANGED", "another epsilon of the norms", "config.json of another model", "layout of a Hugging Face folder", of("llama", func(s *scene) {
			before := s.model.weights(s.r, format.F32)
			s.against = memory("run/step_1", s.model.modelFolder(before, 1))
			s.dir = memory("run/step_2", s.model.modelFolder(step(s.r, before, 1e-5), 1))
		}), func(s *scene) { s.dir.editJSON("config.json", func(o map[string]any) { o["rms_norm_eps"] = 1e-5 }) }),
		planted("TOKENIZER-CHANGED", "two tokens exchanged", "the tokenizer was trained anew", "tokenizer.json", wholeAgainstScene, func(s *scene) {
			s.dir.editJSON("tokenizer.json", func(o map[string]any) {
				vocab := o["model"].(map[string]any)["vocab"].(map[string]any)
				vocab["t3"], vocab["t5"] = vocab["t5"], vocab["t3"]
			})
		}),
	)
	checkpoint.MergedFolder.Faults = []fault{
		planted("MERGE-CONFIG", "rope_theta is gone", "config.json written by hand", "transformers modeling_rope_utils", of("qwen2", mergedOf), func(s *scene) {
			s.base.editJSON("config.json", func(o map[string]any) { o["rope_theta"] = 1e6 })
		}),
		planted("MERGE-CONFIG", "another scaling of rope", "rope_scaling of a longer context was left behind", "transformers modeling_rope_utils", of("llama", mergedOf), func(s *scene) {
			s.merged.editJSON("config.json", func(o map[string]any) {
				o["rope_parameters"] = map[string]any{"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
			})
		}),
		planted("MERGE-CONFIG", "another activation", "config.json of another model", "layout of a Hugging Face folder", of("llama", mergedOf), func(s *scene) {
			s.base.editJSON("config.json", func(o map[string]any) { o["hidden_act"] = "silu" })
			s.merged.editJSON("config.json", func(o map[string]any) { o["hidden_act"] = "gelu" })
		}),
		planted("MERGE-TOKENIZER", "two tokens exchanged", "the tokenizer of another model", "tokenizer.json", mergedScene, func(s *scene) {
			s.merged.editJSON("tokenizer.json", func(o map[string]any) {
				vocab := o["model"].(map[string]any)["vocab"].(map[string]any)
				vocab["t3"], vocab["t5"] = vocab["t5"], vocab["t3"]
			})
		}),
	}
	checkpoint.Values.Faults = []fault{
		planted("LAYER-COPIED", "a layer of the adapter in the place of another", "an index that does not count", "fault P202", aloneScene, func(s *scene) {
			s.dir.edit(adapterFile, func(list []safetensors.Tensor) []safetensors.Tensor {
				for i := range list {
					if rest, ok := strings.CutPrefix(list[i].Name, peftPrefix+s.model.BlockName(1)); ok {
						list[i].Data = find(list, peftPrefix+s.model.BlockName(0)+rest).Data
					}
				}
				return list
			})
		}),
		planted("LAYER-COPIED", "one matrix of a layer in the place of another's", "an index that does not count", "fault P202", wholeFile, func(s *scene) {
			s.dir.edit(model, func(list []safetensors.Tensor) []safetensors.Tensor {
				name := s.model.Adaptable()[0].Name
				find(list, strings.Replace(name, s.model.BlockName(0), s.model.BlockName(1), 1)+".weight").Data = find(list, name+".weight").Data
				return list
			})
		}),
		planted("VALUES-HUGE", "a matrix 10⁶ times as large", "the bytes of another type", "fault P211", wholeFile, func(s *scene) {
			s.dir.tensor(model, s.model.Adaptable()[0].Name+".weight", func(t *safetensors.Tensor) {
				for i := range t.Data {
					t.Data[i] *= 1e6
				}
			})
		}),
		planted("VALUES-SUBNORMAL", "whole numbers read as float32", "the bytes of another type", "fault P211", func(r *rand.Rand) *scene {
			s := newScene(r, anyType(r))
			s.dir = memory("adapter", s.peftFolder(s.adapter(true)))
			return s
		}, func(s *scene) {
			s.dir.tensor(adapterFile, "lora_B.weight", func(t *safetensors.Tensor) {
				for i := range t.Data {
					t.Data[i] = float64(math.Float32frombits(uint32(1 + i)))
				}
			})
		}),
		planted("VALUES-SUBNORMAL", "every number of a float16 model divided by its scale", "a loss scale that was applied to the weights", "fault P211", func(r *rand.Rand) *scene {
			s := newScene(r, anyType(r))
			s.dir = memory("model", s.model.modelFolder(s.model.weights(r, format.F16), 1))
			return s
		}, func(s *scene) {
			s.dir.tensors(model, func(t *safetensors.Tensor) {
				for j := range t.Data {
					t.Data[j] *= 0x1p-16
				}
			})
		}),
		planted("B-ZERO-ROWS", "a quarter of the rows of one B is zero", "the shard of one rank was not gathered", "fault P202", aloneScene, func(s *scene) {
			s.dir.tensor(adapterFile, "lora_B.weight", func(t *safetensors.Tensor) { clear(t.Data[:len(t.Data)/4]) })
		}),
		warned("B-ZERO-ROWS", "one row of B is zero", "an inner feature that the activation cuts off", "fault P202", aloneScene, func(s *scene) {
			s.dir.tensor(adapterFile, "lora_B.weight", func(t *safetensors.Tensor) { clear(t.Data[:t.Shape[1]]) })
		}),
	}
	checkpoint.SpecialTokens.Faults = append(checkpoint.SpecialTokens.Faults,
		planted("EOS-UNKNOWN", "an eos_token that is no token", "the template of another model", "faults P033, P054", wholeScene, func(s *scene) {
			s.dir.editJSON("tokenizer_config.json", func(o map[string]any) { o["eos_token"] = "<|im_end|>" })
		}),
		warned("NO-EOS", "no eos_token_id anywhere", "generation_config.json made from an empty configuration", "faults P033, P054", wholeScene, func(s *scene) {
			s.dir.editJSON("generation_config.json", func(o map[string]any) { delete(o, "eos_token_id") })
			s.dir.editJSON("config.json", func(o map[string]any) { delete(o, "eos_token_id") })
		}),
	)
	row := func(s *scene, index int, rows int) {
		s.dir.edit(adapterFile, func(list []safetensors.Tensor) []safetensors.Tensor {
			return append(list, safetensors.Tensor{Name: peftPrefix + "model.embed_tokens.token_adapter.trainable_tokens_delta", DType: format.F32, Shape: []int{rows, s.model.Hidden}, Data: normal(s.r, []int{rows, s.model.Hidden}, 1)})
		})
		s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["trainable_token_indices"] = []int{3, index} })
	}
	checkpoint.AdapterKeys.Faults = append(checkpoint.AdapterKeys.Faults,
		planted("TOKEN-INDEX", "an index beyond the rows of the embedding", "trained on a base with more tokens", "peft trainable_tokens", llamaAdapter, func(s *scene) { row(s, s.model.Vocab, 2) }),
		planted("TOKEN-ROWS", "three rows for two indices", "the configuration of another run", "peft trainable_tokens", llamaAdapter, func(s *scene) { row(s, 5, 3) }),
		planted("TASK-HEAD", "a head for classes in an adapter of a language model", "task_type of another script", "layout of a PEFT adapter", aloneScene, func(s *scene) {
			s.dir.edit(adapterFile, func(list []safetensors.Tensor) []safetensors.Tensor {
				return append(list, safetensors.Tensor{Name: peftPrefix + "score.weight", DType: format.F32, Shape: []int{1, s.model.Hidden}, Data: normal(s.r, []int{s.model.Hidden}, 1)})
			})
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["task_type"] = "CAUSAL_LM" })
		}),
	)
	dcp := func(files ...string) func(s *scene) {
		return func(s *scene) {
			s.dir = memory("pytorch_model_fsdp_0", map[string][]byte{})
			for _, f := range files {
				s.dir.Files[f] = barePickle([]member{{"state_dict_metadata", []member{{"model.norm.weight", 1}}}})
			}
		}
	}
	checkpoint.Contents.Faults = append(checkpoint.Contents.Faults,
		undecided("DCP", "shards of torch.distributed.checkpoint", "saved by FSDP", "torch distributed/checkpoint", aloneScene, dcp(".metadata", "__0_0.distcp", "__1_0.distcp")),
		planted("DCP-METADATA", "shards of torch.distributed.checkpoint without .metadata", "the save did not end", "torch distributed/checkpoint", aloneScene, dcp("__0_0.distcp", "__1_0.distcp")),
		warned("RANK-MISSING", "no shard of the second of three ranks", "its disk was not copied", "torch distributed/checkpoint", aloneScene, dcp(".metadata", "__0_0.distcp", "__2_0.distcp")),
	)
	checkpoint.Names.Faults = append(checkpoint.Names.Faults,
		planted("TASK-HEAD", "a classifier without its head", "the language model inside was saved", "layout of a Hugging Face folder", wholeFile, func(s *scene) {
			s.dir.editJSON("config.json", func(o map[string]any) { o["architectures"] = []string{"XForSequenceClassification"} })
		}),
	)
}

func wholeFile(r *rand.Rand) *scene {
	s := newScene(r, anyType(r))
	s.dir = memory("model", s.model.modelFolder(s.model.weights(r, format.F32), 1))
	return s
}

func wholeAgainstFile(r *rand.Rand) *scene {
	s := newScene(r, []string{"gptj", "qwen2"}[r.IntN(2)])
	before := s.model.weights(r, format.F32)
	s.against = memory("run/step_1", s.model.modelFolder(before, 1))
	s.dir = memory("run/step_2", s.model.modelFolder(step(r, before, 1e-5), 1))
	return s
}

// trainedInitScene is an adapter that goes on from a trained one.
func trainedInitScene(r *rand.Rand) *scene {
	s := newScene(r, anyType(r))
	before := s.adapter(true)
	s.init = memory("init", s.peftFolder(before))
	s.dir = memory("adapter", s.peftFolder(step(r, before, 1e-2)))
	return s
}

// manyTargets draws until the adapter sits on more than one module of a layer.
func manyTargets(draw func(r *rand.Rand) *scene) func(r *rand.Rand) *scene {
	return func(r *rand.Rand) *scene {
		for {
			if s := draw(r); len(s.lora.targets) > 1 && !slices.Contains(s.lora.targets, "c_attn") {
				return s
			}
		}
	}
}

func llamaAdapter(r *rand.Rand) *scene {
	s := newScene(r, "llama")
	s.dir = memory("adapter", s.peftFolder(s.adapter(true)))
	s.base = memory("lab/tiny", s.model.modelFolder(s.model.weights(r, format.F32), 1))
	return s
}

func mergedOf(s *scene) {
	weights, adapter := s.model.weights(s.r, format.F32), s.adapter(true)
	s.dir = memory("adapter", s.peftFolder(adapter))
	s.base = memory("lab/tiny", s.model.modelFolder(weights, 1))
	s.merged = memory("merged", s.model.modelFolder(s.merge(weights, adapter, s.scaling()), 1))
}
