//go:build unix

package dump

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// TestSpecial: what is no regular file is refused and never waited on, and a folder is not left through a link.
func TestSpecial(t *testing.T) {
	outside := put(t, join(t.TempDir(), "out.safetensors"), `{"schema":1}`, mask("response_mask", "1"))
	for name, c := range map[string]struct {
		make func(path string) error
		want string
	}{
		"FIFO":           {func(path string) error { return syscall.Mkfifo(path, 0o644) }, "is a FIFO"},
		"link to a zero": {func(path string) error { return os.Symlink("/dev/zero", path) }, "escapes from parent"},
		"link out of it": {func(path string) error { return os.Symlink(outside, path) }, "escapes from parent"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, c.make(join(dir, "a.safetensors")))
			_, err := Open(t.Context(), []string{dir})
			require.ErrorContains(t, err, c.want)
		})
	}
	dir := t.TempDir()
	link := join(dir, "a.safetensors")
	require.NoError(t, os.Symlink(outside, link))
	_, err := Open(t.Context(), []string{link}) // named by the user
	require.NoError(t, err)
	fifo := join(dir, "b.npz")
	require.NoError(t, syscall.Mkfifo(fifo, 0o644))
	_, err = Open(t.Context(), []string{fifo})
	require.ErrorContains(t, err, "is a FIFO")
	require.True(t, format.IsMalformed(err))
	metadata := putNPZ(t, join(dir, "c.npz"), "")
	require.NoError(t, syscall.Mkfifo(join(dir, "c.json"), 0o644))
	_, err = Open(t.Context(), []string{metadata})
	require.ErrorContains(t, err, "c.json: is a FIFO")
}
