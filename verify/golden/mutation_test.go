package golden

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/format"
	"plumbline/verify/check"
)

// some returns one key of m, or none.
func some[V any](r *rand.Rand, m map[string]V) []string {
	keys := slices.Sorted(maps.Keys(m))
	if len(keys) == 0 {
		return nil
	}
	i := r.IntN(len(keys))
	return keys[i : i+1]
}

// mutate makes something of an entry that a hostile or broken folder may hold: everything that the reader accepts.
func mutate(r *rand.Rand, e *Entry, all []*Entry) {
	values := []any{nil, true, false, "", "none", "group", "token", 0.0, -1.0, 1.0, 0.5, 1e300, -1e300, math.NaN(), math.Inf(1), []any{}, []any{1.0, 0.0}, []any{"x", nil}, map[string]any{}, map[string]any{"dro_beta": "x"}}
	pick := func(m map[string]*Value) *Value {
		for _, key := range some(r, m) {
			return m[key]
		}
		return &Value{}
	}
	shapes := [][]int{nil, {}, {0}, {1}, {3}, {2, 3}, {3, 2}, {0, 5}, {1 << 40, 0}, {2, 2, 2}, {1, 1}, {6, 1}, {1, 6}}
	for range 1 + r.IntN(3) {
		other := all[r.IntN(len(all))]
		switch r.IntN(9) {
		case 0:
			for _, key := range some(r, e.Options) {
				e.Options[key] = values[r.IntN(len(values))]
			}
		case 1:
			for _, key := range some(r, e.Options) {
				delete(e.Options, key)
			}
		case 2:
			for _, key := range some(r, e.In) {
				delete(e.In, key)
			}
		case 3:
			for _, key := range some(r, e.Out) {
				delete(e.Out, key)
			}
		case 4: // a tensor of another entry
			for _, key := range some(r, e.In) {
				v := *pick(other.In)
				e.In[key] = &v
			}
		case 5: // another shape with as many elements as it says
			for _, key := range some(r, e.In) {
				shape := shapes[r.IntN(len(shapes))]
				n := 1
				for _, d := range shape {
					n *= d
				}
				x := make([]float64, n)
				for i := range x {
					x[i] = []float64{0, 1, -1, 2, 7, math.NaN(), math.Inf(-1), 1e300}[r.IntN(8)]
				}
				e.In[key] = &Value{Tensor: "t", DType: format.F64, Shape: shape, Data: x}
			}
		case 6: // other numbers
			for _, key := range some(r, e.In) {
				if v := e.In[key]; len(v.Data) > 0 {
					v.Data = slices.Clone(v.Data)
					v.Data[r.IntN(len(v.Data))] = []float64{math.NaN(), math.Inf(1), -1, 0.5, 1e300, 1 << 53, math.Copysign(0, -1)}[r.IntN(7)]
				}
			}
		case 7:
			e.Peer, e.Function = other.Peer, other.Function
		case 8:
			for _, key := range some(r, e.In) {
				raw := values[r.IntN(len(values))]
				e.In[key] = &Value{Raw: raw, Data: numbers(raw)}
			}
		}
	}
}

// Whatever an entry holds, its check ends in a result or in an error about the file: it never panics.
func TestMutatedEntries(t *testing.T) {
	s := embedded(t)
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		sec := sections[r.IntN(len(sections))]
		all := s.Sections[sec.name].Entries
		for range 40 {
			e := all[r.IntN(len(all))].copied()
			mutate(r, e, all)
			_, err := sec.run(s.with(sec.name, func(x *Section) { x.Entries = []*Entry{e} }))
			require.True(t, err == nil || format.IsMalformed(err), "%s: %v", e.Name(), err)
			if err == nil {
				continue
			}
			require.ErrorContains(t, err, e.ID)
		}
	})
}

// Every option and every input of every entry is read: without it the entry is refused, or its numbers differ, or it is
// undetermined, or the option or input is one that the reference says it does not need.
func TestEverythingIsRead(t *testing.T) {
	unneeded := map[string]bool{}
	s := embedded(t)
	for _, sec := range sections {
		seen := map[string]bool{}
		for _, e := range s.Sections[sec.name].Entries {
			for name := range e.In {
				key := e.Peer + " " + e.Function + " " + name
				if seen[key] {
					continue
				}
				seen[key] = true
				c := e.copied()
				delete(c.In, name)
				results, err := sec.run(s.with(sec.name, func(x *Section) { x.Entries = []*Entry{c} }))
				if err == nil && check.Exit(results, check.Policy{}) == check.ExitPass {
					unneeded[name] = true
				}
			}
		}
	}
	// Log-probs of another policy that a function takes and the options of the first entry do not use; values that
	// reward-to-go and group baselines do not read; metrics' inputs.
	require.Subset(t, []string{"old_logp", "ref_log_prob", "num_items_in_batch", "entropies", "rollout_log_prob", "values", "lam", "uid", "rollout_is_weights", "importance_sampling_ratio", "vllm_is_ratio"},
		slices.Sorted(maps.Keys(unneeded)))
}
