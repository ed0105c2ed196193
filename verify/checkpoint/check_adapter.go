package checkpoint

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"plumbline/verify/check"
)

// eachAdapter runs judge on every adapter of the audited folder that has tensors and is of LoRA, as far as is known.
func (in *Input) eachAdapter(judge func(f *Folder, u *Unit) []check.Result) []check.Result {
	var out []check.Result
	for _, u := range in.Folder.of(Adapter) {
		if len(u.tensors(weightsRole)) > 0 && (u.Lora == nil || u.Lora.Type == "LORA") {
			out = append(out, judge(in.Folder, u)...)
		}
	}
	return out
}

// AdapterConfig checks the numbers of adapter_config.json.
var AdapterConfig = &check.Check[*Input]{
	Name: "adapter/config",
	Doc: `adapter_config.json is there, is of LoRA, and gives a scaling that is finite and not 0

The scaling is α/r, or α/√r with use_rslora; rank_pattern and alpha_pattern override per module. With α = 0 the adapter does
nothing wherever it is loaded, and merging it leaves the base.`,
	Source: "formats 7, rows 3 and 6; fault P086; peft@0.21 tuners/lora/config.py",
	Fix:    "write the α and r that the adapter was trained with into adapter_config.json",
	Run: func(in *Input) ([]check.Result, error) {
		var out []check.Result
		for _, u := range in.Folder.of(Adapter) {
			subject := in.Folder.shown(path.Join(u.Dir, "adapter_config.json"))
			l := u.Lora
			switch {
			case l == nil && in.Folder.refusedIn(u):
			case l == nil:
				out = append(out, fail(subject, "NO-ADAPTER-CONFIG", "tensors of an adapter without its configuration", "adapter_config.json is missing: neither α nor the base is known, PEFT cannot load it"))
			case !slices.Contains(peftTypes, l.Type):
				out = append(out, fail(subject, "PEFT-TYPE", "no configuration of PEFT", "peft_type is %.64q, no method of PEFT", l.Type))
			case l.Type != "LORA":
				out = append(out, check.Result{Subject: subject, Verdict: check.Undetermined, Reason: fmt.Sprintf("peft_type %q: only LORA is judged", l.Type),
					Explanations: []check.Explanation{{Fault: "PEFT-TYPE", Title: "an adapter of another method"}}})
			case l.NullAlpha:
				out = append(out, fail(subject, "ALPHA-MISSING", "α was lost on the way: PEFT cannot divide it by r", "lora_alpha is null"))
			case l.HasAlpha && l.Alpha == 0:
				out = append(out, fail(subject, "P086", "α was lost on the way: the adapter does nothing", "lora_alpha is 0: the scaling is 0 in every module"))
			case l.R < 1 && l.HasR:
				out = append(out, fail(subject, "RANK-CONFIG", "no rank", "r is %d, want 1 or more", l.R))
			default:
				out = append(out, configFindings(subject, u)...)
			}
		}
		return out, nil
	},
}

func configFindings(subject string, u *Unit) (out []check.Result) {
	l := u.Lora
	for _, p := range l.Alphas {
		if p.value == 0 {
			out = append(out, fail(subject, "P086", "α was lost on the way: the adapter does nothing", "alpha_pattern gives %q the α 0", p.key))
		}
	}
	for _, list := range [][]patternValue{l.Ranks, l.Alphas} {
		for _, p := range list {
			used := p.re == nil || slices.ContainsFunc(u.pairs, func(q *pair) bool { return p.re.MatchString(q.module) })
			if !used && len(u.pairs) > 0 {
				out = append(out, fail(subject, "PATTERN-UNUSED", "a pattern that matches nothing: PEFT ignores it silently", "the pattern %q matches none of %s of the adapter", p.key, plural(len(u.pairs), "module")))
			}
		}
	}
	if l.Task == "CAUSAL_LM" && slices.ContainsFunc(strings.Split(u.Dir, "/"), func(d string) bool { return d == "critic" || d == "_critic" }) {
		out = append(out, fail(subject, "P074", "a critic wrapped as a language model: its head is not among what is trained and saved", "task_type is CAUSAL_LM in the folder of a critic, want TOKEN_CLS"))
	}
	if !l.HasAlpha {
		out = append(out, warn(subject, "ALPHA-MISSING", "α was lost on the way: PEFT takes its default", "lora_alpha is missing, which PEFT always writes: loaded with %g, the scaling is %.6g", l.Alpha, l.Scaling("")))
	}
	out = append(out, l.metaFindings(subject, u)...)
	if l.Targets == nil && l.Pattern == "" && l.Parameters == nil {
		out = append(out, warn(subject, "NO-TARGETS", "no targets: PEFT takes its defaults for the architecture", "target_modules is missing"))
	}
	if len(out) == 0 {
		how := fmt.Sprintf("α/r = %g/%d", l.Alpha, l.R)
		if l.RSLora {
			how = fmt.Sprintf("α/√r = %g/√%d", l.Alpha, l.R)
		}
		s := l.Scaling("")
		r := pass(subject, 1, "scaling %s = %.6g", how, s)
		if l.Alpha < 0 {
			r = warn(subject, "ALPHA-NEGATIVE", "the adapter is subtracted", "scaling %s = %.6g", how, s)
		}
		out = append(out, r)
	}
	return out
}

// metaFindings compares the configuration with what verl noted of the training beside its shards.
func (l *Lora) metaFindings(subject string, u *Unit) (out []check.Result) {
	if u.Meta == nil {
		return nil
	}
	if v := u.Meta.Float("lora_alpha", l.Alpha, -math.MaxFloat64, math.MaxFloat64); u.Meta.Has("lora_alpha") && v != l.Alpha {
		out = append(out, fail(subject, "LORA-META", "the adapter was saved with a configuration that is not the training's", "lora_alpha is %g, %s of the training says %g", l.Alpha, base(u.Meta.File), v))
	}
	if v := u.Meta.Int("r", l.R, -largest, largest); u.Meta.Has("r") && v != l.R {
		out = append(out, fail(subject, "LORA-META", "the adapter was saved with a configuration that is not the training's", "r is %d, %s of the training says %d", l.R, base(u.Meta.File), v))
	}
	return out
}

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
	Source: "formats 7, rows 4 and 10; faults A8, P005, P007, P050, P140, P153, P203; peft@0.21 utils/save_and_load.py",
	Fix:    "save with model.save_pretrained(dir) of the PeftModel, or get_peft_model_state_dict(model)",
	Run: func(in *Input) ([]check.Result, error) {
		return in.eachAdapter(func(f *Folder, u *Unit) []check.Result { return in.keyFindings(f, u) }), nil
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
		out = append(out, fail(subject, "P203", "a second adapter was added on resume", "%d adapters in one file: %s", len(names), several(names)))
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
	if len(alone) > 0 {
		out = append(out, fail(subject, "UNPAIRED", "half of an adapter", "lora_A without lora_B, or the reverse, in %s: %s", plural(len(alone), "module"), several(alone)))
	}
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
		if l != nil && slices.Contains(l.Targets, e) {
			return "embedding-target"
		}
		if m, _ := in.baseModel(u); m != nil && len(t.Array.Shape) == 2 && t.Array.Shape[0] != m.Vocab {
			return "embedding-resized"
		}
		return "embedding"
	}
	return "model"
}

// Rank checks the shapes of A and B against each other and against the configuration.
var Rank = &check.Check[*Input]{
	Name: "adapter/rank",
	Doc: `A is [r, in] and B is [out, r] with the r of the configuration in every module

rank_pattern overrides r for the modules that it matches. With a wrong r the scaling α/r is wrong, though PEFT refuses most
of these on loading.`,
	Source: "formats 7, rows 2, 3 and 6; PEFT#2450, PEFT#2733, verl#1821",
	Fix:    "write the rank that the adapter was trained with into adapter_config.json, with its α",
	Run: func(in *Input) ([]check.Result, error) {
		return in.eachAdapter(func(f *Folder, u *Unit) []check.Result {
			var out []check.Result
			n := 0
			var empty []string
			for _, t := range u.tensors(weightsRole) {
				if t.Array.Len() == 0 {
					empty = append(empty, fmt.Sprintf("%s %s", t.Name, t.Array.ShapeString()))
				}
			}
			if len(empty) > 0 {
				return []check.Result{fail(f.at(u), "ZERO-LENGTH", "tensors of length 0: partitioned by ZeRO-3 or FSDP and not gathered before saving", "%s without elements: %s", plural(len(empty), "tensor"), several(empty))}
			}
			wrong := map[string][]string{}
			turned := u.Lora != nil && len(u.pairs) > 0 && !slices.ContainsFunc(u.pairs, func(p *pair) bool { return !p.turned(u.Lora.rank(p.module)) })
			for _, p := range u.pairs {
				ra, rb := p.ranks()
				if p.a == nil || p.b == nil {
					continue
				}
				n++
				if turned {
					wrong["turned"] = append(wrong["turned"], fmt.Sprintf("%s: A %s, B %s, r %d", p.module, p.a.Array.ShapeString(), p.b.Array.ShapeString(), u.Lora.rank(p.module)))
					continue
				}
				if ra != rb {
					wrong["pair"] = append(wrong["pair"], fmt.Sprintf("%s: A %s, B %s", p.module, p.a.Array.ShapeString(), p.b.Array.ShapeString()))
					continue
				}
				if u.Lora == nil || u.Lora.Type != "LORA" || u.Lora.R < 1 {
					continue
				}
				if want := u.Lora.rank(p.module); want != ra {
					kind := "config"
					if pick(u.Lora.Ranks, p.module) != nil {
						kind = "pattern"
					}
					wrong[kind] = append(wrong[kind], fmt.Sprintf("%s has r %d, want %d", p.module, ra, want))
				}
			}
			for _, w := range []struct{ kind, fault, title string }{
				{"turned", "RANK-TURNED", "A and B are stored transposed, [in, r] and [r, out], or exchanged: the layout of another library"},
				{"pair", "RANK-PAIR", "A and B of different ranks: a file put together from two adapters"},
				{"config", "RANK-CONFIG", "r of another run in the configuration"},
				{"pattern", "RANK-PATTERN", "rank_pattern of another run in the configuration"},
			} {
				if list := wrong[w.kind]; len(list) > 0 {
					out = append(out, fail(f.at(u), w.fault, w.title, "%d of %s: %s", len(list), plural(n, "module"), several(list)))
				}
			}
			if list := uneven(u.pairs); len(list) > 0 && len(out) == 0 {
				out = append(out, warn(f.at(u), "SHAPE-VARIES", "a part of a tensor, as one rank of several holds it, or a model with layers of several widths", "modules of one name have other widths in other layers: %s", several(list)))
			}
			if len(out) == 0 && n > 0 {
				out = append(out, pass(f.at(u), n, "%s", plural(n, "module")))
			}
			return out
		}), nil
	},
}

// uneven returns the modules, with # for the number of the layer, that have other widths in one layer than in another.
func uneven(pairs []*pair) (list []string) {
	widths := map[string][2]int{}
	seen := map[string]bool{}
	for _, p := range pairs {
		form, w := numberless(p.module), [2]int{p.in(), p.out()}
		first, ok := widths[form]
		if !ok {
			widths[form] = w
		} else if first != w && !seen[form] {
			seen[form] = true
			list = append(list, fmt.Sprintf("%s: in %d, out %d and in %d, out %d", form, first[0], first[1], w[0], w[1]))
		}
	}
	return list
}

// Trained checks that the adapter is not what it was before training.
var Trained = &check.Check[*Input]{
	Name: "adapter/trained",
	Doc: `B is not zero, A is not zero, and neither equals what --init holds

PEFT starts with B = 0: an adapter whose B is zero in every module was never trained, and in some modules these got no
gradient. A = 0 with B ≠ 0 has no gradient either, and B·A = 0.`,
	Source: "formats 7, rows 5 and 11; faults P042, P183, P211, C9",
	Fix:    "look at the optimiser: the parameters of the adapter must be in it (is_trainable=True when it was loaded)",
	Run: func(in *Input) ([]check.Result, error) {
		if err := in.scan(); err != nil {
			return nil, err
		}
		var out []check.Result
		for _, u := range in.Folder.of(Adapter) {
			if len(u.pairs) > 0 {
				found := trained(in.Folder, u)
				if in.Folder.warming(u) {
					for i := range found {
						if found[i].Verdict == check.Fail && found[i].Explanations[0].Fault == "P183" {
							found[i] = note(found[i].Subject, "%s, and in a later step it is not: the learning rate began at 0", found[i].Reason)
						}
					}
				}
				out = append(out, found...)
			}
		}
		if in.Init == nil {
			return out, nil
		}
		u, v := in.Folder.adapter(), in.Init.adapter()
		if u == nil || v == nil {
			return append(out, fail(in.Init.Tree.Path(), "INIT-KIND", "no adapter to compare with", "--init: there is no adapter in one of the folders")), nil
		}
		m, err := in.moved(u, v)
		if err != nil {
			return out, err
		}
		switch {
		case m.compared == 0:
			out = append(out, fail(in.Folder.at(u), "INIT-KIND", "adapters without a tensor in common", "--init: no tensor of %s is in %s", in.Folder.at(u), in.Init.at(v)))
		case m.changed == 0:
			out = append(out, fail(in.Folder.at(u), "UNTRAINED", "the adapter was never trained, or an old one was saved", "all %s numbers equal those of --init", thousands(m.compared)))
		default:
			out = append(out, pass(in.Folder.at(u), int(m.compared), "%s of %s numbers differ from --init", thousands(m.changed), thousands(m.compared)))
		}
		return out, nil
	},
}

// warming reports whether u is a step of a run in which a later step has a B that is not zero.
func (f *Folder) warming(u *Unit) bool {
	if f.Run == nil || !slices.Contains(f.Run.StepsAt, u) {
		return false
	}
	at, _ := stepOf(u.Dir)
	return slices.ContainsFunc(f.Run.StepsAt, func(v *Unit) bool {
		n, _ := stepOf(v.Dir)
		return n > at && slices.ContainsFunc(v.pairs, func(p *pair) bool { return p.b != nil && p.b.stats != nil && !p.b.stats.zero })
	})
}

func trained(f *Folder, u *Unit) (out []check.Result) {
	var zeroA, zeroB []string
	n := 0
	for _, p := range u.pairs {
		if p.a == nil || p.b == nil || p.a.stats == nil || p.b.stats == nil || p.a.Array.Len() == 0 || p.b.Array.Len() == 0 {
			continue
		}
		n++
		a, b := p.a, p.b
		if p.embed {
			a, b = b, a // an embedding starts with A = 0 and B random
		}
		if b.stats.zero {
			zeroB = append(zeroB, p.module)
		}
		if a.stats.zero {
			zeroA = append(zeroA, p.module)
		}
	}
	switch {
	case n > 0 && len(zeroB) == n:
		out = append(out, fail(f.at(u), "P183", "the adapter was never trained: B starts at 0 and got no gradient", "B is zero in all %s", plural(n, "module")))
	case len(zeroB) > 0:
		out = append(out, fail(f.at(u), "B-ZERO-PARTLY", "some modules got no gradient: frozen, or not in the optimiser", "B is zero in %d of %s: %s", len(zeroB), plural(n, "module"), several(zeroB)))
	}
	if len(zeroA) > 0 {
		out = append(out, fail(f.at(u), "A-ZERO", "A is zero: not initialised, or zeroed when it was gathered", "A is zero in %d of %s: %s", len(zeroA), plural(n, "module"), several(zeroA)))
	}
	if len(out) == 0 && n > 0 {
		out = append(out, pass(f.at(u), n, "A and B are not zero in %s", plural(n, "module")))
	}
	return out
}
