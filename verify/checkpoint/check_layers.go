package checkpoint

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/verify/check"
)

// unknownFindings judges the tensors of a model of another architecture, by what holds for all: the layers of a stack are numbered
// without gaps and are as many as the configuration says, they hold the same tensors in the same shapes unless the configuration
// says that they differ, and the widths of the configuration are those of the tensors. A stack is of modules that hold modules: the
// numbers of a torch.nn.Sequential count activations, too, which have no tensors. Names and shapes remain undetermined, but where this
// program's own trainers saved the model: folder/manifest knows what they wrote.
func (f *Folder) unknownFindings(u *Unit, list []*Tensor) []check.Result {
	subject := f.at(u)
	if u.Index != nil && slices.ContainsFunc(u.Index.Shards, func(s string) bool { return !u.has(s) }) || f.refusedIn(u) {
		return nil // said there
	}
	if q := u.Config.Quantization; q != nil && q.Method != "bitsandbytes" {
		return []check.Result{undetermined(subject, "", "", "model_type %q, quant_method %q: names and shapes of its tensors are not known here", u.Config.Type, q.Method)}
	}
	stacks := stacksOf(list)
	var out []check.Result
	if r := u.taskFinding(subject, list); r != nil {
		out = append(out, *r)
	}
	for _, name := range slices.Sorted(maps.Keys(stacks)) {
		out = append(out, u.countFindings(subject, name, stacks)...)
		if len(out) == 0 {
			out = append(out, u.alikeFindings(subject, name, stacks[name])...)
		}
	}
	out = append(out, u.widthFindings(subject, list)...)
	if u.Manifest != nil && len(out) == 0 {
		return []check.Result{note(subject, "model_type %q: names and shapes of its tensors are not known here; folder/manifest holds its files against what was saved", u.Config.Type)}
	}
	layers := "what its layers show is said above"
	if len(out) == 0 {
		layers = "its layers are numbered as they should be, alike, and as wide as the configuration says"
	}
	r := undetermined(subject, "", "", "model_type %q: names and shapes of its tensors are not known here; %s", u.Config.Type, layers)
	r.Fix = "nothing is known to be wrong: compare with a checkpoint that is known to be good (--against)"
	if len(out) > 0 {
		r.Fix = ""
	}
	return append(out, r)
}

// stack is the layers of one list of modules: by number, the tensors of a layer by the rest of their names.
type stack map[int]map[string]*Tensor

func stacksOf(list []*Tensor) map[string]stack {
	stacks := map[string]stack{}
	for _, t := range list {
		i, ok := layerOf(t.Name)
		if !ok || i > maxLayers {
			continue
		}
		name, inside, _ := strings.Cut(t.Name, fmt.Sprintf(".%d.", i))
		if !strings.Contains(inside, ".") {
			continue
		}
		if stacks[name] == nil {
			stacks[name] = stack{}
		}
		if stacks[name][i] == nil {
			stacks[name][i] = map[string]*Tensor{}
		}
		stacks[name][i][inside] = t
	}
	return stacks
}

// part is the member of a configuration that describes the stack of that name, "" for the document itself.
func (u *Unit) part(name string) string {
	switch {
	case strings.Contains(name, "vision") || strings.Contains(name, "visual"):
		return "vision_config"
	case strings.Contains(name, "audio"):
		return "audio_config"
	case u.Config.Object.Has("text_config"):
		return "text_config"
	}
	return ""
}

// number returns the first of keys that the configuration of a part has as a whole number above 0; 0 if it has none.
func (u *Unit) number(part string, keys ...string) int {
	o := u.Config.Object
	if part != "" {
		m, ok := o.Members[part].(map[string]any)
		if !ok {
			return 0
		}
		return firstNumber(m, keys)
	}
	return firstNumber(o.Members, keys)
}

func firstNumber(m map[string]any, keys []string) int {
	for _, k := range keys {
		if v, ok := m[k].(format.Number); ok {
			n := 0
			if _, err := fmt.Sscanf(string(v), "%d", &n); err == nil && n > 0 && n < largest {
				return n
			}
		}
	}
	return 0
}

// layerKeys are what configurations call the number of the layers of a stack (transformers@5.23.0 models/*/configuration_*.py).
func layerKeys(name string) []string {
	switch {
	case strings.Contains(name, "encoder"):
		return []string{"encoder_layers", "num_layers", "num_hidden_layers", "depth"}
	case strings.Contains(name, "decoder"):
		return []string{"num_decoder_layers", "decoder_layers", "num_layers", "num_hidden_layers"}
	}
	return []string{"num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth"}
}

func (u *Unit) countFindings(subject, name string, stacks map[string]stack) (out []check.Result) {
	have, last := stacks[name], 0
	for i := range have {
		last = max(last, i)
	}
	want := last + 1
	part, keys := u.part(name), layerKeys(name)
	alone := true // no other stack that the same number may be of
	for other := range stacks {
		alone = alone && (other == name || u.part(other) != part || !slices.Equal(layerKeys(other), keys))
	}
	if n := u.number(part, keys...); alone && n > 0 {
		// Layers that predict further tokens are numbered behind the others.
		if want = n; last+1 > n && last+1 <= n+u.number(part, "num_nextn_predict_layers", "mtp_num_hidden_layers") {
			want = last + 1
		}
	}
	switch {
	case len(have) < want:
		out = append(out, fail(subject, "TENSOR-MISSING", "part of the model was not saved: loaders fill it with random numbers", "%s has tensors of %d of %s", name, len(have), plural(want, "layer")))
	case want <= last:
		out = append(out, fail(subject, "LAYERS-CUT", "a configuration of a smaller model: loaders leave the last layers out", "the configuration has %s, and %s has tensors of %d", plural(want, "layer"), name, last+1))
	}
	return out
}

// uneven says why the layers of a stack may differ: a list with one member for each layer whose members differ, or a setting for
// layers of a second kind; "" if nothing says so.
func (u *Unit) unevenLayers(part string, layers int) string {
	m := u.Config.Object.Members
	if part != "" {
		m, _ = m[part].(map[string]any)
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		switch v := m[k].(type) {
		case []any:
			if len(v) > 1 && (len(v) == layers || strings.Contains(k, "layer")) && slices.ContainsFunc(v, func(x any) bool { return fmt.Sprint(x) != fmt.Sprint(v[0]) || isObject(x) }) {
				return k
			}
		case format.Number:
			if string(v) != "0" && slices.Contains([]string{"first_k_dense_replace", "num_kv_shared_layers", "attn_layer_period", "expert_layer_period", "moe_layer_freq", "interleave_moe_layer_step",
				"full_attention_interval", "cross_attention_interval", "hybrid_layer_pattern"}, k) {
				return k
			}
			if k == "decoder_sparse_step" && string(v) != "1" {
				return k
			}
		case string:
			if strings.HasSuffix(k, "layer_pattern") || strings.HasSuffix(k, "override_pattern") {
				return k
			}
		}
	}
	return ""
}

func isObject(v any) bool { _, ok := v.(map[string]any); return ok }

// once are tensors that the first layer of a stack shares with all others (T5).
const once = "relative_attention_bias"

// alikeFindings compares the layers of a stack: a tensor or a shape that one layer alone lacks or has is no architecture.
func (u *Unit) alikeFindings(subject, name string, layers stack) (out []check.Result) {
	if len(layers) < 2 || u.unevenLayers(u.part(name), len(layers)) != "" {
		return nil
	}
	holders, shapes := map[string]int{}, map[string]map[string]int{}
	for _, layer := range layers {
		for form, t := range layer {
			holders[form]++
			if shapes[form] == nil {
				shapes[form] = map[string]int{}
			}
			shapes[form][t.Array.ShapeString()]++
		}
	}
	var absent, other []string
	for _, i := range slices.Sorted(maps.Keys(layers)) {
		extra := false // it has what others have not: layers of another kind
		var lacks, odd []string
		for _, form := range slices.Sorted(maps.Keys(holders)) {
			t := layers[i][form]
			switch n := holders[form]; {
			case strings.Contains(form, once):
			case t == nil && n == len(layers)-1:
				lacks = append(lacks, fmt.Sprintf("%s.%d.%s", name, i, form))
			case t != nil && n < len(layers)-1:
				extra = true
			case t != nil && len(shapes[form]) == 2 && shapes[form][t.Array.ShapeString()] == 1 && (n > 2 || i == 1): // of two layers the second is named
				odd = append(odd, fmt.Sprintf("%s is %s", t.Name, t.Array.ShapeString()))
			}
		}
		if !extra {
			absent, other = append(absent, lacks...), append(other, odd...)
		}
	}
	out = append(out, ifAny(fail, subject, "TENSOR-MISSING", "part of the model was not saved: loaders fill it with random numbers", "tensor", "%s that all other layers have missing: %s", absent)...)
	out = append(out, ifAny(fail, subject, "TENSOR-SHAPE", "a layer of another model, or one part of a tensor that was split", "tensor", "%s that all other layers have in another shape: %s", other)...)
	return out
}

// widthFindings holds the sizes of the configuration against the embedding and the matrices of the layers.
func (u *Unit) widthFindings(subject string, list []*Tensor) (out []check.Result) {
	part := ""
	if u.Config.Object.Has("text_config") {
		part = "text_config"
	}
	vocabulary, hidden, inner := u.number(part, "vocab_size"), u.number(part, "hidden_size", "n_embd", "d_model", "dim"), u.number(part, "intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size")
	other := u.number(part, "word_embed_proj_dim", "embedding_size", "hidden_size_per_layer_input") > 0 // embeddings of another width
	var wrong []string
	seen, found, wide, experts := false, false, false, u.number(part, "num_experts", "num_local_experts", "n_routed_experts") > 0
	for _, t := range list {
		s := t.Array.Shape
		module, ok := strings.CutSuffix(t.Name, ".weight")
		if !ok || len(s) != 2 || !t.Array.DType.Float() || u.part(t.Name) != part {
			continue
		}
		if _, inside := layerOf(module); inside {
			seen = true
			wide = wide || slices.Contains(s, hidden)
			found = found || slices.ContainsFunc(s, func(n int) bool { return n == inner || n == 2*inner })
			experts = experts || strings.Contains(t.Name, "expert")
			continue
		}
		last := module[strings.LastIndexByte(module, '.')+1:]
		table := slices.Contains(tables2, last)
		head := last == "lm_head" || last == "embed_out"
		if !table && !head {
			continue
		}
		if vocabulary > 0 && s[0] != vocabulary {
			wrong = append(wrong, fmt.Sprintf("%s has %d rows, vocab_size is %d", t.Name, s[0], vocabulary))
		}
		if hidden > 0 && s[1] != hidden && !other {
			wrong = append(wrong, fmt.Sprintf("%s is %d wide, hidden_size is %d", t.Name, s[1], hidden))
		}
	}
	if seen && hidden > 0 && !wide {
		wrong = append(wrong, fmt.Sprintf("no matrix of a layer has the %d of hidden_size", hidden))
	}
	if seen && inner > 0 && !found && !experts {
		wrong = append(wrong, fmt.Sprintf("no matrix of a layer has the %d of intermediate_size", inner))
	}
	if len(wrong) > 0 {
		out = append(out, fail(subject, "TENSOR-SHAPE", "a configuration of another model", "%s", several(wrong)))
	}
	return out
}
