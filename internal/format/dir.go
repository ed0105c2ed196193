package format

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Dir is a directory of a model or an adapter. Files are opened inside it: a name or symbolic link that leads out of it
// is refused by the path walk of package os.
//
// In the cache of Hugging Face the files of a snapshot are links into the folder blobs beside it; there the model's
// folder in the cache is what must not be left.
type Dir struct {
	root   *os.Root
	prefix string // of names, inside root
	path   string // as the user wrote it
}

// OpenDir opens the directory at path.
func OpenDir(path string) (*Dir, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	top, prefix := real, "."
	for dir := real; filepath.Dir(dir) != dir; dir = filepath.Dir(dir) {
		if filepath.Base(filepath.Dir(dir)) != "snapshots" {
			continue
		}
		cache := filepath.Dir(filepath.Dir(dir))
		if info, err := os.Stat(filepath.Join(cache, "blobs")); err == nil && info.IsDir() {
			if rel, err := filepath.Rel(cache, real); err == nil {
				top, prefix = cache, rel
			}
		}
		break
	}
	root, err := os.OpenRoot(top)
	if err != nil {
		return nil, err
	}
	return &Dir{root, prefix, path}, nil
}

// Open opens the regular file name inside d.
func (d *Dir) Open(name string) (*File, error) {
	f, err := OpenIn(d.root, filepath.Join(d.prefix, name), filepath.Join(d.path, name))
	if err != nil && strings.HasSuffix(err.Error(), "path escapes from parent") { // package os has no name for it
		return nil, Malformed(filepath.Join(d.path, name), "", "path escapes from parent: a link that leads out of the folder is refused")
	}
	if errors.Is(err, syscall.ELOOP) {
		return nil, Malformed(filepath.Join(d.path, name), "", "is a symbolic link that leads back to itself")
	}
	var at *fs.PathError
	if errors.As(err, &at) { // its path is inside root, and its operation none that the user knows
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(d.path, name), Err: at.Err}
	}
	if err != nil && !IsMalformed(err) {
		return nil, fmt.Errorf("%s: %w", d.path, err)
	}
	return f, err
}

// ReadFile returns the bytes of the regular file name inside d, as [Dir.Open] and [File.ReadAll] have them.
func (d *Dir) ReadFile(name string, limit int64) ([]byte, error) {
	f, err := d.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ReadAll(limit)
}

// Has reports whether d holds an entry of that name.
func (d *Dir) Has(name string) bool {
	_, err := d.root.Lstat(filepath.Join(d.prefix, name))
	return err == nil
}

// Entries returns the names of the entries of d in increasing order.
func (d *Dir) Entries() ([]string, error) {
	list, err := fs.ReadDir(d.root.FS(), filepath.ToSlash(d.prefix))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.path, err)
	}
	names := make([]string, len(list))
	for i, e := range list {
		names[i] = e.Name()
	}
	return names, nil
}

// Path returns the directory as the user wrote it.
func (d *Dir) Path() string { return d.path }

// Close closes the directory; files opened through it stay open.
func (d *Dir) Close() error { return d.root.Close() }
