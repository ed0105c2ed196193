package diff

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// Two runs that part are drawn: the first tensor that differs, one run over the other, or the lengths of rows where ids differ, which are text;
// and what share of each tensor differs, step by step. Runs that are equal bit by bit have nothing to draw.
func TestChartsOfRuns(t *testing.T) {
	charts := func(other, relation string) []check.Chart {
		open := func(name string) Source {
			run, err := dump.Open(t.Context(), []string{filepath.Join("../../golden/relations", name)})
			require.NoError(t, err)
			return run
		}
		o := Options{}
		if relation != "" {
			var err error
			o.Relation, err = ParseRelation(relation)
			require.NoError(t, err)
		}
		r, err := Runs(t.Context(), open("plain"), open(other), o)
		require.NoError(t, err)
		return r.Charts
	}
	require.Empty(t, charts("again", ""))
	require.Empty(t, charts("again", "repeat"))
	beta := charts("beta", "")
	require.Len(t, beta, 2)
	require.True(t, beta[0].Diagonal)
	require.NotEqual(t, beta[0].Series[0].X, beta[0].Series[0].Y)
	require.Len(t, beta[1].Marks, 1)
	halves := charts("halves", "partition")
	require.Len(t, halves, 1, "within the bound nothing differs first")
	for _, s := range halves[0].Series {
		require.Greater(t, len(s.X), 1, s.Name)
		for _, y := range s.Y {
			require.True(t, y >= 0 && y <= 1, s.Name)
		}
	}
	lengths := charts("dropout", "")
	require.Len(t, lengths, 1)
	require.Contains(t, lengths[0].Title, "tokens of a row")
	for i, n := range lengths[0].Series[0].X {
		require.LessOrEqual(t, n, 64., "a length, and no id of a token: %d", i)
	}
}
