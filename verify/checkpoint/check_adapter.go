package checkpoint

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"plumbline/verify/check"
)

// adapters are those of the audited folder that have tensors and are of LoRA or AdaLoRA, as far as is known.
func (in *Input) adapters() []*Unit {
	return slices.DeleteFunc(in.Folder.of(Adapter), func(u *Unit) bool {
		return len(u.tensors(weightsRole)) == 0 || u.Lora != nil && u.Lora.Type != "LORA" && u.Lora.Type != "ADALORA"
	})
}

// AdapterConfig checks the numbers of adapter_config.json.
var AdapterConfig = &check.Check[*Input]{
	Name: "adapter/config",
	Doc: `adapter_config.json is there, is of LoRA, and gives a scaling that is finite and not 0

The scaling is α/r, or α/√r with use_rslora; rank_pattern and alpha_pattern override per module. With α = 0 the adapter does
nothing wherever it is loaded, and merging it leaves the base.`,
	Source: "layout of a PEFT adapter; fault P086; peft@0.21 tuners/lora/config.py",
	Fix:    "write the α and r that the adapter was trained with into adapter_config.json",
	Run: scanned(func(in *Input) ([]check.Result, error) { // of AdaLoRA, whose E says whether it is trained
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
			case l.Type == "ADALORA":
				out = append(out, in.adaFindings(subject, u)...)
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
	}),
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
	for _, p := range []struct{ key, text string }{{"target_modules", l.Pattern}, {"exclude_modules", l.ExcludeRE}} {
		if why := unreadable(p.text); why != "" {
			out = append(out, fail(subject, "TARGET-PATTERN", "a pattern that is no regular expression: PEFT raises an error when it loads the adapter", "%s %.64q: %s", p.key, p.text, why))
		}
	}
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

// Rank checks the shapes of A and B against each other and against the configuration.
var Rank = &check.Check[*Input]{
	Name: "adapter/rank",
	Doc: `A is [r, in] and B is [out, r] with the r of the configuration in every module

rank_pattern overrides r for the modules that it matches. With a wrong r the scaling α/r is wrong, though PEFT refuses most
of these on loading.`,
	Source: "layout of a PEFT adapter; PEFT#2450, PEFT#2733, verl#1821",
	Fix:    "write the rank that the adapter was trained with into adapter_config.json, with its α",
	Run: func(in *Input) ([]check.Result, error) {
		f := in.Folder
		return each(in.adapters(), sure(func(u *Unit) []check.Result {
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
			turned := u.Lora != nil && u.Lora.Type == "LORA" && len(u.pairs) > 0 && !slices.ContainsFunc(u.pairs, func(p *pair) bool { return !p.turned(u.Lora.rank(p.module)) })
			for _, p := range u.pairs {
				ra, rb := p.ranks()
				if p.a == nil || p.b == nil {
					continue
				}
				n++
				if u.Lora != nil && u.Lora.parameter(p.module) {
					if ra != rb || ra%max(u.Lora.R, 1) != 0 {
						wrong["pair"] = append(wrong["pair"], fmt.Sprintf("%s: A %s, B %s, target_parameters with r %d", p.module, p.a.Array.ShapeString(), p.b.Array.ShapeString(), u.Lora.R))
					}
					continue
				}
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
		}))
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
	Source: "layout of a PEFT adapter; faults P042, P183, P211, C9",
	Fix:    "look at the optimiser: the parameters of the adapter must be in it (is_trainable=True when it was loaded)",
	Run: scanned(func(in *Input) ([]check.Result, error) {
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
			parts := in.partFindings("--init", in.Folder, u, m)
			if len(parts) == 0 {
				parts = moduleFindings("--init", in.Folder.at(u), u, m)
			}
			parts = append(parts, in.runFindings("--init", in.Folder, u, in.Init, v)...)
			if out = append(out, parts...); len(parts) == 0 {
				out = append(out, pass(in.Folder.at(u), int(m.compared), "%s of %s numbers differ from --init", thousands(m.changed), thousands(m.compared)))
			}
		}
		return out, nil
	}),
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

// stacks reports whether the modules are all those of one or several stacks of layers, and other stacks have none of them: a model
// of several towers, of which one saw no data.
func stacks(u *Unit, modules []string) bool {
	all, of := map[string]int{}, map[string]int{}
	for _, p := range u.pairs {
		all[stackOf(numberless(p.module))]++
	}
	for _, m := range modules {
		of[stackOf(numberless(m))]++
	}
	for stack, n := range of {
		if !strings.Contains(numberless(modules[0]), ".#.") || n != all[stack] {
			return false
		}
	}
	return len(of) < len(all)
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
	case len(zeroB) > 0 && stacks(u, zeroB):
		out = append(out, warn(f.at(u), "B-ZERO-PARTLY", "a stack of layers got no gradient: a vision tower under text alone, or a part that is frozen", "B is zero in every module of a stack, %d of %s: %s", len(zeroB), plural(n, "module"), several(zeroB)))
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
