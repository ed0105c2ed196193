package pretrained

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/arch"
	"plumbline/internal/format"
	"plumbline/internal/format/peft"
)

// Adapter is a LoRA adapter of PEFT that fits its base. Its numbers are in memory.
type Adapter struct {
	Path    string
	PEFT    peft.Config
	Config  arch.Config          // of base and adapter: that of the base, untied where the adapter has a head or an embedding of its own
	Linears map[string]Factors   // by the name of the module, one of [arch.Config.Linears]; the base stays as it is
	Tables  map[string]Factors   // of embeddings, whose row of token t becomes W[t] + s·B·A[:,t]
	Saved   map[string][]float64 // weights and biases that take the place of those of the base (modules_to_save, bias), by name
	Notes   []string
}

// Factors is the low-rank update s·B·A of a module: see [arch.Module.IsLinear] for the way round it sits on the weight.
type Factors struct {
	Rank  int
	Scale float64   // s, resolved: α/r or α/√r with the patterns of the configuration
	A     []float64 // [Rank, In]
	B     []float64 // [Out, Rank]
}

// attach reads the adapter at path and fits it to the base s.
func attach(s *Source, path string) (*Adapter, error) {
	a, err := peft.Open(path)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	out := &Adapter{Path: path, PEFT: a.Config, Config: s.Config, Linears: map[string]Factors{}, Tables: map[string]Factors{}, Notes: slices.Clone(a.Notes)}
	modules, err := a.Modules()
	if err != nil {
		return nil, err
	}
	if err := out.madeFor(s, a); err != nil {
		return nil, err
	}
	notes, err := a.Fit(modules, modulesOf(s.Config))
	if err != nil {
		return nil, err
	}
	out.Notes = append(out.Notes, notes...)
	for i := range modules {
		m := &modules[i]
		if m.Bias != nil {
			return nil, format.Malformed(a.WeightsPath(), m.Path, "biases of B are not supported")
		}
		l := Factors{Rank: m.R, Scale: m.Scale}
		if l.A, l.B, err = m.Factors(); err != nil {
			return nil, err
		}
		if m.Embedding {
			out.Tables[m.Path] = l
			continue
		}
		if m.Alpha == 0 { // verl's merger writes lora_alpha 0 by design
			out.Notes = append(out.Notes, fmt.Sprintf("%s: lora_alpha is 0 for %s: its adapter changes nothing", filepath.Join(path, peft.ConfigFile), m.Path))
		}
		out.Linears[m.Path] = l
	}
	if err := out.replace(s, a); err != nil {
		return nil, err
	}
	return out, out.untie(s, a)
}

// madeFor compares the base that the adapter names with s.
func (out *Adapter) madeFor(s *Source, a *peft.Adapter) error {
	if made := a.Config.BaseModel; a.Fingerprint == "" && made != "" && filepath.Base(made) != filepath.Base(s.Path) {
		out.Notes = append(out.Notes, fmt.Sprintf("%s: the adapter was made for %q; whether that is %s only its user knows: it has no fingerprint of its base",
			filepath.Join(out.Path, peft.ConfigFile), made, s.Path))
	}
	if a.Fingerprint == "" {
		return nil
	}
	base, err := s.Fingerprint()
	if err != nil || base == "" || base == a.Fingerprint {
		return err
	}
	return format.Malformed(a.WeightsPath(), "base_fingerprint", "is %.64q, that of the base is %q: an adapter for another base", a.Fingerprint, base)
}

// untie unties the head where the adapter updates the embedding that it is tied to. A head that is tied to it stays W: PEFT
// adapts the module and not the weight, unless ensure_weight_tying is set (peft@0.21.2 tuners/lora/layer.py Embedding.forward).
func (out *Adapter) untie(s *Source, a *peft.Adapter) error {
	embedding := strings.TrimSuffix(arch.EmbeddingOf(s.Config.Type), ".weight")
	if _, ok := out.Tables[embedding]; ok && s.Config.Tied {
		if a.Config.TiesWeights {
			return format.Malformed(filepath.Join(a.Path, peft.ConfigFile), "ensure_weight_tying", "is not supported with an adapter of a tied embedding")
		}
		out.Config.Tied = false
	}
	return nil
}

// modulesOf lists the modules of a base that an adapter could be for.
func modulesOf(c arch.Config) []peft.Base {
	var list, tables []peft.Base
	for _, m := range c.Modules() {
		switch b := (peft.Base{Path: m.Name, In: m.In, Out: m.Out, Head: m.Role == arch.Head, Embedding: m.Kind == arch.Table}); {
		case b.Embedding:
			tables = append(tables, b)
		case m.IsLinear():
			list = append(list, b)
		}
	}
	return append(list, tables...)
}

// replace takes the tensors that the adapter saved whole. PEFT copies a module before it trains it, so a tied head and embedding
// are tied no more once one of them is saved.
func (out *Adapter) replace(s *Source, a *peft.Adapter) error {
	embedding := arch.EmbeddingOf(s.Config.Type)
	out.Saved = map[string][]float64{}
	for _, t := range a.Saved() {
		values, err := peft.Finite(t.Array)
		if err != nil {
			return err
		}
		out.Saved[t.Module] = values
	}
	for _, name := range []string{arch.HeadWeight, embedding} {
		if out.Saved[name] != nil {
			out.Config.Tied = false
		}
	}
	untied := s.Config
	untied.Tied = false // a tied head can be trained whole, too
	shapes := map[string][]int{}
	for _, t := range untied.Tensors() {
		if shapes[t.Name] = t.Shape; out.Saved[t.Name] == nil && a.Config.SavesTensor(t.Name) {
			return format.Malformed(a.WeightsPath(), t.Name, "is missing: it is trained whole by %s", peft.ConfigFile)
		}
	}
	for _, t := range a.Saved() {
		switch want, ok := shapes[t.Module]; {
		case !ok:
			return format.Malformed(a.WeightsPath(), t.Key, "takes the place of a tensor that the base does not have: an adapter for another base")
		case !slices.Equal(want, t.Array.Shape):
			return format.Malformed(a.WeightsPath(), t.Key, "has shape %v, in the base it is %v: an adapter for another base", t.Array.Shape, want)
		}
	}
	return nil
}
