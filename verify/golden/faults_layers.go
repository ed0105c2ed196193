package golden

import (
	"math"
	"math/rand/v2"
	"slices"

	"plumbline/internal/format/hf"
	"plumbline/internal/format/peft"
)

// off changes one code, or any other number, by a step.
func off(section, id, title, cause, output string, step float64, fits func(*Entry) bool) fault {
	return entryFault(section, id, title, cause, both(fits, has(output, 1)), func(r *rand.Rand, e *Entry) {
		e.edit(output, func(x []float64) { x[r.IntN(len(x))] += step })
	})
}

// every replaces the numbers of an output by what change makes of them, in an entry where that makes a difference.
func every(section, id, title, cause, output string, fits func(*Entry) bool, change func(e *Entry, x []float64)) fault {
	changed := func(e *Entry) []float64 {
		x := slices.Clone(e.Out[output].Data)
		change(e, x)
		return x
	}
	return entryFault(section, id, title, cause,
		func(e *Entry) bool {
			return fits(e) && has(output, 1)(e) && !slices.Equal(changed(e), e.Out[output].Data)
		},
		func(_ *rand.Rand, e *Entry) { e.Out[output].Data = changed(e) })
}

// configFault runs the model of an entry under another configuration.
func configFault(id, title, cause, entry string, change func(*hf.Config)) fault {
	return entryFault("models", id, title, cause, func(e *Entry) bool { return e.ID == entry }, func(_ *rand.Rand, e *Entry) {
		m, c := *e.model, *e.model.config
		change(&c)
		m.config, m.computed = &c, map[string]map[string][]float64{}
		e.model = &m
	})
}

// adapterFault is configFault for the configuration of the adapter.
func adapterFault(id, title, cause, entry string, change func(*peft.Config)) fault {
	return entryFault("models", id, title, cause, func(e *Entry) bool { return e.ID == entry }, func(_ *rand.Rand, e *Entry) {
		m, a := *e.model, *e.model.adapter
		change(&a.Config)
		m.adapter, m.computed = &a, map[string]map[string][]float64{}
		e.model = &m
	})
}

var isQuantised = named(vectorwise)

var (
	int8Faults = []fault{
		off("int8", "INT8-CODE", "one code off by one", "another rounding", "codes", 1, isQuantised),
		off("int8", "INT8-SCALE", "one scale off by a rounding of float32", "absmax of another type", "scales", 0x1p-22, isQuantised),
		off("int8", "INT8-SUM", "one integer off by one", "an accumulator that saturates", "int32", 1, named(mmDequant)),
		every("int8", "INT8-SCALE-127", "absmax/127 where absmax is named", "another convention of scales", "scales", isQuantised,
			func(_ *Entry, x []float64) {
				for i := range x {
					x[i] = float64(float32(x[i]) / 127)
				}
			}),
		every("int8", "INT8-HALF-AWAY", "halves rounded away from zero", "C's round in place of rint", "codes", func(e *Entry) bool { return isQuantised(e) && e.Case == "ties_float32" },
			func(e *Entry, x []float64) {
				for i, v := range e.In["A"].Data {
					x[i] = math.Round(v * 127 / e.Out["scales"].Data[i/(len(x)/len(e.Out["scales"].Data))])
				}
			}),
		every("int8", "INT8-128", "scaled to 128", "the range of int8 in place of a symmetric one", "codes", func(e *Entry) bool { return isQuantised(e) && e.Case == "random_float32" },
			func(_ *Entry, x []float64) {
				for i := range x {
					x[i] = max(-128, min(127, math.RoundToEven(x[i]*128/127)))
				}
			}),
		every("int8", "INT8-CONSTANT", "products off by 1.8e-3 relative", "another constant for 1/127²", "out", named(mmDequant), func(_ *Entry, x []float64) {
			for i := range x {
				x[i] *= 1 + 0x1p-9
			}
		}),
		off("int8", "INT8-LAYER", "an output of the layer off by 1e-4", "the activations quantised in training, too", "y", 1e-4, named("nn.Linear8bitLt forward on cpu")),
		entryFault("int8", "INT8-OUTLIERS", "an outlier column more", "> in place of ≥", func(e *Entry) bool { return e.Out["outlier_cols"] != nil },
			func(_ *rand.Rand, e *Entry) {
				v := e.Out["outlier_cols"]
				v.Data, v.Shape = append(slices.Clone(v.Data), 0), []int{len(v.Data) + 1}
			}),
		entryFault("int8", "INT8-THRESHOLD", "another threshold than it ran with", "the option was not passed on", func(e *Entry) bool { return e.Options["threshold"] == 6.0 },
			func(_ *rand.Rand, e *Entry) {
				e.Options["threshold"] = 100.0
			}),
		undetermined(entryFault("int8", "GOLDEN-DEVICE", "another device", "run on a GPU", isQuantised, func(_ *rand.Rand, e *Entry) { e.Options["device"] = "cuda" })),
	}

	layer8bit = named("nn.Linear8bitLt")
	merge8bit = named("tuners.lora.bnb.Linear8bitLt merge, unmerge")

	int8LayerFaults = []fault{
		off("int8_layers", "INT8-LAYER-CODE", "one code of a weight off by one", "quantised from another type than float16", "codes", 1, layer8bit),
		off("int8_layers", "INT8-MERGED-CODE", "one code after a merge off by one", "merged in another type than the adapter's", "codes", -1, merge8bit),
		off("int8_layers", "INT8-UNMERGED-SCALE", "the scales after taking the update off", "the scales of before the merge kept", "unmerged_scales", 1e-3, merge8bit),
		off("int8_layers", "INT8-LAYER-OUT", "an output off by 1e-3", "another constant, or a bias in another type", "y", 1e-3, both(layer8bit, func(e *Entry) bool { return e.Options["dtype"] == "float32" })),
		off("int8_layers", "INT8-LAYER-GRADIENT", "a gradient off by 1e-4", "a gradient through the rounding", "dX", 1e-4, both(layer8bit, func(e *Entry) bool { return e.Options["dtype"] == "float32" })),
		entryFault("int8_layers", "INT8-TRAINING", "activations quantised where the layer keeps them", "run beside training", both(layer8bit, func(e *Entry) bool { return e.Case == "plain_float32_eval" }),
			func(_ *rand.Rand, e *Entry) { e.Options["training"] = true }),
		entryFault("int8_layers", "INT8-LAYER-THRESHOLD", "outlier columns quantised", "the threshold not passed on", both(layer8bit, func(e *Entry) bool { return e.Case == "outliers_float32_eval" }),
			func(_ *rand.Rand, e *Entry) { e.Options["threshold"] = 0.0 }),
	}

	loraFaults = slices.Concat(numberFaults("lora_linear", "dA", anyEntry), []fault{
		entryFault("lora_linear", "LORA-ALPHA", "alpha in place of alpha/r", "the scale of another library", anyEntry, func(_ *rand.Rand, e *Entry) {
			e.Options["alpha"] = e.Options["alpha"].(float64) * e.Options["r"].(float64)
		}),
		entryFault("lora_linear", "LORA-RSLORA", "alpha/r where alpha/√r is named", "use_rslora lost", func(e *Entry) bool { return e.Options["use_rslora"] == true }, func(_ *rand.Rand, e *Entry) {
			e.Options["use_rslora"], e.Options["rs"] = false, false
		}),
		off("lora_linear", "LORA-MERGED", "one number of the merged weight", "merged in float32", "merged_weight", 1e-8, anyEntry),
		off("lora_linear", "LORA-UNMERGED", "a weight that is not what it was", "the update taken off twice", "unmerged_weight", 1e-8, anyEntry),
		every("lora_linear", "LORA-TRANSPOSED", "the update the other way round", "fan_in_fan_out lost", "delta_weight", anyEntry, func(e *Entry, x []float64) {
			copy(x, turned(slices.Clone(x), len(e.In["W"].Data)/e.In["X"].Shape[1], e.In["X"].Shape[1]))
		}),
	})

	gptj = func(group string) func(*Entry) bool {
		return func(e *Entry) bool { return e.ID == "models/gptj/"+group }
	}

	modelFaults = slices.Concat(numberFaults("models", "logp_adapter", gptj("float64")), []fault{
		off("models", "MODEL-LOGIT", "a logit off by 1e-8", "another formula in one layer", "logits_base", 1e-8, gptj("float64")),
		off("models", "MODEL-MEAN", "a mean log-prob off by 1e-8", "padding counted", "mean_logp", 1e-8, gptj("float64")),
		off("models", "MODEL-GRADIENT", "a gradient off by 1e-7", "a gradient of another scale", "grad/transformer.h.0.attn.q_proj.lora_A.weight", 1e-7, gptj("float64")),
		off("models", "MODEL-UPDATE", "an update off by 1e-9", "merged in float32", "transformer.h.1.attn.v_proj.weight", 1e-9, gptj("delta_weight")),
		off("models", "MODEL-FLOAT32", "a float32 logit off by 1e-4", "run in TF32 or bfloat16", "logits_adapter", 1e-4, gptj("float32")),
		off("models", "MODEL-MERGED", "a logit of the merged weights off by 1e-4", "merged into rounded weights", "logits_merged", 1e-4, gptj("hf_double")),
		configFault("MODEL-EPS", "another ε in the norms", "1e-6 for 1e-5", "models/gptj/float64", func(c *hf.Config) { c.Eps = 1e-6 }),
		configFault("MODEL-GELU", "GELU by erf where tanh is named", "gelu for gelu_new", "models/gpt2/float64", func(c *hf.Config) { c.Activation = "gelu" }),
		configFault("MODEL-THETA", "another base of the rotary angles", "rope_theta not read", "models/qwen2/float64", func(c *hf.Config) { c.Rope.Theta = 1e6 }),
		configFault("MODEL-PAIRS", "two channels of a head not rotated", "rotary_dim not read", "models/gptj/float64", func(c *hf.Config) { c.Rope.Dim = 2 }),
		configFault("MODEL-SCALE", "scores not divided by √D", "scale_attn_weights lost", "models/gpt2/float64", func(c *hf.Config) { c.Unscaled = true }),
		adapterFault("MODEL-ALPHA", "alpha in place of alpha/r", "the scale of another library", "models/gptj/float64", func(c *peft.Config) { c.Alpha *= float64(c.R) }),
		adapterFault("MODEL-RSLORA", "alpha/r where alpha/√r is named", "use_rslora lost", "models/qwen2/float64", func(c *peft.Config) { c.RSLoRA = false }),
		entryFault("models", "MODEL-POSITIONS", "positions that count padding", "position_ids not made from the mask", func(e *Entry) bool { return e.ID == "models/gpt2/float64" },
			func(_ *rand.Rand, e *Entry) {
				v := e.In["position_ids"]
				v.Data = slices.Clone(v.Data)
				for i := range v.Data {
					v.Data[i] = float64(i % v.Shape[1])
				}
			}),
		entryFault("models", "MODEL-PADDING", "padding that is attended to", "the mask not passed on", func(e *Entry) bool { return e.ID == "models/qwen2/float64" },
			func(_ *rand.Rand, e *Entry) {
				v := e.In["attention_mask"]
				v.Data = slices.Repeat([]float64{1}, len(v.Data))
			}),
		undetermined(adapterFault("MODEL-DORA", "a variant of LoRA", "a later adapter", "models/gptj/float64", func(c *peft.Config) { c.Variant = "use_dora" })),
	})

	textFaults = []fault{
		entryFault("tokenizer", "TOKEN-ID", "one id is another", "merges in another order", has("ids", 1), func(r *rand.Rand, e *Entry) {
			e.edit("ids", func(x []float64) { x[r.IntN(len(x))]++ })
		}),
		entryFault("tokenizer", "TOKEN-MISSING", "the last id is missing", "truncated", has("ids", 1), func(_ *rand.Rand, e *Entry) {
			v := e.Out["ids"]
			v.Data = v.Data[:len(v.Data)-1]
		}),
		entryFault("tokenizer", "TOKEN-BOS", "an id in front", "a token for the beginning of the text that the file does not add", has("ids_default", 1), func(_ *rand.Rand, e *Entry) {
			v := e.Out["ids_default"]
			v.Data = append([]float64{1}, v.Data...)
		}),
		entryFault("tokenizer", "TOKEN-TEXT", "a text with a space more", "clean_up_tokenization_spaces", has("ids", 1), func(_ *rand.Rand, e *Entry) {
			e.Out["decode"].Raw = e.Out["decode"].Raw.(string) + " "
		}),
		entryFault("tokenizer", "TOKEN-INPUT", "the ids of another text", "texts and ids shifted", has("ids", 1), func(_ *rand.Rand, e *Entry) {
			e.In["text"].Raw = e.In["text"].Raw.(string) + "x"
		}),
		entryFault("tokenizer", "TOKEN-ROUND-TRIP", "a round trip recorded wrong", "another decoder", has("ids", 1), func(_ *rand.Rand, e *Entry) {
			e.edit("round_trip", func(x []float64) { x[0] = 1 - x[0] })
		}),
		undetermined(entryFault("tokenizer", "TOKEN-FILE", "the goldens of another tokenizer", "tokenizer.json was replaced", has("ids", 1), func(_ *rand.Rand, e *Entry) {
			e.tokenizer = &tokenizerFile{sum: "00"}
		})),
	}
)
