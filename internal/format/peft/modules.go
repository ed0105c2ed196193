package peft

import (
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/format"
)

// Module is the adapter of one module of the base.
type Module struct {
	Path      string  // in the base, as "model.layers.0.self_attn.q_proj"
	R         int     // rank
	Alpha     float64 // α
	Scale     float64 // s of the package comment
	In, Out   int     // of the base's weight; an embedding has In = vocabulary, Out = hidden
	Embedding bool    // the module is an embedding: its row of token t becomes W[t] + s·B·A[:,t]

	A, B *format.Array // [R, In], [Out, R]
	Bias *format.Array // [Out], of B; nil without lora_bias
}

// Modules returns the adapters by path. It refuses an adapter that cannot be loaded whole: without tensors, with a variant
// of LoRA that computes something else, with tensors that belong to no module or to a module that is no target, with one
// factor of two, or with shapes that disagree with each other or with the rank of the configuration.
func (a *Adapter) Modules() ([]Module, error) {
	c, config := &a.Config, filepath.Join(a.Path, ConfigFile)
	switch {
	case c.Variant != "":
		return nil, format.Malformed(config, c.Variant, "is not supported: only plain LoRA is")
	case len(a.Tensors) == 0:
		return nil, format.Malformed(a.WeightsPath(), "", "has no tensors: an empty adapter, as is saved when the parameters are sharded (ZeRO-3, FSDP) and were not gathered")
	}
	byPath := map[string]map[Kind]*format.Array{}
	for _, t := range a.Tensors {
		switch {
		case t.Kind == Unknown:
			return nil, format.Malformed(a.WeightsPath(), t.Key, "is no part of a LoRA adapter: neither a factor nor trained whole (modules_to_save, bias)")
		case t.Kind == Magnitude:
			return nil, format.Malformed(a.WeightsPath(), t.Key, "belongs to DoRA, but use_dora is false")
		case t.Kind == Bias && !c.LoraBias:
			return nil, format.Malformed(a.WeightsPath(), t.Key, "is a bias of B, but lora_bias is false")
		case !t.Array.DType.Float():
			return nil, format.Malformed(a.WeightsPath(), t.Key, "has the element type %s, want a floating-point type", t.Array.Type)
		case t.Array.Len() == 0:
			return nil, format.Malformed(a.WeightsPath(), t.Key, "has shape %s: no elements, as is saved when the parameters are sharded (ZeRO-3, FSDP) and were not gathered", t.Array.ShapeString())
		case t.Kind == Saved:
			continue
		case !c.Target(t.Module):
			return nil, format.Malformed(a.WeightsPath(), t.Key, "belongs to a module that is no target of %s", ConfigFile)
		}
		if byPath[t.Module] == nil {
			byPath[t.Module] = map[Kind]*format.Array{}
		}
		byPath[t.Module][t.Kind] = t.Array
	}
	var list []Module
	for _, path := range slices.Sorted(maps.Keys(byPath)) {
		m, err := a.module(path, byPath[path])
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, nil
}

// module checks the tensors of one module.
func (a *Adapter) module(path string, parts map[Kind]*format.Array) (Module, error) {
	m := Module{Path: path, A: parts[A], B: parts[B], Bias: parts[Bias]}
	nameA, nameB := prefix+path+".lora_A.weight", prefix+path+".lora_B.weight"
	if parts[EmbeddingA] != nil || parts[EmbeddingB] != nil {
		if m.A != nil || m.B != nil || m.Bias != nil {
			return m, format.Malformed(a.WeightsPath(), prefix+path, "has the factors of a linear module and those of an embedding")
		}
		m.A, m.B, m.Embedding = parts[EmbeddingA], parts[EmbeddingB], true
		nameA, nameB = prefix+path+".lora_embedding_A", prefix+path+".lora_embedding_B"
	}
	m.R, m.Alpha, m.Scale = a.Config.Scaling(path)
	switch {
	case m.A == nil:
		return m, format.Malformed(a.WeightsPath(), nameA, "is missing, its other factor is there")
	case m.B == nil:
		return m, format.Malformed(a.WeightsPath(), nameB, "is missing, its other factor is there")
	case len(m.A.Shape) != 2:
		return m, format.Malformed(a.WeightsPath(), nameA, "has shape %s, want (%d, in)", m.A.ShapeString(), m.R)
	case len(m.B.Shape) != 2:
		return m, format.Malformed(a.WeightsPath(), nameB, "has shape %s, want (out, %d)", m.B.ShapeString(), m.R)
	case m.A.Shape[0] != m.B.Shape[1]:
		return m, format.Malformed(a.WeightsPath(), prefix+path, "has A of shape %s and B of shape %s: two ranks", m.A.ShapeString(), m.B.ShapeString())
	case m.A.Shape[0] != m.R:
		return m, format.Malformed(a.WeightsPath(), nameA, "has shape %s, but the rank of this module is %d in %s", m.A.ShapeString(), m.R, ConfigFile)
	}
	m.In, m.Out = m.A.Shape[1], m.B.Shape[0]
	if a.Config.LoraBias && !m.Embedding {
		nameBias := prefix + path + ".lora_B.bias"
		if m.Bias == nil {
			return m, format.Malformed(a.WeightsPath(), nameBias, "is missing, but lora_bias is true")
		}
		if len(m.Bias.Shape) != 1 || m.Bias.Shape[0] != m.Out {
			return m, format.Malformed(a.WeightsPath(), nameBias, "has shape %s, want (%d,)", m.Bias.ShapeString(), m.Out)
		}
	}
	return m, nil
}

// Factors reads A and B, row-major. A value that is not finite is refused.
func (m *Module) Factors() (a, b []float64, err error) {
	if a, err = Finite(m.A); err == nil {
		b, err = Finite(m.B)
	}
	return a, b, err
}

// Finite reads the elements of an array and refuses those that are NaN or infinite.
func Finite(array *format.Array) ([]float64, error) {
	values, err := array.Float64s()
	if err != nil {
		return nil, err
	}
	for i, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, format.Malformed(array.Name, "", "element %d is %v, want finite values", i, v)
		}
	}
	return values, nil
}

// Saved returns the tensors that take the place of tensors of the base, by name.
func (a *Adapter) Saved() []Tensor {
	var list []Tensor
	for _, t := range a.Tensors {
		if t.Kind == Saved {
			list = append(list, t)
		}
	}
	return list
}

// Base is a module of a base model that an adapter could be for.
type Base struct {
	Path      string
	In, Out   int  // an embedding has In = vocabulary, Out = hidden
	Embedding bool // an embedding, no linear module
	Head      bool // the output layer, which "all-linear" leaves out
}

// Fit compares modules, the result of Modules, with the modules of a base. It refuses an adapter for another base: a module
// that the base has not, or has with other widths, and a module of the base that is a target and has no adapter, for which
// PEFT would keep the factors it drew at random. The notes name entries of target_modules that match nothing, over which
// PEFT passes in silence if another entry matches, and patterns that match nothing, of which it warns.
func (a *Adapter) Fit(modules []Module, base []Base) (notes []string, err error) {
	err = a.Config.affordable(filepath.Join(a.Path, ConfigFile), func(yield func(string) bool) {
		for i := range base {
			if !yield(base[i].Path) {
				return
			}
		}
	})
	if err != nil {
		return nil, err
	}
	in := make(map[string]*Base, len(base))
	for i := range base {
		in[base[i].Path] = &base[i]
	}
	have := make(map[string]bool, len(modules))
	for i := range modules {
		m := &modules[i]
		have[m.Path] = true
		b := in[m.Path]
		switch {
		case b == nil:
			return nil, format.Malformed(a.WeightsPath(), m.Path, "the base has no such module: an adapter for another base; it has %s", names(base))
		case m.Embedding != b.Embedding:
			return nil, format.Malformed(a.WeightsPath(), m.Path, "has the factors of %s, in the base it is %s", kindName(m.Embedding), kindName(b.Embedding))
		case m.In != b.In || m.Out != b.Out:
			return nil, format.Malformed(a.WeightsPath(), m.Path, "is for a weight with %d inputs and %d outputs, the base has %d and %d: an adapter for another base", m.In, m.Out, b.In, b.Out)
		}
	}
	c := &a.Config
	for _, b := range base {
		if c.Targets.allLinear() && (b.Head || b.Embedding) {
			continue
		}
		if c.Target(b.Path) && !have[b.Path] {
			return nil, format.Malformed(a.WeightsPath(), prefix+b.Path+".lora_A.weight", "is missing: the module is a target of %s", ConfigFile)
		}
	}
	for _, t := range c.Targets.List {
		if !slices.ContainsFunc(base, func(b Base) bool { return endsWith(b.Path, t) }) {
			notes = append(notes, fmt.Sprintf("target_modules: %.64q matches no module of the base; it has %s", t, names(base)))
		}
	}
	for _, list := range []struct {
		key      string
		patterns []Pattern
	}{{"rank_pattern", c.RankPattern}, {"alpha_pattern", c.AlphaPattern}} {
		for _, p := range list.patterns {
			if !slices.ContainsFunc(modules, func(m Module) bool { return c.matches(ending, p.Key, m.Path) }) {
				notes = append(notes, fmt.Sprintf("%s: %.64q matches no module with an adapter", list.key, p.Key))
			}
		}
	}
	return notes, nil
}

func kindName(embedding bool) string {
	if embedding {
		return "an embedding"
	}
	return "a linear module"
}

// names lists the last parts of the paths of base, each once.
func names(base []Base) string {
	var list []string
	for _, b := range base {
		if _, name, _ := cutLast(b.Path); !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return strings.Join(list[:min(len(list), 16)], ", ")
}
