package npy

import (
	"fmt"
	"io"
	"slices"

	"plumbline/internal/format"
)

// descrs has the descr that is written for each element type. NumPy saves the bfloat16 of ml_dtypes as "<V2" and the
// array that it loads from that, which has no type any more, as "|V2".
var descrs = map[format.DType]string{
	format.Bool: "|b1",
	format.I8:   "|i1", format.I16: "<i2", format.I32: "<i4", format.I64: "<i8",
	format.U8: "|u1", format.U16: "<u2", format.U32: "<u4", format.U64: "<u8",
	format.F16: "<f2", format.BF16: "|V2", format.F32: "<f4", format.F64: "<f8",
}

// headerSize is the size of every header that is written. NumPy pads the preamble to a multiple of 64 after leaving room
// for 21 digits of the first dimension. The other dimensions of the longest shape that is accepted, rank 8 and a product
// below 2⁶³, have at most 25 digits; 14 bytes of separators, 2 of brackets and the 64 around the shape make 126. The
// shortest, (), makes 66.
const headerSize = 128

// block is how many bytes are encoded or copied at a time.
const block = 64 << 10

// Header returns the bytes of a .npy file before its data, for an array in C order of little-endian elements: version
// 1.0, byte for byte what NumPy 2 writes. It is followed by the product of shape elements of type d.
//
// It panics if d has no place in a .npy file, if a dimension is negative, or if a reader would refuse the shape.
func Header(d format.DType, shape []int) []byte {
	descr := descrs[d]
	_, _, ok := format.CheckedSize(shape, d.Size())
	if descr == "" || !ok || len(shape) > format.MaxRank {
		panic(fmt.Sprintf("npy: Header: type %s, shape %v", d, shape))
	}
	dict := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, (&format.Array{Shape: shape}).ShapeString())
	const pre = uint8(len(magic) + 4)
	h := append([]byte(magic), 1, 0, headerSize-pre, 0)
	return fmt.Appendf(h, "%-*s\n", int(headerSize-pre-1), dict)
}

// Write writes data, in C order, as a .npy file of elements of the given type, rounded to nearest even. It serves the
// floating-point types, I64 and Bool, as format.Encode does.
//
// It panics if the shape does not have len(data) elements, and where Header does.
func Write(w io.Writer, d format.DType, shape []int, data []float64) error {
	if n, _, _ := format.CheckedSize(shape, d.Size()); n != int64(len(data)) {
		panic(fmt.Sprintf("npy: Write: %d elements for shape %v", len(data), shape))
	}
	if _, err := w.Write(Header(d, shape)); err != nil {
		return err
	}
	var buf []byte
	for part := range slices.Chunk(data, block/8) {
		buf = format.Encode(buf[:0], part, d)
		if _, err := w.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

// WriteFile is Write into the file at path, which is published whole or not at all (format.WriteFile).
func WriteFile(path string, d format.DType, shape []int, data []float64) error {
	return format.WriteFile(path, func(w io.Writer) error { return Write(w, d, shape, data) })
}
