package bind

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// What a checkpoint takes along lies in the folder of the model: a link to another file is refused.
func TestReadExtra(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(outside, []byte("secret"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o644))
	got, err := ReadExtra(dir)
	require.NoError(t, err)
	require.Equal(t, map[string][]byte{"config.json": []byte("{}")}, got)
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "special_tokens_map.json")))
	_, err = ReadExtra(dir)
	require.True(t, format.IsMalformed(err), "%v", err)
}
