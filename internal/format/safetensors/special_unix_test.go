//go:build unix

package safetensors

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// TestSpecial opens what is no regular file; none may block.
func TestSpecial(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o644))
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink("/dev/zero", link))
	for path, want := range map[string]string{
		dir:         "is a directory, want a regular file",
		fifo:        "is a FIFO, want a regular file",
		"/dev/null": "is a device or another special file, want a regular file",
		link:        "is a device or another special file, want a regular file",
	} {
		_, err := Open(path)
		require.EqualError(t, err, path+": "+want)
		require.True(t, format.IsMalformed(err))
	}
	_, err := Open(filepath.Join(dir, "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.False(t, format.IsMalformed(err))
}
