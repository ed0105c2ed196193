package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// The code of a bound that is another number has both numbers; of a missing one it has none.
func TestCodeOfBound(t *testing.T) {
	for _, c := range []struct{ value, declared, yours, theirs string }{
		{"1", "3", "w = exp(d).clamp(max=1)", "w = exp(d).clamp(max=3)"},
		{"none", "3", "w = exp(d)", "w = exp(d).clamp(max=3)"},
	} {
		var f check.Finding
		code(&f, &check.Explanation{Fault: "IS-CLAMP-MISSING", Options: []check.OptionChange{{Option: "tis.high", Value: c.value, Declared: c.declared}}}, "")
		require.Equal(t, c.yours, f.Yours)
		require.Equal(t, c.theirs, f.Theirs)
	}
}

// A division by the accumulation steps may be one by the world size where both are the same number, and nowhere else.
func TestOrWorldSize(t *testing.T) {
	b := &dump.Batch{}
	b.Meta.WorldSize, b.Meta.MicroBatches = 2, 2
	value := func(x string) convention.Value {
		v, err := convention.Parse("agg.div_ga", x)
		require.NoError(t, err)
		return v
	}
	twice := []stage.Change{{Option: "agg.div_ga", From: value("false"), To: value("true")}}
	c := stage.NewCase(b, &convention.Set{}, 0)
	require.Contains(t, orWorldSize(twice, c), "divided by the world size, which is 2")
	require.Contains(t, orWorldSize([]stage.Change{{Option: "agg.div_ga", From: value("true"), To: value("false")}}, c), "multiplied by")
	require.Empty(t, orWorldSize(nil, c))
	b.Meta.WorldSize = 4
	require.Empty(t, orWorldSize(twice, c))
}

// Of as many changes, those that are known bugs come first, and no others change places.
func TestKnownFirst(t *testing.T) {
	change := func(option, from, to string) stage.Change {
		a, err := convention.Parse(option, from)
		require.NoError(t, err)
		b, err := convention.Parse(option, to)
		require.NoError(t, err)
		return stage.Change{Option: option, From: a, To: b}
	}
	fit := func(changes ...stage.Change) stage.Fit { return stage.Fit{Changes: changes} }
	kind, scale, eps := change("adv.kind", "group", "rfpp_baseline"), change("adv.scale", "group_std", "none"), change("adv.eps", "1e-4", "0")
	got := knownFirst([]stage.Fit{fit(kind), fit(scale, eps), fit(scale), fit(eps)})
	require.Equal(t, []stage.Fit{fit(scale), fit(kind), fit(scale, eps), fit(eps)}, got)
	require.Equal(t, []stage.Fit{fit(kind), fit(scale, eps)}, knownFirst([]stage.Fit{fit(kind), fit(scale, eps)}))
	require.Equal(t, []stage.Fit{fit(eps), fit(scale)}, knownFirst([]stage.Fit{fit(eps), fit(scale)}))
	whole := stage.Fit{Whole: true, Changes: []stage.Change{kind}}
	require.Equal(t, []stage.Fit{whole, fit(scale)}, knownFirst([]stage.Fit{whole, fit(scale)}))
}
