package gguf

import (
	"encoding/binary"
	"fmt"
	"io"

	"plumbline/internal/format"
)

// Type is the element type of a tensor, by its number in the file.
type Type uint8

// The types that are decoded, beside F64.
const (
	F32  Type = 0
	F16  Type = 1
	Q4_0 Type = 2
	Q4_1 Type = 3
	Q8_0 Type = 8
	F64  Type = 28
	BF16 Type = 30
)

// types are the types of ggml (ggml_type and type_traits of ggml.c; gguf-py@0.19.0, GGML_QUANT_SIZES), by number. Those
// without decode are listed, and their place in the file is checked, but they are not read.
var types = [256]struct {
	name         string
	block, bytes int64 // elements of a block, and its bytes
	decode       func(dst []float64, src []byte)
}{
	F32:  {"F32", 1, 4, plain(format.F32)},
	F16:  {"F16", 1, 2, plain(format.F16)},
	Q4_0: {"Q4_0", 32, 18, decodeQ4_0},
	Q4_1: {"Q4_1", 32, 20, decodeQ4_1},
	6:    {"Q5_0", 32, 22, nil},
	7:    {"Q5_1", 32, 24, nil},
	Q8_0: {"Q8_0", 32, 34, decodeQ8_0},
	9:    {"Q8_1", 32, 40, nil},
	10:   {"Q2_K", 256, 84, nil},
	11:   {"Q3_K", 256, 110, nil},
	12:   {"Q4_K", 256, 144, nil},
	13:   {"Q5_K", 256, 176, nil},
	14:   {"Q6_K", 256, 210, nil},
	15:   {"Q8_K", 256, 292, nil},
	16:   {"IQ2_XXS", 256, 66, nil},
	17:   {"IQ2_XS", 256, 74, nil},
	18:   {"IQ3_XXS", 256, 98, nil},
	19:   {"IQ1_S", 256, 50, nil},
	20:   {"IQ4_NL", 32, 18, nil},
	21:   {"IQ3_S", 256, 110, nil},
	22:   {"IQ2_S", 256, 82, nil},
	23:   {"IQ4_XS", 256, 136, nil},
	24:   {"I8", 1, 1, nil},
	25:   {"I16", 1, 2, nil},
	26:   {"I32", 1, 4, nil},
	27:   {"I64", 1, 8, nil},
	F64:  {"F64", 1, 8, plain(format.F64)},
	29:   {"IQ1_M", 256, 56, nil},
	BF16: {"BF16", 1, 2, plain(format.BF16)},
	34:   {"TQ1_0", 256, 54, nil},
	35:   {"TQ2_0", 256, 66, nil},
	39:   {"MXFP4", 32, 17, nil},
	40:   {"NVFP4", 64, 36, nil},
}

// String returns ggml's name of t.
func (t Type) String() string { return types[t].name }

// Tensor is a tensor of a File.
type Tensor struct {
	Name  string
	Type  Type
	Shape []int // outermost first, the reverse of the file's order: a weight is [out, in]

	file *File
	at   int64 // of the first block
}

// Len returns the number of elements.
func (t *Tensor) Len() int { return format.Elements(t.Shape) }

// row returns the elements of the last dimension, which begin and end with blocks.
func (t *Tensor) row() int {
	if len(t.Shape) == 0 {
		return 1
	}
	return t.Shape[len(t.Shape)-1]
}

// chunkBytes is about the size of the pieces that a tensor is read in.
const chunkBytes = 64 << 10

// ReadRows decodes len(dst)/n rows of the last dimension, which has n elements, starting with row first. The values are
// float32 numbers, those of ggml's dequantize_row_*, except for F64. It panics if dst is no number of rows or they are not
// all inside the tensor.
func (t *Tensor) ReadRows(dst []float64, first int) error {
	n := t.row()
	if n == 0 || len(dst) == 0 {
		return nil
	}
	if len(dst)%n != 0 || first < 0 || first*n+len(dst) > t.Len() {
		panic("gguf: ReadRows: no rows of the tensor")
	}
	if err := t.readable(); err != nil {
		return err
	}
	k := &types[t.Type]
	at := t.at + int64(first)*int64(n)/k.block*k.bytes
	blocks := max(1, chunkBytes/k.bytes)
	buf := make([]byte, min(blocks, int64(len(dst))/k.block)*k.bytes)
	for len(dst) > 0 {
		m := min(blocks, int64(len(dst))/k.block)
		b := buf[:m*k.bytes]
		if got, err := t.file.r.ReadAt(b, at); got < len(b) {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF // the file was cut after it was opened
			}
			return fmt.Errorf("%s: %s: reading at byte %d: %w", t.file.Path, t.where(), at+int64(got), err)
		}
		k.decode(dst[:m*k.block], b)
		dst, at = dst[m*k.block:], at+int64(len(b))
	}
	return nil
}

// Float64s returns all elements, row-major.
func (t *Tensor) Float64s() ([]float64, error) {
	if err := t.readable(); err != nil { // before memory is taken for it
		return nil, err
	}
	dst := make([]float64, t.Len())
	if err := t.ReadRows(dst, 0); err != nil {
		return nil, err
	}
	return dst, nil
}

func (t *Tensor) readable() error {
	if types[t.Type].decode != nil {
		return nil
	}
	return format.Malformed(t.file.Path, t.where(), "unsupported GGUF type %s (%d), want one of F32, F16, BF16, F64, Q8_0, Q4_0, Q4_1", t.Type, t.Type)
}

func (t *Tensor) where() string { return place(t.Name) }

func plain(d format.DType) func([]float64, []byte) {
	return func(dst []float64, src []byte) { format.Decode(dst, src, d, binary.LittleEndian) }
}

// f16 returns the value of the two bytes of a scale.
func f16(b []byte) float64 { return format.FromF16(binary.LittleEndian.Uint16(b)) }

// decodeQ4_0 decodes blocks of an F16 d and 16 bytes q: x_j = d·((q_j & 15) − 8), x_{j+16} = d·((q_j >> 4) − 8). The products
// have 15 bits, so they are float32 numbers.
func decodeQ4_0(dst []float64, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[18:] {
		d := f16(src)
		for j, q := range src[2:18] {
			dst[j] = d * (float64(q&15) - 8)
			dst[j+16] = d * (float64(q>>4) - 8)
		}
	}
}

// decodeQ4_1 decodes blocks of F16 d and m and 16 bytes q: x_j = d·(q_j & 15) + m, x_{j+16} = d·(q_j >> 4) + m. Product and
// sum are exact in float64 (at most 45 bits from 2⁻²⁴ up), and the sum is rounded to float32 once, as ggml rounds it, whether
// or not a compiler fused its product and sum.
func decodeQ4_1(dst []float64, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[20:] {
		d, m := f16(src), f16(src[2:])
		for j, q := range src[4:20] {
			dst[j] = float64(float32(float64(d*float64(q&15)) + m))
			dst[j+16] = float64(float32(float64(d*float64(q>>4)) + m))
		}
	}
}

// decodeQ8_0 decodes blocks of an F16 d and 32 int8 q: x_j = d·q_j, which has 19 bits.
func decodeQ8_0(dst []float64, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[34:] {
		d := f16(src)
		for j, q := range src[2:34] {
			dst[j] = d * float64(int8(q))
		}
	}
}
