package convention

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryFactIsDescribed(t *testing.T) {
	names := FactNames()
	slices.Sort(names)
	require.Equal(t, names, slices.Sorted(maps.Keys(factDocs)))
}
