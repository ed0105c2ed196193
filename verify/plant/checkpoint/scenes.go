package checkpoint

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
)

// families of scenes: every layout that verify checkpoint knows, as a correct program leaves it.
var scenes = []struct {
	name string
	draw func(r *rand.Rand) *scene
}{
	{"adapter of PEFT with its base", adapterScene},
	{"adapter of PEFT alone", aloneScene},
	{"whole model", wholeScene},
	{"sharded model", shardedScene},
	{"int8 model with its base", int8Scene},
	{"merged model", mergedScene},
	{"merged model with lora_bias", func(r *rand.Rand) *scene { return biasedScene(r, 0) }},
	{"merged int8 model", int8MergedScene},
	{"merged model with DoRA", doraScene},
	{"dequantised model with its int8 base", func(r *rand.Rand) *scene { return denseScene(r, func(_, _ int) float64 { return 1.0 / 127 }) }},
	{"adapter with norms trained whole", savedScene},
	{"adapter and its start", initScene},
	{"two steps of an adapter", againstScene},
	{"two steps of a model", wholeAgainstScene},
	{"checkpoint of transformers' Trainer", trainerScene},
	{"run of PPO", runScene},
	{"checkpoint of verl", verlScene},
	{"critic of OpenRLHF", criticScene},
	{"adapter of TRL's PPO", trlScene},
}

var modelTypes = []string{"gptj", "gpt2", "llama", "qwen2"}

// targetsOf are common targets of LoRA for an architecture.
var targetsOf = map[string][][]string{
	"gptj":  {{"q_proj", "v_proj"}, {"q_proj", "v_proj", "fc_in", "fc_out"}, {"q_proj", "k_proj", "v_proj", "out_proj"}},
	"gpt2":  {{"c_attn"}, {"c_attn", "c_fc"}},
	"llama": {{"q_proj", "v_proj"}, {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}},
	"qwen2": {{"q_proj", "v_proj"}, {"gate_proj", "up_proj", "down_proj"}},
}

func newScene(r *rand.Rand, kind string) *scene {
	s := &scene{r: r, model: tiny(kind, r)}
	targets := targetsOf[kind]
	s.lora = loraShape{r: []int{2, 4, 6}[r.IntN(3)], alpha: []float64{8, 16, 12.5}[r.IntN(3)], rs: r.IntN(3) == 0, targets: targets[r.IntN(len(targets))], dtype: format.F32}
	return s
}

func anyType(r *rand.Rand) string { return modelTypes[r.IntN(len(modelTypes))] }

func anyFloat(r *rand.Rand) format.DType {
	return []format.DType{format.F32, format.F16, format.BF16}[r.IntN(3)]
}

func adapterScene(r *rand.Rand) *scene {
	s := newScene(r, anyType(r))
	s.dir = memory("adapter", s.peftFolder(s.adapter(true)))
	s.base = memory("lab/tiny", s.model.modelFolder(s.model.weights(r, anyFloat(r)), 1))
	return s
}

func aloneScene(r *rand.Rand) *scene {
	s := newScene(r, anyType(r))
	s.lora.dtype = anyFloat(r)
	s.dir = memory("adapter", s.peftFolder(s.adapter(true)))
	return s
}

func wholeScene(r *rand.Rand) *scene {
	s := newScene(r, anyType(r))
	s.dir = memory("model", s.model.modelFolder(s.model.weights(r, anyFloat(r)), 1))
	return s
}

func shardedScene(r *rand.Rand) *scene {
	s := newScene(r, anyType(r))
	s.dir = memory("model", s.model.modelFolder(s.model.weights(r, anyFloat(r)), 3))
	return s
}

func int8Scene(r *rand.Rand) *scene { return int8As(r, []string{"gptj", "llama", "qwen2"}[r.IntN(3)]) }

func int8As(r *rand.Rand, kind string) *scene {
	s := newScene(r, kind)
	weights := s.model.weights(r, format.F16)
	s.base = memory("lab/tiny", s.model.modelFolder(weights, 1))
	files := s.model.modelFolder(weights, 1)
	files["model.safetensors"] = pack(s.quantised(weights))
	s.dir = memory("int8", files)
	s.dir.editJSON("config.json", func(o map[string]any) {
		o["quantization_config"] = map[string]any{"quant_method": "bitsandbytes", "load_in_8bit": true}
	})
	return s
}

func mergedScene(r *rand.Rand) *scene { return mergedAs(r, anyType(r), anyFloat(r)) }

func mergedAs(r *rand.Rand, kind string, dtype format.DType) *scene {
	s := newScene(r, kind)
	weights, adapter := s.model.weights(r, dtype), s.adapter(true)
	s.dir = memory("adapter", s.peftFolder(adapter))
	s.base = memory("lab/tiny", s.model.modelFolder(weights, 1))
	s.merged = memory("merged", s.model.modelFolder(s.merge(weights, adapter, s.scaling()), 1+r.IntN(2)))
	return s
}

// int8MergedScene is a merge into int8 weights: dequantised, added in float32, quantised again with new scales (peft@0.21
// tuners/lora/bnb.py).
func int8MergedScene(r *rand.Rand) *scene {
	s := int8Scene(r)
	s.lora.alpha, s.lora.rs = 16, false
	dense, adapter := unpack(s.base.Files["model.safetensors"]), s.adapter(true)
	codes := s.quantised(dense)
	for i, t := range dense {
		c, scb := find(codes, t.Name), find(codes, strings.TrimSuffix(t.Name, ".weight")+".SCB")
		if scb == nil {
			continue
		}
		dense[i].DType = format.F32
		for j := range t.Data {
			t.Data[j] = format.Round(float64(int8(c.Raw[j]))*scb.Data[j/t.Shape[1]]*7.874015718698502e-3, format.F32)
		}
	}
	s.base = s.dir
	s.merged = memory("merged", s.dir.Files, map[string][]byte{"model.safetensors": pack(s.quantised(s.merge(dense, adapter, s.scaling())))})
	s.base.Name = "lab/tiny"
	s.dir = memory("adapter", s.peftFolder(adapter))
	return s
}

// biasedScene is a merged model of an adapter with lora_bias: B has a bias, which is scaled as B·A is (peft@0.21
// tuners/lora/layer.py), or by the factor given.
func biasedScene(r *rand.Rand, by float64) *scene {
	s := newScene(r, "qwen2")
	s.lora.targets, s.lora.alpha, s.lora.r = []string{"q_proj", "v_proj"}, 16, 4
	weights, adapter := s.model.weights(r, format.F32), s.adapter(true)
	merged := s.merge(weights, adapter, s.scaling())
	if by == 0 {
		by = s.scaling()
	}
	for _, t := range slices.Clone(adapter) {
		name, ok := strings.CutSuffix(t.Name, ".lora_B.weight")
		if !ok {
			continue
		}
		b := safetensors.Tensor{Name: name + ".lora_B.bias", DType: format.F32, Shape: t.Shape[:1], Data: normal(r, t.Shape[:1], 0.1)}
		rounded([]safetensors.Tensor{b})
		adapter = append(adapter, b)
		w := find(merged, strings.TrimPrefix(name, peftPrefix)+".bias")
		for i := range w.Data {
			w.Data[i] += by * b.Data[i]
		}
	}
	s.dir = memory("adapter", s.peftFolder(adapter))
	s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["lora_bias"] = true })
	s.base = memory("lab/tiny", s.model.modelFolder(weights, 1))
	s.merged = memory("merged", s.model.modelFolder(rounded(merged), 1))
	return s
}

// denseScene is a model that was dequantised with the factors given in place of the 1/127 of its codes and scales; a negative row
// asks for the scale of the column.
func denseScene(r *rand.Rand, factor func(row, col int) float64) *scene {
	s := int8Scene(r)
	weights, codes := unpack(s.base.Files["model.safetensors"]), unpack(s.dir.Files["model.safetensors"])
	dtype := anyFloat(r)
	for i, w := range weights {
		weights[i].DType = dtype
		c, scb := find(codes, w.Name), find(codes, strings.TrimSuffix(w.Name, ".weight")+".SCB")
		if scb == nil {
			continue
		}
		cols := w.Shape[1]
		for j := range w.Data {
			row, col := j/cols, j%cols
			scale, f := scb.Data[row], factor(row, col)
			if f < 0 && cols == w.Shape[0] {
				scale = scb.Data[col]
			}
			w.Data[j] = float64(int8(c.Raw[j])) * scale * math.Abs(f)
		}
	}
	s.base = s.dir
	s.base.Name = "lab/tiny"
	s.dir = memory("dense", s.model.modelFolder(rounded(weights), 1))
	return s
}

// doraScene is a merged model of an adapter with DoRA, W' = m/‖W + Δ‖·(W + Δ) output by output (Liu et al. 2024, Eq. 5), computed in
// float32 as PEFT does. An output is a row, in GPT-2 a column.
func doraScene(r *rand.Rand) *scene {
	return doraOf([]string{"gptj", "llama", "qwen2", "gpt2"}[r.IntN(4)])(r)
}

func doraOf(kind string) func(r *rand.Rand) *scene { return of(kind, (*scene).dora) }

func (s *scene) dora() {
	r := s.r
	weights, adapter := s.model.weights(r, anyFloat(r)), s.adapter(true)
	dense := slices.Clone(weights)
	for i := range dense {
		dense[i].DType = format.F32
	}
	merged := s.merge(dense, adapter, s.scaling())
	for _, t := range slices.Clone(adapter) {
		name, ok := strings.CutSuffix(t.Name, ".lora_B.weight")
		if !ok {
			continue
		}
		m := safetensors.Tensor{Name: name + ".lora_magnitude_vector", DType: format.F32, Shape: t.Shape[:1]}
		w := find(merged, strings.TrimPrefix(name, peftPrefix)+".weight")
		out, step, next := w.Shape[0], 1, w.Shape[1] // of the elements of an output, and of the outputs
		if s.model.Type == "gpt2" {
			out, step, next = w.Shape[1], w.Shape[1], 1
		}
		for row := range out {
			sum := 0.0
			for j := range len(w.Data) / out {
				v := w.Data[row*next+j*step]
				sum += float64(v * v)
			}
			norm := format.Round(math.Sqrt(sum), weights[0].DType)
			m.Data = append(m.Data, format.Round(math.Sqrt(sum)*(0.8+0.4*r.Float64()), format.F32))
			factor := format.Round(m.Data[row]/norm, format.F32)
			for j := range len(w.Data) / out {
				w.Data[row*next+j*step] *= factor
			}
		}
		adapter = append(adapter, m)
	}
	for i := range merged {
		merged[i].DType = weights[i].DType
	}
	s.dir = memory("adapter", s.peftFolder(adapter))
	s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["use_dora"] = true })
	s.base = memory("lab/tiny", s.model.modelFolder(weights, 1))
	s.merged = memory("merged", s.model.modelFolder(rounded(merged), 1))
}

// adaLora makes the adapter one of AdaLoRA that nothing has been taken from: A, B and an E of that value.
func (s *scene) adaLora(list []safetensors.Tensor, e float64) []safetensors.Tensor {
	for _, t := range slices.Clone(list) {
		if name, ok := strings.CutSuffix(t.Name, ".lora_A.weight"); ok {
			x := safetensors.Tensor{Name: name + ".lora_E", DType: t.DType, Shape: []int{t.Shape[0], 1}, Data: normal(s.r, []int{t.Shape[0]}, e)}
			list = append(list, x)
		}
	}
	return rounded(list)
}

// adaScene is an adapter of AdaLoRA and its start, whose E is drawn with the standard deviation e.
func adaScene(e float64) func(r *rand.Rand) *scene {
	return func(r *rand.Rand) *scene {
		s := newScene(r, anyType(r))
		before := s.adapter(true)
		s.init = memory("init", s.peftFolder(s.adaLora(before, e)))
		s.dir = memory("adapter", s.peftFolder(s.adaLora(step(r, before, 1e-2), 0.3)))
		for _, m := range []*tree{s.init, s.dir} {
			m.editJSON("adapter_config.json", func(o map[string]any) {
				o["peft_type"], o["init_r"], o["rank_pattern"] = "ADALORA", s.lora.r, nil
			})
		}
		return s
	}
}

// savedScene is an adapter that brings the norms of the base with it.
func savedScene(r *rand.Rand) *scene {
	s := newScene(r, []string{"llama", "qwen2"}[r.IntN(2)])
	list := s.adapter(true)
	for _, t := range s.model.weights(r, format.F32) {
		if strings.HasSuffix(t.Name, "norm.weight") {
			t.Name = peftPrefix + t.Name
			list = append(list, t)
		}
	}
	s.dir = memory("adapter", s.peftFolder(list))
	s.dir.editJSON("adapter_config.json", func(o map[string]any) { o["modules_to_save"] = []string{"norm"} })
	return s
}

func initScene(r *rand.Rand) *scene {
	s := newScene(r, anyType(r))
	before := s.adapter(false)
	s.init = memory("init", s.peftFolder(before))
	s.dir = memory("adapter", s.peftFolder(step(r, before, 1e-2)))
	return s
}

// step moves every number a little, as an optimiser does.
func step(r *rand.Rand, list []safetensors.Tensor, size float64) []safetensors.Tensor {
	out := make([]safetensors.Tensor, len(list))
	for i, t := range list {
		out[i] = t
		if t.Data == nil {
			continue
		}
		out[i].Data = slices.Clone(t.Data)
		for j, v := range t.Data {
			out[i].Data[j] = v + size*(0.5+r.Float64())*float64(1-2*r.IntN(2))
		}
	}
	return rounded(out)
}

func againstScene(r *rand.Rand) *scene {
	s := newScene(r, anyType(r))
	before := s.adapter(true)
	s.against = memory("run/step_1", s.peftFolder(before))
	s.dir = memory("run/step_2", s.peftFolder(step(r, before, 1e-3)))
	return s
}

func wholeAgainstScene(r *rand.Rand) *scene {
	s := newScene(r, anyType(r))
	before := s.model.weights(r, format.F32)
	s.against = memory("run/step_1", s.model.modelFolder(before, 2))
	s.dir = memory("run/step_2", s.model.modelFolder(step(r, before, 1e-5), 1))
	return s
}

// shapesOf returns the shapes of tensors, for the state of an optimiser.
func shapesOf(list []safetensors.Tensor) [][]int {
	var out [][]int
	for _, t := range list {
		out = append(out, t.Shape)
	}
	return out
}

func trainerScene(r *rand.Rand) *scene {
	s := newScene(r, anyType(r))
	adapter := s.adapter(true)
	s.dir = memory("outputs", below("checkpoint-3", s.peftFolder(adapter)), below("checkpoint-3", map[string][]byte{
		"optimizer.pt":       adamState(3, shapesOf(adapter)),
		"scheduler.pt":       torchFile([]member{{"last_epoch", 3}}),
		"rng_state.pth":      torchFile([]member{{"python", "state"}}),
		"training_args.bin":  barePickle([]member{{"output_dir", "outputs"}}),
		"trainer_state.json": toJSON(map[string]any{"global_step": 3, "epoch": 0.5, "log_history": []any{map[string]any{"loss": 0.5}}}),
		"tokenizer.json":     s.model.tokenizerJSON(),
	}))
	return s
}

// head is the value head of system C.
func (s *scene) head() []byte {
	return pack([]safetensors.Tensor{{Name: "v_head.summary.weight", DType: format.F32, Shape: []int{1, s.model.Hidden}, Data: normal(s.r, []int{s.model.Hidden}, 1)},
		{Name: "v_head.summary.bias", DType: format.F32, Shape: []int{1}, Data: []float64{0.25}}})
}

func runScene(r *rand.Rand) *scene {
	s := newScene(r, anyType(r))
	adapter := s.adapter(true)
	save := s.peftFolder
	if r.IntN(3) == 0 { // without LoRA
		adapter = s.model.weights(r, format.F32)
		save = func(list []safetensors.Tensor) map[string][]byte { return s.model.modelFolder(list, 1) }
	}
	s.dir = memory("run", map[string][]byte{
		"effective_config.yaml": []byte("algorithm: ppo\nmodel:\n  name: tiny\ntrain:\n  total_steps: 6\n  save_interval: 2\n"),
		"metrics.jsonl":         []byte("{\"step\": 1}\n"), "latest": []byte("step_4\n"),
		"dump/step_000001_mb_0.safetensors": s.head(), "basis.safetensors": s.head(), "lora_init/adapter_model.safetensors": s.head(), "step_4.aside-1/state.json": []byte("{}"),
	})
	for i, dir := range []string{"step_2", "step_4", "final"} {
		adapter = step(r, adapter, 1e-3)
		n := 2 * (i + 1)
		maps.Copy(s.dir.Files, below(dir, save(adapter)))
		maps.Copy(s.dir.Files, below(dir, map[string][]byte{
			"value_head.safetensors": s.head(), "tokenizer.json": s.model.tokenizerJSON(),
			"optimizer.pt": adamState(n, append(shapesOf(adapter), []int{1, s.model.Hidden}, []int{1})),
			"rng.json":     []byte(`{"python": [1, 2]}`),
			"state.json":   toJSON(map[string]any{"step": n, "algorithm": "ppo", "scheduler": map[string]any{"step": n}, "data_position": 32 * n}),
		}))
		s.dir.seal(dir, n, "")
	}
	return s
}

func verlScene(r *rand.Rand) *scene {
	s := newScene(r, []string{"llama", "qwen2"}[r.IntN(2)])
	adapter := s.adapter(true)
	config := s.model.modelFolder(s.model.weights(r, format.BF16), 1)
	delete(config, "model.safetensors")
	s.dir = memory("global_step_2", below("actor/huggingface", config), below("actor/lora_adapter", s.peftFolder(adapter)), map[string][]byte{"data.pt": torchFile([]member{{"_num_yielded", 4}}), "actor/fsdp_config.json": []byte(`{"world_size": 2}`)})
	delete(s.dir.Files, "actor/lora_adapter/README.md")
	for rank := range 2 {
		for _, kind := range []string{"model", "optim", "extra_state"} {
			s.dir.Files[fmt.Sprintf("actor/%s_world_size_2_rank_%d.pt", kind, rank)] = torchFile([]member{{"w", []int{4, 4}}})
		}
	}
	return s
}

func criticScene(r *rand.Rand) *scene {
	s := newScene(r, []string{"llama", "qwen2"}[r.IntN(2)])
	list := s.model.weights(r, format.BF16)
	list = slices.DeleteFunc(list, func(t safetensors.Tensor) bool { return t.Name == "lm_head.weight" })
	list = append(list, safetensors.Tensor{Name: "value_head.weight", DType: format.BF16, Shape: []int{1, s.model.Hidden}, Data: normal(r, []int{s.model.Hidden}, 1)})
	s.dir = memory("critic", s.model.modelFolder(rounded(list), 1))
	s.dir.editJSON("config.json", func(o map[string]any) {
		o["architectures"], o["value_head_prefix"] = []string{"CriticModel"}, "value_head"
	})
	return s
}

func trlScene(r *rand.Rand) *scene {
	s := newScene(r, anyType(r))
	s.dir = memory("ppo", s.peftFolder(s.adapter(true)), map[string][]byte{"pytorch_model.bin": torchFile([]member{{"v_head.summary.weight", []int{1, s.model.Hidden}}, {"v_head.summary.bias", []int{1}}})})
	s.needs = []string{"value-head"}
	return s
}
