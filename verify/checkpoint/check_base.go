package checkpoint

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"plumbline/internal/arch"
	"plumbline/verify/check"
)

// adaptable returns the modules that an adapter can sit on, in order.
func adaptable(m *arch.Model) []arch.Module {
	return slices.DeleteFunc(m.Modules(), func(x arch.Module) bool { return !x.IsLinear() && x.Kind != arch.Table })
}

// Targets checks the modules of an adapter against the targets and the base.
var Targets = &check.Check[*Input]{
	Name: "adapter/targets",
	Doc: `every target matches a module of the base, and every module that matches has its A and B

The base is --base, --model, or the model that base_model_name_or_path names if it is known. PEFT raises only if no target
matches at all: o_proj on GPT-J, where the layer is called out_proj, is dropped without a word. Names are matched as PEFT
does, whole or behind a dot; a string is a regular expression. One that Go cannot read, with look-ahead or a back-reference, is
passed over where the adapter has the same modules in every layer.`,
	Source: "layout of a PEFT adapter; fault H4a; peft@0.21 tuners/tuners_utils.py check_target_module_exists",
	Fix:    "name the layers as the base does, and train again: the adapters that are missing were never made",
	Run: func(in *Input) ([]check.Result, error) {
		return each(in.adapters(), sure(func(u *Unit) []check.Result { return in.targetFindings(in.Folder, u) }))
	},
}

func (in *Input) targetFindings(f *Folder, u *Unit) []check.Result {
	l := u.Lora
	if l == nil || l.Type != "LORA" || len(u.pairs) == 0 {
		return nil
	}
	subject := f.at(u)
	match, unknown := l.targeted()
	if unknown != "" {
		absent, _ := u.gaps(func(string) bool { return true })
		if len(absent) == 0 {
			return []check.Result{pass(subject, len(u.pairs), "%s, each in every layer up to the last; %s", plural(len(u.pairs), "module"), unknown)}
		}
		return []check.Result{{Subject: subject, Verdict: check.Undetermined, Reason: fmt.Sprintf("%s; without it nobody knows whether these have no adapter by intention: %s", unknown, several(absent))}}
	}
	m, from := in.baseModel(u)
	var names []string // of the base
	if m != nil {
		for _, x := range adaptable(m) {
			if x.IsLinear() || slices.Contains(l.Targets, base(strings.ReplaceAll(x.Name, ".", "/"))) {
				names = append(names, x.Name)
			}
		}
	}
	var out []check.Result
	have := map[string]bool{}
	var extra []string
	for _, p := range u.pairs {
		have[p.module] = true
		if !match(p.module) && len(l.Parameters) == 0 && !l.tied(p.module) {
			extra = append(extra, p.module)
		}
	}
	for _, t := range l.Targets {
		hit := func(list []string) bool {
			return slices.ContainsFunc(list, func(n string) bool { return endsWith(n, t) })
		}
		inAdapter := slices.ContainsFunc(u.pairs, func(p *pair) bool { return endsWith(p.module, t) })
		switch {
		case m != nil && !hit(names) && !inAdapter:
			r := fail(subject, "H4a", "a target that the base does not have: PEFT drops it silently", "target %q matches no module of %s (%s)", t, m.Type, from)
			if near := nearest(m, t); near != "" {
				r.Fix = fmt.Sprintf("the layer of %s is called %q; rename the target and train again", m.Type, near)
			}
			out = append(out, r)
		case m == nil && !inAdapter:
			out = append(out, fail(subject, "H4a", "a target without a tensor: the base does not have it, and PEFT drops it silently", "target %q has no module in the adapter", t))
		}
	}
	out = append(out, ifAny(fail, subject, "TARGET-EXTRA", "targets of another run in the configuration: PEFT does not load these", "module", "%s of the adapter not matched by target_modules: %s", extra)...)
	var absent []string
	expect := 0
	if m != nil {
		for _, n := range names {
			if match(n) {
				expect++
				if !have[n] {
					absent = append(absent, n)
				}
			}
		}
	} else {
		absent, expect = u.gaps(match)
	}
	if len(absent) > 0 && len(absent) < expect {
		out = append(out, fail(subject, "LAYER-MISSING", "layers are missing: saved from one stage of a pipeline, or one shard", "%d of %s that the targets match have no A and B: %s", len(absent), plural(expect, "module"), several(absent)))
	}
	if len(out) == 0 {
		if m == nil {
			return []check.Result{pass(subject, len(u.pairs), "%s as the targets say; the base is not known (--base or --model)", plural(len(u.pairs), "module"))}
		}
		return []check.Result{pass(subject, len(u.pairs), "%s, all that the targets match in %s by %s", plural(len(u.pairs), "module"), m.Type, from)}
	}
	return out
}

// gaps returns the modules that layers between 0 and the last lack and others have, where nothing is known of the base.
func (u *Unit) gaps(match func(string) bool) (absent []string, expect int) {
	forms := map[string]bool{}                        // with # for the number of the layer
	last, have := map[string]int{}, map[string]bool{} // by stack: a vision tower has other layers than the language model
	for _, p := range u.pairs {
		i, ok := layerOf(p.module)
		if !ok {
			continue
		}
		have[p.module] = true
		form := strings.Replace(p.module, fmt.Sprintf(".%d.", i), ".#.", 1)
		forms[form] = true
		if at := stackOf(form); last[at] < i {
			last[at] = i
		}
		if i > 10_000 {
			return nil, 0
		}
	}
	for _, form := range slices.Sorted(maps.Keys(forms)) {
		for i := range last[stackOf(form)] + 1 {
			n := strings.Replace(form, ".#.", fmt.Sprintf(".%d.", i), 1)
			if !match(n) {
				continue
			}
			expect++
			if !have[n] {
				absent = append(absent, n)
			}
		}
	}
	return absent, expect
}

// stackOf returns what stands in front of the number of the layer in the name of a module.
func stackOf(form string) string {
	before, _, _ := strings.Cut(form, ".#.")
	return before
}

// nearest returns the layer that plays the role of target in the architecture, else the one with the nearest name.
func nearest(m *arch.Model, target string) string {
	if alike := m.Alike(target); alike != "" {
		return alike
	}
	var names []string
	for _, l := range m.Adaptable() {
		names = append(names, l.Last())
	}
	return check.Nearest(target, names)
}

// BaseFit checks an adapter against the base that it is for.
var BaseFit = &check.Check[*Input]{
	Name: "adapter/base",
	Doc: `the adapter belongs to the base: widths of every module, name, fingerprint

A is as wide as the module's input and B as high as its output. With --base the name in base_model_name_or_path and, where a
manifest has one, the fingerprint of the weights are compared too.`,
	Source: "layout of a Hugging Face folder, layout of a PEFT adapter; fault P158",
	Fix:    "give the base that the adapter was trained on; an adapter on another base is noise",
	Run: func(in *Input) ([]check.Result, error) {
		return each(in.adapters(), func(u *Unit) ([]check.Result, error) { return in.baseFindings(in.Folder, u) })
	},
}

func (in *Input) baseFindings(f *Folder, u *Unit) (out []check.Result, err error) {
	subject := f.at(u)
	m, from := in.baseModel(u)
	if in.Base != nil && in.Base.model() == nil {
		return []check.Result{fail(in.Base.Tree.Path(), "BASE-KIND", "no model in --base", "--base: there is neither config.json nor weights")}, nil
	}
	var wrong []string
	n := 0
	if m != nil {
		widths := map[string]arch.Module{}
		for _, x := range m.Modules() {
			if x.IsLinear() || x.Kind == arch.Table || x.Kind == arch.Matrix {
				widths[x.Name] = x
			}
		}
		if in.Base != nil && m.Listed == nil {
			in.Base.model().storedWidths(m.Type, widths)
		}
		for _, p := range u.pairs {
			x, ok := widths[arch.Rooted(m.Type, p.module)]
			if p.a == nil || p.b == nil {
				continue
			}
			n++
			switch {
			case u.Lora != nil && u.Lora.parameter(p.module):
				n-- // the experts of a layer as one parameter, which is no module of its own
			case !ok && (endsWith(p.module, "score") || endsWith(p.module, "classifier") || headKey(p.module)):
				n-- // a head that the class adds to the language model
			case !ok:
				wrong = append(wrong, fmt.Sprintf("%s is no module of it", p.module))
			case m.Listed != nil && p.in() == x.Out && p.out() == x.In: // which way round it stores its weight is not known
			case (p.in() != x.In || p.out() != x.Out) && !(p.in() == 0 || p.out() == 0):
				wrong = append(wrong, fmt.Sprintf("%s: A %s, B %s, want in %d, out %d", p.module, p.a.Array.ShapeString(), p.b.Array.ShapeString(), x.In, x.Out))
			}
		}
	}
	if len(wrong) > 0 {
		return []check.Result{fail(subject, "WRONG-BASE", "the adapter belongs to another model", "%d of %s do not fit %s: %s", len(wrong), plural(n, "module"), from, several(wrong))}, nil
	}
	if in.Base != nil {
		b := in.Base.model()
		if u.Manifest != nil && u.Manifest.Fingerprint != "" && b.Kind == Whole {
			sum, err := in.Base.fingerprint(b)
			if err != nil {
				return nil, err
			}
			if sum != u.Manifest.Fingerprint {
				return []check.Result{fail(subject, "BASE-FINGERPRINT", "trained on other weights of the same shape", "the manifest names the base %.12s…, --base is %.12s…", u.Manifest.Fingerprint, sum)}, nil
			}
		}
		if u.Lora != nil && u.Lora.Base != "" && !in.sameName(u.Lora.Base) {
			out = append(out, warn(subject, "BASE-NAME", "another base, or another name of it", "the adapter names the base %q, --base is %s", u.Lora.Base, in.Base.Tree.Path()))
		}
	}
	if len(out) == 0 && n > 0 {
		out = append(out, pass(subject, n, "%s fit %s (%s)", plural(n, "module"), m.Type, from))
	}
	return out, nil
}

// storedWidths takes the widths of the modules from the tensors of the base, where those are matrices of numbers: a configuration may
// say something else.
func (u *Unit) storedWidths(modelType string, widths map[string]arch.Module) {
	for _, t := range u.tensors(weightsRole) {
		name, ok := strings.CutSuffix(arch.Rooted(modelType, t.Name), ".weight")
		x, known := widths[name]
		if !ok || !known || len(t.Array.Shape) != 2 || !t.Array.DType.Float() {
			continue
		}
		if x.Out, x.In = t.Array.Shape[0], t.Array.Shape[1]; x.Kind == arch.Conv1D || x.Kind == arch.Table {
			x.Out, x.In = x.In, x.Out
		}
		widths[name] = x
	}
}

// sameName reports whether the last part of a name or path is that of --base, or of the name that its configuration has.
func (in *Input) sameName(name string) bool {
	last := func(s string) string {
		return strings.ToLower(path.Base(strings.ReplaceAll(strings.TrimRight(s, `/\`), `\`, "/")))
	}
	if last(name) == last(in.Base.Tree.Path()) {
		return true
	}
	// In the cache of Hugging Face a model lies in models--owner--name/snapshots/revision.
	parts := strings.Split(strings.ToLower(strings.ReplaceAll(in.Base.Tree.Path(), `\`, "/")), "/")
	for i, p := range parts {
		if i+1 < len(parts) && parts[i+1] == "snapshots" && strings.HasPrefix(p, "models--") && p[strings.LastIndex(p, "--")+2:] == last(name) {
			return true
		}
	}
	b := in.Base.model()
	if b.Config == nil {
		return false
	}
	own, _ := b.Config.Object.Members["_name_or_path"].(string)
	return own != "" && last(own) == last(name)
}
