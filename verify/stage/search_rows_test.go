package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/convention"
)

// Advantages that are one number for a row are not searched as whitened over the row, of which rounding alone would be left: its bound excludes nothing.
func TestRowsOfOneNumberAreNotWhitened(t *testing.T) {
	words := func(b grid) (list []string) {
		for _, v := range newSearch(Find("advantage/group"), b.Batch).candidates(&convention.Set{}, "whiten.scope") {
			list = append(list, v.String())
		}
		return list
	}
	one := newGrid(2, 2, 1).row("group_id", 0, 0).row("scores", 1, 2)
	require.NotContains(t, words(one.row("advantages", -1, 1)), "row")
	require.NotContains(t, words(one.token("advantages", -1, -1, 1, 0)), "row")
	require.Contains(t, words(one.token("advantages", 0, 0, 0, 0)), "row")
	require.Contains(t, words(one.token("advantages", -1, 1, 1, 0)), "row")
}
