//go:build unix

package format

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain is also the process that dies in the middle of a write.
func TestMain(m *testing.M) {
	if path := os.Getenv("FORMAT_VICTIM"); path != "" {
		err := WriteFile(path, func(w io.Writer) error {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return err
			}
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until the signal arrives
		})
		panic(err)
	}
	os.Exit(m.Run())
}

// What a write that was killed left is gone after the next one of the same file, a temporary file that is being written is not, and
// neither is one of another name.
func TestTemporaries(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".f.tmp-2024"), []byte("mine"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".g.plumbline-0.tmp"), nil, 0o644))
	for range 2 {
		victim := exec.Command(os.Args[0])
		victim.Env = append(os.Environ(), "FORMAT_VICTIM="+path)
		require.Error(t, victim.Run())
		require.Equal(t, syscall.SIGKILL, victim.ProcessState.Sys().(syscall.WaitStatus).Signal())
		require.Equal(t, []string{".f.plumbline-0.tmp", ".f.tmp-2024", ".g.plumbline-0.tmp"}, names(t, dir), "the second victim takes the place of the first")
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".f.plumbline-1.tmp"), nil, 0o644))
	require.NoError(t, WriteFile(path, func(w io.Writer) error { // a write within the write of the same file
		require.NoError(t, WriteFile(path, text("inner")))
		requireContent(t, path, "inner")
		return text("outer")(w)
	}))
	requireContent(t, path, "outer")
	require.Equal(t, []string{".f.tmp-2024", ".g.plumbline-0.tmp", "f"}, names(t, dir))
}

// Many writers of one file at once: it is always one of theirs, and nothing is left.
func TestTemporariesOfMany(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	var all sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		all.Go(func() {
			for range 30 {
				if err := WriteFile(path, text(strings.Repeat(fmt.Sprint(i), 5000))); err != nil {
					errs[i] = err
				}
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat(string(b[0]), 5000), string(b))
	require.Equal(t, []string{"f"}, names(t, dir))
}

// Places are what may lie in the place of a file of a run's folder.
var places = map[string]func(t *testing.T, path, outside string){
	"link":           func(t *testing.T, path, outside string) { require.NoError(t, os.Symlink(outside, path)) },
	"dead link":      func(t *testing.T, path, outside string) { require.NoError(t, os.Symlink(outside+".not", path)) },
	"link to itself": func(t *testing.T, path, _ string) { require.NoError(t, os.Symlink(filepath.Base(path), path)) },
	"hard link":      func(t *testing.T, path, outside string) { require.NoError(t, os.Link(outside, path)) },
	"FIFO":           func(t *testing.T, path, _ string) { require.NoError(t, syscall.Mkfifo(path, 0o644)) },
	"folder":         func(t *testing.T, path, _ string) { require.NoError(t, os.Mkdir(path, 0o755)) },
	"device":         func(t *testing.T, path, _ string) { require.NoError(t, os.Symlink("/dev/zero", path)) },
}

func TestOwn(t *testing.T) {
	for place, put := range places {
		t.Run(place, func(t *testing.T) {
			dir := t.TempDir()
			outside := filepath.Join(dir, "outside")
			require.NoError(t, os.WriteFile(outside, []byte("keep"), 0o644))
			run := filepath.Join(dir, "run")
			require.NoError(t, os.Mkdir(run, 0o755))
			put(t, filepath.Join(run, "f"), outside)
			_, err := ReadOwn(run, "f", 100)
			require.True(t, IsMalformed(err), "%v", err)
			require.True(t, IsMalformed(WriteOwn(run, "f", text("new"))))
			_, err = OpenOwn(run, "f", os.O_RDWR|os.O_CREATE|os.O_TRUNC)
			require.True(t, IsMalformed(err), "%v", err)
			if place != "folder" { // then it is one of the run's own
				_, err = Own(run, "f/g")
				require.True(t, IsMalformed(err), "%v", err)
			}
			requireContent(t, outside, "keep")
			_, err = os.Lstat(outside + ".not")
			require.ErrorIs(t, err, os.ErrNotExist)
		})
	}
	dir := t.TempDir()
	require.NoError(t, WriteOwn(dir, "a/b/f", text("0123456789")))
	b, err := ReadOwn(dir, "a/b/f", 10)
	require.NoError(t, err)
	require.Equal(t, "0123456789", string(b))
	_, err = ReadOwn(dir, "a/b/f", 9)
	require.ErrorContains(t, err, "has 10 bytes, want at most 9")
	_, err = ReadOwn(dir, "none", 9)
	require.ErrorIs(t, err, os.ErrNotExist)
	for _, name := range []string{"../f", "/f", "a/../../f", ".", "a/./f", ""} {
		require.Panics(t, func() { Own(dir, name) }, name)
	}
}
