//go:build slow

package dump_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAllConventionPairs is TestConventionPairs over all ordered pairs of profiles.
func TestAllConventionPairs(t *testing.T) {
	pairs, seeds := orderedPairs()
	var n pairCount
	for i, pq := range pairs {
		judgePair(t, pq[0], pq[1], seeds[i]).examine(t, &n)
	}
	n.log(t, len(pairs))
	open := map[string]bool{}
	for _, f := range n.open {
		open[f[:strings.LastIndex(f, " ")]] = true
	}
	require.LessOrEqual(t, len(open), len(pairs)*5/100, "pairs with a failure that no option explains")
}
