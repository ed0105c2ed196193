package dump

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A count on which the files of a step do not agree is no option of the step, and none of two runs: what each says is kept.
func TestFilesThatCountDifferently(t *testing.T) {
	counted := func(of ...string) *Batch {
		dir, m := t.TempDir(), mask("response_mask", "011", "111")
		for i, n := range of {
			put(t, join(dir, n+string(rune('a'+i))+".safetensors"), `{"schema":1,"step":1,"world_size":3,"rank":`+string(rune('0'+i))+`,"options":{"beta":0.04,"num_items_in_batch":`+n+`}}`, m)
		}
		return mustBatch(t, dir)
	}
	b := counted("30", "31", "30")
	require.Equal(t, []Option{{"beta", 0.04}}, b.Meta.Options)
	require.ElementsMatch(t, []Count{{"num_items_in_batch", 0, 0, 30}, {"num_items_in_batch", 1, 0, 31}, {"num_items_in_batch", 2, 0, 30}}, b.Meta.Counts)
	b = counted("30", "30", "30")
	require.Len(t, b.Meta.Options, 2)
	require.Empty(t, b.Meta.Counts)
}
