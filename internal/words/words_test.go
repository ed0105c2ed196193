package words

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The definition by recursion is the oracle: a distance ends with a letter left out of one side, or with two put together.
func TestDistance(t *testing.T) {
	var slow func(a, b string) int
	slow = func(a, b string) int {
		if a == "" || b == "" {
			return len(a) + len(b)
		}
		last := 1
		if a[len(a)-1] == b[len(b)-1] {
			last = 0
		}
		a1, b1 := a[:len(a)-1], b[:len(b)-1]
		return min(slow(a1, b)+1, slow(a, b1)+1, slow(a1, b1)+last)
	}
	word := rapid.StringMatching("[abc]{0,5}")
	rapid.Check(t, func(t *rapid.T) {
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		require.Equal(t, slow(a, b), Distance(a, b))
	})
}
