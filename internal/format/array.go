package format

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"strings"
	"sync"
)

// MaxRank is the largest number of dimensions a reader accepts.
const MaxRank = 8

// Array is an array stored in a file: where its elements lie and how to decode them. Nothing is read until asked for, so
// an array may be larger than memory. The methods that read are safe for concurrent use.
type Array struct {
	Name        string // path, with ":member" where the file is a container
	DType       DType
	Type        string // the format's own name of the element type, for messages: "<f4", "BF16"
	Shape       []int
	ColumnMajor bool // elements lie in Fortran order, first index fastest
	BigEndian   bool
	Notes       []string // what a reader should know: trailing bytes, a transposition, an assumption

	Data   io.ReaderAt // the file, or the decompressed member
	Offset int64       // of the first element in Data
}

// Len returns the number of elements.
func (a *Array) Len() int { return Elements(a.Shape) }

// Elements returns the number of elements of a tensor of that shape.
func Elements(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// Bytes returns the number of bytes of the elements.
func (a *Array) Bytes() int64 { return int64(a.Len()) * int64(a.DType.Size()) }

// ShapeString formats the shape as Python does: (), (3,), (3, 4).
func (a *Array) ShapeString() string {
	parts := make([]string, len(a.Shape))
	for i, d := range a.Shape {
		parts[i] = fmt.Sprint(d)
	}
	if len(parts) == 1 {
		return "(" + parts[0] + ",)"
	}
	return "(" + strings.Join(parts, ", ") + ")"
}

// CheckedSize returns the number of elements and bytes of an array of the given shape, or false if a dimension is
// negative or a product does not fit an int64. A dimension of 0 does not excuse an overflow of the others.
func CheckedSize(shape []int, itemSize int) (elems, size int64, ok bool) {
	n, zero := uint64(1), false
	for _, d := range shape {
		if d < 0 {
			return 0, 0, false
		}
		if d == 0 {
			zero = true
			continue
		}
		hi, lo := bits.Mul64(n, uint64(d))
		if hi != 0 || lo > 1<<63-1 {
			return 0, 0, false
		}
		n = lo
	}
	hi, b := bits.Mul64(n, uint64(itemSize))
	if hi != 0 || b > 1<<63-1 {
		return 0, 0, false
	}
	if zero {
		return 0, 0, true
	}
	return int64(n), int64(b), true
}

// chunk is the size of the pieces that an array is read in; a multiple of every element size.
const chunk = 256 << 10

var chunks = sync.Pool{New: func() any { b := make([]byte, chunk); return &b }}

// ReadFloat64 decodes len(dst) elements, starting with the element at in storage order (not in index order when the
// array is ColumnMajor). It panics if they are not all inside the array.
func (a *Array) ReadFloat64(dst []float64, at int) error {
	if at < 0 || at+len(dst) > a.Len() {
		panic("format: ReadFloat64: range outside the array")
	}
	if a.DType.Size() == 0 {
		return Malformed(a.Name, "", "unsupported element type %s", a.Type)
	}
	var order binary.ByteOrder = binary.LittleEndian
	if a.BigEndian {
		order = binary.BigEndian
	}
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	size := a.DType.Size()
	for len(dst) > 0 {
		n := min(len(dst), chunk/size)
		b := (*buf)[:n*size]
		if got, err := a.Data.ReadAt(b, a.Offset+int64(at)*int64(size)); got < len(b) {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF // the file was cut after it was opened
			}
			return fmt.Errorf("%s: reading at byte %d: %w", a.Name, a.Offset+int64(at)*int64(size)+int64(got), err)
		}
		Decode(dst[:n], b, a.DType, order)
		dst, at = dst[n:], at+n
	}
	return nil
}

// Float64s returns all elements in index order (row-major), whatever the order in the file.
func (a *Array) Float64s() ([]float64, error) {
	if err := a.ReadFloat64(nil, 0); err != nil { // an unsupported type, seen before memory is taken for it
		return nil, err
	}
	out := make([]float64, a.Len())
	if err := a.ReadFloat64(out, 0); err != nil {
		return nil, err
	}
	if !a.ColumnMajor || len(a.Shape) < 2 {
		return out, nil
	}
	src := out
	out = make([]float64, len(src))
	idx := make([]int, len(a.Shape)) // of the element at hand, in index order
	stride := make([]int, len(a.Shape))
	s := 1
	for i, d := range a.Shape {
		stride[i] = s
		s *= d
	}
	for i := range out {
		at := 0
		for j, k := range idx {
			at += k * stride[j]
		}
		out[i] = src[at]
		for j := len(idx) - 1; j >= 0; j-- {
			if idx[j]++; idx[j] < a.Shape[j] {
				break
			}
			idx[j] = 0
		}
	}
	return out, nil
}

// Place formats the index of element i of an array of the given shape.
func Place(i int, shape []int) string {
	index := make([]string, len(shape))
	for d := len(shape) - 1; d >= 0; d-- {
		index[d] = fmt.Sprint(i % shape[d])
		i /= shape[d]
	}
	return "[" + strings.Join(index, ", ") + "]"
}
