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
	} else if info, serr := os.Lstat(path); serr == nil && info.Mode()&fs.ModeSymlink != 0 { // a file was published by another writer meanwhile
		return fmt.Errorf("writing %s: %w", path, lerr) // a link that leads nowhere
	}
	dir := filepath.Dir(path)
	f, lock, err := createTemp(dir, filepath.Base(path))
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	tmp, renamed := f.Name(), false
	defer func() {
		if !renamed { // not by err, which is nil if write panics
			f.Close()
			os.Remove(tmp)
		}
		lock.Close() // after the rename: until then the name is this process's
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
	return SyncDir(dir)
}

// createTemp makes the temporary file of a write to dir/base, with the mode 0644 less the umask, so that the published file is as readable
// as any other. Beside it comes a descriptor that holds its lock. A file of such a name that nobody has locked is what a process that was
// killed left, and is removed: names count from 0, so the next write of the same file finds it.
func createTemp(dir, base string) (f, lock *os.File, err error) {
	base = strings.ToValidUTF8(base[:min(len(base), 200)], "") // a name has 255 bytes at most
	for i, tries := 0, 0; ; {
		name := filepath.Join(dir, fmt.Sprintf(".%s.plumbline-%d.tmp", base, i))
		f, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		switch {
		case err == nil:
			if lock, err = os.OpenFile(name, os.O_RDWR|ownFlags, 0); err == nil {
				mine, known := tryLock(lock)
				if (mine || !known) && same(name, f) {
					removeStale(dir, base, i+1)
					return f, lock, nil
				}
				lock.Close() // another process took it for one that was left, and removes it
			} else if same(name, f) {
				os.Remove(name) // without a lock it would be taken for one that was left, or, where it cannot be opened again, stay
			}
			f.Close()
			if tries++; tries > 1000 {
				return nil, nil, fmt.Errorf("%s: is removed as soon as it is made: %w", name, errors.Join(err, fs.ErrExist))
			}
		case errors.Is(err, fs.ErrExist) && i < 1000:
			if !stale(name) {
				i++
			}
		default:
			return nil, nil, err
		}
	}
}

// removeStale removes what killed processes left under the names that follow.
func removeStale(dir, base string, from int) {
	for i := from; i <= 1000 && stale(filepath.Join(dir, fmt.Sprintf(".%s.plumbline-%d.tmp", base, i))); i++ {
	}
}

// stale removes a temporary file that no process has locked, and reports whether it did.
func stale(name string) bool {
	if info, err := os.Lstat(name); err != nil || !info.Mode().IsRegular() {
		return false
	}
	f, err := os.OpenFile(name, os.O_RDWR|ownFlags, 0)
	if err != nil {
		return false
	}
	defer f.Close() // after it is removed: nobody else has the lock until then
	if mine, _ := tryLock(f); !mine || !same(name, f) {
		return false
	}
	return os.Remove(name) == nil
}

// same reports whether name is still the file that is open.
func same(name string, f *os.File) bool {
	at, err := os.Lstat(name)
	if err != nil {
		return false
	}
	info, err := f.Stat()
	return err == nil && os.SameFile(at, info)
}

// SyncDir makes the names in a folder those that are there after a power failure.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
