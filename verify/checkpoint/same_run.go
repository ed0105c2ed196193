package checkpoint

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/verify/check"
)

// loraDiffers says in what two configurations of one adapter's run differ, by what decides on its function.
func loraDiffers(a, b *Lora) (scaling, other []string) {
	if a == nil || b == nil {
		return nil, nil
	}
	add := func(list *[]string, what string, now, was any) {
		if x, y := fmt.Sprint(now), fmt.Sprint(was); x != y {
			*list = append(*list, fmt.Sprintf("%s is %.80s, was %.80s", what, x, y))
		}
	}
	add(&scaling, "lora_alpha", a.Alpha, b.Alpha)
	add(&scaling, "r", a.R, b.R)
	add(&scaling, "use_rslora", a.RSLora, b.RSLora)
	add(&scaling, "alpha_pattern", plainPattern(a.Alphas), plainPattern(b.Alphas))
	add(&scaling, "rank_pattern", plainPattern(a.Ranks), plainPattern(b.Ranks))
	add(&other, "peft_type", a.Type, b.Type)
	add(&other, "use_dora", a.DoRA, b.DoRA)
	add(&other, "target_modules", sortedText(a.Targets)+a.Pattern, sortedText(b.Targets)+b.Pattern)
	add(&other, "modules_to_save", sortedText(a.Save), sortedText(b.Save))
	add(&other, "bias", a.Bias, b.Bias)
	add(&other, "lora_bias", a.LoraBias, b.LoraBias)
	add(&other, "fan_in_fan_out", a.FanInOut, b.FanInOut)
	add(&other, "layers_to_transform", a.Layers, b.Layers)
	add(&other, "task_type", a.Task, b.Task)
	add(&other, "base_model_name_or_path", lastPart(a.Base), lastPart(b.Base))
	return scaling, other
}

func plainPattern(list []patternValue) (out []string) {
	for _, p := range list {
		out = append(out, fmt.Sprintf("%s: %g", p.key, p.value))
	}
	return out
}

func sortedText(list []string) string { return strings.Join(slices.Sorted(slices.Values(list)), " ") }

func lastPart(name string) string {
	name = strings.TrimRight(strings.ReplaceAll(name, `\`, "/"), "/")
	return name[strings.LastIndexByte(name, '/')+1:]
}

// runFindings compares what two units of one run have beside their tensors: the configuration of the adapter or of the model, and
// the tokenizer.
func (in *Input) runFindings(option string, f *Folder, u *Unit, g *Folder, v *Unit) (out []check.Result) {
	subject := f.at(u)
	scaling, other := loraDiffers(u.Lora, v.Lora)
	if len(scaling) > 0 {
		out = append(out, fail(subject, "CONFIG-SCALING", "the scaling of the adapter changed: it is s times as strong as it was trained", "against %s of %s: %s", option, g.at(v), strings.Join(scaling, "; ")))
	}
	if len(other) > 0 {
		out = append(out, fail(subject, "CONFIG-CHANGED", "a configuration of another run", "against %s of %s: %s", option, g.at(v), strings.Join(other, "; ")))
	}
	if u.Kind == Whole && u.Config != nil && v.Config != nil {
		if list := configDiffers(u.Config.Object, v.Config.Object, u.Config.Type); len(list) > 0 {
			out = append(out, fail(subject, "CONFIG-CHANGED", "a configuration of another model: the same weights compute something else", "config.json against %s of %s: %s", option, g.at(v), strings.Join(list, "; ")))
		}
	}
	if a, b := f.tokenizerOf(u), g.tokenizerOf(v); a != nil && b != nil {
		if what := tokenizerDiffers(a, b); what != "" {
			out = append(out, fail(subject, "TOKENIZER-CHANGED", "the tokenizer of another model, or one that was trained anew: the same text becomes other ids", "against %s of %s: %s", option, g.at(v), what))
		}
	}
	return out
}

// tokenizerDiffers says in what two tokenizers give other ids, "" where nothing shows.
func tokenizerDiffers(a, b *Tokenizer) string {
	switch {
	case a.digest == 0 || b.digest == 0 || a.digest == b.digest:
		return ""
	case a.Size != b.Size || a.Added != b.Added:
		return fmt.Sprintf("%d ids, were %d", a.Added, b.Added)
	}
	return "tokens, merges or their ids are others"
}

// functional are the settings of a config.json that decide what a model computes, under the names of all architectures; rope is compared
// apart (transformers@5.23.0 models/*/configuration_*.py).
var functional = []string{
	"model_type", "hidden_act", "hidden_activation", "activation_function", "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps",
	"num_attention_heads", "n_head", "num_key_value_heads", "head_dim", "hidden_size", "n_embd", "d_model", "intermediate_size", "n_inner", "num_hidden_layers", "n_layer", "vocab_size",
	"attention_bias", "mlp_bias", "tie_word_embeddings", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "query_pre_attn_scalar", "attn_logit_softcapping",
	"final_logit_softcapping", "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "logit_scale", "logits_scaling", "embedding_multiplier", "residual_multiplier", "attention_multiplier",
	"clip_qkv", "num_experts_per_tok", "num_local_experts", "num_experts", "norm_topk_prob", "alibi", "new_decoder_architecture", "parallel_attn", "use_parallel_residual", "do_layer_norm_before",
	"qk_layernorm", "rotary_dim", "multi_query", "use_qk_norm",
}

// configDiffers lists the settings that decide what a model computes and that two configurations give other values. What one of them
// leaves out has the default of its class, which is not known here, but for the wavelengths of rope.
func configDiffers(a, b *format.Object, modelType string) (list []string) {
	for _, k := range functional {
		x, y := a.Members[k], b.Members[k]
		if x == nil || y == nil || plainJSON(x) == plainJSON(y) {
			continue
		}
		list = append(list, fmt.Sprintf("%s is %.60s, was %.60s", k, plainJSON(x), plainJSON(y)))
	}
	if k := "sliding_window"; (a.Members[k] == nil) != (b.Members[k] == nil) && a.Members["use_sliding_window"] != false && b.Members["use_sliding_window"] != false {
		_, x := a.Members[k]
		_, y := b.Members[k]
		if x && y { // null is none
			list = append(list, fmt.Sprintf("%s is %s, was %s", k, plainJSON(a.Members[k]), plainJSON(b.Members[k])))
		}
	}
	x, y := ropeOf(a, modelType), ropeOf(b, modelType)
	keys := map[string]bool{}
	for k := range x {
		keys[k] = true
	}
	for k := range y {
		keys[k] = true
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		v, has := x[k]
		w, had := y[k]
		if strings.HasSuffix(k, "original_max_position_embeddings") && has != had {
			continue // filled in from max_position_embeddings
		}
		if v != w {
			list = append(list, fmt.Sprintf("%s of rope is %s, was %s", k, or(v, "not said"), or(w, "not said")))
		}
	}
	return list
}

func or(text, absent string) string {
	return cmp.Or(text, absent)
}

// plainJSON writes a value with numbers as numbers: 1e6 is 1000000.0.
func plainJSON(v any) string {
	switch v := v.(type) {
	case format.Number:
		var x float64
		if _, err := fmt.Sscanf(string(v), "%g", &x); err == nil {
			return fmt.Sprint(x)
		}
		return string(v)
	case []any:
		parts := make([]string, len(v))
		for i, x := range v {
			parts[i] = plainJSON(x)
		}
		return "[" + strings.Join(parts, " ") + "]"
	case map[string]any:
		parts := make([]string, 0, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, k+": "+plainJSON(v[k]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(text)
}

// thetas are the wavelengths of rope where a configuration says nothing, 10000 but for these.
var thetas = map[string]string{"mixtral": "1e+06"}

// ropeOf returns the settings of rope by their names of transformers 5, wherever a version before put them; nil where the model may
// have none.
func ropeOf(o *format.Object, modelType string) map[string]string {
	out := map[string]string{}
	take := func(prefix string, m map[string]any) {
		for k, v := range m {
			if inner, ok := v.(map[string]any); ok { // one set for each kind of layer
				for k2, v2 := range inner {
					out[prefix+k+"."+k2] = plainJSON(v2)
				}
				continue
			}
			if k == "type" {
				k = "rope_type"
			}
			if v != nil {
				out[prefix+k] = strings.Trim(plainJSON(v), `"`)
			}
		}
	}
	for _, k := range []string{"rope_theta", "partial_rotary_factor", "rotary_emb_base", "rotary_pct", "rope_local_base_freq"} {
		if v := o.Members[k]; v != nil {
			out[k] = plainJSON(v)
		}
	}
	for _, k := range []string{"rope_parameters", "rope_scaling"} {
		if m, ok := o.Members[k].(map[string]any); ok {
			take("", m)
		}
	}
	for old, now := range map[string]string{"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"} {
		if v, ok := out[old]; ok {
			if _, there := out[now]; !there {
				out[now] = v
			}
			delete(out, old)
		}
	}
	if out["rope_type"] == "default" {
		delete(out, "rope_type")
		delete(out, "factor")
	}
	if out["partial_rotary_factor"] == "1" {
		delete(out, "partial_rotary_factor")
	}
	delete(out, "attention_factor")
	if strings.HasPrefix(modelType, "gemma3") { // older files name the two wavelengths in two places
		if _, nested := out["full_attention.rope_theta"]; !nested {
			return map[string]string{}
		}
	}
	switch modelType {
	case "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi", "phi3", "olmo", "olmo2", "mixtral":
		if _, ok := out["rope_theta"]; !ok {
			out["rope_theta"] = or(thetas[modelType], "10000")
		}
	}
	return out
}

// partFindings judges what stood still while the rest moved: a layer between others, a module that the adapter trains whole, an
// embedding or a head.
func (in *Input) partFindings(option string, f *Folder, u *Unit, m *movedFacts) (out []check.Result) {
	subject := f.at(u)
	type count struct{ all, still, matrices int }
	layers, forms := map[string]*count{}, map[string]*count{}
	var order []string
	saved := map[string]bool{}
	for _, t := range u.rest {
		saved[plainName(u, t.Name)] = true
	}
	var whole, tables []string
	moving, other := 0, 0
	for _, d := range m.diffs {
		if d.problem != "" || headKey(d.name) || strings.HasSuffix(d.name, ".base_layer.weight") { // PEFT saves the frozen embedding under an adapter, too; biases there are trained
			continue
		}
		form := numberless(d.name)
		if forms[form] == nil {
			forms[form] = &count{}
		}
		c := forms[form]
		c.all++
		if d.changed == 0 {
			c.still++
		} else {
			moving++
		}
		i, ok := layerOf(d.name)
		if !ok {
			last := strings.TrimSuffix(d.name, ".weight")
			last = last[strings.LastIndexByte(last, '.')+1:]
			if d.changed > 0 {
				other++
				continue
			}
			switch {
			case saved[plainName(u, d.name)]:
				whole = append(whole, d.name)
			case u.Kind == Whole && (slices.Contains(tables2, last) || last == "lm_head" || last == "embed_out" || last == "score" || last == "classifier"):
				tables = append(tables, d.name)
			}
			continue
		}
		name := fmt.Sprintf("%s.%d", stackOf(numberless(d.name)), i)
		name = strings.Replace(name, "#", fmt.Sprint(i), 1)
		if layers[name] == nil {
			layers[name] = &count{}
			order = append(order, name)
		}
		layers[name].all++
		if d.changed == 0 {
			layers[name].still++
		}
		if d.dims > 1 {
			layers[name].matrices++
		}
		if d.changed == 0 && saved[plainName(u, d.name)] {
			whole = append(whole, d.name)
		}
	}
	if moving == 0 {
		return nil
	}
	if len(whole) > 0 && len(whole) <= len(saved) {
		out = append(out, fail(subject, "PART-STILL", "a module that is saved to be trained whole was not trained", "equal to %s while other tensors moved: %s", option, several(whole)))
	}
	var still []string
	moved := 0
	for _, name := range order {
		if c := layers[name]; c.still == c.all && c.matrices > 0 {
			still = append(still, name)
		} else if c.still == 0 {
			moved++
		}
	}
	switch {
	case len(still) == 0 || moved == 0:
	case u.Kind == Adapter && stacks(u, modulesIn(u, still)):
		out = append(out, warn(subject, "LAYER-STILL", "a stack of layers got no gradient: a vision tower under text alone, or a part that is frozen", "equal to %s in every tensor: %s", option, several(still)))
	case u.Kind == Whole && frozenBelow(order, still):
		out = append(out, warn(subject, "LAYER-STILL", "the lower layers are frozen", "equal to %s in every tensor: %s", option, several(still)))
	default:
		out = append(out, fail(subject, "LAYER-STILL", "a layer is in no optimiser, or was copied from an earlier save", "equal to %s in every tensor while other layers moved: %s", option, several(still)))
	}
	if len(tables) > 0 && len(still) == 0 && (other > 0 || moved > 0) {
		out = append(out, fail(subject, "PART-STILL", "a head or an embedding is in no optimiser", "equal to %s while other tensors moved: %s", option, several(tables)))
	}
	return out
}

// tables2 are those of tables that turn tokens into hidden states.
var tables2 = []string{"embed_tokens", "wte", "embed_in", "word_embeddings", "shared", "tok_embeddings", "embeddings"}

// frozenBelow reports whether the layers that stood still are the first ones: who freezes a part of a model freezes these.
func frozenBelow(order, still []string) bool {
	list := slices.Clone(order)
	slices.SortFunc(list, compareNatural)
	for i := range still {
		if !slices.Contains(still, list[i]) {
			return false
		}
	}
	return len(still) > 1
}

func modulesIn(u *Unit, layers []string) (list []string) {
	for _, p := range u.pairs {
		if slices.ContainsFunc(layers, func(l string) bool {
			return strings.HasPrefix(peftPrefix+p.module, l+".") || strings.HasPrefix(p.module, l+".")
		}) {
			list = append(list, p.module)
		}
	}
	return list
}

// moduleFindings judges the adapters that equal another checkpoint's in A and in B.
func moduleFindings(option, subject string, u *Unit, m *movedFacts) []check.Result {
	list, all := stillModules(u, m)
	switch {
	case len(list) == 0 || len(list) == all:
		return nil
	case stacks(u, list) || slices.ContainsFunc(list, func(n string) bool { return strings.Contains(n, "expert") }):
		return []check.Result{warn(subject, "MODULE-STILL", "modules that got no gradient: a stack without data, or experts that were not chosen", "%d of %s equal to %s in A and B: %s", len(list), plural(all, "module"), option, several(list))}
	}
	return []check.Result{fail(subject, "MODULE-STILL", "a module is in no optimiser, or was copied from an earlier save", "%d of %s equal to %s in A and B while others moved: %s", len(list), plural(all, "module"), option, several(list))}
}

// stillModules returns the adapters whose B, from which a trained adapter differs first, equals another checkpoint's.
func stillModules(u *Unit, m *movedFacts) (list []string, all int) {
	still := map[string]bool{}
	for _, d := range m.diffs {
		if d.problem == "" && d.changed == 0 {
			still[d.name] = true
		}
	}
	for _, p := range u.pairs {
		if p.a == nil || p.b == nil {
			continue
		}
		all++
		if still[p.a.Name] && still[p.b.Name] {
			list = append(list, p.module)
		}
	}
	return list, all
}

// extremes are the least and the largest magnitude of the numbers of a tensor that are not 0, and their root mean square, of the first
// million of them.
func (t *Tensor) extremes() (low, high, rms float64, err error) {
	n := min(t.Array.Len(), 1<<20)
	if n == 0 || !t.Array.DType.Float() || t.Array.DType.Size() == 0 {
		return 0, 0, 0, nil
	}
	x := make([]float64, min(n, 1<<14))
	sum := 0.0
	low = math.Inf(1)
	for at := 0; at < n; at += len(x) {
		part := x[:min(len(x), n-at)]
		if err := t.Array.ReadFloat64(part, at); err != nil {
			return 0, 0, 0, err
		}
		for _, v := range part {
			if v = math.Abs(v); v > 0 {
				low = min(low, v)
			}
			high = max(high, v)
			sum += float64(v * v)
		}
	}
	return low, high, math.Sqrt(sum / float64(n)), nil
}
