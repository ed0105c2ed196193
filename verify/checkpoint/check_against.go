package checkpoint

import (
	"math"
	"path"
	"slices"
	"strings"

	"plumbline/verify/check"
)

// unitPair is a unit and the one of --against that it follows.
type unitPair struct {
	new, old *Unit
	facts    *movedFacts
}

// againstAll compares the units of the folder with those of --against, once.
func (in *Input) againstAll() ([]*unitPair, error) {
	in.againstOnce.Do(func() { in.against, in.againstErr = in.matchUnits() })
	return in.against, in.againstErr
}

// matchUnits pairs units of one kind: by their directory, or where each folder has one of that kind.
func (in *Input) matchUnits() ([]*unitPair, error) {
	var list []*unitPair
	for _, k := range []Kind{Adapter, Whole} {
		a, b := in.Folder.of(k), in.Against.of(k)
		for _, u := range a {
			i := slices.IndexFunc(b, func(v *Unit) bool { return v.Dir == u.Dir })
			if i < 0 && len(a) == 1 && len(b) == 1 {
				i = 0
			}
			if i < 0 {
				continue
			}
			m, err := in.moved(u, b[i])
			if err != nil {
				return nil, err
			}
			list = append(list, &unitPair{u, b[i], m})
		}
	}
	return list, nil
}

// Moved compares two checkpoints.
var Moved = &check.Check[*Input]{
	Name: "against/moved",
	Doc: `the weights moved since --against, in every tensor that is trained

Counted is how many numbers differ. None: the steps between did nothing, or one checkpoint was copied. In bfloat16 an update
below half the spacing rounds away: more than half of the numbers unmoved is a warning. A value head, or a whole group of
tensors, that stands still while others move is in no optimiser; so is a layer, a module of the adapter, an embedding or a head. ‖Δ‖/‖W‖ above 1 is no step of fine-tuning.`,
	Source: "V31; faults C9, H8, H13g, P042, P178, P195",
	Fix:    "keep float32 masters of bfloat16 weights; look at which parameters the optimiser holds",
	Run: func(in *Input) ([]check.Result, error) {
		if in.Against == nil {
			return nil, nil
		}
		list, err := in.againstAll()
		if err != nil {
			return nil, err
		}
		if len(list) == 0 {
			return []check.Result{fail(in.Against.Tree.Path(), "AGAINST-KIND", "folders of different kinds", "nothing in %s is of a kind with %s", in.Against.Tree.Path(), in.Folder.Tree.Path())}, nil
		}
		return each(list, sure(in.movedFindings))
	},
}

func (in *Input) movedFindings(p *unitPair) (out []check.Result) {
	subject, m := in.Folder.at(p.new), p.facts
	switch {
	case m.compared == 0 && len(m.diffs) > 0:
		return nil // against/layout says why
	case m.compared == 0:
		return []check.Result{fail(subject, "AGAINST-KIND", "checkpoints without a tensor in common", "no tensor of %s is in %s", in.Against.at(p.old), subject)}
	}
	if m.changed == 0 {
		return []check.Result{fail(subject, "C9", "nothing was trained between the two, or one was copied", "all %s numbers equal those of %s", thousands(m.compared), in.Against.at(p.old))}
	}
	var still []string
	var heads, narrow, stuck int64
	trainable := 0
	for _, d := range m.diffs {
		if d.problem != "" {
			continue
		}
		if d.changed == 0 {
			still = append(still, d.name)
			if headKey(d.name) {
				heads++
			}
		}
		trainable++
		if d.dtype.Size() == 2 {
			narrow += d.compared
			stuck += d.compared - d.changed
		}
	}
	if heads > 0 {
		out = append(out, fail(subject, "H8", "the value head is not trained: detached, or in no optimiser", "the value head equals that of %s, and other tensors moved", in.Against.at(p.old)))
	}
	group := stillGroup(m, still)
	parts := in.partFindings("--against", in.Folder, p.new, m)
	if p.new.Kind == Adapter && group == "" && len(parts) == 0 {
		parts = moduleFindings("--against", subject, p.new, m)
	}
	switch {
	case group != "":
		out = append(out, fail(subject, "D14", "a group of parameters is in no optimiser", "no number moved in any of the tensors %s, and %s moved elsewhere", group, thousands(m.changed)))
	case len(still)*2 > trainable && p.new.Kind == Adapter:
		out = append(out, warn(subject, "MOVED-PARTLY", "much of the adapter stands still", "%d of %s did not move: %s", len(still), plural(trainable, "tensor"), several(still)))
	}
	if group == "" {
		out = append(out, parts...)
	}
	if narrow > 0 && float64(stuck) > 0.5*float64(narrow) {
		out = append(out, warn(subject, "H13g", "updates below the spacing of 16 bits round away", "%.1f %% of %s numbers in 16 bits did not move", 100*float64(stuck)/float64(narrow), thousands(narrow)))
	}
	if r := m.relative(); !(r <= 1) {
		out = append(out, warn(subject, "AGAINST-FAR", "not a continuation: another run, another seed, or a step that blew up", "‖Δ‖/‖W‖ = %.3g", r))
	}
	if len(out) == 0 || out[0].Verdict == check.Warn {
		out = append(out, pass(subject, int(m.compared), "%s of %s numbers moved (%.2f %%), ‖Δ‖/‖W‖ = %.3g", thousands(m.changed), thousands(m.compared), 100*float64(m.changed)/float64(m.compared), m.relative()))
	}
	return out
}

// numberless returns the name of a tensor with # for the numbers in it.
func numberless(name string) string {
	parts := strings.Split(name, ".")
	for i, p := range parts {
		if strings.Trim(p, "0123456789") == "" {
			parts[i] = "#"
		}
	}
	return strings.Join(parts, ".")
}

// stillGroup returns what all tensors of one name have in common that stand still in every layer while every tensor of
// another name moves: lora_B, q_proj.
func stillGroup(m *movedFacts, still []string) string {
	total, stuck := map[string]int{}, map[string]int{}
	rounded := map[string]bool{} // norms and biases in 16 bits, whose updates are below their spacing (H13g)
	for _, d := range m.diffs {
		total[numberless(d.name)]++
		rounded[numberless(d.name)] = d.dims < 2 && d.dtype.Size() == 2
	}
	for _, n := range still {
		stuck[numberless(n)]++
	}
	var forms []string
	for f, n := range stuck {
		if n == total[f] && n >= 2 && !headKey(f) && !rounded[f] && len(total) > 1 {
			forms = append(forms, f)
		}
	}
	slices.Sort(forms)
	return several(forms)
}

// Layout compares what two checkpoints hold.
var Layout = &check.Check[*Input]{
	Name: "against/layout",
	Doc: `two checkpoints of one run hold the same tensors with the same shapes, and have the same size

So they do the scaling and the targets of an adapter, the settings of config.json that decide what is computed, and the tokens and their
ids. A checkpoint that grows holds a second adapter; one with other shapes is of another run; a step that runs backwards was
written by a resume from an older state.`,
	Source: "faults P203, P006; V29",
	Fix:    "compare checkpoints of one run; look at what the save after the resume added",
	Run: func(in *Input) ([]check.Result, error) {
		if in.Against == nil {
			return nil, nil
		}
		list, err := in.againstAll()
		if err != nil {
			return nil, err
		}
		return each(list, sure(in.layoutFindings))
	},
}

func (in *Input) layoutFindings(p *unitPair) (out []check.Result) {
	subject, m := in.Folder.at(p.new), p.facts
	var shapes []string
	for _, d := range m.diffs {
		if d.problem != "" {
			shapes = append(shapes, d.name+": "+d.problem)
		}
	}
	out = append(out, ifAny(fail, subject, "AGAINST-SHAPE", "a checkpoint of another run", "shape", "%s changed: %s", shapes)...)
	if m.compared > 0 && len(m.added) > 0 {
		out = append(out, fail(subject, "P203", "the checkpoint grew: something is saved a second time", "%s more than in %s: %s; %s, was %s", plural(len(m.added), "tensor"), in.Against.at(p.old), several(m.added), megabytes(p.new.size()), megabytes(p.old.size())))
	}
	if m.compared > 0 && len(m.gone) > 0 {
		id, title := "AGAINST-GONE", "something is no longer saved"
		if slices.ContainsFunc(m.gone, headKey) {
			id, title = "P006", "the value head is no longer saved"
		}
		out = append(out, fail(subject, id, title, "%s of %s gone: %s", plural(len(m.gone), "tensor"), in.Against.at(p.old), several(m.gone)))
	}
	out = append(out, in.runFindings("--against", in.Folder, p.new, in.Against, p.old)...)
	a, aok := stepIn(p.new)
	b, bok := stepIn(p.old)
	if aok && bok && a < b {
		out = append(out, warn(subject, "STEP-BACK", "the newer checkpoint is named second, or a resume began from an older state", "step %d, that of %s is %d", a, in.Against.at(p.old), b))
	}
	if len(out) == 0 && m.compared > 0 {
		out = append(out, pass(subject, len(m.diffs), "the same %s, %s", plural(len(m.diffs), "tensor"), megabytes(p.new.size())))
	}
	return out
}

// stepIn returns the step that a unit says it is of: by its state, else by its directory.
func stepIn(u *Unit) (int, bool) {
	if u.State != nil {
		for _, k := range []string{"global_step", "step", "iteration"} {
			if u.State.Has(k) {
				if n := u.State.Int(k, -1, 0, math.MaxInt32); n >= 0 {
					return n, true
				}
			}
		}
	}
	if u.Manifest != nil && u.Manifest.Step >= 0 {
		return u.Manifest.Step, true
	}
	for dir := u.Dir; dir != "."; dir = path.Dir(dir) {
		if n, ok := stepOf(dir); ok {
			return n, true
		}
	}
	return 0, false
}
