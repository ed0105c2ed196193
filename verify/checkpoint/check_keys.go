package checkpoint

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/verify/check"
)

// wrappers are what is left in front of names when a wrapper was saved in place of the model inside it.
var wrappers = []string{"pretrained_model.", "_fsdp_wrapped_module.", "_orig_mod.", "module.", "policy.", "actor.", "value_model.", "critic_backbone."}

// wrapped returns the wrapper in front of, or inside, a name.
func wrapped(name string) string {
	for _, w := range wrappers {
		if strings.HasPrefix(name, w) {
			return w
		}
	}
	for _, w := range []string{"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."} {
		if strings.Contains(name, "."+w) {
			return w
		}
	}
	return ""
}

// AdapterKeys checks the names in the file of an adapter.
var AdapterKeys = &check.Check[*Input]{
	Name: "adapter/keys",
	Doc: `every tensor of an adapter is one that PEFT loads

Keys are base_model.model. + module + .lora_A.weight and .lora_B.weight, both of every module, without the name of the
adapter, or lie below a module of modules_to_save. PEFT loads without strictness: a key with another name is left out with a
warning at most, and the module keeps its initial B = 0. A key without lora_ means that the whole model was saved.`,
	Source: "layout of a PEFT adapter; faults A8, P005, P007, P050, P140, P153, P203; peft@0.21 utils/save_and_load.py",
	Fix:    "save with model.save_pretrained(dir) of the PeftModel, or get_peft_model_state_dict(model)",
	Run: func(in *Input) ([]check.Result, error) {
		return each(in.adapters(), sure(func(u *Unit) []check.Result { return in.keyFindings(in.Folder, u) }))
	},
}

func (in *Input) keyFindings(f *Folder, u *Unit) (out []check.Result) {
	subject := f.shown(u.Containers[0].Name)
	list := u.tensors(weightsRole)
	by := map[string][]string{}
	adapters := map[string]bool{}
	for _, p := range u.pairs {
		adapters[p.name] = true
	}
	names := map[string]bool{}
	for _, t := range list {
		names[t.Name] = true
	}
	for _, t := range list {
		_, name, kind, _ := loraKey(t.Name)
		switch {
		case strings.HasPrefix(t.Name, peftPrefix+peftPrefix):
			by["doubled"] = append(by["doubled"], t.Name)
		case insideOf(t.Name) != "" && names[insideOf(t.Name)]: // PEFT itself saves all three where an embedding was resized
			by["twice"] = append(by["twice"], t.Name)
		case insideOf(t.Name) != "":
			by["name"] = append(by["name"], t.Name)
		case wrapped(strings.TrimPrefix(t.Name, peftPrefix)) != "":
			by["wrapper"] = append(by["wrapper"], t.Name)
		case kind == partNone:
			by[in.restKind(u, t)] = append(by[in.restKind(u, t)], t.Name)
		case name != "":
			by["name"] = append(by["name"], t.Name)
		case !strings.HasPrefix(t.Name, peftPrefix):
			by["prefix"] = append(by["prefix"], t.Name)
		}
	}
	add := func(kind, fault, title, reason string) {
		if n := len(by[kind]); n > 0 {
			r := fail(subject, fault, title, "%s of %s: %s", thousands(int64(n)), plural(len(list), "tensor"), fmt.Sprintf(reason, several(by[kind])))
			r.Where = "first: " + by[kind][0]
			out = append(out, r)
		}
	}
	if len(by["model"]) > 0 && len(u.pairs) == 0 {
		r := fail(subject, "A8", "the whole model was saved in place of the adapter", "no key has lora_ in its name: %s, the first is %s", plural(len(list), "tensor"), by["model"][0])
		return []check.Result{r}
	}
	add("model", "A8", "the whole model was saved with the adapter", "keys without lora_ and outside modules_to_save: %s")
	add("embedding", "P153", "the embeddings were saved with the adapter", "embeddings that were not trained: %s")
	add("wrapper", "P007", "a wrapper was saved in place of the model inside", "names with the prefix of a wrapper, which PEFT does not find: %s")
	if len(adapters) > 1 {
		names := make([]string, 0, len(adapters))
		for n := range adapters {
			names = append(names, fmt.Sprintf("%q", n))
		}
		slices.Sort(names)
		id, title := "P203", "a second adapter was added on resume"
		if own := base(f.shown(u.Dir)); adapters[""] && !slices.ContainsFunc(u.pairs, func(p *pair) bool { return !strings.Contains(p.name, own) && p.name != "" }) {
			id, title = "KEYS-OTHER-ADAPTER", "the keys of another adapter were saved too: its name holds the name of this one"
		}
		out = append(out, fail(subject, id, title, "%d adapters in one file: %s", len(names), several(names)))
	} else {
		add("name", "ADAPTER-NAME", "model.state_dict() was saved: it keeps the name of the adapter in the keys", "PEFT takes the name out on saving and finds none of these on loading: %s")
	}
	add("doubled", "KEY-PREFIX", "a PeftModel inside a PeftModel was saved", "names with "+peftPrefix+" twice, which PEFT does not find: %s")
	add("prefix", "KEY-PREFIX", "saved from the model inside the PeftModel", "names without "+peftPrefix+", which PEFT does not find: %s")
	var alone []string
	for _, p := range u.pairs {
		if p.a == nil || p.b == nil {
			alone = append(alone, p.module)
		}
	}
	out = append(out, ifAny(fail, subject, "UNPAIRED", "half of an adapter", "module", "lora_A without lora_B, or the reverse, in %s: %s", alone)...)
	out = append(out, partFindings(subject, u)...)
	if u.Lora != nil && len(by["name"]) == 0 {
		for _, m := range u.Lora.Save {
			if slices.Contains(classifiers, m) && u.Lora.classifies() && slices.ContainsFunc(classifiers, func(c string) bool {
				return slices.ContainsFunc(u.rest, func(t *Tensor) bool { return saved(t.Name, c) })
			}) {
				continue
			}
			if !slices.ContainsFunc(u.rest, func(t *Tensor) bool { return saved(t.Name, m) }) {
				out = append(out, fail(subject, "P102", "a module that was trained whole is not in the file: a value head starts anew", "modules_to_save names %q, and no tensor of it is there", m))
			}
		}
	}
	out = append(out, in.tokenFindings(subject, u)...)
	if u.Lora != nil && u.Lora.Task == "CAUSAL_LM" {
		var heads []string
		for _, t := range u.rest {
			name := strings.TrimPrefix(t.Name, peftPrefix)
			if strings.HasPrefix(name, "score.") || strings.HasPrefix(name, "classifier.") {
				heads = append(heads, t.Name)
			}
		}
		if len(heads) > 0 {
			out = append(out, fail(subject, "TASK-HEAD", "a classifier saved as a language model: its head is not loaded", "task_type is CAUSAL_LM, and the file has %s", several(heads)))
		}
	}
	if list := by["twice"]; len(list) > 0 {
		out = append(out, warn(subject, "P050", "a module was saved several times over", "copies of modules_to_save that lie in the file under their own name already: %s", several(list)))
	}
	if list := by["embedding-resized"]; len(list) > 0 {
		out = append(out, warn(subject, "P050", "the embeddings were saved with the adapter", "embeddings lie in the file, since their number of rows is not the base's: %s", several(list)))
	}
	if list := by["embedding-target"]; len(list) > 0 {
		out = append(out, note(subject, "embeddings lie in the file, since they are targets (save_embedding_layers): %s", several(list)))
	}
	if len(out) == 0 || out[0].Verdict == check.Note {
		out = append(out, pass(subject, len(list), "%s in %s", plural(len(list), "tensor"), plural(len(u.pairs), "module")))
	}
	return out
}

// tokenFindings judges the rows that trainable_token_indices adds: one for each index, and the embedding has that index.
func (in *Input) tokenFindings(subject string, u *Unit) (out []check.Result) {
	if u.Lora == nil || u.Lora.Tokens == nil {
		return nil
	}
	rows := 0
	if m, _ := in.baseModel(u); m != nil {
		rows = m.Vocab
	}
	if in.Base != nil {
		if b := whole(in.Base); b != nil {
			rows = max(embeddingRows(b), rows)
		}
	}
	if rows == 0 {
		if t := in.Folder.tokenizerOf(u); t != nil && t.Size > 0 {
			rows = max(t.Size, t.Added, 1) // ids without a token are never trained
		}
	}
	var beyond, other []string
	for _, list := range u.Lora.Tokens {
		for _, i := range list {
			if rows > 0 && i >= rows {
				beyond = append(beyond, fmt.Sprint(i))
			}
		}
	}
	for _, t := range u.rest {
		module, ok := strings.CutSuffix(strings.TrimPrefix(t.Name, peftPrefix), ".token_adapter.trainable_tokens_delta")
		if list := u.Lora.tokens(module); ok && len(t.Array.Shape) == 2 && len(list) > 0 && t.Array.Shape[0] != len(list) {
			other = append(other, fmt.Sprintf("%s has %d rows for %s", t.Name, t.Array.Shape[0], plural(len(list), "index")))
		}
	}
	if len(beyond) > 0 {
		out = append(out, fail(subject, "TOKEN-INDEX", "trainable_token_indices of another model, or an embedding that was not resized: an index error on loading", "trainable_token_indices has %s, there are %d rows", several(beyond), rows))
	}
	if len(other) > 0 {
		out = append(out, fail(subject, "TOKEN-ROWS", "trainable_token_indices of another run", "%s", several(other)))
	}
	return out
}

// insideOf returns the name under which PEFT saves a tensor that lies inside its wrapper of modules_to_save, or "".
func insideOf(key string) string {
	for _, part := range []string{".modules_to_save.", ".original_module."} {
		if before, after, ok := strings.Cut(key, part); ok {
			_, leaf, _ := strings.Cut("."+after, ".") // default.weight, or weight
			return before + "." + leaf[strings.LastIndexByte(leaf, '.')+1:]
		}
	}
	return ""
}

// classifiers are the names of heads that PEFT adds to modules_to_save of SEQ_CLS and TOKEN_CLS; a model has one of them
// (peft@0.21 peft_model.py PeftModelForSequenceClassification).
var classifiers = []string{"classifier", "score"}

func (l *Lora) classifies() bool { return l.Task == "SEQ_CLS" || l.Task == "TOKEN_CLS" }

// partFindings judges what a module has beside A and B against the settings that ask for it.
func partFindings(subject string, u *Unit) (out []check.Result) {
	if u.Lora == nil || u.Lora.Type != "LORA" {
		return nil
	}
	var with, without, biased, bare []string
	for _, p := range u.pairs {
		if p.magnitude() != nil {
			with = append(with, p.module)
		} else {
			without = append(without, p.module)
		}
		switch {
		case p.bias != nil:
			biased = append(biased, p.module)
		case !p.embed:
			bare = append(bare, p.module)
		}
	}
	switch {
	case u.Lora.DoRA && len(without) > 0:
		out = append(out, fail(subject, "DORA-MAGNITUDE", "the magnitudes of DoRA were not saved: on loading they start anew", "use_dora is true, and %d of %s have no lora_magnitude_vector: %s", len(without), plural(len(u.pairs), "module"), several(without)))
	case !u.Lora.DoRA && len(with) > 0:
		out = append(out, fail(subject, "DORA-MAGNITUDE", "the flag of DoRA was lost: PEFT loads plain LoRA and leaves the magnitudes out", "use_dora is false, and %d of %s have a lora_magnitude_vector: %s", len(with), plural(len(u.pairs), "module"), several(with)))
	}
	switch {
	case u.Lora.LoraBias && len(bare) > 0:
		out = append(out, fail(subject, "LORA-BIAS", "the biases of lora_B were not saved: on loading they are 0", "lora_bias is true, and %d of %s have no lora_B.bias: %s", len(bare), plural(len(u.pairs), "module"), several(bare)))
	case !u.Lora.LoraBias && len(biased) > 0:
		out = append(out, fail(subject, "LORA-BIAS", "the flag of the biases was lost: PEFT leaves them out", "lora_bias is false, and %d of %s have a lora_B.bias: %s", len(biased), plural(len(u.pairs), "module"), several(biased)))
	}
	return out
}

// saved reports whether a key of an adapter belongs to the module m of modules_to_save: its module, or one around it, has a
// path that ends in m. That end need not follow a dot: "norm" saves input_layernorm, too (peft@0.21 utils/other.py
// _set_trainable).
func saved(key, m string) bool {
	key = strings.TrimPrefix(key, peftPrefix)
	for i, c := range key {
		if c == '.' && strings.HasSuffix(key[:i], m) {
			return true
		}
	}
	return false
}

// restKind says what a tensor of an adapter is that is none of LoRA's: head, saved, bias, embedding-target, embedding-resized,
// embedding, model.
func (in *Input) restKind(u *Unit, t *Tensor) string {
	if headKey(t.Name) {
		return "head"
	}
	l := u.Lora
	if l != nil && slices.ContainsFunc(l.Save, func(m string) bool { return saved(t.Name, m) }) {
		return "saved"
	}
	name := strings.TrimPrefix(t.Name, peftPrefix)
	if strings.Contains(name, ".trainable_tokens_") { // rows of the embedding, of trainable_token_indices
		return "saved"
	}
	if strings.HasPrefix(name, "score.") || strings.HasPrefix(name, "classifier.") {
		return "saved" // PEFT adds them for the task types SEQ_CLS and TOKEN_CLS
	}
	if l != nil && l.Bias != "none" && strings.HasSuffix(name, ".bias") {
		return "bias"
	}
	for _, e := range []string{"embed_tokens", "wte", "embed_in", "word_embeddings", "lm_head"} {
		if !endsWith(strings.TrimSuffix(name, ".weight"), e) && !endsWith(strings.TrimSuffix(name, ".base_layer.weight"), e) {
			continue
		}
		if len(u.pairs) == 0 {
			return "model"
		}
		if l != nil && l.Ties && slices.ContainsFunc(l.Save, l.tied) {
			return "saved"
		}
		if l != nil && (slices.Contains(l.Targets, e) || slices.ContainsFunc(l.Targets, l.tied)) {
			return "embedding-target"
		}
		if m, _ := in.baseModel(u); m != nil && len(t.Array.Shape) == 2 && t.Array.Shape[0] != m.Vocab {
			return "embedding-resized"
		}
		return "embedding"
	}
	return "model"
}
