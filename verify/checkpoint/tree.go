package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"plumbline/internal/format"
)

// Limits of a folder. What lies beyond them is refused, not left out.
const (
	MaxEntries = 1_000_000
	MaxDepth   = 16
)

// Entry is a file of a tree.
type Entry struct {
	Name string // inside the tree, with slashes
	Size int64
	Err  error // why it cannot be opened: a link that leads out, a FIFO
	Link bool  // a symbolic link to a file inside
}

// Tree is where the files of a checkpoint lie: a folder, or memory.
type Tree interface {
	Path() string              // as the user wrote it
	Entries() ([]Entry, error) // all files at every depth, by name
	Open(name string) (Blob, error)
}

// Blob is an open file of a Tree.
type Blob interface {
	io.ReaderAt
	io.Closer
	Len() int64
}

// Memory is a tree held in memory: contents by name, with slashes.
type Memory struct {
	Name  string
	Files map[string][]byte
	Links map[string]error // entries that cannot be opened, with the reason
}

// Path returns the name of the tree.
func (m *Memory) Path() string { return m.Name }

// Entries returns the files by name.
func (m *Memory) Entries() ([]Entry, error) {
	var list []Entry
	for name, text := range m.Files {
		list = append(list, Entry{Name: name, Size: int64(len(text))})
	}
	for name, err := range m.Links {
		list = append(list, Entry{Name: name, Err: err})
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Open opens the file called name.
func (m *Memory) Open(name string) (Blob, error) {
	if err := m.Links[name]; err != nil {
		return nil, err
	}
	text, ok := m.Files[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: path.Join(m.Name, name), Err: fs.ErrNotExist}
	}
	return memoryFile{bytes.NewReader(text), int64(len(text))}, nil
}

type memoryFile struct {
	io.ReaderAt
	size int64
}

func (f memoryFile) Len() int64 { return f.size }
func (memoryFile) Close() error { return nil }

// disk is a folder. Its files are opened inside it: what leads out of it is refused.
type disk struct {
	dir  *format.Dir
	path string
}

// openDisk opens the folder at p.
func openDisk(p string) (*disk, error) {
	info, err := os.Stat(p)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, &UsageError{fmt.Sprintf("%s: is a file, want the folder of a checkpoint (%s)", p, filepath.Dir(p))}
	}
	d, err := format.OpenDir(p)
	if err != nil {
		return nil, err
	}
	return &disk{d, p}, nil
}

func (d *disk) Path() string { return d.path }

func (d *disk) Close() error { return d.dir.Close() }

func (d *disk) Open(name string) (Blob, error) {
	f, err := d.dir.Open(filepath.FromSlash(name))
	if err != nil {
		return nil, err
	}
	return diskFile{f}, nil
}

type diskFile struct{ *format.File }

func (f diskFile) Len() int64 { return f.Size }

func (d *disk) Entries() ([]Entry, error) {
	real, err := filepath.EvalSymlinks(d.path)
	if err != nil {
		return nil, err
	}
	var list []Entry
	err = filepath.WalkDir(real, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(real, p)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		if len(list) == MaxEntries {
			return format.Malformed(d.path, "", "more than %d files", MaxEntries)
		}
		switch mode := e.Type(); {
		case e.IsDir():
			if strings.Count(name, "/") >= MaxDepth {
				return format.Malformed(d.path, "", "folder %.64q lies more than %d deep", name, MaxDepth)
			}
		case mode.IsRegular():
			info, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed since: a save or a clean-up is under way
			}
			if err != nil {
				return err
			}
			list = append(list, Entry{Name: name, Size: info.Size()})
		case mode&fs.ModeSymlink != 0:
			list = append(list, d.link(p, name))
		default:
			_, err := d.dir.Open(rel)
			if err == nil {
				err = format.Malformed(filepath.Join(d.path, rel), "", "is a special file, want a regular file")
			}
			list = append(list, Entry{Name: name, Err: err})
		}
		return nil
	})
	// WalkDir goes by the names in each folder: step_4 before step_4.aside-1, though "step_4." comes before "step_4/".
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return list, err
}

// link looks at what a symbolic link leads to.
func (d *disk) link(p, name string) Entry {
	f, err := d.dir.Open(filepath.FromSlash(name))
	if err == nil {
		defer f.Close()
		return Entry{Name: name, Size: f.Size, Link: true}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = format.Malformed(filepath.Join(d.path, filepath.FromSlash(name)), "", "is a symbolic link that leads nowhere")
	} else if !format.IsMalformed(err) {
		if info, serr := os.Stat(p); serr == nil && info.IsDir() {
			err = format.Malformed(filepath.Join(d.path, filepath.FromSlash(name)), "", "is a symbolic link to a folder, which is not followed")
		}
	}
	return Entry{Name: name, Err: err}
}

// maxOpen is the number of files that are held open at a time.
const maxOpen = 128

// pool closes the file opened first when too many are open: a folder may hold more files than a process may open.
type pool struct {
	mu   sync.Mutex
	open []*reader
}

// reader reads a file of a tree and opens it when it is read.
type reader struct {
	tree Tree
	name string
	pool *pool
	mu   sync.RWMutex
	blob Blob
}

// ReadAt reads from the file.
func (r *reader) ReadAt(b []byte, at int64) (int, error) {
	for {
		r.mu.RLock()
		if r.blob != nil {
			n, err := r.blob.ReadAt(b, at)
			r.mu.RUnlock()
			return n, err
		}
		r.mu.RUnlock()
		if err := r.open(); err != nil {
			return 0, err
		}
	}
}

func (r *reader) open() error {
	r.mu.Lock()
	if r.blob != nil {
		r.mu.Unlock()
		return nil
	}
	blob, err := r.tree.Open(r.name)
	r.blob = blob
	if err != nil {
		r.blob = nil
	}
	r.mu.Unlock()
	if err != nil {
		return err
	}
	p := r.pool
	p.mu.Lock()
	p.open = append(p.open, r)
	var oldest *reader
	if len(p.open) > maxOpen {
		oldest, p.open = p.open[0], p.open[1:]
	}
	p.mu.Unlock()
	if oldest != nil {
		return oldest.close()
	}
	return nil
}

func (r *reader) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.blob == nil {
		return nil
	}
	err := r.blob.Close()
	r.blob = nil
	return err
}

func (p *pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, r := range p.open {
		errs = append(errs, r.close())
	}
	p.open = nil
	return errors.Join(errs...)
}
