// Package golden_test compares the reference with what released frameworks returned for the same inputs: the sections of
// golden/rl. Every entry is compared or named with the reason why it is not, and the number of comparisons is asserted, so
// that an entry cannot drop out unseen.
package golden_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"plumbline/internal/format/safetensors"

	"github.com/stretchr/testify/require"
)

// dir is the folder of the golden files.
const dir = "../../golden/rl"

// value is one input or output of an entry: a tensor, a scalar, a string or list, or an exception.
type value struct {
	Data    []float64 // of a tensor, row-major; of a scalar, one number; of a list of numbers, its items
	Shape   []int     // nil for what is not a tensor
	DType   string    // of an output, as its producer named it
	Raw     any       // a scalar or list as JSON decoded it
	Raises  string    // the type of the exception, or ""
	Message string    // of the exception
}

// dims returns rows and columns of a matrix.
func (v *value) dims(t *testing.T) (rows, cols int) {
	t.Helper()
	require.Len(t, v.Shape, 2)
	return v.Shape[0], v.Shape[1]
}

// bools returns the elements as a mask: true where an element is not 0.
func (v *value) bools() []bool {
	m := make([]bool, len(v.Data))
	for i, x := range v.Data {
		m[i] = x != 0
	}
	return m
}

// scalar returns the only number.
func (v *value) scalar(t *testing.T) float64 {
	t.Helper()
	require.Len(t, v.Data, 1)
	return v.Data[0]
}

// entry is one call of a function of a framework.
type entry struct {
	ID, Case, Peer, Version, Function, How, Note string

	Options map[string]any
	In, Out map[string]*value
}

// name is the entry as a failure prints it.
func (e *entry) name() string {
	opts, _ := json.Marshal(e.Options)
	return fmt.Sprintf("%s %s@%s %s %s %s", e.ID, e.Peer, e.Version, e.Function, e.Case, opts)
}

// flag returns a boolean option; an absent one fails the test.
func (e *entry) flag(t *testing.T, key string) bool {
	t.Helper()
	b, ok := e.Options[key].(bool)
	require.True(t, ok, "%s: option %s", e.name(), key)
	return b
}

// str returns a string option; null gives "".
func (e *entry) str(t *testing.T, key string) string {
	t.Helper()
	o, present := e.Options[key]
	require.True(t, present, "%s: option %s", e.name(), key)
	if o == nil {
		return ""
	}
	s, ok := o.(string)
	require.True(t, ok, "%s: option %s", e.name(), key)
	return s
}

// num returns a numeric option and whether it is not null; an absent one fails the test.
func (e *entry) num(t *testing.T, key string) (float64, bool) {
	t.Helper()
	o, present := e.Options[key]
	require.True(t, present, "%s: option %s", e.name(), key)
	if o == nil {
		return 0, false
	}
	return number(t, o), true
}

// nums returns an option that is a list of numbers, nil for null.
func (e *entry) nums(t *testing.T, key string) []float64 {
	t.Helper()
	o, present := e.Options[key]
	require.True(t, present, "%s: option %s", e.name(), key)
	if o == nil {
		return nil
	}
	list, ok := o.([]any)
	require.True(t, ok, "%s: option %s", e.name(), key)
	var x []float64
	for _, v := range list {
		x = append(x, number(t, v))
	}
	return x
}

// input returns an input of the entry; an absent one fails the test.
func (e *entry) input(t *testing.T, key string) *value {
	t.Helper()
	v, ok := e.In[key]
	require.True(t, ok, "%s: input %s", e.name(), key)
	return v
}

// output returns an output of the entry; an absent one fails the test.
func (e *entry) output(t *testing.T, key string) *value {
	t.Helper()
	v, ok := e.Out[key]
	require.True(t, ok, "%s: output %s", e.name(), key)
	return v
}

// number returns a JSON number, or the non-finite number that a producer wrote as a string.
func number(t *testing.T, o any) float64 {
	t.Helper()
	switch v := o.(type) {
	case float64:
		return v
	case bool:
		if v {
			return 1
		}
		return 0
	case string:
		switch v {
		case "nan":
			return math.NaN()
		case "inf":
			return math.Inf(1)
		case "-inf":
			return math.Inf(-1)
		}
	}
	t.Fatalf("%v is not a number", o)
	return 0
}

// load reads a section.
func load(t *testing.T, section string) []*entry {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, section+".json"))
	require.NoError(t, err)
	var file struct {
		Section string
		Entries []struct {
			ID, Case, Peer, Version, Function, How, Note string

			Options         map[string]any
			Inputs, Outputs map[string]map[string]any
		}
	}
	require.NoError(t, json.Unmarshal(text, &file))
	require.Equal(t, section, file.Section)
	tensors, err := safetensors.Open(filepath.Join(dir, section+".safetensors"))
	require.NoError(t, err)
	defer tensors.Close()

	seen := make(map[string]bool)
	entries := make([]*entry, 0, len(file.Entries))
	for _, f := range file.Entries {
		require.False(t, seen[f.ID], "%s twice", f.ID)
		seen[f.ID] = true
		e := &entry{ID: f.ID, Case: f.Case, Peer: f.Peer, Version: f.Version, Function: f.Function, How: f.How, Note: f.Note,
			Options: f.Options, In: make(map[string]*value), Out: make(map[string]*value)}
		for name, v := range f.Inputs {
			e.In[name] = resolve(t, tensors, v)
		}
		for name, v := range f.Outputs {
			e.Out[name] = resolve(t, tensors, v)
		}
		entries = append(entries, e)
	}
	return entries
}

// resolve turns {"tensor": name}, {"value": x} or {"raises": type, "message": text} into a value.
func resolve(t *testing.T, tensors *safetensors.File, v map[string]any) *value {
	t.Helper()
	out := new(value)
	out.DType, _ = v["dtype"].(string)
	if name, ok := v["tensor"].(string); ok {
		array, ok := tensors.Tensor(name)
		require.True(t, ok, "no tensor %q", name)
		data, err := array.Float64s()
		require.NoError(t, err)
		out.Data = data
		out.Shape = append([]int{}, array.Shape...)
		return out
	}
	if kind, ok := v["raises"].(string); ok {
		out.Raises = kind
		out.Message, _ = v["message"].(string)
		return out
	}
	raw, ok := v["value"]
	require.True(t, ok, "%v is neither tensor nor value nor exception", v)
	out.Raw = raw
	switch x := raw.(type) {
	case nil:
	case []any:
		for _, item := range x {
			if f, ok := item.(float64); ok {
				out.Data = append(out.Data, f)
			}
		}
	case string:
		if x == "nan" || x == "inf" || x == "-inf" {
			out.Data = []float64{number(t, x)}
		}
	default:
		out.Data = []float64{number(t, x)}
	}
	return out
}

// exact is the tolerance of float64 results: |got − want| ≤ exact·max(1, |want|).
const exact = 1e-12

// near returns an error that names the first element where |got − want| ≤ tol·max(1, |want|) does not hold. NaN equals NaN
// only, and an infinity only itself.
func near(got, want []float64, tol float64) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d elements, want %d", len(got), len(want))
	}
	if len(want) == 0 {
		return fmt.Errorf("nothing to compare")
	}
	for i, w := range want {
		g := got[i]
		if math.IsNaN(w) && math.IsNaN(g) || g == w {
			continue
		}
		if bound := tol * max(1, math.Abs(w)); math.IsInf(w, 0) || !(math.Abs(g-w) <= bound) {
			return fmt.Errorf("element %d is %v, want %v: off by %.3g, allowed %.3g", i, g, w, g-w, bound)
		}
	}
	return nil
}

// requireNear fails the test when got is not near want.
func requireNear(t *testing.T, e *entry, what string, got, want []float64, tol float64) {
	t.Helper()
	if err := near(got, want, tol); err != nil {
		t.Errorf("%s: %s: %v", e.name(), what, err)
	}
}

func TestNear(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	require.NoError(t, near([]float64{1, nan, inf, 1e9}, []float64{1, nan, inf, 1e9 + 1e-4}, exact))
	for _, c := range [][2]float64{{nan, 1}, {1, nan}, {inf, 1}, {1, inf}, {-inf, inf}, {1 + 2e-12, 1}, {1e-11, 0}} {
		require.Error(t, near([]float64{c[0]}, []float64{c[1]}, exact), "%v", c)
	}
	require.Error(t, near(nil, nil, exact))
	require.Error(t, near([]float64{1}, []float64{1, 2}, exact))
}
