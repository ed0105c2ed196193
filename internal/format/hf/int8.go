package hf

import (
	"fmt"
	"strings"

	"plumbline/internal/format"
)

// Int8 is a weight [out, in] of Linear8bitLt of bitsandbytes: the tensors weight, SCB and weight_format. An element is
// Codes[o·in+i]·AbsMax[o]/127.
type Int8 struct {
	Out, In int
	Codes   []int8    // weight
	AbsMax  []float64 // SCB, float32 numbers
}

// IsInt8 reports whether the weight called name is stored as int8 with an SCB beside it.
func (f *Folder) IsInt8(name string) bool {
	a, ok := f.Tensor(name)
	_, scb := f.Tensor(scb(name))
	return ok && scb && a.DType == format.I8
}

// scb returns the name of the scales of a weight: bitsandbytes saves X.SCB beside X.weight.
func scb(name string) string { return strings.TrimSuffix(name, ".weight") + ".SCB" }

// quantized ends the message about a weight that is stored as integers.
func (f *Folder) quantized(name string) string {
	if f.IsInt8(name) {
		return ": it is int8 of bitsandbytes"
	}
	return ""
}

// Int8 reads the weight called name, which must have the shape [out, in] and be stored as bitsandbytes@0.50.2 saves int8:
// weight I8 [out, in], SCB F32 [out], and weight_format U8, absent or 0 for rows. A scale that is negative or no finite
// number, or 0 with a code that is not, is refused.
func (f *Folder) Int8(name string, out, in int) (*Int8, error) {
	a, err := f.weight(name)
	if err != nil {
		return nil, err
	}
	want := format.Array{Shape: []int{out, in}}
	if a.DType != format.I8 || len(a.Shape) != 2 || a.Shape[0] != out || a.Shape[1] != in {
		return nil, format.Malformed(a.Name, "", "%s %s, want I8 %s", a.Type, a.ShapeString(), want.ShapeString())
	}
	scales, err := f.weight(scb(name))
	if err != nil {
		return nil, err
	}
	if scales.DType != format.F32 || scales.Len() != out {
		return nil, format.Malformed(scales.Name, "", "%s %s, want F32 (%d,), a scale for each row of the weight", scales.Type, scales.ShapeString(), out)
	}
	if layout, ok := f.Tensor(strings.TrimSuffix(name, ".weight") + ".weight_format"); ok {
		if layout.Len() != 1 {
			return nil, format.Malformed(layout.Name, "", "has shape %s, want one number", layout.ShapeString())
		}
		v, err := layout.Float64s()
		if err != nil {
			return nil, err
		}
		if v[0] != 0 {
			return nil, format.Malformed(layout.Name, "", "is %v, want 0: rows. The tiled layouts of old versions of bitsandbytes (1 col32, 2 col_turing, 3 col_ampere) are not read", v)
		}
	}
	q := &Int8{Out: out, In: in, Codes: make([]int8, out*in)}
	if q.AbsMax, err = scales.Float64s(); err != nil {
		return nil, err
	}
	row := make([]float64, in)
	for i := range out {
		if err := a.ReadFloat64(row, i*in); err != nil {
			return nil, err
		}
		zero := true
		for j, v := range row {
			q.Codes[i*in+j] = int8(v)
			zero = zero && v == 0
		}
		if s := q.AbsMax[i]; !(s >= 0 && s-s == 0) || s == 0 && !zero {
			return nil, format.Malformed(scales.Name, fmt.Sprintf("element %d", i), "is %v, want a positive number", s)
		}
	}
	return q, nil
}
