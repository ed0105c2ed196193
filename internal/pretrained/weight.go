package pretrained

import (
	"fmt"
	"math"
	"sync"

	"plumbline/internal/format"
)

// Weight is a stored weight, whose elements are read when they are asked for. Its methods may be called by several goroutines
// at once. Nothing that was read is kept, except the int8 codes of bitsandbytes for as long as the Weight is.
type Weight struct {
	Name  string // that it was asked for by
	Shape []int  // as it is stored
	Type  string // of its elements as the file calls it: "F32", "BF16", "F16", "F64", "I8" of bitsandbytes, "Q8_0", "Q4_0", "Q4_1"

	where string                               // for messages
	path  string                               // of the model, for messages
	rows  func(dst []float64, first int) error // decodes whole rows
}

// Rows returns the number of rows of the weight: its first dimension, 1 for a vector.
func (w *Weight) Rows() int {
	if len(w.Shape) < 2 {
		return 1
	}
	return w.Shape[0]
}

// Width returns the number of elements of a row.
func (w *Weight) Width() int {
	n := 1
	for i, d := range w.Shape {
		if i > 0 || len(w.Shape) == 1 {
			n *= d
		}
	}
	return n
}

// Len returns the number of elements.
func (w *Weight) Len() int { return w.Rows() * w.Width() }

// ReadRows decodes the rows from first on, len(dst)/Width of them. The numbers are those that the file stands for: exact for
// floating-point types, ggml's for GGUF blocks, code·absmax/127 in float64 for int8 of bitsandbytes. It refuses NaN and
// infinities and panics if dst is no number of rows or they are not all inside the weight.
func (w *Weight) ReadRows(dst []float64, first int) error {
	width := w.Width()
	if len(dst) == 0 {
		return nil
	}
	if width == 0 || len(dst)%width != 0 || first < 0 || first*width+len(dst) > w.Len() {
		panic("pretrained: ReadRows: no rows of the weight")
	}
	if err := w.rows(dst, first); err != nil {
		return err
	}
	for i, v := range dst {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return format.Malformed(w.path, fmt.Sprintf("tensor %q", w.Name), "element %d is %v, want finite weights", first*width+i, v)
		}
	}
	return nil
}

// pieces are the buffers of ReadRows32: a model read a few rows at a time would leave garbage three times its size.
var pieces = sync.Pool{New: func() any { return new([]float64) }}

// pieceLen is the number of elements that ReadRows32 decodes at a time, unless a row has more.
const pieceLen = 1 << 15

// ReadRows32 is ReadRows with numbers that are rounded to float32, to the nearest and from ties to even: no rounding for the
// types F32, BF16, F16 and those of GGUF, one for F64 and int8. A number beyond float32 is refused as infinite.
func (w *Weight) ReadRows32(dst []float32, first int) error {
	width := w.Width()
	if len(dst) == 0 {
		return nil
	}
	if width == 0 || len(dst)%width != 0 {
		panic("pretrained: ReadRows32: no rows of the weight")
	}
	kept := pieces.Get().(*[]float64)
	defer pieces.Put(kept)
	n := max(1, pieceLen/width) * width
	if cap(*kept) < n {
		*kept = make([]float64, n)
	}
	piece := (*kept)[:min(n, len(dst))]
	for at := 0; at < len(dst); at += len(piece) {
		piece = piece[:min(len(piece), len(dst)-at)]
		row := first + at/width
		if err := w.ReadRows(piece, row); err != nil {
			return err
		}
		for i, v := range piece {
			x := float32(v)
			if math.IsInf(float64(x), 0) {
				return format.Malformed(w.path, fmt.Sprintf("tensor %q", w.Name), "element %d is %v: beyond float32", row*width+i, v)
			}
			dst[at+i] = x
		}
	}
	return nil
}

// Float64s returns all elements, row-major: see ReadRows.
func (w *Weight) Float64s() ([]float64, error) {
	if err := w.ReadRows(make([]float64, min(w.Len(), w.Width())), 0); err != nil { // before memory is taken for all
		return nil, err
	}
	dst := make([]float64, w.Len())
	return dst, w.ReadRows(dst, 0)
}
