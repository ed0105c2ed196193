package checkpoint

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// What Python's json writes for numbers that are not finite is read, inside strings it stays.
func TestWithoutNaN(t *testing.T) {
	for text, want := range map[string]string{
		`{"a": NaN, "b": [Infinity, -Infinity]}`: `{"a": 0  , "b": [0       , 0        ]}`,
		`{"NaN": "\"NaN"}`:                       `{"NaN": "\"NaN"}`,
		`{"a\\": NaN}`:                           `{"a\\": 0  }`,
		``:                                       ``,
	} {
		got := withoutNaN([]byte(text))
		require.Equal(t, want, string(got))
		require.Equal(t, text != "", json.Valid(got))
	}
}

// A path is no name of a published model, and a folder beats a name.
func TestPathsAreNoNames(t *testing.T) {
	for name, want := range map[string]bool{"gpt2": true, "openai-community/gpt2": true, "./gpt2": false, "/models/gpt2": false, "runs/a/gpt2": false, `C:\gpt2`: false, "~/gpt2": false} {
		require.Equal(t, want, published(name), name)
	}
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join(goldens, "hf_llama", "config.json"))
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "gpt2"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "gpt2", "config.json"), text, 0o644))
	m, err := FindModel(filepath.Join(dir, "gpt2"))
	require.NoError(t, err)
	require.Equal(t, "llama", m.Type)
	m, err = FindModel("gpt2")
	require.NoError(t, err)
	require.Equal(t, 768, m.Hidden)
}
