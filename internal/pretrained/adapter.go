package pretrained

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/peft"
	"plumbline/reference/model"
)

// attached is an adapter on a base.
type attached struct {
	lora    model.Adapter
	config  model.Config  // of the base, untied where the adapter has a head or an embedding of its own
	weights model.Weights // of the base, with those that the adapter replaces
	notes   []string
}

// attach reads the adapter at path and fits it to the base s.
func attach(s *source, path string) (*attached, error) {
	a, err := peft.Open(path)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	out := &attached{lora: model.Adapter{}, config: s.config, weights: s.read, notes: slices.Clone(a.Notes)}
	modules, err := a.Modules()
	if err != nil {
		return nil, err
	}
	if a.Fingerprint != "" && s.fingerprint != nil {
		base, err := s.fingerprint()
		if err != nil {
			return nil, err
		}
		if base != a.Fingerprint {
			return nil, format.Malformed(a.WeightsPath(), "base_fingerprint", "is %.64q, that of the base is %q: an adapter for another base", a.Fingerprint, base)
		}
	}
	if made := a.Config.BaseModel; a.Fingerprint == "" && made != "" && filepath.Base(made) != filepath.Base(s.path) {
		out.notes = append(out.notes, fmt.Sprintf("%s: the adapter was made for %q; whether that is %s only its user knows: it has no fingerprint of its base",
			filepath.Join(path, peft.ConfigFile), made, s.path))
	}
	notes, err := a.Fit(modules, modulesOf(s.config))
	if err != nil {
		return nil, err
	}
	out.notes = append(out.notes, notes...)
	var tables []*peft.Module
	for i := range modules {
		m := &modules[i]
		if m.Bias != nil {
			return nil, format.Malformed(a.WeightsPath(), m.Path, "biases of B are not supported")
		}
		if m.Embedding {
			tables = append(tables, m)
			continue
		}
		l := model.LoRA{Rank: m.R, Scale: m.Scale}
		if l.A, l.B, err = m.Factors(); err != nil {
			return nil, err
		}
		if m.Alpha == 0 { // verl's merger writes lora_alpha 0 by design
			out.notes = append(out.notes, fmt.Sprintf("%s: lora_alpha is 0 for %s: its adapter changes nothing", filepath.Join(path, peft.ConfigFile), m.Path))
		}
		out.lora[m.Path] = l
	}
	if err := out.replace(s, a); err != nil {
		return nil, err
	}
	for _, m := range tables {
		if err := out.embed(s, a, m); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// embed adds the adapter m of an embedding to the rows of its table,
//
//	W'[t] = W[t] + s·B·A[:,t],
//
// which is what the adapted embedding gives for the token t (peft@0.21.2 tuners/lora/layer.py Embedding.forward). A head that is
// tied to it stays W: PEFT adapts the module and not the weight, unless ensure_weight_tying is set.
func (out *attached) embed(s *source, a *peft.Adapter, m *peft.Module) error {
	left, right, err := m.Factors() // A [r, V], B [C, r]
	if err != nil {
		return err
	}
	if s.config.Tied && m.Path != "transformer.wpe" {
		if a.Config.TiesWeights {
			return format.Malformed(filepath.Join(a.Path, peft.ConfigFile), "ensure_weight_tying", "is not supported with an adapter of a tied embedding")
		}
		out.config.Tied = false
	}
	table, before := m.Path+".weight", out.weights
	out.weights = func(name string, shape ...int) ([]float64, error) {
		w, err := before(name, shape...)
		if err != nil || name != table {
			return w, err
		}
		w = slices.Clone(w)
		for t := range m.In {
			for c := range m.Out {
				sum := 0.0
				for k := range m.R {
					sum += float64(right[c*m.R+k] * left[k*m.In+t])
				}
				w[t*m.Out+c] += float64(m.Scale * sum)
			}
		}
		return w, nil
	}
	return nil
}

// modulesOf lists the modules of a base that an adapter could be for.
func modulesOf(c model.Config) []peft.Base {
	var list []peft.Base
	for _, l := range c.Linears() {
		list = append(list, peft.Base{Path: l.Name, In: l.Shape[1], Out: l.Shape[0], Head: l.Name == "lm_head"})
	}
	for _, t := range c.Tensors() {
		if name, ok := strings.CutSuffix(t.Name, ".weight"); ok && embedding(name) {
			list = append(list, peft.Base{Path: name, In: t.Shape[0], Out: t.Shape[1], Embedding: true})
		}
	}
	return list
}

// embedding reports whether the module at path is a table of embeddings.
func embedding(path string) bool {
	return path == "model.embed_tokens" || path == "transformer.wte" || path == "transformer.wpe"
}

// replace puts the tensors that the adapter saved whole in the place of those of the base. PEFT copies a module before it
// trains it, so a tied head and embedding are tied no more once one of them is saved.
func (out *attached) replace(s *source, a *peft.Adapter) error {
	saved := map[string][]float64{}
	shapes := map[string][]int{}
	for _, t := range a.Saved() {
		values, err := peft.Finite(t.Array)
		if err != nil {
			return err
		}
		saved[t.Module], shapes[t.Module] = values, t.Array.Shape
	}
	for _, t := range s.config.Tensors() {
		name := t.Name
		if s.config.Tied && (saved[s.head] != nil || embedding(strings.TrimSuffix(name, ".weight")) && saved[name] != nil && !strings.HasSuffix(name, "wpe.weight")) {
			out.config.Tied = false
		}
		if saved[name] == nil && a.Config.SavesTensor(name) {
			return format.Malformed(a.WeightsPath(), name, "is missing: it is trained whole by %s", peft.ConfigFile)
		}
	}
	if s.config.Tied && saved[s.head] == nil && a.Config.SavesTensor(s.head) {
		return format.Malformed(a.WeightsPath(), s.head, "is missing: it is trained whole by %s", peft.ConfigFile)
	}
	if len(saved) == 0 {
		return nil
	}
	wanted := map[string][]int{}
	for _, t := range out.config.Tensors() {
		wanted[t.Name] = t.Shape
	}
	for _, t := range a.Saved() {
		switch want, ok := wanted[t.Module]; {
		case !ok:
			return format.Malformed(a.WeightsPath(), t.Key, "takes the place of a tensor that the base does not have: an adapter for another base")
		case !slices.Equal(want, shapes[t.Module]):
			return format.Malformed(a.WeightsPath(), t.Key, "has shape %v, in the base it is %v: an adapter for another base", shapes[t.Module], want)
		}
	}
	out.weights = func(name string, shape ...int) ([]float64, error) {
		if v := saved[name]; v != nil {
			return v, nil
		}
		return s.read(name, shape...)
	}
	return nil
}
