//go:build unix

package format

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestError(t *testing.T) {
	require.EqualError(t, Malformed("a.npz:b", "", "has %d bytes", 3), "a.npz:b: has 3 bytes")
	require.EqualError(t, Malformed("a", Offset(17), "found %q", "x"), `a: byte 17: found "x"`)
	require.EqualError(t, Malformed("a", "", "100%%"), "a: 100%")
	require.True(t, IsMalformed(Malformed("a", "", "")))
	require.True(t, IsMalformed(fmt.Errorf("reading: %w", Malformed("a", "", ""))))
	require.True(t, IsMalformed(errors.Join(fs.ErrNotExist, Malformed("a", "", ""))))
	require.False(t, IsMalformed(nil))
	require.False(t, IsMalformed(fs.ErrNotExist))
}

// special makes one of everything that is no regular file in a fresh directory and returns what Open says of each.
func special(t *testing.T) (dir string, want map[string]string) {
	dir, err := os.MkdirTemp("", "sp") // short, for the socket
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.Mkdir(at("directory"), 0o755))
	require.NoError(t, syscall.Mkfifo(at("fifo"), 0o644))
	l, err := net.Listen("unix", at("socket"))
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	require.NoError(t, os.Symlink("fifo", at("link to fifo")))
	require.NoError(t, os.Symlink("directory", at("link to directory")))
	return dir, map[string]string{
		"directory":         "is a directory, want a regular file",
		"fifo":              "is a FIFO, want a regular file",
		"socket":            "is a socket, want a regular file",
		"link to fifo":      "is a FIFO, want a regular file",
		"link to directory": "is a directory, want a regular file",
	}
}

// TestOpenSpecial hangs if a FIFO is waited on.
func TestOpenSpecial(t *testing.T) {
	dir, want := special(t)
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	for name, msg := range want {
		path := filepath.Join(dir, name)
		_, err := Open(path)
		require.EqualError(t, err, path+": "+msg)
		require.True(t, IsMalformed(err))
		_, err = OpenIn(root, name, "shown/"+name)
		require.EqualError(t, err, "shown/"+name+": "+msg)
	}
	require.NoError(t, os.Symlink("/dev/zero", filepath.Join(dir, "zero")))
	for _, path := range []string{"/dev/null", filepath.Join(dir, "zero")} {
		_, err = Open(path)
		require.EqualError(t, err, path+": is a device or another special file, want a regular file")
	}
}

// TestOpenChanged puts another file in the place of a regular one between the look and the opening.
func TestOpenChanged(t *testing.T) {
	dir, want := special(t)
	regular := filepath.Join(dir, "regular")
	require.NoError(t, os.WriteFile(regular, nil, 0o644))
	for name, msg := range want {
		if name == "socket" { // cannot be opened at all
			continue
		}
		_, err := open("x", func(string) (fs.FileInfo, error) { return os.Stat(regular) },
			func(string) (*os.File, error) { return os.OpenFile(filepath.Join(dir, name), openFlags, 0) }, "x")
		require.EqualError(t, err, "x: "+msg)
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	require.NoError(t, os.WriteFile(path, []byte("hello"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "empty"), nil, 0o644))
	require.NoError(t, os.Symlink("f", filepath.Join(dir, "link")))
	for _, name := range []string{"f", "link"} {
		f, err := Open(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, int64(5), f.Size)
		require.Equal(t, filepath.Join(dir, name), f.Path)
		b := make([]byte, 5)
		_, err = f.ReadAt(b, 0)
		require.NoError(t, err)
		require.Equal(t, "hello", string(b))
		require.NoError(t, f.Close())
	}
	f, err := Open(filepath.Join(dir, "empty"))
	require.NoError(t, err)
	require.Zero(t, f.Size)
	require.NoError(t, f.Close())
	for _, name := range []string{"absent", "f/under a file", ""} {
		_, err = Open(filepath.Join(dir, "x", name))
		require.Error(t, err)
		require.False(t, IsMalformed(err), "%v", err)
	}
	_, err = Open(filepath.Join(dir, "absent"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	if os.Geteuid() == 0 {
		t.Log("not checked as root: a file without read permission")
		return
	}
	require.NoError(t, os.Chmod(path, 0))
	_, err = Open(path)
	require.ErrorIs(t, err, fs.ErrPermission)
	require.False(t, IsMalformed(err))
}

func TestOpenIn(t *testing.T) {
	dir := t.TempDir()
	inside := filepath.Join(dir, "in")
	require.NoError(t, os.MkdirAll(filepath.Join(inside, "sub"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("secret"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(inside, "f"), []byte("f"), 0o644))
	for name, target := range map[string]string{
		"sub/ok": "../f", "out": "../secret", "absolute": filepath.Join(dir, "secret"), "absolute inside": filepath.Join(inside, "f"), "up": "..", "zero": "/dev/zero",
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(inside, name)))
	}
	root, err := os.OpenRoot(inside)
	require.NoError(t, err)
	defer root.Close()
	for _, name := range []string{"f", "sub/ok", "sub/../f", "./f"} {
		f, err := OpenIn(root, name, "shown")
		require.NoError(t, err, name)
		require.Equal(t, "shown", f.Path)
		require.Equal(t, int64(1), f.Size)
		require.NoError(t, f.Close())
	}
	for _, name := range []string{"../secret", "sub/../../secret", filepath.Join(dir, "secret"), "out", "absolute", "absolute inside", "up/secret", "zero", "absent", ""} {
		f, err := OpenIn(root, name, "shown")
		require.Error(t, err, name)
		require.Nil(t, f)
	}
}

func TestShellQuote(t *testing.T) {
	require.Equal(t, "a/b.npy:Q", ShellQuote("a/b.npy:Q"))
	require.Equal(t, `'a b'`, ShellQuote("a b"))
	require.Equal(t, `'it'\''s'`, ShellQuote("it's"))
	require.Equal(t, `$'a\012::error::b\'\\\033[m\377é'`, ShellQuote("a\n::error::b'\\\x1b[m\xffé"))
	require.Equal(t, `$'a\342\200\256b'`, ShellQuote("a\u202eb"))
	require.Equal(t, `'$(id)'`, ShellQuote("$(id)"))
	require.Equal(t, `''`, ShellQuote(""))
}
