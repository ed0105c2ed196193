package runlog

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Every log is read by one shard, shards have consecutive logs, and none has more than its share and one log.
func TestShardsOfLogs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.Int64Range(0, 1<<40), 1, 40).Draw(t, "sizes")
		n := rapid.IntRange(1, 50).Draw(t, "n")
		shards := of(sizes, n)
		require.True(t, slices.IsSorted(shards))
		total, load := 0.0, make([]float64, n)
		for k, s := range sizes {
			total += float64(s + 1)
			load[shards[k]] += float64(s + 1)
		}
		for _, l := range load {
			require.LessOrEqual(t, l, (total/float64(n)+float64(slices.Max(sizes))+1)*(1+1e-9))
		}
	})
}
