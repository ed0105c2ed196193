// Package gguf reads GGUF, the model files of llama.cpp: metadata, a table of tensors, and their elements, most of them in
// blocks of small integers with a scale (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3,
// little-endian).
//
// A File holds the metadata and the table; elements are read when they are asked for and come out as ggml dequantises them,
// to the bit. A Model is the same file with the names, shapes and row orders of transformers.
package gguf

import (
	"io"
	"iter"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format"
)

// Limits of a file.
const (
	MaxCount     = 1_000_000 // tensors
	MaxKeys      = 65_536    // of the metadata
	MaxName      = 64        // bytes of a tensor's name, GGML_MAX_NAME
	MaxKey       = 1 << 16   // bytes of a metadata key
	MaxString    = 1 << 20   // bytes of a string
	MaxAlignment = 1 << 20
	maxDims      = 4 // GGML_MAX_DIMS
)

// File is a GGUF file whose metadata and table of tensors have been read and checked: every tensor lies inside the file and
// none on another. Its methods and those of its tensors are safe for concurrent use.
type File struct {
	Path      string
	Size      int64 // bytes
	Version   int   // 2 or 3
	Alignment int64 // of the elements of every tensor, bytes
	Notes     []string

	r      io.ReaderAt
	close  func() error
	keys   []string // in the order of the file
	values map[string]any
	infos  []info  // in the order of their elements
	names  []int32 // indices of infos in the order of their names
	data   int64   // where the elements start
}

// info is a tensor of the table.
type info struct {
	name   string
	dims   [maxDims]int64 // as in the file: the innermost first
	n      uint8          // dimensions
	kind   Type
	offset int64 // from data
}

// Open opens the GGUF file at path. What is wrong with the content is a *format.Error.
func Open(path string) (*File, error) { return format.OpenAs(path, Parse) }

// Parse reads the metadata and the table of f. The File that it returns closes f; if there is an error, f stays open.
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
	f := &File{Path: path, Size: size, r: r, values: map[string]any{}}
	if err := f.parse(); err != nil {
		return nil, err
	}
	return f, nil
}

// Close closes the file. The tensors can no longer be read.
func (f *File) Close() error {
	if f.close == nil {
		return nil
	}
	return f.close()
}

// Int returns the integer called key, of any of the integer types, or absent if there is none. Another type, or a value
// outside [least, most], is refused.
func (f *File) Int(key string, absent, least, most int64) (int64, error) {
	v, ok := f.values[key]
	if !ok {
		return absent, nil
	}
	var n int64
	switch v := v.(type) {
	case uint8:
		n = int64(v)
	case int8:
		n = int64(v)
	case uint16:
		n = int64(v)
	case int16:
		n = int64(v)
	case uint32:
		n = int64(v)
	case int32:
		n = int64(v)
	case int64:
		n = v
	case uint64:
		if v > math.MaxInt64 {
			return 0, format.Malformed(f.Path, key, "is %d, want an integer in [%d, %d]", v, least, most)
		}
		n = int64(v)
	default:
		return 0, format.Malformed(f.Path, key, "is %s, want an integer", kindOf(v))
	}
	if n < least || n > most {
		return 0, format.Malformed(f.Path, key, "is %d, want an integer in [%d, %d]", n, least, most)
	}
	return n, nil
}

// Float returns the number called key, float32 or float64, or absent if there is none. What is not finite is refused.
func (f *File) Float(key string, absent float64) (float64, error) {
	n := absent
	switch v := f.values[key].(type) {
	case nil:
	case float32:
		n = float64(v)
	case float64:
		n = v
	default:
		return 0, format.Malformed(f.Path, key, "is %s, want a float", kindOf(v))
	}
	if n-n != 0 {
		return 0, format.Malformed(f.Path, key, "is %v, want a finite number", n)
	}
	return n, nil
}

// Metadata returns the value called key as a T, or T's zero value if there is none. Another type is refused.
func Metadata[T bool | string | []string | []int32 | []float32](f *File, key string) (v T, err error) {
	any, ok := f.values[key]
	if !ok {
		return v, nil
	}
	v, ok = any.(T)
	if !ok {
		return v, format.Malformed(f.Path, key, "is %s, want %s", kindOf(any), kindOf(v))
	}
	return v, nil
}

// Len returns the number of tensors.
func (f *File) Len() int { return len(f.infos) }

// Tensors returns the tensors in the order of their elements in the file.
func (f *File) Tensors() iter.Seq[*Tensor] {
	return func(yield func(*Tensor) bool) {
		for i := range f.infos {
			if !yield(f.tensor(&f.infos[i])) {
				return
			}
		}
	}
}

// Tensor returns the tensor called name, or false.
func (f *File) Tensor(name string) (*Tensor, bool) {
	i, ok := slices.BinarySearchFunc(f.names, name, func(i int32, name string) int { return strings.Compare(f.infos[i].name, name) })
	if !ok {
		return nil, false
	}
	return f.tensor(&f.infos[f.names[i]]), true
}

func (f *File) tensor(e *info) *Tensor {
	t := &Tensor{Name: e.name, Type: e.kind, Shape: make([]int, e.n), file: f, at: f.data + e.offset}
	for i := range t.Shape {
		t.Shape[i] = int(e.dims[int(e.n)-1-i])
	}
	return t
}
