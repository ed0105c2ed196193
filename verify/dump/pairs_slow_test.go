//go:build slow

package dump_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
)

// TestAllConventionPairs is TestConventionPairs over all ordered pairs of profiles, or one in so many as PLANTS says.
func TestAllConventionPairs(t *testing.T) {
	pairs, seeds := orderedPairs()
	var n pairCount
	taken := 0
	for i, pq := range pairs {
		if !cases.Due(i + i/cases.Planted()) { // another convention of the next profile
			continue
		}
		taken++
		judgePair(t, pq[0], pq[1], seeds[i]).examine(t, &n)
	}
	n.log(t, taken)
	open := map[string]bool{}
	for _, f := range n.open {
		open[f[:strings.LastIndex(f, " ")]] = true
	}
	most := taken * 5 / 100
	if cases.Planted() > 1 {
		most *= 2 // a share of few
	}
	require.LessOrEqual(t, len(open), most, "pairs with a failure that no option explains")
}
