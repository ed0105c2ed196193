//go:build unix

package format

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// text returns a write function for WriteFile.
func text(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

// names returns the names in dir; a temporary file that was left over would be among them.
func names(t *testing.T, dir string) (list []string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func requireContent(t *testing.T, path, want string) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(b))
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	big := strings.Repeat("0123456789", 50_000) // several buffers
	for _, s := range []string{"old", big, "", "new"} {
		require.NoError(t, WriteFile(path, text(s)))
		requireContent(t, path, s)
		require.Equal(t, []string{"f"}, names(t, dir))
	}
	t.Chdir(dir)
	require.NoError(t, WriteFile("g", text("relative")))
	requireContent(t, filepath.Join(dir, "g"), "relative")
}

// TestWriteFileReader: who has the old file open keeps the old content, whole.
func TestWriteFileReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	require.NoError(t, WriteFile(path, text("old content")))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, WriteFile(path, func(w io.Writer) error {
		requireContent(t, path, "old content")
		err := text("new")(w)
		requireContent(t, path, "old content")
		return err
	}))
	b, err := io.ReadAll(f)
	require.NoError(t, err)
	require.Equal(t, "old content", string(b))
	requireContent(t, path, "new")
}

func TestWriteFileError(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	require.NoError(t, WriteFile(path, text("old")))
	failure := errors.New("failure")
	for _, n := range []int{0, 1, 1 << 20} {
		err := WriteFile(path, func(w io.Writer) error {
			if _, err := w.Write(make([]byte, n)); err != nil {
				return err
			}
			return failure
		})
		require.ErrorIs(t, err, failure)
		require.ErrorContains(t, err, "writing "+path)
		requireContent(t, path, "old")
		require.Equal(t, []string{"f"}, names(t, dir))
	}
	require.PanicsWithValue(t, "boom", func() { WriteFile(path, func(io.Writer) error { panic("boom") }) })
	requireContent(t, path, "old")
	require.Equal(t, []string{"f"}, names(t, dir), "a panic left a temporary file")
}

// TestWriteFileFull lets the file system refuse data, at a limit of the file size as at the end of a disk.
func TestWriteFileFull(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	require.NoError(t, WriteFile(path, text("old")))
	var old syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old))
	limit := old
	limit.Cur = 100_000
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit))
	defer syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old)
	// More than the limit while writing; and so little more that only the last flush fails.
	errMuch := WriteFile(path, text(strings.Repeat("x", 1<<20)))
	errLast := WriteFile(path, func(w io.Writer) error {
		for range 100_001 {
			if err := text("x")(w); err != nil {
				t.Error("the write failed before the flush")
				return err
			}
		}
		return nil
	})
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old))
	require.ErrorIs(t, errMuch, syscall.EFBIG)
	require.ErrorIs(t, errLast, syscall.EFBIG)
	requireContent(t, path, "old")
	require.Equal(t, []string{"f"}, names(t, dir))
}

func TestWriteFileDevice(t *testing.T) {
	before, err := os.Stat(os.DevNull)
	require.NoError(t, err)
	require.NoError(t, WriteFile(os.DevNull, text("gone")))
	after, err := os.Stat(os.DevNull)
	require.NoError(t, err)
	require.Equal(t, before.Mode(), after.Mode(), "the device was replaced")
	if _, err := os.Stat("/dev/full"); err == nil {
		require.ErrorIs(t, WriteFile("/dev/full", text("x")), syscall.ENOSPC)
	}

	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	r, err := os.OpenFile(fifo, os.O_RDWR, 0) // so that opening for writing does not wait
	require.NoError(t, err)
	defer r.Close()
	require.NoError(t, WriteFile(fifo, text("through")))
	b := make([]byte, 100)
	n, err := r.Read(b)
	require.NoError(t, err)
	require.Equal(t, "through", string(b[:n]))
	require.Equal(t, []string{"fifo"}, names(t, dir))
	require.ErrorIs(t, WriteFile(fifo, func(io.Writer) error { return fs.ErrInvalid }), fs.ErrInvalid)

	err = WriteFile(dir, text("x"))
	require.ErrorContains(t, err, "write "+dir+": is a directory")
}

func TestWriteFileLink(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	target := filepath.Join(other, "target")
	require.NoError(t, os.WriteFile(target, []byte("old"), 0o644))
	link, chain, dangling := filepath.Join(dir, "link"), filepath.Join(dir, "chain"), filepath.Join(dir, "dangling")
	require.NoError(t, os.Symlink(target, link))
	require.NoError(t, os.Symlink("link", chain))
	require.NoError(t, os.Symlink(filepath.Join(other, "absent"), dangling))
	for _, path := range []string{link, chain} {
		require.NoError(t, WriteFile(path, text("through "+path)))
		requireContent(t, target, "through "+path)
		info, err := os.Lstat(path)
		require.NoError(t, err)
		require.NotZero(t, info.Mode()&fs.ModeSymlink, "the link was replaced")
	}
	err := WriteFile(dangling, text("x"))
	require.ErrorIs(t, err, fs.ErrNotExist, "a link that leads nowhere is no place to write to")
	require.ErrorContains(t, err, dangling)
	info, err := os.Lstat(dangling)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&fs.ModeSymlink, "the link was replaced")
	require.Equal(t, []string{"target"}, names(t, other))
	require.Equal(t, []string{"chain", "dangling", "link"}, names(t, dir))
}

func TestWriteFileMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, umask := range []int{0, 0o022, 0o027, 0o077} {
		old := syscall.Umask(umask)
		err := WriteFile(path, text("x"))
		syscall.Umask(old)
		require.NoError(t, err)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o644&^umask), info.Mode(), "umask %03o", umask)
		require.NoError(t, os.Chmod(path, 0o400)) // of what is replaced nothing stays
	}
}

func TestWriteFileDirectory(t *testing.T) {
	dir := t.TempDir()
	require.ErrorIs(t, WriteFile(filepath.Join(dir, "absent", "f"), text("x")), fs.ErrNotExist)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
	require.ErrorIs(t, WriteFile(filepath.Join(dir, "file", "f"), text("x")), syscall.ENOTDIR)
	require.Equal(t, []string{"file"}, names(t, dir))
	if os.Geteuid() == 0 {
		t.Log("not checked as root: a directory without write permission")
		return
	}
	require.NoError(t, os.Chmod(dir, 0o555))
	defer os.Chmod(dir, 0o755)
	require.ErrorIs(t, WriteFile(filepath.Join(dir, "file"), text("x")), fs.ErrPermission)
	require.Equal(t, []string{"file"}, names(t, dir))
}

// TestWriteFileLongName writes to the longest name that the file system allows.
func TestWriteFileLongName(t *testing.T) {
	dir := t.TempDir()
	name := strings.Repeat("é", 127) + "x" // 255 bytes
	require.NoError(t, WriteFile(filepath.Join(dir, name), text("x")))
	require.Equal(t, []string{name}, names(t, dir))
}

// TestWriteFileConcurrent lets several writers of one path race; the last one wins, whole.
func TestWriteFileConcurrent(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	done := make(chan error)
	for i := range 8 {
		go func() {
			done <- func() error {
				for range 5 {
					if err := WriteFile(path, text(strings.Repeat(string(rune('a'+i)), 100_000))); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range 8 {
		require.NoError(t, <-done)
	}
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat(string(b[:1]), 100_000), string(b))
	require.Equal(t, []string{"f"}, names(t, dir))
}
