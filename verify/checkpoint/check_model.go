package checkpoint

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"plumbline/internal/arch"
	"plumbline/internal/format"
	"plumbline/verify/check"
)

// Shards checks the index of a sharded model.
var Shards = &check.Check[*Input]{
	Name: "model/index",
	Doc: `every shard is there, every tensor in one shard and in the index, and total_size is the sum of the bytes

A shard that is missing is a save that did not end, or a copy that left it out; a tensor outside the index is not loaded.`,
	Source: "layout of a Hugging Face folder; transformers modeling_utils load_sharded_checkpoint",
	Fix:    "copy the missing shards, or save the model again with its index",
	Run: func(in *Input) ([]check.Result, error) {
		var out []check.Result
		for _, w := range in.wholes() {
			f, u := w.f, w.u
			switch numbered := numberedShards(u); {
			case u.Index != nil:
				found, err := in.indexFindings(f, u)
				if err != nil {
					return out, err
				}
				out = append(out, found...)
			case u.has(indexFile): // refused
			case len(numbered) > 0:
				out = append(out, fail(f.at(u), "INDEX-MISSING", "shards without their index", "%s, and no %s", several(numbered), indexFile))
			}
		}
		return out, nil
	},
}

var shardName = regexp.MustCompile(`^(.*)-(\d{5,6})-of-(\d{5,6})\.safetensors$`)

// numberedShards returns the shards of the unit by their names, and those that lack.
func numberedShards(u *Unit) (have []string) {
	for _, c := range u.Containers {
		if shardName.MatchString(base(c.Name)) {
			have = append(have, base(c.Name))
		}
	}
	return have
}

// indexFindings holds the shards of a model against their index. A model.safetensors beside them is what from_pretrained loads: it asks
// for the index only where there is none (transformers@5.23.0 modeling_utils.py _get_resolved_checkpoint_files).
func (in *Input) indexFindings(f *Folder, u *Unit) (out []check.Result, err error) {
	x, subject := u.Index, u.Index.File
	var missing []string
	for _, s := range x.Shards {
		if !u.has(s) {
			missing = append(missing, s)
		}
	}
	if len(missing) > 0 {
		n := 0
		for _, s := range x.Map {
			if slices.Contains(missing, s) {
				n++
			}
		}
		return []check.Result{fail(subject, "SHARD-MISSING", "a shard is missing: the save did not end, or the copy left it out", "%s missing with %s: %s", plural(len(missing), "shard"), plural(n, "tensor"), several(missing))}, nil
	}
	if f.refusedIn(u) {
		return nil, nil
	}
	var unmapped, beside []string
	total := int64(0)
	for _, c := range u.Containers {
		switch c.Role {
		case weightsRole:
			for _, t := range c.Tensors {
				total += t.bytes()
				if _, ok := x.Map[t.Name]; !ok {
					unmapped = append(unmapped, t.Name)
				}
			}
		case otherRole:
			beside = append(beside, base(c.Name))
		}
	}
	out = append(out, ifAny(fail, subject, "UNMAPPED", "tensors that the index leaves out are not loaded", "tensor", "%s of the shards not in weight_map: %s", unmapped)...)
	if slices.Contains(beside, single) {
		what, err := in.singleDiffers(u)
		if err != nil {
			return nil, err
		}
		if what != "" {
			out = append(out, fail(subject, "STALE-SINGLE", "weights of an earlier save in one file beside the shards: from_pretrained loads that file and not the shards", "%s lies beside %s, and %s", single, plural(len(x.Shards), "shard"), what))
			beside = slices.DeleteFunc(beside, func(b string) bool { return b == single })
		}
	}
	out = append(out, ifAny(warn, subject, "SHARD-UNUSED", "shards of an earlier save were left behind", "file", "%s that the index does not name: %s", beside)...)
	if x.TotalSize >= 0 && x.TotalSize != total {
		out = append(out, warn(subject, "TOTAL-SIZE", "an index of another save or of another width", "total_size is %s, the tensors have %s bytes", thousands(x.TotalSize), thousands(total)))
	}
	if len(out) == 0 {
		out = append(out, pass(subject, len(x.Map), "%s in %s", plural(len(x.Map), "tensor"), plural(len(x.Shards), "shard")))
	}
	return out, nil
}

const single = "model.safetensors"

// singleDiffers says in what the weights of model.safetensors differ from those of the shards beside it, "" if they are the same.
func (in *Input) singleDiffers(u *Unit) (string, error) {
	shards := map[string]*Tensor{}
	for _, t := range u.tensors(weightsRole) {
		shards[t.Name] = t
	}
	var list []tensorPair
	for _, c := range u.Containers {
		if base(c.Name) != single {
			continue
		}
		for _, t := range c.Tensors {
			s := shards[t.Name]
			if s == nil {
				return "the shards have no " + t.Name, nil
			}
			list = append(list, tensorPair{t, s})
		}
	}
	if n := len(shards) - len(list); n > 0 {
		return fmt.Sprintf("lacks %s of the shards", plural(n, "tensor")), nil
	}
	diffs, err := in.compare(list)
	for _, d := range diffs {
		if d.problem != "" || d.changed > 0 {
			return "its " + d.name + " is another one", err
		}
	}
	return "", err
}

// place is a unit and the folder that it lies in.
type place struct {
	f *Folder
	u *Unit
}

// judged returns the units that are judged: those of the folder, and of the merged model.
func (in *Input) judged() (list []place) {
	for _, f := range []*Folder{in.Folder, in.Merged} {
		if f != nil {
			for _, u := range f.Units {
				list = append(list, place{f, u})
			}
		}
	}
	return list
}

// wholes returns the whole models among them.
func (in *Input) wholes() []place {
	return slices.DeleteFunc(in.judged(), func(p place) bool { return p.u.Kind != Whole })
}

// Names checks the tensors of a whole model against its architecture.
var Names = &check.Check[*Input]{
	Name: "model/tensors",
	Doc: `a whole model holds every tensor of its architecture, by name and shape, and no part of a wrapper

The tensors follow from config.json for the architectures of internal/arch, Llama, Qwen, Mistral, Mixtral, Gemma, Phi, OLMo and GPT
among them. Of others the layers are counted and compared with each other, the widths of the configuration with the tensors, and the
rest is undetermined. Buffers that loaders leave out are ignored, lm_head may
be absent where it is tied. transformers initialises what is missing at random, with a warning at most.`,
	Source: "layout of a Hugging Face folder; faults P005, P007, P140",
	Fix:    "save the model inside the wrapper (unwrap_model, merge_and_unload) with save_pretrained",
	Run: func(in *Input) ([]check.Result, error) {
		var out []check.Result
		for _, w := range in.wholes() {
			if list := w.u.tensors(weightsRole); len(list) > 0 {
				found := w.f.nameFindings(w.u, list)
				for _, r := range found {
					if w.f == in.Merged && r.Verdict == check.Fail && r.Explanations[0].Fault == "TENSOR-MISSING" {
						r.Explanations[0] = check.Explanation{Fault: "MERGE-MISSING", Title: "the merged model is not whole"}
					}
				}
				out = append(out, found...)
			}
		}
		return out, nil
	},
}

func (f *Folder) nameFindings(u *Unit, list []*Tensor) (out []check.Result) {
	subject := f.at(u)
	var inWrapper, lora []string
	for _, t := range list {
		if w := wrapped(t.Name); w != "" && !strings.HasPrefix(t.Name, "value_model.") {
			inWrapper = append(inWrapper, t.Name)
		}
		if _, _, kind, _ := loraKey(t.Name); kind != partNone || strings.Contains(t.Name, ".base_layer.") || strings.HasPrefix(t.Name, "base_model.model.") {
			lora = append(lora, t.Name)
		}
	}
	if len(lora) > 0 && u.accelerated() {
		return []check.Result{undetermined(subject, "NO-CONFIG", "weights without config.json", "a state of accelerate of a PeftModel, base and adapter in one file, as Accelerator.load_state takes it: which base, r and α are its own is not said in %s", plural(len(list), "tensor"))}
	}
	if len(lora) > 0 {
		return []check.Result{fail(subject, "UNMERGED", "the PeftModel was saved as it is: neither adapter nor merged model", "%s of a PeftModel in a whole model: %s", plural(len(lora), "name"), several(lora))}
	}
	if len(inWrapper) > 0 {
		id, title := "P007", "a wrapper was saved in place of the model inside"
		if strings.HasPrefix(inWrapper[0], "policy.") {
			id, title = "P005", "policy and value model were saved as one"
		}
		return []check.Result{fail(subject, id, title, "%s with the prefix of a wrapper: %s", plural(len(inWrapper), "name"), several(inWrapper))}
	}
	m := u.Model
	if m == nil {
		switch {
		case u.Config != nil && u.Config.Type != "":
			return f.unknownFindings(u, list)
		case f.refusedIn(u):
			return nil
		}
		if u.accelerated() {
			return []check.Result{undetermined(subject, "NO-CONFIG", "weights without config.json", "a state of accelerate has no config.json: which %s belong to the model is not said", plural(len(list), "tensor"))}
		}
		return []check.Result{fail(subject, "NO-CONFIG", "weights without config.json", "config.json is missing or names no model_type: no loader knows what these %s are", plural(len(list), "tensor"))}
	}
	if q := u.Config.Quantization; q != nil && q.Method != "bitsandbytes" && q.Method != "fp8" {
		return []check.Result{note(subject, "quant_method %q: the names and shapes of its tensors are not known here", q.Method)}
	}
	if key, name := unknownName(m); name != "" {
		return []check.Result{undetermined(subject, "CONFIG-NAME", "a configuration that names what no loader knows", "%s %q of config.json is none that transformers 5.23 has: what the weights compute is not said", key, name)}
	}
	if u.Index != nil && slices.ContainsFunc(u.Index.Shards, func(s string) bool { return !u.has(s) }) || f.refusedIn(u) {
		return nil // said there
	}
	have := map[string]*Tensor{}
	for _, t := range list {
		have[arch.Rooted(m.Type, t.Name)] = t
	}
	var absent, shapes []string
	want := map[string]bool{}
	for _, x := range m.Tensors() {
		want[x.Name] = true
		t := have[x.Name]
		switch {
		case t == nil && ofHead(x.Name) && !u.hasHead():
		case t == nil:
			absent = append(absent, x.Name)
		case !slices.Equal(t.Array.Shape, x.Shape) && t.Array.DType != format.U8: // packed codes: weights/type
			shapes = append(shapes, fmt.Sprintf("%s is %s, want %s", x.Name, t.Array.ShapeString(), (&format.Array{Shape: x.Shape}).ShapeString()))
		}
	}
	var extra []string
	for _, t := range list {
		n := arch.Rooted(m.Type, t.Name)
		if !want[n] && !ignorable(n) && !auxiliary(n) {
			extra = append(extra, t.Name)
		}
	}
	if r := u.taskFinding(subject, list); r != nil {
		out = append(out, *r)
	}
	if p := doubled(absent, have); p != "" {
		return []check.Result{fail(subject, "KEY-PREFIX", "the model was saved from inside another module", "every name begins with %q once more than it should: loaders fill the model with random numbers", p)}
	}
	if n := cut(m, extra); n > 0 {
		out = append(out, fail(subject, "LAYERS-CUT", "a configuration of a smaller model: loaders leave the last layers out", "num_hidden_layers is %d, and there are tensors of %d layers more: %s", m.Layers, n, several(extra)))
		extra = nil
	}
	if len(absent) > 0 && len(absent) <= 2 && !slices.ContainsFunc(absent, func(n string) bool { return !ofHead(n) }) {
		out = append(out, fail(subject, "HEAD-MISSING", "the head was dropped as if it were tied", "%s is missing, and tie_word_embeddings is false", several(absent)))
	} else if len(absent) > 0 {
		out = append(out, fail(subject, "TENSOR-MISSING", "part of the model was not saved: loaders fill it with random numbers", "%s of %s missing: %s", thousands(int64(len(absent))), plural(len(want), "tensor"), several(absent)))
	}
	if len(shapes) > 0 {
		id, title := "TENSOR-SHAPE", "a configuration of another model"
		if slices.ContainsFunc(list, func(t *Tensor) bool { return len(t.Array.Shape) == 1 && t.Array.Shape[0] == 0 }) {
			id, title = "ZERO-LENGTH", "tensors of length 0: partitioned by ZeRO-3 or FSDP and not gathered before saving"
		}
		out = append(out, fail(subject, id, title, "%s of another shape: %s", plural(len(shapes), "tensor"), several(shapes)))
	}
	out = append(out, ifAny(warn, subject, "TENSOR-EXTRA", "tensors that the architecture does not have", "tensor", "%s of no known use: %s", extra)...)
	if !slices.ContainsFunc(out, func(r check.Result) bool { return r.Verdict == check.Fail }) {
		out = append(out, pass(subject, len(want), "%s of %s", plural(len(want), "tensor"), m.Type))
	}
	return out
}

// Names of transformers 5.23: activations.ACT2FN, and modeling_rope_utils.ROPE_INIT_FUNCTIONS with default and the older su and mrope.
var (
	activations = strings.Fields("gelu gelu_10 gelu_accurate gelu_fast gelu_new gelu_python gelu_python_tanh gelu_pytorch_tanh hardswish laplace " +
		"leaky_relu linear mish prelu quick_gelu relu relu2 relu6 sigmoid silu sqrtsoftplus swish tanh xielu")
	rotaries = strings.Fields("default linear dynamic yarn longrope llama3 proportional su mrope")
)

// unknownName returns a name in the configuration that transformers does not know, and its key; empty if it knows all.
func unknownName(m *arch.Model) (key, name string) {
	switch {
	case m.Activation != "" && !slices.Contains(activations, m.Activation):
		return "activation", m.Activation
	case m.Rope.Type != "" && !slices.Contains(rotaries, m.Rope.Type):
		return "rope_type", m.Rope.Type
	}
	return "", ""
}

// accelerated reports whether Accelerator.save_state wrote the folder, which leaves the configuration to the user.
func (u *Unit) accelerated() bool {
	return u.Config == nil && u.hasLike("random_states_", "sampler.bin", "accelerate_")
}

// ofHead reports whether a tensor is of the head that predicts tokens.
func ofHead(name string) bool {
	return strings.HasPrefix(name, "lm_head.") || strings.HasPrefix(name, "embed_out.")
}

// taskFinding compares the class in config.json with the head that is there.
func (u *Unit) taskFinding(subject string, list []*Tensor) *check.Result {
	of := func(ends ...string) bool {
		return slices.ContainsFunc(u.Config.Architectures, func(a string) bool {
			return slices.ContainsFunc(ends, func(e string) bool { return strings.HasSuffix(a, e) })
		})
	}
	head := slices.ContainsFunc(list, func(t *Tensor) bool {
		return slices.ContainsFunc([]string{"score.", "classifier.", "classification_head.", "pre_classifier.", "logits_proj.", "head."}, func(h string) bool { return strings.HasPrefix(t.Name, h) })
	})
	var r check.Result
	switch {
	case head && of("ForCausalLM", "LMHeadModel"):
		r = fail(subject, "TASK-HEAD", "a classifier saved as a language model: its head is not loaded", "architectures is %s, and there is a head for classes", strings.Join(u.Config.Architectures, ", "))
	case !head && of("ForSequenceClassification", "ForTokenClassification"):
		r = fail(subject, "TASK-HEAD", "the head for classes was not saved: loaders fill it with random numbers", "architectures is %s, and there is neither score nor classifier", strings.Join(u.Config.Architectures, ", "))
	default:
		return nil
	}
	return &r
}

// doubled returns what stands in front of the names of all tensors that are absent, "" if they are absent indeed.
func doubled(absent []string, have map[string]*Tensor) string {
	for _, p := range []string{"model.", "transformer.", "base_model.", "language_model.", "backbone."} {
		if slices.ContainsFunc(absent, func(n string) bool { return have[p+n] != nil }) && !slices.ContainsFunc(absent, func(n string) bool { return have[p+n] == nil && !ofHead(n) }) {
			return p
		}
	}
	return ""
}

// cut returns how many layers the tensors in extra belong to that are numbered beyond the last one.
func cut(m *arch.Model, extra []string) int {
	layers := map[int]bool{}
	for _, n := range extra {
		if i, ok := layerOf(n); ok && i >= m.Layers && strings.HasPrefix(arch.Rooted(m.Type, n), m.BlockName(i)) {
			layers[i] = true
		}
	}
	return len(layers)
}

// hasHead reports whether the model has a head that predicts tokens, by the class in config.json.
func (u *Unit) hasHead() bool {
	if len(u.Config.Architectures) == 0 {
		return true
	}
	return slices.ContainsFunc(u.Config.Architectures, func(a string) bool { return strings.HasSuffix(a, "ForCausalLM") || strings.HasSuffix(a, "LMHeadModel") })
}

// auxiliary reports whether a tensor has a use outside the language model: a value or reward head, scales of a quantiser.
func auxiliary(name string) bool {
	if headKey(name) || strings.HasPrefix(name, "score.") || strings.HasPrefix(name, "classifier.") || strings.HasPrefix(name, "dropout.") {
		return true
	}
	for _, end := range []string{".SCB", ".weight_format", ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", ".weight_scale", ".weight_scale_inv", ".input_scale", ".qzeros", ".scales", ".g_idx", ".qweight"} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return strings.Contains(name, ".quant_state.")
}

// Tied checks a head that shares the values of the embedding.
var Tied = &check.Check[*Input]{
	Name: "model/tied",
	Doc: `a head that is tied and stored all the same equals the embedding

transformers loads one of the two and ties the other to it: with different values which one wins depends on the version.`,
	Source: "layout of a Hugging Face folder",
	Fix:    "set tie_word_embeddings to false, or drop lm_head.weight",
	Run: func(in *Input) ([]check.Result, error) {
		var out []check.Result
		for _, w := range in.wholes() {
			f, u := w.f, w.u
			if u.Model == nil || !u.Model.Tied {
				continue
			}
			var head, embedding *Tensor
			for _, t := range u.tensors(weightsRole) {
				switch arch.Rooted(u.Model.Type, t.Name) {
				case arch.HeadWeight:
					head = t
				case arch.EmbeddingOf(u.Model.Type):
					embedding = t
				}
			}
			if head == nil || embedding == nil {
				continue
			}
			d, err := in.compare([]tensorPair{{head, embedding}})
			if err != nil {
				return out, err
			}
			if d[0].problem != "" || d[0].changed > 0 {
				out = append(out, fail(f.at(u), "TIED-DIFFERS", "the head was trained on its own", "tie_word_embeddings is true, and lm_head.weight differs from the embedding in %s of %s numbers", thousands(d[0].changed), thousands(d[0].compared)))
			} else {
				out = append(out, pass(f.at(u), int(d[0].compared), "lm_head.weight equals the embedding"))
			}
		}
		return out, nil
	},
}
