//go:build unix

package hf

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A link that leaves the folder, a FIFO and a device are refused and never waited on; a link that stays inside is followed,
// and so is one of a snapshot in the cache.
func TestSpecial(t *testing.T) {
	const second = "model-00002-of-00002.safetensors"
	replace := func(t *testing.T, with func(path string) error) error {
		dir := sharded(t)
		path := filepath.Join(dir, second)
		require.NoError(t, os.Rename(path, filepath.Join(dir, "blob")))
		require.NoError(t, with(path))
		f, err := Open(dir)
		if err == nil {
			require.NoError(t, f.Close())
		}
		return err
	}
	require.NoError(t, replace(t, func(p string) error { return os.Symlink("blob", p) }))
	refused(t, replace(t, func(p string) error { return os.Symlink("/dev/zero", p) }), second, "path escapes")
	outside := filepath.Join(single(t, llamaConfig, values{"lm_head.weight": {1, 2}, "model.norm.weight": {1, 2}}), "model.safetensors")
	refused(t, replace(t, func(p string) error { return os.Symlink(outside, p) }), second, "path escapes")
	refused(t, replace(t, func(p string) error { return os.Symlink("half a download", p) }), `weight_map: shard "`+second+`" is missing`)
	refused(t, replace(t, func(p string) error { return syscall.Mkfifo(p, 0o666) }), second, "is a FIFO")

	cache := t.TempDir()
	snapshot := filepath.Join(cache, "models--a--b", "snapshots", "1")
	blobs := filepath.Join(cache, "models--a--b", "blobs")
	require.NoError(t, os.MkdirAll(snapshot, 0o777))
	require.NoError(t, os.Mkdir(blobs, 0o777))
	file(t, blobs, "c", llamaConfig)
	write(t, blobs, "w", values{"lm_head.weight": {1, 2}})
	require.NoError(t, os.Symlink("../../blobs/c", filepath.Join(snapshot, "config.json")))
	require.NoError(t, os.Symlink("../../blobs/w", filepath.Join(snapshot, "model.safetensors")))
	require.Equal(t, []string{"lm_head.weight"}, open(t, snapshot).Names())
}
