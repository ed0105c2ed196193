package dump

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/npy"
	"plumbline/internal/format/safetensors"
)

// Extensions of the files that are dumps, and of the metadata beside them.
const (
	extSafetensors = ".safetensors"
	extNPZ         = ".npz"
	extJSON        = ".json"
)

// location is where a file was found. Files of a folder are opened inside it, so that no symbolic link leads out of it.
type location struct {
	dir  string // the folder, "" for a file that was named itself
	name string // in dir, or the path
}

func (l location) path() string {
	if l.dir == "" {
		return l.name
	}
	return filepath.Join(l.dir, l.name)
}

// beside returns the location of the JSON file beside the dump at l.
func (l location) beside() location {
	return location{l.dir, strings.TrimSuffix(l.name, filepath.Ext(l.name)) + extJSON}
}

// opener opens files; it keeps the folders open that it has opened files in.
type opener struct {
	opt  npy.Options
	dirs map[string]*format.Dir
}

func (o *opener) close() {
	for _, d := range o.dirs {
		d.Close()
	}
}

func (o *opener) open(l location) (*format.File, error) {
	if l.dir == "" {
		return format.Open(l.name)
	}
	d := o.dirs[l.dir]
	if d == nil {
		var err error
		if d, err = format.OpenDir(l.dir); err != nil {
			return nil, err
		}
		if o.dirs == nil {
			o.dirs = map[string]*format.Dir{}
		}
		o.dirs[l.dir] = d
	}
	return d.Open(l.name)
}

// container is an open dump, its metadata not read yet.
type container struct {
	location
	size int64
	st   *safetensors.File
	npz  *npy.Archive
	bf16 []string // of the metadata
	opt  npy.Options
}

// openContainer opens the dump at l.
func (o *opener) openContainer(l location) (*container, error) {
	f, err := o.open(l)
	if err != nil {
		return nil, err
	}
	c := &container{location: l, size: f.Size, opt: o.opt}
	if strings.EqualFold(filepath.Ext(l.name), extNPZ) {
		opt := o.opt
		opt.AssumeBF16 = true // tensor refuses those that the metadata does not name
		c.npz, err = npy.ParseArchive(f, opt)
	} else {
		c.st, err = safetensors.Parse(f)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return c, nil
}

// tensorNames returns the names of the tensors, sorted.
func (c *container) tensorNames() []string {
	var names []string
	if c.st != nil {
		names = make([]string, 0, c.st.Len())
		for name := range c.st.Names() {
			names = append(names, name)
		}
	} else {
		names = c.npz.Names()
	}
	slices.Sort(names)
	return names
}

func (c *container) close() error {
	if c.st != nil {
		return c.st.Close()
	}
	return c.npz.Close()
}

// notes returns what the reader of the format has to say of the file.
func (c *container) notes() []string {
	if c.st != nil {
		return c.st.Notes
	}
	return nil
}

// metadata reads the metadata in the file or beside it.
func (c *container) metadata(o *opener) (*metadata, error) {
	path := c.path()
	var inside []byte
	var m *metadata
	if c.st != nil {
		if text, ok := c.st.Metadata[metadataKey]; ok {
			inside = []byte(text)
			var err error
			if m, err = readMetadata(path+": metadata", inside); err != nil {
				return nil, err
			}
		}
	}
	l := c.beside()
	outside, err := o.readAll(l)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if m == nil && c.st != nil {
			return nil, format.Malformed(path, "", "no metadata: __metadata__ has no entry %s, and there is no %s", metadataKey, l.path())
		}
		if m == nil {
			return nil, format.Malformed(path, "", "no metadata: there is no %s", l.path())
		}
	case err != nil:
		return nil, err
	default:
		second, err := readMetadata(l.path(), outside)
		if err != nil {
			return nil, err
		}
		if m != nil && !sameMetadata(inside, outside) {
			return nil, format.Malformed(path, "", "the metadata in the file and in %s differ: %s", l.path(), difference(m, second))
		}
		m = cmp.Or(m, second)
	}
	c.bf16 = slices.Sorted(slices.Values(m.bf16))
	names := c.tensorNames()
	has := func(name string) bool { return slices.Contains(names, name) }
	if m.Algorithm == "" && !slices.ContainsFunc(ofPairs.first(), func(name string) bool { return !has(name) }) && !has("logp_new") {
		m.Algorithm, m.pairs = "dpo", true
	}
	return m, nil
}

// readAll reads a small file.
func (o *opener) readAll(l location) ([]byte, error) {
	f, err := o.open(l)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.Size > maxMetadata {
		return nil, format.Malformed(l.path(), "", "metadata of %d bytes, want at most %d", f.Size, maxMetadata)
	}
	text := make([]byte, f.Size)
	if _, err := io.ReadFull(f, text); err != nil {
		return nil, fmt.Errorf("%s: %w", l.path(), err)
	}
	return text, nil
}

// tensor returns the tensor called name, or fs.ErrNotExist. What the metadata calls bf16 is read as that.
func (c *container) tensor(name string) (*format.Array, error) {
	var a *format.Array
	if c.st != nil {
		var ok bool
		if a, ok = c.st.Tensor(name); !ok {
			return nil, fs.ErrNotExist
		}
	} else {
		stored, err := c.npz.Array(name)
		if err != nil {
			return nil, err
		}
		view := *stored
		a = &view
	}
	if _, view := slices.BinarySearch(c.bf16, name); !view {
		if c.npz != nil && a.DType == format.BF16 && !c.opt.AssumeBF16 {
			return nil, format.Malformed(a.Name, "", "%q is 2 bytes without a type, as bfloat16 is saved; \"bf16\": [%q] in the metadata reads it so", a.Type, name)
		}
		return a, nil
	}
	switch a.DType {
	case format.U16:
		a.DType = format.BF16
	case format.BF16:
	default:
		return nil, format.Malformed(a.Name, "", "the metadata call it bf16, but it is stored as %s: want uint16", a.Type)
	}
	return a, nil
}

// exists reports whether there is anything at path, a link that leads nowhere included.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
