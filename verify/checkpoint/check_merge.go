package checkpoint

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/verify/check"
)

// Merged checks that merging did something.
var Merged = &check.Check[*Input]{
	Name: "merge/changed",
	Doc: `the merged model differs from the base in every module of the adapter

A merged model that equals the base byte for byte was merged with scaling 0: α was lost on the way. Where the update is below
the spacing of the type it rounds away; the share of numbers to which that happened is said.`,
	Source: "faults P086, P151; V27; layout of a PEFT adapter",
	Fix:    "merge again with the α and r of the training; merge in float32 where the type cannot hold the update",
	Run: func(in *Input) ([]check.Result, error) {
		if in.Merged == nil {
			return nil, nil
		}
		m, err := in.mergeAll()
		if err != nil {
			return nil, err
		}
		subject := in.Merged.Tree.Path()
		if m.problem != "" {
			return []check.Result{{Subject: subject, Verdict: check.Undetermined, Reason: m.problem}}, nil
		}
		var out []check.Result
		var absent []string
		if len(m.absent) > 0 {
			absent = m.absent
			out = append(out, fail(subject, "MERGE-MISSING", "the merged model is not whole", "%s of the base missing: %s", plural(len(absent), "tensor"), several(absent)))
		}
		var same, lost []string
		var total, unchanged, rounded int64
		for _, x := range m.modules {
			total += x.compared
			unchanged += x.unchanged
			rounded += x.lost
			if x.rest2 == 0 && x.norm2 > 0 {
				if x.lost > 0 && x.lost == x.unchanged && x.scaling != 0 {
					lost = append(lost, x.name)
				} else {
					same = append(same, x.name)
				}
			}
		}
		share := float64(rounded) / float64(max(total, 1))
		switch n := len(m.modules); {
		case n == 0:
			out = append(out, fail(subject, "WRONG-BASE", "the adapter belongs to another model", "no module of the adapter has a weight of its shape in base and merged model"))
		case len(same) == n:
			out = append(out, fail(subject, "P086", "merged with scaling 0: α was lost on the way", "equals the base byte for byte in all %s of the adapter", plural(n, "module")))
		case len(same) > 0:
			out = append(out, fail(subject, "MERGE-PARTLY", "some modules were not merged", "%d of %s equal the base: %s", len(same), plural(n, "module"), several(same)))
		case len(lost) == n:
			out = append(out, fail(subject, "P151", "the type cannot hold the update", "W + s·B·A rounds back to W in all %s: %s has no numbers between", plural(n, "module"), m.modules[0].dtype))
		case share > 0.5:
			out = append(out, warn(subject, "P151", "most of the update rounds away", "%.1f %% of %s numbers did not move: s·B·A is below the spacing of %s there", 100*share, thousands(total), m.modules[0].dtype))
		default:
			out = append(out, pass(subject, int(total), "%s of %s numbers in %s moved", thousands(total-unchanged), thousands(total), plural(n, "module")))
		}
		return out, nil
	},
}

// MergedFolder checks what the merged model has beside its tensors.
var MergedFolder = &check.Check[*Input]{
	Name: "merge/folder",
	Doc: `the merged model has the configuration of the base and the tokenizer of the adapter or of the base

The same weights with another activation, another number of heads, another epsilon or another wavelength of rope compute something else.
A vocabulary that grew is the adapter's. The tokenizer is the one that the adapter was saved with, where it has one.`,
	Source: "layout of a Hugging Face folder, tokenizer.json; faults P033, P054; transformers@5.23 modeling_rope_utils.py",
	Fix:    "save the configuration of the model that was merged, and the tokenizer of the training, with the merged weights",
	Run: func(in *Input) ([]check.Result, error) {
		if in.Merged == nil {
			return nil, nil
		}
		merged := whole(in.Merged)
		if merged == nil {
			return nil, nil
		}
		subject := in.Merged.at(merged)
		var out []check.Result
		n := 0
		if in.Base != nil {
			if b := in.Base.model(); b != nil && b.Config != nil && merged.Config != nil {
				list := configDiffers(merged.Config.Object, b.Config.Object, merged.Config.Type)
				if u := in.Folder.adapter(); u != nil { // the adapter may bring a larger embedding
					rows := embeddingRows(merged)
					list = slices.DeleteFunc(list, func(s string) bool {
						return strings.HasPrefix(s, "vocab_size ") && rows == merged.Config.Object.Int("vocab_size", 0, 0, largest) && rows == embeddingRows(u)
					})
					if len(u.Lora.unties()) > 0 { // PEFT saves a head of its own where one of the two was trained
						list = slices.DeleteFunc(list, func(s string) bool { return strings.HasPrefix(s, "tie_word_embeddings ") })
					}
					if u.Lora != nil && len(u.Lora.Repeats) > 0 {
						list = slices.DeleteFunc(list, func(s string) bool {
							return strings.HasPrefix(s, "num_hidden_layers ") || strings.HasPrefix(s, "layer_types ")
						})
					}
				}
				if n++; len(list) > 0 {
					out = append(out, fail(subject, "MERGE-CONFIG", "a configuration of another model: the merged weights compute something else", "config.json against that of --base: %s", strings.Join(list, "; ")))
				}
			}
		}
		if t := in.Merged.tokenizerOf(merged); t != nil {
			var others []*Tokenizer
			if u := in.Folder.adapter(); u != nil {
				others = append(others, in.Folder.tokenizerOf(u))
			}
			if in.Base != nil {
				if b := in.Base.model(); b != nil {
					others = append(others, in.Base.tokenizerOf(b))
				}
			}
			others = slices.DeleteFunc(others, func(o *Tokenizer) bool { return o == nil || o.digest == 0 })
			if what := ""; len(others) > 0 {
				n++
				fits := false
				for _, o := range others {
					if what = tokenizerDiffers(t, o); what == "" {
						fits = true
						break
					}
				}
				if !fits {
					out = append(out, fail(subject, "MERGE-TOKENIZER", "the tokenizer of another model: the same text becomes other ids", "%s", tokenizerDiffers(t, others[0])))
				}
			}
		}
		if len(out) == 0 && n > 0 {
			out = append(out, pass(subject, n, "configuration and tokenizer of the base"))
		}
		return out, nil
	},
}

// unties returns the modules of an embedding or a head that the adapter trains.
func (l *Lora) unties() (list []string) {
	if l == nil {
		return nil
	}
	for _, m := range slices.Concat(l.Targets, l.Save) {
		if slices.Contains(tables2, m) || m == "lm_head" {
			list = append(list, m)
		}
	}
	if l.Tokens != nil {
		list = append(list, "tokens")
	}
	return list
}

// Delta checks merged − base against s·B·A.
var Delta = &check.Check[*Input]{
	Name: "merge/delta",
	Doc: `merged = base + s·B·A within half a unit of the type, and nothing else changed

s is α/r, or α/√r with use_rslora. Each element's bound is half a unit of the weight's type at W + s·B·A, the float32
summation of r products and, for an adapter in 16 bits, two roundings of the product; for int8 weights half a step of the
row and the rounding to float16. A base whose file is wider than the merged type may have been loaded in that type: then W is
rounded first. Heads, biases and token rows that the adapter trained whole are the adapter's in the merged model. When the bound is
exceeded the factor c that fits merged − base = c·B·A best is named.`,
	Source: "V27; int8 base with LoRA as PEFT and bitsandbytes have it; faults P040, P148, P149, P150, P157, P197, P198; peft@0.21 tuners/lora/layer.py merge",
	Fix:    "merge with the scaling of the configuration, in float32, once",
	Run: func(in *Input) ([]check.Result, error) {
		if in.Merged == nil {
			return nil, nil
		}
		m, err := in.mergeAll()
		if err != nil || m.problem != "" {
			return nil, err
		}
		var out []check.Result
		groups := map[string][]*mergedModule{}
		var order []string
		total := int64(0)
		partly := slices.ContainsFunc(m.modules, func(x *mergedModule) bool { return x.excess == 0 && x.norm2 > 0 })
		for _, x := range m.modules {
			total += x.compared
			if x.excess == 0 {
				continue
			}
			if x.rest2 == 0 {
				continue // equals the base: merge/changed
			}
			id := x.explain(partly)[0].id
			if groups[id] == nil {
				order = append(order, id)
			}
			groups[id] = append(groups[id], x)
		}
		for _, id := range order {
			list := groups[id]
			worst := list[0]
			for _, x := range list {
				if x.worst-x.limit > worst.worst-worst.limit {
					worst = x
				}
			}
			r := check.Bound(in.Merged.Tree.Path()+":"+worst.name+".weight", "|merged − (base + s·B·A)|", worst.worst, worst.limit, int(worst.compared))
			c, sigma := worst.fit()
			r.Reason = fmt.Sprintf("%s numbers beyond half a unit of %s in %d of %s; merged − base = %.4g·B·A (± %.2g) fits best, want s = %.4g", thousands(worst.excess), worst.dtype, len(list), plural(len(m.modules), "module"), c, sigma, worst.scaling)
			r.Where = worst.where
			r.Formula = "merged = base + s·B·A"
			for i, k := range worst.explain(partly) {
				e := check.Explanation{Fault: k.id, Title: k.title}
				if i > 0 {
					e.Evidence = "the same numbers"
				}
				r.Explanations = append(r.Explanations, e)
			}
			out = append(out, r)
		}
		for _, b := range m.biases {
			if b.excess == 0 {
				continue
			}
			id, title := "MERGE-OTHER", "something else was added"
			if b.plain == 0 {
				id, title = "P157", "the bias of lora_B was added without the scaling, as PEFT does for 8-bit layers"
			}
			r := fail(in.Merged.Tree.Path()+":"+b.name, id, title, "%d of %d numbers are not bias + s·b", b.excess, b.compared)
			r.Where, r.Compared = b.where, b.compared
			out = append(out, r)
		}
		out = append(out, in.keptFindings(m)...)
		for _, n := range m.notes {
			out = append(out, check.Result{Subject: in.Merged.Tree.Path(), Verdict: check.Undetermined, Reason: n})
		}
		out = append(out, in.otherFindings(m)...)
		if !slices.ContainsFunc(out, func(r check.Result) bool { return r.Verdict == check.Fail }) && total > 0 {
			out = append(out, pass(in.Merged.Tree.Path(), int(total), "base + s·B·A in %s, s = %.4g; %s untouched", plural(len(m.modules), "module"), m.modules[0].scaling, plural(len(m.others), "other tensor")))
		}
		return out, nil
	},
}

// cause is what may have been merged in place of s·B·A.
type cause struct{ id, title string }

// explain names what was merged in place of s·B·A; several where they give the same numbers. partly says that other
// modules are as they should be: then no setting of the whole adapter is to blame.
func (x *mergedModule) explain(partly bool) []cause {
	c, sigma := x.fit()
	s, r := x.scaling, float64(x.rank)
	near := func(want float64) bool { return math.Abs(c-want) <= 0.02*math.Abs(want)+4*sigma }
	fitsShape := x.rest2 > 0 && x.norm2 > 0 && x.dot*x.dot >= 0.9*x.rest2*x.norm2
	switch {
	case x.rest2-x.rest2 != 0:
		return []cause{{"INF", "the merged weights are not finite: overflow of " + x.dtype.String() + ", or NaN on the way"}}
	case x.norm2 == 0:
		return []cause{{"MERGE-OTHER", "B·A is 0, and the weight changed"}}
	case x.dora && near(s) && fitsShape:
		return []cause{{"DORA-MAGNITUDE", "merged as plain LoRA: the magnitudes of DoRA were left out"}}
	case x.dtype == format.I8 && (near(s) || !fitsShape):
		return []cause{{"P150", "codes and scales of two saves in an int8 merge"}}
	case near(s) && x.coarse == 0:
		return []cause{{"P148", "merged in 16 bits and stored in a wider type, or merged and unmerged on the way"}}
	case near(s):
		return []cause{{"MERGE-OTHER", "something else was added too: the base was changed"}}
	case x.dotT*x.dotT >= 0.9*x.rest2*x.norm2 && x.dot*x.dot < 0.5*x.rest2*x.norm2:
		return []cause{{"MERGE-TRANSPOSED", "the transpose of B·A was added"}}
	case !fitsShape:
		return []cause{{"MERGE-OTHER", "merged − base is no multiple of B·A: another adapter, another base, or weights trained on"}}
	}
	var list []cause
	for _, k := range []struct {
		want    float64
		setting bool // of the whole adapter
		cause
	}{
		{-s, false, cause{"MERGE-SIGN", "unmerged in place of merged"}},
		{x.alpha / r, true, cause{"P197", "rsLoRA ignored: α/r in place of α/√r"}},
		{x.alpha / math.Sqrt(r), true, cause{"P197", "scaled as rsLoRA: α/√r in place of α/r"}},
		{2 * s, false, cause{"MERGE-TWICE", "merged twice"}},
		{x.alpha, true, cause{"P198", "scaled by α in place of α/r"}},
		{1, true, cause{"P198", "the scaling was left out"}},
		{0, false, cause{"P086", "merged with scaling 0: α was lost on the way"}},
	} {
		if near(k.want) && !(k.setting && partly) {
			list = append(list, k.cause)
		}
	}
	switch {
	case len(list) > 0:
		return list
	case x.dtype == format.I8:
		return []cause{{"P150", "codes and scales of two saves in an int8 merge, or another factor"}}
	}
	return []cause{{"MERGE-SCALE", "scaled by another factor: α or r of another run"}}
}

// otherFindings judges the tensors that the adapter does not touch.
func (in *Input) otherFindings(m *mergeFacts) []check.Result {
	var changed []string
	var worst *difference
	var out []check.Result
	for i := range m.others {
		d := &m.others[i]
		switch {
		case d.problem != "":
			changed = append(changed, d.name+": "+d.problem)
		case d.changed > 0:
			if u, _ := d.dtype.Unit(); u > 0 && d.delta2 <= float64(4*u*u)*d.old2 {
				continue // another type: rounded once
			}
			changed = append(changed, d.name)
			if worst == nil || d.delta2 > worst.delta2 {
				worst = d
			}
		}
	}
	if len(changed) == 0 {
		return nil
	}
	r := fail(in.Merged.Tree.Path(), "P040", "the base drifted: merged and unmerged in a narrow type, or another base", "%d of %s that the adapter does not touch changed: %s", len(changed), plural(len(m.others), "tensor"), several(changed))
	if worst != nil {
		r.Where = fmt.Sprintf("%s: %s of %s numbers, ‖Δ‖/‖W‖ = %.3g", worst.name, thousands(worst.changed), thousands(worst.compared), math.Sqrt(worst.delta2/worst.old2))
	}
	return append(out, r)
}
