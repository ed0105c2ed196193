package diff

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// Pairs of runs of TRL 1.16.0 (golden/gen/dumps/relations.py): silent where TRL keeps the relation, and the cause is named where a setting
// of the release or a planted fault breaks it.
func TestRelationsOfTRL(t *testing.T) {
	const folder = "../../golden/relations"
	data, err := os.ReadFile(filepath.Join(folder, "expect.json"))
	require.NoError(t, err)
	var pairs []struct{ A, B, Relation, Cause string }
	require.NoError(t, json.Unmarshal(data, &pairs))
	require.GreaterOrEqual(t, len(pairs), 9)
	open := func(name string) Source {
		run, err := dump.Open(t.Context(), []string{filepath.Join(folder, name)})
		require.NoError(t, err)
		return run
	}
	for _, p := range pairs {
		want := check.Pass
		if p.Cause != "" {
			want = check.Fail
		}
		verdict, got, reason := relate(t, p.Relation, open(p.A), open(p.B))
		require.Equal(t, []any{want, p.Cause}, []any{verdict, got}, "%s %s %s: %s", p.Relation, p.A, p.B, reason)
	}
}

// The charts of a comparison: every token or some of them, the ten worst as rings, and the largest mean marked.
func TestChart(t *testing.T) {
	run, err := dump.Open(t.Context(), []string{"../../golden/relations/plain"})
	require.NoError(t, err)
	r, err := Engine(t.Context(), run, Options{})
	require.NoError(t, err)
	require.Len(t, r.Charts, 3)
	require.Len(t, r.Charts[0].Series[1].X, 10)
	require.Greater(t, len(r.Charts[0].Series[0].X), 100)
	for _, c := range r.Charts[1:] {
		require.Len(t, c.Marks, 1)
		require.Contains(t, c.Series[0].X, c.Marks[0].X)
	}
}
