package dump

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The description has every tensor and every key that is read, and no other.
func TestDescription(t *testing.T) {
	names := []string{responseMask, labelsMask, segmentIDs, cuSeqlens}
	for name := range definitions {
		names = append(names, name)
	}
	require.Len(t, meanings, len(names))
	text := Description()
	for _, name := range names {
		require.NotEmpty(t, meanings[name], name)
		require.Equal(t, 1, strings.Count(text, "\n  "+name+" "), name)
	}
	described := map[string]bool{}
	for _, k := range MetadataKeys {
		described[k[0]] = true
		b, err := batch(t, put(t, join(t.TempDir(), "a.safetensors"), `{"schema":1,"step":0,"`+k[0]+`":[]}`, mask("response_mask", "1")))
		if err != nil { // a list is not what this key takes
			require.ErrorContains(t, err, k[0])
			continue
		}
		require.Empty(t, b.Notes, k[0])
	}
	for key := range specials {
		require.True(t, described[key], key)
	}
}
