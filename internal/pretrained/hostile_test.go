package pretrained

import (
	"os"
	"path/filepath"
	"runtime/metrics"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
)

// A configuration of a few bytes that describes a model of any depth is refused at the price of what lies in the folder.
func TestManyLayers(t *testing.T) {
	dir := t.TempDir()
	text := `{"model_type": "llama", "hidden_size": 16777216, "num_hidden_layers": 4096, "num_attention_heads": 2, "intermediate_size": 16777216, "vocab_size": 16777216}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o644))
	require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), nil, []safetensors.Tensor{
		{Name: "lm_head.weight", DType: format.F32, Shape: []int{1, 1}, Data: []float64{1}}}))
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	before := s[0].Value.Uint64()
	_, err := Open(dir, Options{NoTokenizer: true})
	metrics.Read(s)
	require.True(t, format.IsMalformed(err), "%v", err)
	require.ErrorContains(t, err, "describes 4096 layers")
	require.Less(t, s[0].Value.Uint64()-before, uint64(1<<20))
}
