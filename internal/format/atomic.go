package format

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// WriteFile publishes a file whole or not at all: write fills a temporary file in the same directory, which is flushed,
// synced and renamed to path, and the directory is synced. On an error, or if write panics, the temporary file is removed
// and what was at path before stays; only if syncing the directory fails is the new file there already. The mode is 0644
// less the umask. A symbolic link is followed, and refused if it leads nowhere. A path that is there and not a regular
// file (a device such as /dev/stdout, a FIFO) is written to directly: replacing it by a file is never what was meant.
func WriteFile(path string, write func(io.Writer) error) (err error) {
	if info, serr := os.Stat(path); serr == nil && !info.Mode().IsRegular() {
		if info.IsDir() {
			return &fs.PathError{Op: "write", Path: path, Err: errors.New("is a directory")}
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(f), f.Close())
	}
	if target, lerr := filepath.EvalSymlinks(path); lerr == nil {
		path = target // a symbolic link is followed, not replaced
	} else if _, serr := os.Lstat(path); serr == nil {
		return fmt.Errorf("writing %s: %w", path, lerr) // a link that leads nowhere
	}
	dir := filepath.Dir(path)
	f, err := createTemp(dir, filepath.Base(path))
	if err != nil {
		return err
	}
	tmp, renamed := f.Name(), false
	defer func() {
		if !renamed { // not by err, which is nil if write panics
			f.Close()
			os.Remove(tmp)
		}
		if err != nil {
			err = fmt.Errorf("writing %s: %w", path, err)
		}
	}()
	w := bufio.NewWriterSize(f, 1<<16)
	if err = write(w); err != nil {
		return err
	}
	if err = w.Flush(); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(tmp, path); err != nil {
		return err
	}
	renamed = true
	return syncDir(dir)
}

// createTemp is os.CreateTemp with mode 0644 less the umask in place of 0600, so that the published file is as readable
// as any other.
func createTemp(dir, base string) (*os.File, error) {
	base = strings.ToValidUTF8(base[:min(len(base), 200)], "") // a name has 255 bytes at most
	for i := 0; ; i++ {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf(".%s.tmp-%d-%d", base, os.Getpid(), i)), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		if !errors.Is(err, fs.ErrExist) || i == 1000 {
			return f, err
		}
	}
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
