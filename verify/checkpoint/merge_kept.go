package checkpoint

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/arch"
	"plumbline/internal/format"
	"plumbline/verify/check"
)

// keptPart is a tensor that an adapter trained whole, or rows of one, and what the merged model holds in its place.
type keptPart struct {
	name     string // in the base
	what     string // "modules_to_save", "bias", "trainable_token_indices"
	compared int64
	excess   int64  // numbers that are not the adapter's, rounded to the merged type
	asBase   int64  // of these, numbers that are the base's
	problem  string // why there is nothing to compare
}

// whole compares the tensors that the adapter trained whole with what the merged model has in their place: the adapter's copy,
// rounded once (peft@0.21.2 tuners/tuners_utils.py _unload_and_optionally_merge puts the trained module into the model). A tied
// head or embedding that the merged model does not store is the other's matter. It returns the names that it took care of.
func (m *mergeFacts) whole(u, base *Unit, old, made map[string]*Tensor) (map[string]bool, error) {
	taken := map[string]bool{}
	tied := base.Config != nil && base.Config.Tied
	for _, t := range u.rest {
		if rows, ok := strings.CutSuffix(strings.TrimPrefix(t.Name, peftPrefix), ".token_adapter.trainable_tokens_delta"); ok {
			n := plainName(base, rows) + ".weight"
			taken[n] = true
			if err := m.tokens(n, u.Lora.tokens(rows), t, old[n], made[n]); err != nil {
				return nil, err
			}
			continue
		}
		n := plainName(base, strings.Replace(strings.TrimPrefix(t.Name, peftPrefix), ".base_layer.", ".", 1))
		o, v := old[n], made[n]
		if o == nil && v == nil || insideOf(t.Name) != "" || headKey(n) || strings.Contains(t.Name, ".base_layer.weight") {
			continue // a head that the class adds, a second copy of the same, or the frozen base under an adapter
		}
		taken[n] = true
		part := keptPart{name: n, what: "modules_to_save"}
		if strings.HasSuffix(n, ".bias") && u.Lora.Bias != "none" {
			part.what = "bias"
		}
		switch {
		case v == nil && tied && (n == arch.HeadWeight || strings.HasSuffix(n, "embed_tokens.weight") || strings.HasSuffix(n, "wte.weight")):
			continue
		case v == nil:
			part.problem = "is not in the merged model"
		case !slices.Equal(v.Array.Shape, t.Array.Shape):
			part.problem = fmt.Sprintf("has shape %s in the merged model, %s in the adapter", v.Array.ShapeString(), t.Array.ShapeString())
		default:
			if err := part.rows(t, o, v, nil); err != nil {
				return nil, err
			}
		}
		m.kept = append(m.kept, part)
	}
	return taken, nil
}

// tokens compares the rows of an embedding that trainable_token_indices names with the adapter's, and all others with the base's
// (peft@0.21.2 tuners/trainable_tokens/layer.py: the rows that are stored take the place of the base's).
func (m *mergeFacts) tokens(name string, rows []int, t, old, made *Tensor) error {
	part := keptPart{name: name, what: "trainable_token_indices"}
	switch {
	case old == nil || made == nil || !slices.Equal(old.Array.Shape, made.Array.Shape) || len(old.Array.Shape) != 2:
		part.problem = "has no table of its shape in base and merged model"
	case len(t.Array.Shape) != 2 || len(rows) != t.Array.Shape[0] || t.Array.Shape[1] != old.Array.Shape[1]:
		part.problem = fmt.Sprintf("has rows %s for %s", t.Array.ShapeString(), plural(len(rows), "index"))
	case slices.ContainsFunc(rows, func(i int) bool { return i < 0 || i >= old.Array.Shape[0] }):
		part.problem = fmt.Sprintf("has an index beyond its %d rows", old.Array.Shape[0])
	default:
		if err := part.rows(t, old, made, rows); err != nil {
			return err
		}
	}
	m.kept = append(m.kept, part)
	return nil
}

// rows compares made with the adapter's t: all of it, or the given rows of it, with the base everywhere else. Numbers are the
// same if they are one rounding of the merged type apart.
func (k *keptPart) rows(t, old, made *Tensor, rows []int) error {
	for _, x := range []*Tensor{t, made} {
		if x.Array.DType.Size() == 0 {
			k.problem = "is of the element type " + x.Array.Type + ", which is not decoded"
			return nil
		}
	}
	width := t.Array.Len()
	if rows != nil || len(t.Array.Shape) == 2 {
		width = t.Array.Shape[1]
	}
	if width == 0 {
		return nil
	}
	unit, eta := made.Array.DType.Unit()
	want, got, base := make([]float64, width), make([]float64, width), make([]float64, width)
	for i := range made.Array.Len() / width {
		from, at := t, i
		if rows != nil {
			if at = slices.Index(rows, i); at < 0 {
				from, at = old, i
			}
		}
		if err := from.Array.ReadFloat64(want, at*width); err != nil {
			return err
		}
		if err := made.Array.ReadFloat64(got, i*width); err != nil {
			return err
		}
		if old != nil && old.Array.DType.Size() > 0 && slices.Equal(old.Array.Shape, made.Array.Shape) {
			if err := old.Array.ReadFloat64(base, i*width); err != nil {
				return err
			}
		}
		k.compared += int64(width)
		for j, w := range want {
			near := func(w float64) bool { return math.Abs(got[j]-w) <= unit*math.Abs(w)*(1+0x1p-10)+eta }
			if near(w) || math.IsNaN(w) && math.IsNaN(got[j]) {
				continue
			}
			k.excess++
			if near(base[j]) {
				k.asBase++
			}
		}
	}
	return nil
}

// tokens returns trainable_token_indices of the module at that path in the base.
func (l *Lora) tokens(module string) []int {
	for name, list := range l.Tokens {
		if name == "" || endsWith(module, name) {
			return list
		}
	}
	return nil
}

// tokenIndices reads trainable_token_indices: a list for the embedding, or one for each of several modules.
func tokenIndices(o *format.Object) map[string][]int {
	switch v := o.Members["trainable_token_indices"].(type) {
	case []any:
		return map[string][]int{"": o.Ints("trainable_token_indices", 0, largest)}
	case map[string]any:
		out, in := map[string][]int{}, o.Object("trainable_token_indices")
		for name := range v {
			out[name] = in.Ints(name, 0, largest)
		}
		return out
	}
	return nil
}

// keptFindings judges what the adapter trained whole.
func (in *Input) keptFindings(m *mergeFacts) (out []check.Result) {
	subject := in.Merged.Tree.Path()
	var left, other []string
	var compared, excess int64
	for _, k := range m.kept {
		compared += k.compared
		switch {
		case k.problem != "":
			other = append(other, fmt.Sprintf("%s (%s) %s", k.name, k.what, k.problem))
		case k.excess > 0 && k.asBase == k.excess:
			left = append(left, fmt.Sprintf("%s (%s)", k.name, k.what))
		case k.excess > 0:
			other = append(other, fmt.Sprintf("%s (%s): %s of %s numbers", k.name, k.what, thousands(k.excess), thousands(k.compared)))
		}
		excess += k.excess
	}
	if len(left) > 0 {
		r := fail(subject, "MERGE-LEFT-OUT", "a part of the adapter was not merged: a head, biases or token rows that were trained whole",
			"%d of %s that the adapter trained whole are the base's in the merged model: %s", len(left), plural(len(m.kept), "tensor"), several(left))
		r.Fix = "merge with peft's merge_and_unload, which puts modules_to_save, biases and token rows into the model"
		out = append(out, r)
	}
	if len(other) > 0 {
		out = append(out, fail(subject, "MERGE-OTHER", "what the adapter trained whole is something else in the merged model: another adapter, or trained on",
			"%d of %s: %s", len(other), plural(len(m.kept), "tensor"), several(other)))
	}
	if len(out) == 0 && compared > 0 {
		out = append(out, pass(subject, int(compared), "%s that the adapter trained whole are its own", plural(len(m.kept), "tensor")))
	}
	return out
}
