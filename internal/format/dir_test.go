package format

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDir(t *testing.T) {
	top := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(top, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	}
	link := func(to, name string) {
		path := filepath.Join(top, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		require.NoError(t, os.Symlink(to, path))
	}
	read := func(dir, name string) (string, error) {
		d, err := OpenDir(filepath.Join(top, dir))
		require.NoError(t, err)
		defer d.Close()
		f, err := d.Open(name)
		if err != nil {
			return "", err
		}
		defer f.Close()
		b := make([]byte, f.Size)
		_, err = f.ReadAt(b, 0)
		require.NoError(t, err)
		return string(b), nil
	}
	write("secret", "secret")
	write("plain/a", "a")
	link("a", "plain/inside")
	link("../secret", "plain/outside")
	link(filepath.Join(top, "secret"), "plain/absolute")

	// The cache of Hugging Face: files of a snapshot are links into blobs, beside it.
	write("hub/models--x/blobs/123", "blob")
	link("../../blobs/123", "hub/models--x/snapshots/rev/model.safetensors")
	link("../../../../secret", "hub/models--x/snapshots/rev/stolen")
	link("hub/models--x/snapshots/rev", "shortcut")
	// A folder that is only called snapshots opens no door.
	write("fake/secret", "secret")
	link("../../secret", "fake/snapshots/rev/stolen")

	for _, c := range []struct{ dir, name, want string }{
		{"plain", "a", "a"}, {"plain", "inside", "a"},
		{"hub/models--x/snapshots/rev", "model.safetensors", "blob"}, {"shortcut", "model.safetensors", "blob"},
	} {
		got, err := read(c.dir, c.name)
		require.NoError(t, err, c)
		require.Equal(t, c.want, got, c)
	}
	for _, c := range []struct{ dir, name string }{
		{"plain", "outside"}, {"plain", "absolute"}, {"plain", "../secret"}, {"hub/models--x/snapshots/rev", "stolen"}, {"fake/snapshots/rev", "stolen"},
	} {
		_, err := read(c.dir, c.name)
		require.Error(t, err, c)
	}
	_, err := read("plain", "missing")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "plain")
	_, err = OpenDir(filepath.Join(top, "nowhere"))
	require.ErrorIs(t, err, fs.ErrNotExist)

	d, err := OpenDir(filepath.Join(top, "plain"))
	require.NoError(t, err)
	defer d.Close()
	require.True(t, d.Has("a"))
	require.True(t, d.Has("outside"), "a link is there, wherever it leads")
	require.False(t, d.Has("b"))
	require.Equal(t, filepath.Join(top, "plain"), d.Path())
	names, err := d.Entries()
	require.NoError(t, err)
	require.Equal(t, []string{"a", "absolute", "inside", "outside"}, names)
	snapshot, err := OpenDir(filepath.Join(top, "shortcut"))
	require.NoError(t, err)
	defer snapshot.Close()
	names, err = snapshot.Entries()
	require.NoError(t, err)
	require.Equal(t, []string{"model.safetensors", "stolen"}, names)
}
