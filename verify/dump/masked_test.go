package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/convention"
)

// Where nobody says which cells count, the response mask of the dump does; who sums over every cell declares it.
func TestMasked(t *testing.T) {
	require.Equal(t, "response", masked(&convention.Set{}).Value("mask.tokens").Text())
	none, err := convention.Parse("mask.tokens", "none")
	require.NoError(t, err)
	declared := (&convention.Set{}).With("mask.tokens", none, "--set")
	require.Equal(t, "none", masked(declared).Value("mask.tokens").Text())
	require.Equal(t, "--set", masked(declared).Origin("mask.tokens"))
}
