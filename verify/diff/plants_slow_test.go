//go:build slow

package diff

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Over 500 random plants from real logits the right cause is named first in at least 95 %; nothing is named on equal engines, and
// other weights and adapters as that family, never more.
func TestCauses500(t *testing.T) {
	right, all := score(t, 60)
	sum, n := 0, 0
	for kind := range all {
		t.Logf("%-28s %d of %d", kind, right[kind], all[kind])
		if kind != "equal" {
			sum, n = sum+right[kind], n+all[kind]
		}
	}
	t.Logf("right first: %d of %d", sum, n)
	require.GreaterOrEqual(t, n, 500)
	require.GreaterOrEqual(t, float64(sum), 0.95*float64(n))
	require.Equal(t, all["equal"], right["equal"])
	for _, family := range []string{"other weights", "no adapter"} {
		require.GreaterOrEqual(t, float64(right[family]), 0.95*float64(all[family]), family)
	}
}
