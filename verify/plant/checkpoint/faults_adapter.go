package checkpoint

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/verify/checkpoint"
)

func adapterFaults() {
	checkpoint.AdapterConfig.Faults = []fault{
		planted("P086", "lora_alpha 0", "verl's merger wrote it by design (verl#1821)", "layout of a PEFT adapter", aloneScene, func(s *scene) {
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["lora_alpha"] = 0 })
		}),
		planted("ALPHA-MISSING", "lora_alpha null", "written by a program that did not know it", "layout of a PEFT adapter", aloneScene, func(s *scene) {
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["lora_alpha"] = nil })
		}),
		warned("ALPHA-MISSING", "no lora_alpha", "a configuration written by hand", "layout of a PEFT adapter", aloneScene, func(s *scene) {
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { delete(o, "lora_alpha") })
		}),
		planted("LORA-META", "another α than verl trained with", "the merger's default (verl#1821)", "layout of a PEFT adapter; fault P086", verlScene, func(s *scene) {
			s.dir.Files["actor/lora_train_meta.json"] = toJSON(map[string]any{"r": s.lora.r, "lora_alpha": 2 * s.lora.alpha, "task_type": "CAUSAL_LM"})
		}),
		planted("NO-ADAPTER-CONFIG", "no adapter_config.json", "only the tensors were copied", "layout of a PEFT adapter", aloneScene, func(s *scene) { delete(s.dir.Files, "adapter_config.json") }),
		planted("PEFT-TYPE", "a configuration without peft_type", "another library's file of that name", "layout of a PEFT adapter, hostile files", aloneScene, func(s *scene) {
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { delete(o, "peft_type") })
		}),
		planted("P074", "a critic's adapter of the wrong task", "TaskType.CAUSAL_LM for a token classifier (verl#4695)", "fault P074", verlScene, func(s *scene) {
			maps.Copy(s.dir.Files, below("critic/lora_adapter", s.peftFolder(s.adapter(true))))
		}),
		planted("PATTERN-UNUSED", "a rank_pattern that matches nothing", "names of another model", "layout of a PEFT adapter", aloneScene, func(s *scene) {
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["rank_pattern"] = map[string]any{"self_attention.query": 32} })
		}),
		planted("TARGET-PATTERN", "a target_modules of an open bracket", "a pattern cut by a shell", "re.fullmatch of PEFT raises", aloneScene, func(s *scene) {
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["target_modules"] = "(" })
		}),
	}
	checkpoint.AdapterKeys.Faults = []fault{
		planted("A8", "the whole model saved in place of the adapter", "model.state_dict() of the base (transformers#24073)", "faults A8, P140", gptj, func(s *scene) {
			s.dir.Files[adapterFile] = s.base.Files["model.safetensors"]
		}),
		planted("A8", "the whole PEFT model in the adapter's file", "state_dict() of the PeftModel (verl#7061)", "faults A8, P087", gptj, func(s *scene) {
			whole := unpack(s.base.Files["model.safetensors"])
			s.dir.edit(adapterFile, func(list []safetensors.Tensor) []safetensors.Tensor {
				for _, t := range whole {
					t.Name = peftPrefix + t.Name
					list = append(list, t)
				}
				return list
			})
		}),
		planted("P153", "embeddings in the adapter's file", "save_embedding_layers (PEFT#1147, TRL#1287)", "faults P050, P153", gptj, func(s *scene) {
			whole := unpack(s.base.Files["model.safetensors"])
			s.dir.edit(adapterFile, func(list []safetensors.Tensor) []safetensors.Tensor {
				for _, n := range []string{"transformer.wte.weight", "lm_head.weight"} {
					t := *find(whole, n)
					t.Name = peftPrefix + n
					list = append(list, t)
				}
				return list
			})
		}),
		warned("P050", "resized embeddings in the adapter's file", "tokens were added before training (TRL#1287)", "fault P050", gptj, func(s *scene) {
			s.dir.edit(adapterFile, func(list []safetensors.Tensor) []safetensors.Tensor {
				shape := []int{s.model.Vocab + 2, s.model.Hidden}
				return append(list, safetensors.Tensor{Name: peftPrefix + "transformer.wte.weight", DType: format.F32, Shape: shape, Data: normal(s.r, shape, 1)})
			})
		}),
		planted("ADAPTER-NAME", "the name of the adapter left in the keys", "state_dict() in place of get_peft_model_state_dict", "layout of a PEFT adapter", aloneScene, func(s *scene) {
			rename(s.dir, adapterFile, func(n string) string { return strings.TrimSuffix(n, ".weight") + ".default.weight" })
		}),
		planted("KEY-PREFIX", "keys without base_model.model.", "saved from the model inside", "layout of a PEFT adapter", aloneScene, func(s *scene) {
			rename(s.dir, adapterFile, func(n string) string { return strings.TrimPrefix(n, peftPrefix) })
		}),
		planted("P007", "keys with the prefix of torch.compile", "saved without unwrapping", "fault P007", aloneScene, func(s *scene) {
			rename(s.dir, adapterFile, func(n string) string { return peftPrefix + "_orig_mod." + strings.TrimPrefix(n, peftPrefix) })
		}),
		planted("KEY-PREFIX", "base_model.model. twice", "get_peft_model of a PeftModel", "layout of a PEFT adapter", aloneScene, func(s *scene) {
			rename(s.dir, adapterFile, func(n string) string { return peftPrefix + n })
		}),
		planted("ADAPTER-NAME", "a module of modules_to_save under the name of its wrapper", "state_dict() in place of get_peft_model_state_dict", "layout of a PEFT adapter; PEFT#2450", savedScene, func(s *scene) {
			rename(s.dir, adapterFile, func(n string) string { return strings.Replace(n, "norm.", "norm.modules_to_save.default.", 1) })
		}),
		warned("P050", "a module of modules_to_save three times", "embeddings were resized and trained whole (TRL#1287)", "fault P050", savedScene, func(s *scene) {
			beside(s.dir, adapterFile, "norm.weight", "norm.original_module.weight")
		}),
		planted("DORA-MAGNITUDE", "no magnitudes of DoRA", "exported by a program that knows A and B alone", "layout of a PEFT adapter", doraScene, func(s *scene) { without(s.dir, adapterFile, "lora_magnitude_vector") }),
		planted("DORA-MAGNITUDE", "use_dora was lost", "the configuration was written anew", "layout of a PEFT adapter", doraScene, func(s *scene) {
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["use_dora"] = false })
			s.merged, s.base = nil, nil
		}),
		planted("LORA-BIAS", "lora_bias was lost", "the configuration was written anew", "layout of a PEFT adapter", func(r *rand.Rand) *scene { return biasedScene(r, 0) }, func(s *scene) {
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["lora_bias"] = false })
		}),
		planted("LORA-BIAS", "no biases of lora_B", "exported by a program that knows A and B alone", "layout of a PEFT adapter", func(r *rand.Rand) *scene { return biasedScene(r, 0) }, func(s *scene) { without(s.dir, adapterFile, "lora_B.bias") }),
		planted("UNPAIRED", "a lora_B is missing", "one rank's part was not gathered", "layout of a PEFT adapter", aloneScene, func(s *scene) { without(s.dir, adapterFile, s.model.BlockName(1)+s.target()+".lora_B") }),
		planted("P203", "a second adapter", "another one was added on resume", "fault P203", aloneScene, func(s *scene) {
			beside(s.dir, adapterFile, ".weight", ".resumed.weight")
		}),
		planted("KEYS-OTHER-ADAPTER", "the keys of an adapter whose name begins with this one's", "names were compared as parts of keys (PEFT#3282)", "peft@0.19 utils/save_and_load.py", aloneScene, func(s *scene) {
			beside(s.dir, adapterFile, ".weight", ".adapter_ref.weight")
		}),
		planted("P102", "a module of modules_to_save is not in the file", "the value head of a QLoRA adapter (OpenRLHF#209)", "fault P102", aloneScene, func(s *scene) {
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["modules_to_save"] = []string{"value_head"} })
		}),
	}
	checkpoint.Rank.Faults = []fault{
		planted("RANK-CONFIG", "r of another run in the configuration", "r inferred from a shape, or copied", "layout of a PEFT adapter", aloneScene, func(s *scene) {
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["r"] = 2 * s.lora.r })
		}),
		planted("RANK-PAIR", "A and B of different ranks", "put together from two adapters", "layout of a PEFT adapter", aloneScene, func(s *scene) {
			s.dir.tensor(adapterFile, "lora_B.weight", func(t *safetensors.Tensor) {
				t.Shape = []int{t.Shape[0], t.Shape[1] + 1}
				t.Data = normal(s.r, t.Shape, 1)
			})
		}),
		planted("RANK-TURNED", "A and B transposed", "the layout of MLX, [in, r] and [r, out]", "layout of a PEFT adapter", aloneScene, func(s *scene) {
			s.dir.edit(adapterFile, func(list []safetensors.Tensor) []safetensors.Tensor {
				for i, t := range list {
					list[i].Shape, list[i].Data = []int{t.Shape[1], t.Shape[0]}, transposed(t.Data, t.Shape[0], t.Shape[1])
				}
				return list
			})
		}),
		warned("SHAPE-VARIES", "half of lora_B in one layer", "one rank of tensor parallelism was saved", "layout of a PEFT adapter", of("llama", func(s *scene) {
			s.dir = memory("adapter", s.peftFolder(s.adapter(true)))
		}), func(s *scene) {
			s.dir.tensor(adapterFile, s.model.BlockName(1)+s.target()+".lora_B.weight", func(t *safetensors.Tensor) {
				t.Shape = []int{t.Shape[0] / 2, t.Shape[1]}
				t.Data = t.Data[:len(t.Data)/2]
			})
		}),
		planted("RANK-PATTERN", "a rank_pattern that the tensors do not follow", "the configuration of another run", "layout of a PEFT adapter", aloneScene, func(s *scene) {
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["rank_pattern"] = map[string]any{s.lora.targets[0]: 3 + s.lora.r} })
		}),
		planted("ZERO-LENGTH", "tensors of length 0", "ZeRO-3 placeholders (PEFT#2450)", "layout of a PEFT adapter", aloneScene, func(s *scene) {
			s.dir.tensors(adapterFile, func(t *safetensors.Tensor) {
				t.Shape, t.Data = []int{0}, nil
			})
		}),
	}
	checkpoint.Start.Faults = []fault{
		planted("ADALORA-E-INIT", "E begins at random", "drawn as A and B are (PEFT#1884)", "Zhang et al. 2023, section 4.1", adaScene(0.02), func(*scene) {}),
	}
	checkpoint.Trained.Faults = []fault{
		planted("P183", "lora_B is zero everywhere", "the adapter got no gradient", "faults P142, P143, P146, P182, P183", aloneScene, func(s *scene) {
			s.dir.tensors(adapterFile, func(t *safetensors.Tensor) {
				if strings.Contains(t.Name, "lora_B") {
					zeroed(t)
				}
			})
		}),
		planted("B-ZERO-PARTLY", "lora_B is zero in one module", "left out of the optimiser, or of the loss (TRL#7017)", "layout of a PEFT adapter; faults P051, P106", aloneScene, func(s *scene) { s.dir.tensor(adapterFile, "lora_B.weight", zeroed) }),
		planted("A-ZERO", "lora_A is zero in one module", "zeroed when it was gathered", "layout of a PEFT adapter", aloneScene, func(s *scene) { s.dir.tensor(adapterFile, "lora_A.weight", zeroed) }),
		planted("UNTRAINED", "the adapter equals its start", "saved before training, or the base was reloaded over it (lerobot#3459)", "layout of a PEFT adapter; fault P158", initScene, func(s *scene) { s.dir = memory("adapter", s.peftFolder(step(s.r, s.adapter(true), 0))); s.init = s.dir }),
	}
}

// target is the name, inside a block, of the first layer that the adapter changes.
func (s *scene) target() string {
	for _, l := range s.model.Adaptable() {
		if slices.Contains(s.lora.targets, l.Last()) {
			return strings.TrimPrefix(l.Name, s.model.BlockName(0))
		}
	}
	panic("checkpoint: no target")
}

func baseFaults() {
	checkpoint.Targets.Faults = []fault{
		planted("H4a", "o_proj on GPT-J", "the layer is called out_proj; PEFT drops the target silently", "fault H4a", gptj, func(s *scene) {
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["target_modules"] = append(slices.Clone(s.lora.targets), "o_proj") })
		}),
		planted("H4a", "o_proj on GPT-J, seen by the tensors alone", "the layer is called out_proj", "fault H4a", gptj, func(s *scene) {
			s.base = nil
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["target_modules"] = append(slices.Clone(s.lora.targets), "o_proj") })
		}),
		planted("LAYER-MISSING", "a layer has no adapter", "one stage of a pipeline was not gathered", "layout of a PEFT adapter", gptj, func(s *scene) { without(s.dir, adapterFile, ".h.1.") }),
		planted("LAYER-MISSING", "a layer has no adapter, seen by the tensors alone", "one shard was not gathered", "layout of a PEFT adapter", gptj, func(s *scene) { s.base = nil; without(s.dir, adapterFile, ".h.0.") }),
		planted("TARGET-EXTRA", "modules that are no targets", "the configuration of another run", "layout of a PEFT adapter", aloneScene, func(s *scene) {
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["layers_to_transform"] = []int{0} })
		}),
	}
	checkpoint.BaseFit.Faults = []fault{
		planted("WRONG-BASE", "the adapter of another model", "the wrong --base", "layout of a PEFT adapter", gptj, func(s *scene) {
			other := *s.model
			other.Hidden, other.HeadDim = 32, 16
			s.base = memory("lab/tiny", other.modelFolder(other.weights(s.r, format.F32), 1))
		}),
		planted("BASE-FINGERPRINT", "another base of the same shape", "the base was trained on since", "layout of a Hugging Face folder", gptj, func(s *scene) { s.dir.seal(".", 1, strings.Repeat("0", 64)) }),
		warned("BASE-NAME", "another name of the base", "a stale base_model_name_or_path", "layout of a PEFT adapter", gptj, func(s *scene) {
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["base_model_name_or_path"] = "lab/other" })
		}),
	}
	large := of("gptj", func(s *scene) { // wide enough that headers weigh little
		s.model.Hidden, s.model.HeadDim, s.model.Layers = 512, 256, 4
		s.lora.r, s.lora.targets = 8, []string{"q_proj", "v_proj"}
		s.dir = memory("adapter", s.peftFolder(s.adapter(true)))
		s.stated = s.model
	})
	checkpoint.WeightSize.Faults = []fault{
		planted("A8", "a whole model where about 26 MB are demanded", "model.state_dict() was saved", "fault A8", wholeScene, func(s *scene) { s.size = checkpoint.Size{Want: 2000, Tolerance: 0.15, Text: "2kB±15%"} }),
		planted("SIZE-DEMAND", "an adapter of half the width", "saved in float16 where float32 is demanded", "shielded PPO, Projection Not Working", large, func(s *scene) {
			s.size = checkpoint.Size{Want: int64(len(s.dir.Files[adapterFile])), Tolerance: 0.15, Text: "the size in float32"}
			s.lora.dtype = format.F16
			s.dir = memory("adapter", s.peftFolder(s.adapter(true)))
		}),
		planted("MAX-SIZE", "an adapter above --max-size", "another rank", "fault A8", large, func(s *scene) { s.max = 4096 }),
		planted("SIZE-EXPECTED", "bytes that r and the targets do not give", "lora_B saved in 16 bits, lora_A in 32", "shielded PPO, Projection Not Working", large, func(s *scene) {
			s.dir.tensors(adapterFile, func(t *safetensors.Tensor) {
				if strings.Contains(t.Name, "lora_B") {
					t.DType = format.F16
				}
			})
		}),
		planted("P087", "a whole model beside the adapter", "full shards saved with the adapter (verl#7061)", "fault P087", gptj, func(s *scene) { s.dir.Files["model.safetensors"] = s.base.Files["model.safetensors"] }),
	}
}

// transposed returns the columns of x, rows × cols, as rows.
func transposed(x []float64, rows, cols int) []float64 {
	y := make([]float64, 0, len(x))
	for j := range cols {
		for i := range rows {
			y = append(y, x[i*cols+j])
		}
	}
	return y
}
