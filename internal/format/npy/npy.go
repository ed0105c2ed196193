// Package npy reads and writes the array files of NumPy: .npy, one array, and .npz, a zip archive of such files.
//
// It implements versions 1.0, 2.0 and 3.0 of the format of NEP 1
// (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html), restricted to boolean, integer and
// floating-point elements. Pickled, structured and textual arrays are refused by name. Nothing is mapped into memory:
// an array is read by ReadAt from the open file, so a file that is cut while it is read gives an error and no fault of
// the process.
package npy

import (
	"fmt"
	"io"

	"plumbline/internal/format"
)

// DefaultMaxUncompressed is the budget for the decompressed members of one archive.
const DefaultMaxUncompressed = 1 << 30

// Options says how much is believed of a file. The zero value is the default.
type Options struct {
	// AssumeBF16 reads elements of two bytes without a type ("|V2", "<V2") as bfloat16. NumPy has no bfloat16; arrays of
	// ml_dtypes lose their type when they are saved, so that only who made the file can know.
	AssumeBF16 bool

	// MaxUncompressed bounds the bytes that the compressed members of one archive may take together once they are
	// inflated into memory. 0 means DefaultMaxUncompressed.
	MaxUncompressed int64
}

// File is an array together with the open .npy file it is read from.
type File struct {
	*format.Array
	file *format.File
}

// Open opens the .npy file at path. The array is read from the file when it is asked for, until Close.
//
// A file that cannot be opened gives the error of package os, content that is refused a *format.Error.
func Open(path string, opt Options) (*File, error) {
	return format.OpenAs(path, func(f *format.File) (*File, error) {
		a, err := Parse(f, opt)
		return &File{a, f}, err
	})
}

// Close closes the file. The array cannot be read afterwards.
func (f *File) Close() error { return f.file.Close() }

// Parse reads the header of the .npy file f, which stays open and is what the returned array is read from. Bytes behind
// the data are ignored, as NumPy does, and noted.
func Parse(f *format.File, opt Options) (*format.Array, error) {
	return parse(f, f.Size, f.Path, opt)
}

func parse(r io.ReaderAt, size int64, name string, opt Options) (*format.Array, error) {
	h, err := readHeader(&format.Section{R: r, End: size}, size, name)
	if err != nil {
		return nil, format.Unread(name, err)
	}
	a, err := h.array(name, opt)
	if err != nil {
		return nil, err
	}
	switch have, want := size-h.size, a.Bytes(); {
	case have < want:
		return nil, format.Malformed(name, format.Offset(h.size), "%d bytes of data, want %d for %s of shape %s",
			have, want, a.DType, a.ShapeString())
	case have > want:
		a.Notes = append(a.Notes, fmt.Sprintf("%d bytes behind the data are ignored", have-want))
	}
	a.Data = r
	return a, nil
}
