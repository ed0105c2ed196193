package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"plumbline/internal/format"
)

// Tensor is a tensor to write. Its elements come from one of Data, Raw and Array; a tensor without elements needs none.
type Tensor struct {
	Name  string
	DType format.DType
	Shape []int
	// Data holds the elements in row-major order. They are rounded as format.Encode does; DType is a floating-point type,
	// I64 or Bool, and the elements are integers or 0 and 1 for the last two.
	Data []float64
	// Raw holds the bytes of the elements, little-endian.
	Raw []byte
	// Array is copied byte by byte while the file is written; DType and Shape are not used. It must be row-major and
	// little-endian.
	Array *format.Array
}

// planned is a tensor that has been checked.
type planned struct {
	*Tensor
	dtype int // index in dtypes
	shape []int
	size  int64
}

// Write writes a safetensors file with the given metadata and tensors, in the order of the reference implementation:
// descending element type (dtypes), then name. Everything is checked before the first byte is written; only reading an
// Array can fail later. Metadata that is nil is left out. The keys are written in increasing order, so equal input gives
// equal bytes: those of the reference implementation, except that it writes two or more metadata keys in no fixed order
// and an invalid header for no tensors with metadata that is empty but not nil.
func Write(w io.Writer, metadata map[string]string, tensors []Tensor) error {
	plan, header, err := prepare(metadata, tensors)
	if err != nil {
		return err
	}
	return write(w, plan, header)
}

// WriteFile writes the file with format.WriteFile: whole or not at all. What is checked before writing leaves the
// directory untouched.
func WriteFile(path string, metadata map[string]string, tensors []Tensor) error {
	plan, header, err := prepare(metadata, tensors)
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return format.WriteFile(path, func(w io.Writer) error { return write(w, plan, header) })
}

func write(w io.Writer, plan []planned, header []byte) error {
	if _, err := w.Write(header); err != nil {
		return err
	}
	for i := range plan {
		if err := plan[i].write(w); err != nil {
			return fmt.Errorf("safetensors: tensor %.64q: %w", plan[i].Name, err)
		}
	}
	return nil
}

// prepare checks and orders the tensors and returns the bytes in front of their elements.
func prepare(metadata map[string]string, tensors []Tensor) ([]planned, []byte, error) {
	if len(tensors) > MaxTensors {
		return nil, nil, fmt.Errorf("safetensors: %d tensors, want at most %d", len(tensors), MaxTensors)
	}
	if len(metadata) > MaxMetadata {
		return nil, nil, fmt.Errorf("safetensors: %d metadata keys, want at most %d", len(metadata), MaxMetadata)
	}
	for k, v := range metadata {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return nil, nil, fmt.Errorf("safetensors: metadata key %.64q: key or value is not UTF-8", k)
		}
	}
	plan := make([]planned, len(tensors))
	for i := range tensors {
		var err error
		if plan[i], err = check(&tensors[i]); err != nil {
			return nil, nil, fmt.Errorf("safetensors: tensor %.64q: %w", tensors[i].Name, err)
		}
	}
	slices.SortFunc(plan, func(a, b planned) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(plan); i++ {
		if plan[i].Name == plan[i-1].Name {
			return nil, nil, fmt.Errorf("safetensors: two tensors are called %.64q", plan[i].Name)
		}
	}
	slices.SortStableFunc(plan, func(a, b planned) int { return cmp.Compare(b.dtype, a.dtype) })
	header, err := appendHeader(make([]byte, 8), metadata, plan)
	if err != nil {
		return nil, nil, err
	}
	return plan, header, nil
}

// check returns how t will be written.
func check(t *Tensor) (planned, error) {
	p := planned{t, byDType(t.DType), t.Shape, 0}
	if a := t.Array; a != nil {
		p.shape = a.Shape
		if p.dtype = byDType(a.DType); a.DType == format.Unknown {
			p.dtype = byName(a.Type)
		}
		if a.ColumnMajor && len(a.Shape) > 1 || a.BigEndian && a.DType.Size() > 1 {
			return p, errors.New("the array to copy is column-major or big-endian")
		}
	}
	switch bad := badName(t.Name); {
	case bad != "":
		return p, errors.New("the name " + bad)
	case t.Name == metadataKey:
		return p, errors.New("the name is reserved")
	case p.dtype < 0:
		return p, errors.New("element type without a safetensors name")
	case len(p.shape) > format.MaxRank:
		return p, fmt.Errorf("%d dimensions, want at most %d", len(p.shape), format.MaxRank)
	}
	var bad string
	if p.size, bad = byteSize(p.dtype, p.shape); bad != "" {
		return p, errors.New(bad)
	}
	switch {
	case t.Data != nil && t.Raw != nil || t.Data != nil && t.Array != nil || t.Raw != nil && t.Array != nil:
		return p, errors.New("more than one of Data, Raw and Array")
	case t.Array != nil:
		return p, nil
	case t.Raw != nil:
		if int64(len(t.Raw)) != p.size {
			return p, fmt.Errorf("%d bytes in Raw, shape %v of %s needs %d", len(t.Raw), p.shape, dtypes[p.dtype].name, p.size)
		}
		return p, nil
	}
	if n, _, _ := format.CheckedSize(p.shape, 1); int64(len(t.Data)) != n {
		return p, fmt.Errorf("%d elements in Data, shape %v needs %d", len(t.Data), p.shape, n)
	}
	return p, encodable(t.DType, t.Data)
}

// encodable reports whether data can be stored as d without becoming something else than a rounded value.
func encodable(d format.DType, data []float64) error {
	switch {
	case d.Float() || len(data) == 0:
		return nil
	case d != format.I64 && d != format.Bool:
		return fmt.Errorf("field Data cannot be stored as %s, use Raw", d)
	}
	for i, v := range data {
		if d == format.Bool && v != 0 && v != 1 || v != math.Trunc(v) || !(-0x1p63 <= v && v < 0x1p63) {
			return fmt.Errorf("element %d is %v, which %s cannot hold", i, v, d)
		}
	}
	return nil
}

// appendHeader appends the header to b, whose first eight bytes receive its length.
func appendHeader(b []byte, metadata map[string]string, plan []planned) ([]byte, error) {
	b = append(b, '{')
	if metadata != nil {
		b = append(appendString(b, metadataKey), ":{"...)
		for i, k := range slices.Sorted(maps.Keys(metadata)) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, k), ':')
			b = appendString(b, metadata[k])
		}
		b = append(b, '}')
	}
	var end int64
	for i := range plan {
		p := &plan[i]
		if i > 0 || metadata != nil {
			b = append(b, ',')
		}
		b = append(appendString(b, p.Name), `:{"dtype":"`...)
		b = append(append(b, dtypes[p.dtype].name...), `","shape":[`...)
		for j, d := range p.shape {
			if j > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(d), 10)
		}
		b = append(b, `],"data_offsets":[`...)
		b = append(strconv.AppendInt(b, end, 10), ',')
		if end > math.MaxInt64-p.size {
			return nil, errors.New("safetensors: the sizes of the tensors overflow")
		}
		end += p.size
		b = append(strconv.AppendInt(b, end, 10), "]}"...)
	}
	b = append(b, '}')
	for len(b)%8 != 0 {
		b = append(b, ' ')
	}
	if n := len(b) - 8; n > MaxHeader {
		return nil, fmt.Errorf("safetensors: header of %d bytes, want at most %d", n, MaxHeader)
	}
	binary.LittleEndian.PutUint64(b, uint64(len(b)-8))
	return b, nil
}

// appendString appends s as a JSON string, escaping no more than JSON demands.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	plain := 0 // start of what has not been appended
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[plain:i]...)
		plain = i + 1
		if j := strings.IndexByte("\"\\\b\f\n\r\t", c); j >= 0 {
			b = append(b, '\\', `"\bfnrt`[j])
		} else {
			b = append(b, `\u00`...)
			b = append(b, "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		}
	}
	return append(append(b, s[plain:]...), '"')
}

// write writes the elements.
func (p *planned) write(w io.Writer) error {
	switch {
	case p.Array != nil:
		n, err := io.Copy(w, io.NewSectionReader(p.Array.Data, p.Array.Offset, p.size))
		if err == nil && n < p.size {
			err = io.ErrUnexpectedEOF // the file was cut after it was opened
		}
		return err
	case p.Raw != nil:
		_, err := w.Write(p.Raw)
		return err
	}
	const step = 4096 // elements
	var b []byte
	for data := range slices.Chunk(p.Data, step) {
		b = format.Encode(b[:0], data, p.DType)
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}
