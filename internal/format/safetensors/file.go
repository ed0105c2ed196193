// Package safetensors reads and writes the safetensors format: eight bytes with the little-endian length N of a JSON
// header, the header, and the elements of all tensors, little-endian and row-major, without gaps.
//
// The reader makes the checks of the reference implementation (https://github.com/huggingface/safetensors,
// safetensors/src/tensor.rs) and refuses more: duplicate and unknown keys, names that are empty, longer than 1024 bytes
// or hold control characters, and more than format.MaxRank dimensions. It reads the header, never maps the file, and
// reads elements when they are asked for.
package safetensors

import (
	"io"
	"iter"
	"slices"
	"strings"

	"plumbline/internal/format"
)

// Limits of a file. The first is the reference implementation's.
const (
	MaxHeader   = 100_000_000
	MaxTensors  = 1_000_000
	MaxName     = 1024   // bytes
	MaxMetadata = 65_536 // keys
)

// metadataKey is the key of the header that is no tensor.
const metadataKey = "__metadata__"

// File is a safetensors file whose header has been read and checked. Its methods and those of its arrays are safe for
// concurrent use.
type File struct {
	Path     string
	Size     int64             // of the whole file, bytes
	Header   int64             // N, the length of the header in bytes; the elements start at 8 + N
	Metadata map[string]string // nil if the file has none
	Notes    []string          // what a reader should know of the file

	r       io.ReaderAt
	close   func() error
	entries []entry // in the order of their elements
	names   []int32 // indices of entries in the order of their names
}

// entry is a tensor of the header. A million of them must fit beside the header, hence no format.Array.
type entry struct {
	name       string
	shape      []int
	begin, end int64 // of the elements, from the end of the header
	dtype      uint8 // index in dtypes
}

// Open opens the safetensors file at path and checks its header. What is wrong with the content is a *format.Error.
func Open(path string) (*File, error) { return format.OpenAs(path, Parse) }

// Parse checks the header of f. The File that it returns closes f; if there is an error, f stays open.
func Parse(f *format.File) (*File, error) {
	file, err := ParseAt(f, f.Size, f.Path)
	if err != nil {
		return nil, err
	}
	file.close = f.Close
	return file, nil
}

// ParseAt is Parse for the first size bytes of r; path is for messages.
func ParseAt(r io.ReaderAt, size int64, path string) (*File, error) {
	f := &File{Path: path, Size: size, r: r}
	if err := f.parse(); err != nil {
		return nil, err
	}
	return f, nil
}

// Close closes the file. The arrays can no longer be read.
func (f *File) Close() error {
	if f.close == nil {
		return nil
	}
	return f.close()
}

// Len returns the number of tensors.
func (f *File) Len() int { return len(f.entries) }

// Tensors returns the tensors with their names, in the order of their elements in the file; tensors without elements
// that lie at one place are ordered by name.
func (f *File) Tensors() iter.Seq2[string, *format.Array] {
	return func(yield func(string, *format.Array) bool) {
		for i := range f.entries {
			if !yield(f.entries[i].name, f.array(&f.entries[i])) {
				return
			}
		}
	}
}

// Names returns the names of the tensors, in the order of Tensors.
func (f *File) Names() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range f.entries {
			if !yield(f.entries[i].name) {
				return
			}
		}
	}
}

// Has reports whether there is a tensor called name.
func (f *File) Has(name string) bool {
	_, ok := f.find(name)
	return ok
}

// Tensor returns the tensor called name, or false.
func (f *File) Tensor(name string) (*format.Array, bool) {
	e, ok := f.find(name)
	if !ok {
		return nil, false
	}
	return f.array(e), true
}

func (f *File) find(name string) (*entry, bool) {
	i, ok := slices.BinarySearchFunc(f.names, name, func(i int32, name string) int {
		return strings.Compare(f.entries[i].name, name)
	})
	if !ok {
		return nil, false
	}
	return &f.entries[f.names[i]], true
}

func (f *File) array(e *entry) *format.Array {
	d := &dtypes[e.dtype]
	return &format.Array{
		Name:   f.Path + ":" + e.name,
		DType:  d.dtype,
		Type:   d.name,
		Shape:  slices.Clone(e.shape),
		Data:   f.r,
		Offset: 8 + f.Header + e.begin,
	}
}
