package checkpoint

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"plumbline/internal/arch"
	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/verify/checkpoint"
)

// adamBound3 is the largest m²/v after three steps of Adam with the betas 0.9 and 0.999, from gradients that grow as β₁/β₂ asks: g, g·0.9/0.999, … backwards.
const adamBound3 = 0.1 * 0.1 / 0.001 * (1 + 0.81/0.999 + 0.81*0.81/0.999/0.999)

func resumeFaults() {
	// unsealed is a run whose manifests were written after the fault.
	unsealed := func(change func(s *scene)) func(s *scene) {
		return func(s *scene) {
			change(s)
			for i, dir := range []string{"step_2", "step_4", "final"} {
				if s.dir.Files[dir+"/state.json"] != nil {
					s.dir.seal(dir, 2*(i+1), "")
				}
			}
		}
	}
	drop := func(names ...string) func(s *scene) {
		return unsealed(func(s *scene) {
			for _, n := range names {
				delete(s.dir.Files, n)
			}
		})
	}
	checkpoint.ValueHead.Faults = []fault{
		planted("C20", "the value head of one step is missing", "save_model saves the base only", "faults C20, H13a, P006", runScene, drop("step_4/value_head.safetensors")),
		planted("C20", "an adapter of TRL's PPO without its head", "the pickle was not copied", "fault P102", trlScene, func(s *scene) { delete(s.dir.Files, "pytorch_model.bin") }),
		planted("C20", "a critic without its value head", "converted as a language model (miles#1087)", "fault P186", criticScene, func(s *scene) { without(s.dir, "model.safetensors", "value_head") }),
		planted("VALUE-SHAPE", "the head of another model", "copied from a larger run", "outputs of PPO with a value head", runScene, unsealed(func(s *scene) {
			s.dir.tensor("final/value_head.safetensors", "weight", func(t *safetensors.Tensor) {
				t.Shape, t.Data = []int{2, s.model.Hidden}, normal(s.r, []int{2, s.model.Hidden}, 1)
			})
		})),
	}
	checkpoint.TokenizerFiles.Faults = []fault{
		planted("TOKENIZER-MISSING", "no tokenizer in final", "only the weights were saved", "fault C20", runScene, drop("final/tokenizer.json")),
		warned("TOKENIZER-MISSING", "no tokenizer beside a model", "not copied", "layout of a Hugging Face folder", wholeScene, func(s *scene) { delete(s.dir.Files, "tokenizer.json") }),
		planted("VOCABULARY", "more ids than rows of the embedding", "the tokenizer of another model", "tokenizer.json", wholeScene, func(s *scene) {
			s.dir.editJSON("tokenizer.json", func(o map[string]any) {
				o["model"] = map[string]any{"type": "BPE", "vocab": map[string]int{"a": s.model.Vocab}, "merges": []string{}}
			})
		}),
		planted("ADDED-TOKEN", "an added token beyond the embedding", "<pad> added, embedding not resized", "tokenizer.json", wholeScene, func(s *scene) {
			s.dir.editJSON("tokenizer.json", func(o map[string]any) {
				o["added_tokens"] = []map[string]any{{"id": s.model.Vocab, "content": "<pad>"}}
			})
		}),
	}
	checkpoint.SpecialTokens.Faults = []fault{
		planted("SPECIAL-RANGE", "pad_token_id without a row", "<pad> added, embedding not resized", "tokenizer.json; fault P201", wholeScene, func(s *scene) {
			s.dir.editJSON("config.json", func(o map[string]any) { o["pad_token_id"] = s.model.Vocab })
		}),
		planted("SPECIAL-RANGE", "eos_token_id without a row", "generation_config.json of another model", "tokenizer.json", wholeScene, func(s *scene) {
			s.dir.editJSON("generation_config.json", func(o map[string]any) { o["eos_token_id"] = []int{s.model.Vocab + 7} })
		}),
		warned("SPECIAL-RANGE", "one of two eos_token_id without a row", "generation_config.json of another model", "tokenizer.json", wholeScene, func(s *scene) {
			s.dir.editJSON("generation_config.json", func(o map[string]any) { o["eos_token_id"] = []int{s.model.Vocab - 4, s.model.Vocab + 7} })
		}),
		warned("EOS-MISMATCH", "another eos_token than generation waits for", "a chat template with an end of its own", "faults P033, P054", wholeScene, func(s *scene) {
			s.dir.editJSON("generation_config.json", func(o map[string]any) { o["eos_token_id"] = 2 })
		}),
		warned("CHAT-TEMPLATE", "no chat template", "the tokenizer of the trainer was saved, not that of the base", "chat templates", mergedScene, func(s *scene) {
			s.base.editJSON("tokenizer_config.json", func(o map[string]any) { o["chat_template"] = "{{ messages }}" })
		}),
	}
	state := func(change func(o map[string]any)) func(s *scene) {
		return unsealed(func(s *scene) { s.dir.editJSON("step_2/state.json", change) })
	}
	checkpoint.OptimizerState.Faults = []fault{
		planted("P124", "no state of the optimiser", "Adam starts anew (NeMo-RL#3171)", "fault P124", runScene, drop("step_2/optimizer.pt")),
		planted("P042", "a state of no parameters", "is_trainable=False (TRL#6700)", "faults P022, P042, P141, P146", trainerScene, func(s *scene) {
			s.dir.Files["checkpoint-3/optimizer.pt"] = torchFile([]member{{"state", []member{}}, {"param_groups", []member{{"lr", 1}}}})
		}),
		planted("D14", "part of the adapter is in no group", "the group is missing", "fault D14", trainerScene, func(s *scene) {
			shapes := shapesOf(unpack(s.dir.Files["checkpoint-3/"+adapterFile]))
			s.dir.Files["checkpoint-3/optimizer.pt"] = adamState(3, shapes[:len(shapes)/2])
		}),
		planted("OPT-ORDER", "moments of the parameters in the reverse order", "the optimiser was made from a sorted list of names", "V29", func(r *rand.Rand) *scene {
			s := trainerScene(r)
			for s.model.Type != "llama" { // whose A and B differ in shape everywhere
				s = trainerScene(r)
			}
			return s
		}, func(s *scene) {
			shapes := shapesOf(unpack(s.dir.Files["checkpoint-3/"+adapterFile]))
			slices.Reverse(shapes)
			s.dir.Files["checkpoint-3/optimizer.pt"] = adamState(3, shapes)
		}),
		planted("OPT-SHAPE", "moments of other shapes", "the optimiser of an adapter on other targets", "V29", trainerScene, func(s *scene) {
			shapes := shapesOf(unpack(s.dir.Files["checkpoint-3/"+adapterFile]))
			for i, x := range shapes {
				shapes[i] = []int{x[1], x[0]} // A and B of a square layer exchange theirs
			}
			shapes[0] = []int{2, shapes[0][0] * shapes[0][1] / 2}
			s.dir.Files["checkpoint-3/optimizer.pt"] = adamState(3, shapes)
		}),
		warned("OPT-EXTRA", "the state of more than is saved", "a second adapter in the optimiser", "fault P203", trainerScene, func(s *scene) {
			shapes := shapesOf(unpack(s.dir.Files["checkpoint-3/"+adapterFile]))
			s.dir.Files["checkpoint-3/optimizer.pt"] = adamState(3, append(shapes, shapes...))
		}),
	}
	// moments redoes the state of the optimiser with other numbers.
	moments := func(step int, first, second float32) func(s *scene) {
		return func(s *scene) {
			var state []member
			for i, x := range shapesOf(unpack(s.dir.Files["checkpoint-3/"+adapterFile])) {
				state = append(state, member{i, []member{{"step", filled{nil, float32(step)}}, {"exp_avg", filled{x, first}}, {"exp_avg_sq", filled{x, second}}}})
			}
			s.dir.Files["checkpoint-3/optimizer.pt"] = torchFile([]member{{"state", state}, {"param_groups", []member{{"lr", 1}}}})
		}
	}
	groups := func(lr float64) []member {
		return []member{{0, []member{{"lr", lr}, {"betas", []member{{0, 0.9}, {1, 0.999}}}, {"params", 0}}}}
	}
	adam := func(step int, first, second float32, lr float64) func(s *scene) {
		return func(s *scene) {
			var state []member
			for i, x := range shapesOf(unpack(s.dir.Files["checkpoint-3/"+adapterFile])) {
				state = append(state, member{i, []member{{"step", filled{nil, float32(step)}}, {"exp_avg", filled{x, first}}, {"exp_avg_sq", filled{x, second}}}})
			}
			s.dir.Files["checkpoint-3/optimizer.pt"] = torchFile([]member{{"state", state}, {"param_groups", groups(lr)}})
		}
	}
	checkpoint.Moments.Faults = []fault{
		planted("MOMENT-BOUND", "first moments 1.001 times as large as three steps allow", "the second moments are those of another parameter", "V29", trainerScene, adam(3, float32(-1.001*math.Sqrt(0.0625*adamBound3)), 0.0625, 1)),
		planted("MOMENT-BOUND", "second moments 0 where first are not", "the second moments were cleared", "V29", trainerScene, adam(3, -0.25, 0, 1)),
		planted("MOMENT-ZERO", "all moments 0 after three steps", "the optimiser was made anew, and its counter kept", "fault P124", trainerScene, adam(3, 0, 0, 1)),
		planted("LR-SCHEDULE", "another learning rate than the schedule's", "a folder put together from two saves", "V29", trainerScene, func(s *scene) {
			adam(3, -0.25, 0.0625, 1e-4)(s)
			s.dir.Files["checkpoint-3/scheduler.pt"] = torchFile([]member{{"last_epoch", 3}, {"_last_lr", []member{{0, 2e-4}}}})
		}),
		planted("MOMENT-NAN", "first moments are NaN", "a gradient of 0/0 was not skipped", "V29; faults P147, P209", trainerScene, moments(3, float32(math.NaN()), 1)),
		planted("MOMENT-SIGN", "first and second moments exchanged", "converted by their places in a list", "V29", trainerScene, moments(3, 0.0625, -0.25)),
		planted("OPT-STEP", "the optimiser of a later step", "a folder put together from two saves", "V29", trainerScene, moments(5, -0.25, 0.0625)),
		planted("OPT-STEP", "an optimiser of one step", "Adam was made anew on a resume (NeMo-RL#3171)", "fault P124", trainerScene, moments(1, -0.25, 0.0625)),
		warned("OPT-STEP", "an optimiser of one step, and a scaler", "steps with an overflow are skipped", "fault P124", trainerScene, func(s *scene) {
			moments(1, -0.25, 0.0625)(s)
			s.dir.Files["checkpoint-3/scaler.pt"] = torchFile([]member{{"_growth_tracker", 1}})
		}),
		planted("SCHEDULER-STEP", "the schedule of another step", "counted in the inner loop (TRL#2325)", "fault P010", trainerScene, func(s *scene) {
			s.dir.Files["checkpoint-3/scheduler.pt"] = torchFile([]member{{"last_epoch", 77}})
		}),
	}
	checkpoint.TrainerState.Faults = []fault{
		planted("STATE-MISSING", "no trainer_state.json", "not copied", "V29", trainerScene, drop("checkpoint-3/trainer_state.json")),
		planted("STEP-MISMATCH", "the state of another step", "saved before the counter moved (open-instruct#1523)", "fault P135", trainerScene, func(s *scene) {
			s.dir.editJSON("checkpoint-3/trainer_state.json", func(o map[string]any) { o["global_step"] = 4 })
		}),
		planted("LOG-AHEAD", "the log of a later step", "the counter was set back by hand", "V29", trainerScene, func(s *scene) {
			s.dir.editJSON("checkpoint-3/trainer_state.json", func(o map[string]any) {
				o["log_history"] = []any{map[string]any{"loss": 0.5, "step": 3}, map[string]any{"loss": 0.5, "step": 5}}
			})
		}),
		planted("P010", "more steps than there are", "counted in the inner loop (TRL#2325)", "fault P010", trainerScene, func(s *scene) {
			s.dir.editJSON("checkpoint-3/trainer_state.json", func(o map[string]any) { o["max_steps"] = 2 })
		}),
		planted("RNG-MISSING", "no random state", "transformers#17032", "resume", runScene, drop("step_4/rng.json")),
		planted("P072", "no position in the data", "the sampler has no state (verl#4156)", "faults P072, P204", runScene, state(func(o map[string]any) { delete(o, "data_position") })),
		planted("SCHEDULER-MISSING", "no state of the schedule", "not saved", "resume", runScene, state(func(o map[string]any) { delete(o, "scheduler") })),
		planted("RANK-MISSING", "the shard of one rank is missing", "its disk was not copied", "resume", verlScene, func(s *scene) { delete(s.dir.Files, "actor/optim_world_size_2_rank_1.pt") }),
	}
	checkpoint.RunLayout.Faults = []fault{
		planted("RUN-CONFIG", "no effective_config.yaml", "not written", "fault C20", runScene, func(s *scene) { delete(s.dir.Files, "effective_config.yaml") }),
		planted("RUN-STEP", "a step was not saved", "a failed save that was swallowed", "fault C20", runScene, func(s *scene) {
			delete(s.dir.Files, "latest")
			for n := range s.dir.Files {
				if strings.HasPrefix(n, "step_2/") {
					delete(s.dir.Files, n)
				}
			}
		}),
		planted("RUN-FINAL", "no final", "the run ended before", "fault C20", runScene, func(s *scene) {
			for n := range s.dir.Files {
				if strings.HasPrefix(n, "final/") {
					delete(s.dir.Files, n)
				}
			}
		}),
		warned("RUN-FINAL", "no final, and LOCK is there", "the run was killed", "fault C20", runScene, func(s *scene) {
			s.dir.Files["LOCK"] = nil
			for n := range s.dir.Files {
				if strings.HasPrefix(n, "final/") {
					delete(s.dir.Files, n)
				}
			}
		}),
		planted("RUN-FINAL", "final of an earlier step", "the run was resumed, and final kept", "fault C20", runScene, func(s *scene) {
			for n, text := range s.dir.Files {
				if rest, ok := strings.CutPrefix(n, "step_2/"); ok {
					s.dir.Files["final/"+rest] = text
				}
			}
		}),
		planted("RUN-LATEST", "latest names a step that is gone", "deleted by a clean-up", "crash-safe saves", runScene, func(s *scene) { s.dir.Files["latest"] = []byte("step_10\n") }),
	}
}

func mergeFaults() {
	// merging redoes the merge with another program.
	merging := func(kind string, dtype format.DType, shape func(l *loraShape), program func(s *scene, weights, adapter []safetensors.Tensor) []safetensors.Tensor) func(r *rand.Rand) *scene {
		return func(r *rand.Rand) *scene {
			s := newScene(r, kind)
			s.lora.rs = false
			s.lora.r = 4
			if shape != nil {
				shape(&s.lora)
			}
			weights, adapter := s.model.weights(r, dtype), s.adapter(true)
			s.dir = memory("adapter", s.peftFolder(adapter))
			s.base = memory("lab/tiny", s.model.modelFolder(weights, 1))
			s.merged = memory("merged", s.model.modelFolder(program(s, weights, adapter), 1))
			return s
		}
	}
	scaled := func(by func(s *scene) float64) func(s *scene, weights, adapter []safetensors.Tensor) []safetensors.Tensor {
		return func(s *scene, weights, adapter []safetensors.Tensor) []safetensors.Tensor {
			return s.merge(weights, adapter, by(s))
		}
	}
	// biased is a merge of an adapter with lora_bias, whose bias is scaled by the given factor, or by s where it is 0.
	biased := func(by float64) func(r *rand.Rand) *scene {
		return func(r *rand.Rand) *scene { return biasedScene(r, by) }
	}
	none := func(*scene) {}
	rs := func(l *loraShape) { l.rs = true }
	checkpoint.Merged.Faults = []fault{
		planted("P086", "the merged model equals the base", "α was lost: scaling 0 (verl#1821)", "fault P086", merging("gptj", format.F32, nil, scaled(func(*scene) float64 { return 0 })), none),
		planted("P151", "the update rounds away in bfloat16", "s·B·A below half the spacing (PEFT#1388)", "fault P151", func(r *rand.Rand) *scene {
			s := newScene(r, "llama")
			weights := s.model.weights(r, format.BF16)
			for _, w := range weights {
				for j, v := range w.Data {
					w.Data[j] = format.Round(v+math.Copysign(1, v), format.BF16)
				}
			}
			adapter := s.adapter(true)
			for _, t := range adapter {
				for j := range t.Data {
					t.Data[j] *= 1e-3
				}
			}
			adapter = rounded(adapter)
			s.dir = memory("adapter", s.peftFolder(adapter))
			s.base = memory("lab/tiny", s.model.modelFolder(weights, 1))
			s.merged = memory("merged", s.model.modelFolder(s.merge(weights, adapter, s.scaling()), 1))
			return s
		}, none),
		planted("MERGE-PARTLY", "one module was not merged", "a name that the merger did not know", "V27", mergedScene, func(s *scene) {
			s.copyModule(s.model.BlockName(0) + s.target() + ".weight")
		}),
		planted("MERGE-MISSING", "the merged model lacks a tensor", "an exporter that knows fewer names", "V27", func(r *rand.Rand) *scene { return mergedAs(r, "gptj", format.F32) }, func(s *scene) {
			var list []safetensors.Tensor
			for n, text := range s.merged.Files {
				if strings.HasSuffix(n, ".safetensors") {
					list = append(list, unpack(text)...)
				}
			}
			list = slices.DeleteFunc(list, func(t safetensors.Tensor) bool { return strings.HasPrefix(t.Name, s.model.BlockName(1)+"mlp.fc_in") })
			s.merged = memory("merged", s.model.modelFolder(list, 1))
		}),
	}
	checkpoint.Delta.Faults = []fault{
		planted("MERGE-LEFT-OUT", "a norm that was trained whole is the base's", "merged by a script that adds s·B·A and nothing else", "peft@0.21 utils/other.py ModulesToSaveWrapper", mergedScene, func(s *scene) {
			norm, _ := s.model.Module(arch.FinalNorm, -1)
			w := norm.Weight()
			s.dir.edit(adapterFile, func(list []safetensors.Tensor) []safetensors.Tensor {
				return append(list, rounded([]safetensors.Tensor{{Name: peftPrefix + w.Name, DType: format.F32, Shape: w.Shape, Data: normal(s.r, w.Shape, 1)}})...)
			})
			s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["modules_to_save"] = []string{norm.Last()} })
		}),
		planted("P198", "scaled by α", "α in place of α/r (mlx-vlm#841)", "fault P198", merging("gptj", format.F32, nil, scaled(func(s *scene) float64 { return s.lora.alpha })), none),
		planted("P198", "no scaling", "B·A alone", "fault P198", merging("qwen2", format.F32, func(l *loraShape) { l.alpha = 12.5 }, scaled(func(*scene) float64 { return 1 })), none),
		planted("P197", "rsLoRA ignored", "α/r in place of α/√r (vLLM#6909)", "fault P197", merging("llama", format.BF16, rs, scaled(func(s *scene) float64 { return s.lora.alpha / float64(s.lora.r) })), none),
		planted("P197", "scaled as rsLoRA", "α/√r in place of α/r", "fault P197", merging("gptj", format.F16, func(l *loraShape) { l.r, l.alpha = 6, 16 }, scaled(func(s *scene) float64 { return s.lora.alpha / math.Sqrt(float64(s.lora.r)) })), none),
		planted("MERGE-TWICE", "one module merged twice", "merge() again after a crash; α/√r gives the same at r = 4", "V27", merging("gptj", format.F32, nil, func(s *scene, weights, adapter []safetensors.Tensor) []safetensors.Tensor {
			out := s.merge(weights, adapter, s.scaling())
			i := slices.IndexFunc(out, func(t safetensors.Tensor) bool { return t.Name == s.model.BlockName(1)+s.target()+".weight" })
			for j, v := range out[i].Data {
				out[i].Data[j] = 2*v - weights[i].Data[j]
			}
			return rounded(out)
		}), none),
		planted("DORA-MAGNITUDE", "DoRA merged as plain LoRA", "a program that leaves out the magnitudes", "V27", doraScene, func(s *scene) {
			s.merged = memory("merged", s.model.modelFolder(s.merge(unpack(s.base.Files["model.safetensors"]), unpack(s.dir.Files[adapterFile]), s.scaling()), 1))
		}),
		planted("MERGE-OTHER", "DoRA: unmerged along the wrong axis and merged again", "rows divided by the factors of the columns (PEFT#3532)", "peft@0.20 tuners/lora/variants.py", doraOf("gpt2"), func(s *scene) {
			old := unpack(s.base.Files["model.safetensors"])
			s.merged.edit("model.safetensors", func(list []safetensors.Tensor) []safetensors.Tensor {
				for i, t := range list {
					w := find(old, t.Name)
					if slices.Equal(t.Data, w.Data) {
						continue
					}
					n := t.Shape[1]
					for at := range t.Data { // one factor for each input, where each output has one
						list[i].Data[at] *= 1 + 0.1*float64(at/n)
					}
				}
				return list
			})
		}),
		planted("MERGE-TWICE", "merged twice", "merge() on a merged adapter", "V27", merging("gptj", format.F32, func(l *loraShape) { l.r, l.alpha = 6, 16 }, scaled(func(s *scene) float64 { return 2 * s.scaling() })), none),
		planted("P150", "int8 codes of the merge with the scales of before", "SCB was not renewed (PEFT#638)", "fault P150", int8MergedScene, func(s *scene) {
			old := unpack(s.base.Files["model.safetensors"])
			s.merged.edit("model.safetensors", func(list []safetensors.Tensor) []safetensors.Tensor {
				for i, t := range list {
					if strings.HasSuffix(t.Name, ".SCB") {
						list[i].Data = find(old, t.Name).Data
					}
				}
				return list
			})
		}),
		planted("MERGE-SIGN", "unmerged in place of merged", "unmerge() before the save", "V27", merging("gptj", format.F32, nil, scaled(func(s *scene) float64 { return -s.scaling() })), none),
		planted("MERGE-SCALE", "another factor", "α and r of another run", "V27", merging("gptj", format.F32, func(l *loraShape) { l.alpha = 16 }, scaled(func(s *scene) float64 { return 0.3 * s.scaling() })), none),
		planted("P148", "merged in bfloat16 and stored in float32", "the model was loaded in bfloat16", "fault P148", merging("qwen2", format.F32, nil, func(s *scene, weights, adapter []safetensors.Tensor) []safetensors.Tensor {
			out := s.merge(weights, adapter, s.scaling())
			for i := range out {
				if !slices.Equal(out[i].Data, weights[i].Data) {
					for j, v := range out[i].Data {
						out[i].Data[j] = format.Round(v, format.BF16)
					}
				}
			}
			return out
		}), none),
		planted("MERGE-TRANSPOSED", "the transpose was added", "fan_in_fan_out of another architecture", "V27", merging("gptj", format.F32, func(l *loraShape) { l.targets = []string{"q_proj", "v_proj"} }, func(s *scene, weights, adapter []safetensors.Tensor) []safetensors.Tensor {
			out := s.merge(weights, adapter, s.scaling())
			for i := range out {
				if slices.Equal(out[i].Data, weights[i].Data) {
					continue
				}
				n := out[i].Shape[1]
				d := make([]float64, n*n)
				for k := range d {
					d[k] = out[i].Data[k] - weights[i].Data[k]
				}
				for k := range d {
					out[i].Data[k] = weights[i].Data[k] + d[k%n*n+k/n]
				}
			}
			return rounded(out)
		}), none),
		planted("P157", "the bias of lora_B was added unscaled", "the 8-bit path of PEFT does not scale it", "fault P157", biased(1), none),
		planted("MERGE-OTHER", "the merge of another adapter", "the adapter of another step", "V27", merging("gptj", format.F32, nil, func(s *scene, weights, adapter []safetensors.Tensor) []safetensors.Tensor {
			return s.merge(weights, s.adapter(true), s.scaling())
		}), none),
		planted("P040", "a tensor that the adapter does not touch changed", "merged and unmerged in bfloat16, or another base (TRL#6688)", "fault P040", mergedScene, func(s *scene) {
			for n := range s.merged.Files {
				if !strings.HasSuffix(n, ".safetensors") {
					continue
				}
				s.merged.tensors(n, func(t *safetensors.Tensor) {
					if t.Name == arch.EmbeddingOf(s.model.Type) {
						t.Data[2] += 0.5
					}
				})
			}
		}),
	}
	checkpoint.Moved.Faults = []fault{
		planted("C9", "nothing moved", "the update was skipped, or one checkpoint copied", "fault C9", againstScene, func(s *scene) { s.dir = memory("run/step_2", s.against.Files) }),
		planted("D14", "lora_A stands still in every layer", "in no group of the optimiser", "faults D14, H8, P195", againstScene, func(s *scene) {
			old := unpack(s.against.Files[adapterFile])
			s.dir.tensors(adapterFile, func(t *safetensors.Tensor) {
				if strings.Contains(t.Name, "lora_A") {
					t.Data = find(old, t.Name).Data
				}
			})
		}),
		planted("H8", "the value head stands still", "detached (CoursIA#15256)", "faults H8, P195", againstScene, func(s *scene) {
			head := s.head()
			s.dir.Files["value_head.safetensors"], s.against.Files["value_head.safetensors"] = head, head
		}),
		warned("H13g", "most of the bfloat16 weights stand still", "updates below the spacing", "faults H13g, P178", func(r *rand.Rand) *scene {
			s := newScene(r, "llama")
			before := s.model.weights(r, format.BF16)
			s.against = memory("run/step_1", s.model.modelFolder(before, 1))
			s.dir = memory("run/step_2", s.model.modelFolder(step(r, before, 2e-4), 1))
			return s
		}, none),
		warned("AGAINST-FAR", "another run", "another seed", "V31", againstScene, func(s *scene) {
			list := s.adapter(true)
			for _, t := range list {
				for j := range t.Data {
					t.Data[j] *= 2
				}
			}
			s.dir = memory("run/step_2", s.peftFolder(list))
		}),
	}
	checkpoint.Layout.Faults = []fault{
		planted("P203", "the checkpoint grew", "something is saved a second time", "fault P203", againstScene, func(s *scene) { s.dir.Files["value_head.safetensors"] = s.head() }),
		planted("P006", "the value head is no longer saved", "save_model after a change of the trainer", "fault P006", againstScene, func(s *scene) { s.against.Files["value_head.safetensors"] = s.head() }),
		planted("AGAINST-SHAPE", "shapes of another run", "another rank", "V29", againstScene, func(s *scene) {
			s.lora.r++
			s.dir = memory("run/step_2", s.peftFolder(s.adapter(true)))
		}),
		warned("STEP-BACK", "the older checkpoint is judged against the newer", "a resume from an older state", "V29", againstScene, func(s *scene) {
			s.dir.Files["state.json"] = toJSON(map[string]any{"step": 3, "rng": 1, "scheduler": 1, "data_position": 1})
			s.against.Files["state.json"] = toJSON(map[string]any{"step": 9})
			s.dir.Files["optimizer.pt"] = adamState(3, shapesOf(unpack(s.dir.Files[adapterFile])))
		}),
	}
}

// copyModule puts the weight of the base in place of the merged one.
func (s *scene) copyModule(name string) {
	old := find(unpack(s.base.Files["model.safetensors"]), name)
	for n := range s.merged.Files {
		if !strings.HasSuffix(n, ".safetensors") {
			continue
		}
		s.merged.edit(n, func(list []safetensors.Tensor) []safetensors.Tensor {
			if t := find(list, name); t != nil {
				t.Data = old.Data
			}
			return list
		})
	}
}
