package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
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
	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
)

type fault = check.Fault[*checkpoint.Input]

// planted is a fault in a scene. It brings the folders that it is planted in, since each needs another family.
func planted(id, title, cause, source string, draw func(r *rand.Rand) *scene, change func(s *scene)) fault {
	return fault{ID: id, Title: title, Cause: cause, Source: source, Plant: func(r *rand.Rand, _ *checkpoint.Input) *checkpoint.Input {
		s := draw(r)
		change(s)
		return s.input()
	}}
}

// warned is planted for a fault that is a warning.
func warned(id, title, cause, source string, draw func(r *rand.Rand) *scene, change func(s *scene)) fault {
	f := planted(id, title, cause, source, draw, change)
	f.Want = check.Warn
	return f
}

// undecided is planted for a fault that leaves the check without an answer.
func undecided(id, title, cause, source string, draw func(r *rand.Rand) *scene, change func(s *scene)) fault {
	f := planted(id, title, cause, source, draw, change)
	f.Want = check.Undetermined
	return f
}

const adapterFile = "adapter_model.safetensors"

// of returns a scene of one architecture.
func of(kind string, draw func(s *scene)) func(r *rand.Rand) *scene {
	return func(r *rand.Rand) *scene {
		s := newScene(r, kind)
		draw(s)
		return s
	}
}

// asWhole declares the bits of float32 numbers as whole numbers.
func asWhole(t *safetensors.Tensor) {
	t.Raw = make([]byte, 4*len(t.Data))
	for i, v := range t.Data {
		binary.LittleEndian.PutUint32(t.Raw[4*i:], math.Float32bits(float32(v)))
	}
	t.DType, t.Data = format.I32, nil
}

var gptj = of("gptj", func(s *scene) {
	s.dir = memory("adapter", s.peftFolder(s.adapter(true)))
	s.base = memory("lab/tiny", s.model.modelFolder(s.model.weights(s.r, format.F32), 1))
})

// rename changes the names of the tensors of a file.
func rename(m *tree, file string, name func(string) string) {
	m.tensors(file, func(t *safetensors.Tensor) {
		t.Name = name(t.Name)
	})
}

// beside adds a copy of each tensor whose name ends so, with another end.
func beside(m *tree, file, end, other string) {
	m.edit(file, func(list []safetensors.Tensor) []safetensors.Tensor {
		for _, t := range slices.Clone(list) {
			if name, ok := strings.CutSuffix(t.Name, end); ok {
				t.Name = name + other
				list = append(list, t)
			}
		}
		return list
	})
}

// without drops the tensors whose names hold part.
func without(m *tree, file, part string) {
	m.edit(file, func(list []safetensors.Tensor) []safetensors.Tensor {
		return slices.DeleteFunc(list, func(t safetensors.Tensor) bool { return strings.Contains(t.Name, part) })
	})
}

func zeroed(t *safetensors.Tensor) { clear(t.Data) }

func init() {
	refused := func(name, reason string) error { return format.Malformed(name, "", "%s", reason) }
	checkpoint.Files.Faults = []fault{
		planted("BROKEN-SAFETENSORS", "a file of weights that was cut off", "the process was killed while it wrote", "safetensors, hostile files", wholeScene, func(s *scene) {
			f := s.dir.Files["model.safetensors"]
			s.dir.Files["model.safetensors"] = f[:len(f)*2/3]
		}),
		planted("BROKEN-SAFETENSORS", "a text file under the name of the weights", "a pointer of git-lfs was copied", "hostile files", aloneScene, func(s *scene) {
			s.dir.Files[adapterFile] = []byte("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 29360128\n")
		}),
		planted("BROKEN-JSON", "a configuration that is no JSON", "written in place, and interrupted", "hostile files", aloneScene, func(s *scene) {
			s.dir.Files["adapter_config.json"] = s.dir.Files["adapter_config.json"][:40]
		}),
		planted("BROKEN-JSON", "a broken index", "edited by hand", "hostile files", shardedScene, func(s *scene) {
			s.dir.Files[indexFile] = []byte(`{"weight_map": [1]}`)
		}),
		planted("INDEX-ESCAPE", "an index that names a file outside the folder", "a hostile model: transformers 46097, 46281, 46626", "layout of a Hugging Face folder", shardedScene, func(s *scene) {
			s.dir.editJSON(indexFile, func(o map[string]any) { o["weight_map"].(map[string]any)["x"] = "../secret.safetensors" })
		}),
		planted("INDEX-TENSOR", "the index maps a tensor to the wrong shard", "shards of two saves", "layout of a Hugging Face folder, hostile files", shardedScene, func(s *scene) {
			s.dir.editJSON(indexFile, func(o map[string]any) {
				m := o["weight_map"].(map[string]any)
				m[arch.EmbeddingOf(s.model.Type)] = "model-00003-of-00003.safetensors"
			})
		}),
		planted("TENSOR-TWICE", "a tensor in two shards", "two ranks saved it", "layout of a Hugging Face folder, hostile files", shardedScene, func(s *scene) {
			first := unpack(s.dir.Files["model-00001-of-00003.safetensors"])[0]
			s.dir.edit("model-00002-of-00003.safetensors", func(list []safetensors.Tensor) []safetensors.Tensor { return append(list, first) })
		}),
		planted("LINK-OUT", "a link that leads out of the folder", "links into a cache were copied as they are", "rules of every reader", wholeScene, func(s *scene) {
			delete(s.dir.Files, "model.safetensors")
			s.dir.Links["model.safetensors"] = refused("model/model.safetensors", "path escapes from parent: a link that leads out of the folder is refused")
		}),
		planted("SPECIAL-FILE", "a FIFO in place of a shard", "a hostile folder", "hostile files", wholeScene, func(s *scene) {
			delete(s.dir.Files, "model.safetensors")
			s.dir.Links["model.safetensors"] = refused("model/model.safetensors", "is a FIFO, want a regular file")
		}),
	}
	checkpoint.Pickles.Faults = []fault{
		planted("PICKLE-CODE", "a pickle that runs a command", "a hostile file among those of a trainer", "layout of a PEFT adapter", trainerScene, func(s *scene) {
			s.dir.Files["checkpoint-3/scheduler.pt"] = []byte("\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.")
		}),
		planted("PICKLE-CODE", "a value head that evaluates code", "a hostile file beside an adapter", "layout of a PEFT adapter", trlScene, func(s *scene) {
			s.dir.Files["pytorch_model.bin"] = []byte("\x80\x02cbuiltins\neval\nX\x03\x00\x00\x001+1\x85R.")
		}),
		planted("PICKLE-TENSORS", "a pickle whose storages are not there", "put together by hand", "layout of a PEFT adapter", trlScene, func(s *scene) {
			s.dir.Files["pytorch_model.bin"] = []byte(strings.Replace(string(torchFile([]member{{"v_head.summary.weight", []int{1, 4}}})), "archive/data/0", "archive/dats/0", -1))
		}),
	}
	checkpoint.Contents.Faults = []fault{
		planted("EMPTY-FOLDER", "an empty folder", "the job ended before its first save", "the command's bad input", wholeScene, func(s *scene) { s.dir = memory("model") }),
		planted("OTHER-KIND", "a folder of data", "the wrong path", "the command's bad input", wholeScene, func(s *scene) {
			s.dir = memory("data", map[string][]byte{"train.jsonl": []byte("{}\n"), "test.jsonl": []byte("{}\n")})
		}),
		planted("CONFIG-ONLY", "config.json without weights", "the large files were not copied", "the command's bad input", wholeScene, func(s *scene) { delete(s.dir.Files, "model.safetensors") }),
		planted("CONFIG-ONLY", "adapter_config.json without weights", "FSDP: rank 0 had nothing to save (transformers#28297)", "fault P144", aloneScene, func(s *scene) { delete(s.dir.Files, adapterFile) }),
		planted("EMPTY-ADAPTER", "an adapter without tensors", "ZeRO-3: the partitions were not gathered (TRL#4416, PEFT#2892)", "layout of a PEFT adapter", aloneScene, func(s *scene) { s.dir.Files[adapterFile] = pack(nil) }),
		planted("P076", "LoRA is trained, and no adapter is saved", "the save hook lacks the class of PEFT (verl#4866)", "fault P076", verlScene, func(s *scene) {
			s.dir.Files["actor/lora_train_meta.json"] = []byte(`{"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"}`)
			delete(s.dir.Files, "actor/lora_adapter/"+adapterFile)
			delete(s.dir.Files, "actor/lora_adapter/adapter_config.json")
		}),
		undecided("PICKLE-ONLY", "the adapter as a pickle", "safe_serialization=False", "layout of a PEFT adapter", aloneScene, func(s *scene) {
			delete(s.dir.Files, adapterFile)
			s.dir.Files["adapter_model.bin"] = torchFile([]member{{peftPrefix + "h.0.q.lora_A.weight", []int{2, 4}}})
		}),
	}
	checkpoint.Leftovers.Faults = []fault{
		warned("HALF-WRITTEN", "temporary files of a save", "killed between write and rename", "crash-safe saves", wholeScene, func(s *scene) {
			s.dir.Files["step_8.tmp-a1b2/model.safetensors.tmp"] = []byte("x")
		}),
		planted("ZERO-BYTES", "a pickle of no bytes", "the disk was full", "crash-safe saves", trainerScene, func(s *scene) { s.dir.Files["checkpoint-3/rng_state.pth"] = nil }),
	}
	checkpoint.Manifests.Faults = []fault{
		planted("MANIFEST-DIGEST", "one byte flipped since the save", "a failing disk, or an edit", "crash-safe saves", runScene, func(s *scene) {
			f := s.dir.Files["step_4/value_head.safetensors"]
			f[len(f)-3] ^= 1
		}),
		planted("MANIFEST-DIGEST", "the manifest changed since the save", "edited by hand", "crash-safe saves", runScene, func(s *scene) {
			text := bytes.Replace(s.dir.Files["step_4/MANIFEST.json"], []byte(`"base_fingerprint"`), []byte("\"config_sha256\": \"\",\n  \"manifest_sha256\": \"\",\n  \"base_fingerprint\""), 1)
			sum := sha256.Sum256(text)
			text = bytes.Replace(text, []byte(`"manifest_sha256": ""`), fmt.Appendf(nil, `"manifest_sha256": "%x"`, sum), 1)
			s.dir.Files["step_4/MANIFEST.json"] = bytes.Replace(text, []byte(`"schema": 1`), []byte(`"schema": 2`), 1)
		}),
		planted("MANIFEST-MISSING", "no manifest in one step", "killed between the files and the manifest, and renamed by hand", "crash-safe saves", runScene, func(s *scene) { delete(s.dir.Files, "step_4/MANIFEST.json") }),
		planted("MANIFEST-MISSING", "a file gone since the save", "a copy that left it out", "crash-safe saves", runScene, func(s *scene) { delete(s.dir.Files, "step_2/rng.json") }),
		planted("MANIFEST-EXTRA", "a file that the save did not write", "files of two steps in one folder", "crash-safe saves", runScene, func(s *scene) { s.dir.Files["step_2/notes.txt"] = []byte("?") }),
		planted("MANIFEST-STEP", "the manifest of another step", "a folder was renamed", "crash-safe saves", runScene, func(s *scene) {
			files := map[string][]byte{}
			for n, text := range s.dir.Files {
				if path.Dir(n) == "step_2" {
					files["step_8/"+path.Base(n)] = text
				}
			}
			maps.Copy(s.dir.Files, files)
		}),
	}
	adapterFaults()
	baseFaults()
	modelFaults()
	resumeFaults()
	mergeFaults()
	partFaults()
}

func modelFaults() {
	shards := func(name string) func(*scene) { return func(s *scene) { delete(s.dir.Files, name) } }
	checkpoint.Shards.Faults = []fault{
		planted("SHARD-MISSING", "a shard is missing", "half-written, or not copied", "layout of a Hugging Face folder", shardedScene, shards("model-00002-of-00003.safetensors")),
		planted("INDEX-MISSING", "shards without their index", "not copied", "layout of a Hugging Face folder", shardedScene, shards(indexFile)),
		planted("UNMAPPED", "tensors that the index leaves out", "an index of another save", "layout of a Hugging Face folder", shardedScene, func(s *scene) {
			s.dir.editJSON(indexFile, func(o map[string]any) { delete(o["weight_map"].(map[string]any), arch.EmbeddingOf(s.model.Type)) })
		}),
		warned("SHARD-UNUSED", "a shard of an earlier save", "the folder was not emptied", "layout of a Hugging Face folder", shardedScene, func(s *scene) { s.dir.Files["model-00004-of-00004.safetensors"] = pack(nil) }),
		planted("STALE-SINGLE", "model.safetensors of an earlier save beside the shards", "the model grew beyond one shard, and the folder was not emptied", "transformers modeling_utils", shardedScene, func(s *scene) {
			var all []safetensors.Tensor
			for name, text := range s.dir.Files {
				if strings.HasSuffix(name, ".safetensors") {
					all = append(all, unpack(text)...)
				}
			}
			all[0].Data[0]++
			s.dir.Files["model.safetensors"] = pack(all)
		}),
		warned("SHARD-UNUSED", "the same weights in one file as well", "saved twice", "transformers modeling_utils", shardedScene, func(s *scene) {
			var all []safetensors.Tensor
			for name, text := range s.dir.Files {
				if strings.HasSuffix(name, ".safetensors") {
					all = append(all, unpack(text)...)
				}
			}
			s.dir.Files["model.safetensors"] = pack(all)
		}),
		warned("TOTAL-SIZE", "total_size of another width", "written before a cast", "layout of a Hugging Face folder", shardedScene, func(s *scene) {
			s.dir.editJSON(indexFile, func(o map[string]any) { o["metadata"] = map[string]any{"total_size": 17} })
		}),
	}
	const file = "model.safetensors"
	checkpoint.Names.Faults = []fault{
		planted("TENSOR-MISSING", "a layer is missing", "one stage of a pipeline was not saved", "layout of a Hugging Face folder", wholeScene, func(s *scene) { without(s.dir, file, s.model.BlockName(1)) }),
		planted("TENSOR-SHAPE", "a configuration of another model", "config.json of the larger model", "layout of a Hugging Face folder", wholeScene, func(s *scene) {
			s.dir.editJSON("config.json", func(o map[string]any) { o["vocab_size"] = s.model.Vocab + 8 })
		}),
		planted("P007", "every key begins with pretrained_model.", "the wrapper with the value head was saved (TRL#3071)", "fault P007", wholeScene, func(s *scene) { rename(s.dir, file, func(n string) string { return "pretrained_model." + n }) }),
		planted("P005", "keys of policy and value model in one file", "PolicyAndValueWrapper was saved (TRL#1776)", "fault P005", wholeScene, func(s *scene) { rename(s.dir, file, func(n string) string { return "policy." + n }) }),
		planted("UNMERGED", "a PeftModel saved as a whole model", "save without merge_and_unload", "faults P140, P148", wholeScene, func(s *scene) {
			rename(s.dir, file, func(n string) string {
				return peftPrefix + strings.Replace(n, "_proj.weight", "_proj.base_layer.weight", 1)
			})
		}),
		planted("KEY-PREFIX", "model. twice", "state_dict() of a module around the model", "layout of a Hugging Face folder", of("qwen2", func(s *scene) {
			s.model.Tied = true
			s.dir = memory("model", s.model.modelFolder(s.model.weights(s.r, format.BF16), 1))
		}), func(s *scene) { rename(s.dir, file, func(n string) string { return "model." + n }) }),
		planted("LAYERS-CUT", "a layer more than the configuration says", "config.json of a smaller model", "layout of a Hugging Face folder", wholeScene, func(s *scene) {
			s.dir.editJSON("config.json", func(o map[string]any) {
				for _, k := range []string{"n_layer", "num_hidden_layers"} {
					if o[k] != nil {
						o[k] = s.model.Layers - 1
					}
				}
			})
		}),
		planted("HEAD-MISSING", "the head was dropped as if it were tied", "an exporter that ties everything", "layout of a Hugging Face folder", of("gptj", func(s *scene) {
			s.dir = memory("model", s.model.modelFolder(s.model.weights(s.r, format.F16), 1))
		}), func(s *scene) { without(s.dir, file, "lm_head") }),
		planted("ZERO-LENGTH", "tensors of length 0", "ZeRO-3 placeholders (DeepSpeed#7900)", "layout of a PEFT adapter", wholeScene, func(s *scene) {
			s.dir.tensor(file, arch.EmbeddingOf(s.model.Type), func(t *safetensors.Tensor) { t.Shape, t.Data = []int{0}, nil })
		}),
		undecided("CONFIG-NAME", "an activation that no loader knows", "a configuration written by hand", "transformers 5.23 activations.ACT2FN", of("llama", func(s *scene) {
			s.dir = memory("model", s.model.modelFolder(s.model.weights(s.r, format.F16), 1))
		}), func(s *scene) { s.dir.editJSON("config.json", func(o map[string]any) { o["hidden_act"] = "sillu" }) }),
		planted("NO-CONFIG", "no config.json", "not copied", "layout of a Hugging Face folder", wholeScene, func(s *scene) { delete(s.dir.Files, "config.json") }),
	}
	checkpoint.Tied.Faults = []fault{planted("TIED-DIFFERS", "a tied head that differs from the embedding", "the head was trained alone", "layout of a Hugging Face folder", of("llama", func(s *scene) {
		s.dir = memory("model", s.model.modelFolder(s.model.weights(s.r, format.F16), 1))
	}), func(s *scene) {
		s.dir.edit(file, func(list []safetensors.Tensor) []safetensors.Tensor {
			t := *find(list, arch.EmbeddingOf(s.model.Type))
			t.Name, t.Data = "lm_head.weight", slices.Clone(t.Data)
			t.Data[3] += 1
			return append(list, t)
		})
	})}
	checkpoint.StoredTypes.Faults = []fault{
		planted("INT-WEIGHTS", "the bits of float32 numbers declared I32", "written from a view of the bits", "bitsandbytes int8 tensors", func(r *rand.Rand) *scene {
			s := newScene(r, anyType(r))
			s.dir = memory("model", s.model.modelFolder(s.model.weights(r, format.F32), 1))
			return s
		}, func(s *scene) {
			s.dir.tensor(file, s.model.Adaptable()[0].Name+".weight", asWhole)
		}),
		planted("P041", "packed 4-bit codes as weights", "a bitsandbytes model saved as if it were dense (TRL#3466)", "fault P041", wholeScene, func(s *scene) {
			s.dir.tensor(file, s.model.Adaptable()[0].Name+".weight", func(t *safetensors.Tensor) {
				n := len(t.Data) / 2
				t.DType, t.Shape, t.Data, t.Raw = format.U8, []int{n, 1}, nil, make([]byte, n)
				t.Raw[0] = 1
			})
		}),
		warned("MIXED-TYPES", "one layer of another type", "layers of two saves", "fault P152", func(r *rand.Rand) *scene {
			s := newScene(r, anyType(r))
			s.dir = memory("model", s.model.modelFolder(s.model.weights(r, format.F16), 1))
			return s
		}, func(s *scene) {
			s.dir.tensors(file, func(t *safetensors.Tensor) {
				if strings.HasPrefix(t.Name, s.model.BlockName(1)) {
					t.DType = format.F32
				}
			})
		}),
		planted("INT-WEIGHTS", "the vector of a norm as whole numbers", "the bits of floating-point numbers under another type", "fault P211", of("llama", func(s *scene) {
			s.dir = memory("model", s.model.modelFolder(s.model.weights(s.r, format.F32), 1))
		}), func(s *scene) {
			s.dir.tensor(file, "norm.weight", asWhole)
		}),
		planted("INT-WEIGHTS", "a bias as whole numbers, beside a quantization_config", "the bits of floating-point numbers under another type", "fault P211",
			func(r *rand.Rand) *scene { return int8As(r, "qwen2") }, func(s *scene) {
				s.dir.tensor(file, ".bias", asWhole)
			}),
		planted("QUANT-CONFIG", "no quantization_config", "the configuration of the dense model was copied over it", "bitsandbytes int8 tensors", int8Scene, func(s *scene) {
			s.dir.editJSON("config.json", func(o map[string]any) { delete(o, "quantization_config") })
		}),
		planted("INT8-NO-SCALE", "int8 codes without their scales", "SCB was dropped on export", "V28", int8Scene, func(s *scene) { without(s.dir, file, "SCB") }),
		warned("DTYPE-CONFIG", "config.json names another type", "cast after the configuration was written", "fault P152", of("llama", func(s *scene) {
			s.dir = memory("model", s.model.modelFolder(s.model.weights(s.r, format.F32), 1))
		}), func(s *scene) {
			s.dir.editJSON("config.json", func(o map[string]any) { o["torch_dtype"] = "bfloat16" })
		}),
	}
	scb := func(change func(t *safetensors.Tensor)) func(*scene) {
		return func(s *scene) { s.dir.tensor(file, ".SCB", change) }
	}
	checkpoint.Scales.Faults = []fault{
		planted("SCB-LENGTH", "SCB of another weight", "scales of the transposed weight", "bitsandbytes int8 tensors", int8Scene, scb(func(t *safetensors.Tensor) { t.Shape, t.Data = []int{3}, t.Data[:3] })),
		planted("SCB-SIGN", "SCB is 0", "zeroed", "bitsandbytes int8 tensors", int8Scene, scb(func(t *safetensors.Tensor) { t.Data[1] = 0 })),
		planted("SCB-NAN", "SCB is NaN", "quantised from NaN", "bitsandbytes int8 tensors", int8Scene, scb(func(t *safetensors.Tensor) { t.Data[1] = math.NaN() })),
		planted("WEIGHT-FORMAT", "a tiled layout", "saved on an old GPU", "bitsandbytes int8 tensors", int8Scene, func(s *scene) {
			s.dir.tensor(file, ".weight_format", func(t *safetensors.Tensor) { t.Raw = []byte{2} })
		}),
		planted("INT8-CODE", "a code of −128", "another quantiser's codes", "bitsandbytes int8 tensors", int8Scene, func(s *scene) {
			s.dir.tensor(file, "_proj.weight", func(t *safetensors.Tensor) { t.Raw = slices.Clone(t.Raw); t.Raw[1] = 0x80 })
		}),
		planted("P212", "a scale of 0", "float8 row of zeros (pytorch/ao#3356)", "fault P212", wholeScene, func(s *scene) {
			s.dir.edit(file, func(list []safetensors.Tensor) []safetensors.Tensor {
				return append(list, safetensors.Tensor{Name: "model.x.weight_scale", DType: format.F32, Shape: []int{2}, Data: []float64{1, 0}})
			})
		}),
		warned("INT8-RANGE", "codes that do not use their range", "one scale for the whole tensor", "bitsandbytes int8 tensors", int8Scene, func(s *scene) {
			s.dir.tensor(file, "_proj.weight", func(t *safetensors.Tensor) {
				t.Raw = slices.Clone(t.Raw)
				for j := range t.Shape[1] {
					t.Raw[j] = byte(int8(t.Raw[j]) / 2)
				}
			})
		}),
	}
	dense := func(factor float64) func(r *rand.Rand) *scene {
		return func(r *rand.Rand) *scene { return denseScene(r, func(_, _ int) float64 { return factor }) }
	}
	checkpoint.Dense.Faults = []fault{
		planted("QUANT-FACTOR", "dequantised with 1/128", "the constant of another format", "int8 base with LoRA as PEFT and bitsandbytes have it", dense(1.0/128), func(*scene) {}),
		planted("QUANT-FACTOR", "dequantised without 1/127", "SCB taken for the step", "bitsandbytes int8 tensors", dense(1), func(*scene) {}),
		planted("QUANT-AXIS", "dequantised by columns", "scales broadcast along the wrong axis", "bitsandbytes int8 tensors", dense(-1.0/127), func(*scene) {}),
		planted("QUANT-BASE", "rows exchanged", "codes of one save, scales of another", "V28", dense(1.0/127), func(s *scene) {
			s.dir.tensor(file, s.model.Block(1)[1].Name+".weight", func(t *safetensors.Tensor) {
				t.Data = append(slices.Clone(t.Data[len(t.Data)/2:]), t.Data[:len(t.Data)/2]...)
			})
		}),
		warned("QUANT-BASE", "two layers exchanged", "a conversion that sorts layers by name: 10 before 2", "layout of a Hugging Face folder", wholeScene, func(s *scene) {
			s.base = memory("lab/tiny", s.dir.Files)
			s.dir = memory("model", s.dir.Files)
			rename(s.dir, file, func(n string) string {
				for i := range 2 {
					if rest, ok := strings.CutPrefix(n, s.model.BlockName(i)); ok {
						return s.model.BlockName(1-i) + rest
					}
				}
				return n
			})
		}),
		warned("QUANT-FACTOR", "a model that is 127/128 of its base", "dequantised with 1/128", "int8 base with LoRA as PEFT and bitsandbytes have it", wholeScene, func(s *scene) {
			s.base = memory("lab/tiny", s.dir.Files)
			s.dir = memory("model", s.dir.Files)
			s.dir.edit(file, func(list []safetensors.Tensor) []safetensors.Tensor {
				for i := range list {
					for j, v := range list[i].Data {
						list[i].Data[j] = v * 127 / 128
					}
				}
				return rounded(list)
			})
		}),
	}
	checkpoint.Codes.Faults = []fault{
		planted("QUANT-SCALE-127", "SCB holds absmax/127", "the scale of another library", "bitsandbytes int8 tensors", int8Scene, func(s *scene) {
			s.dir.tensors(file, func(t *safetensors.Tensor) {
				if strings.HasSuffix(t.Name, ".SCB") {
					for j := range t.Data {
						t.Data[j] /= 127
					}
				}
			})
		}),
		planted("QUANT-BASE", "codes of other weights", "quantised from another base", "V28", int8Scene, func(s *scene) {
			s.base.tensor(file, s.model.Adaptable()[0].Name+".weight", func(t *safetensors.Tensor) { t.Data[0] += 1 })
		}),
	}
	checkpoint.Finite.Faults = []fault{
		planted("NAN", "one NaN in an adapter", "0/0 in an update", "layout of a PEFT adapter", aloneScene, func(s *scene) {
			s.dir.tensor(adapterFile, "lora_B.weight", func(t *safetensors.Tensor) { t.Data[s.r.IntN(len(t.Data))] = math.NaN() })
		}),
		planted("NAN", "one NaN in a whole model", "0/0 in an update", "fault P147", wholeScene, func(s *scene) {
			s.dir.tensor(file, ".weight", func(t *safetensors.Tensor) { t.Data[s.r.IntN(len(t.Data))] = math.NaN() })
		}),
		planted("INF", "one infinity in a merged model", "the merge overflowed float16", "fault P155", func(r *rand.Rand) *scene { return mergedAs(r, "gptj", format.F16) }, func(s *scene) {
			for n := range s.merged.Files {
				if !strings.HasSuffix(n, ".safetensors") {
					continue
				}
				s.merged.edit(n, func(list []safetensors.Tensor) []safetensors.Tensor {
					if t := find(list, s.model.BlockName(1)+s.target()+".weight"); t != nil {
						t.Data[3] = math.Inf(1)
					}
					return list
				})
			}
		}),
		planted("INF", "one infinity in a whole model", "overflow of float16", "fault P155", wholeScene, func(s *scene) {
			s.dir.tensor(file, ".weight", func(t *safetensors.Tensor) { t.Data[s.r.IntN(len(t.Data))] = math.Inf(-1) })
		}),
	}
	// part zeroes the elements of one matrix that empty says belong to a shard.
	part := func(empty func(row, col, rows, cols int) bool) func(s *scene) {
		return func(s *scene) {
			linears := s.model.Block(1)
			s.dir.tensor(file, linears[len(linears)-1].Name+".weight", func(t *safetensors.Tensor) {
				rows, cols := t.Shape[0], t.Shape[1]
				for i := range t.Data {
					if empty(i/cols, i%cols, rows, cols) {
						t.Data[i] = 0
					}
				}
			})
		}
	}
	checkpoint.Zero.Faults = []fault{
		planted("P202", "a weight of zeros", "zeroed by a quantiser, or not gathered", "faults P202, P211", wholeScene, func(s *scene) {
			s.dir.tensor(file, s.model.Block(1)[2].Name+".weight", zeroed)
		}),
		planted("ZERO-PART", "the last half of the rows of a matrix", "one of two ranks was saved", "fault P134", wholeScene, part(func(row, _, rows, _ int) bool { return row >= rows/2 })),
		planted("ZERO-PART", "the first quarter of the rows of a matrix", "one of four ranks was not saved", "fault P134", wholeScene, part(func(row, _, rows, _ int) bool { return row < rows/4 })),
		planted("ZERO-PART", "the last half of the columns of a matrix", "one of two ranks of a row-parallel layer was saved", "fault P134", wholeScene, part(func(_, col, _, cols int) bool { return col >= cols/2 })),
	}
}
