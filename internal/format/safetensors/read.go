package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"plumbline/internal/format"
)

// shortest is the length of the shortest entry that a header can hold.
const shortest = len(`"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}`)

// room is the number of dimensions for which memory is taken at once.
const room = 512

// parser reads the entries of a header.
type parser struct {
	f    *File
	s    *format.Scanner
	data int64 // bytes after the header
	dims []int // memory for the next shapes
}

// parse reads and checks the header.
func (f *File) parse() error {
	if f.Size < 8 {
		return format.Malformed(f.Path, "", "has %d bytes, want at least the 8 of the header length", f.Size)
	}
	var length [8]byte
	if err := f.readAt(length[:], 0); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > MaxHeader {
		return format.Malformed(f.Path, format.Offset(0), "header length %d, want at most %d", n, MaxHeader)
	}
	if int64(n) > f.Size-8 {
		return format.Malformed(f.Path, format.Offset(0), "header length %d, but only %d bytes follow", n, f.Size-8)
	}
	f.Header = int64(n)
	header := make([]byte, n)
	if err := f.readAt(header, 8); err != nil {
		return err
	}
	if n > 0 && header[0] != '{' {
		f.Notes = append(f.Notes, "white space before the { of the header: the format forbids it, the reference implementation accepts it")
	}
	// An entry has a brace and a least length: this is enough, and hardly more than the header however that is made.
	f.entries = make([]entry, 0, min(bytes.Count(header, []byte("{")), len(header)/shortest+1, MaxTensors))
	p := parser{f: f, s: format.NewScanner(f.Path, header, 8), data: f.Size - 8 - f.Header}
	if err := p.s.Object(p.member); err != nil {
		return err
	}
	if err := p.s.End(); err != nil {
		return err
	}
	return f.layout(p.data)
}

// readAt fills b from bytes inside the size that the file had when it was opened.
func (f *File) readAt(b []byte, at int64) error {
	n, err := f.r.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%s: reading at byte %d: %w", f.Path, at+int64(n), err)
}

// member reads a member of the header.
func (p *parser) member(key string) error {
	if key == metadataKey {
		return within(p.metadata(), metadataKey)
	}
	if len(p.f.entries) == MaxTensors {
		return format.Malformed(p.f.Path, "", "more than %d tensors", MaxTensors)
	}
	e := entry{name: key}
	if err := p.tensor(&e); err != nil {
		return within(err, place(key))
	}
	p.f.entries = append(p.f.entries, e)
	return nil
}

func (p *parser) metadata() error {
	p.f.Metadata = map[string]string{}
	return p.s.Object(func(key string) error {
		if len(p.f.Metadata) == MaxMetadata {
			return format.Malformed(p.f.Path, "", "more than %d keys", MaxMetadata)
		}
		v, err := p.s.String()
		if err != nil {
			return within(err, fmt.Sprintf("key %.64q", key))
		}
		p.f.Metadata[key] = v
		return nil
	})
}

// tensor reads the entry of the tensor e.name and checks all of it that can be checked without the other tensors.
func (p *parser) tensor(e *entry) error {
	if bad := badName(e.name); bad != "" {
		return format.Malformed(p.f.Path, "", "the name %s", bad)
	}
	var hasType, hasShape, hasOffsets bool
	err := p.s.Object(func(key string) (err error) {
		switch key {
		case "dtype":
			hasType = true
			e.dtype, err = p.dtype()
		case "shape":
			hasShape = true
			e.shape, err = p.shape()
		case "data_offsets":
			hasOffsets = true
			e.begin, e.end, err = p.offsets()
		default:
			return format.Malformed(p.f.Path, "", "unknown key %.64q, want dtype, shape and data_offsets", key)
		}
		return within(err, key)
	})
	switch {
	case err != nil:
		return err
	case !hasType:
		return format.Malformed(p.f.Path, "", "key dtype is missing")
	case !hasShape:
		return format.Malformed(p.f.Path, "", "key shape is missing")
	case !hasOffsets:
		return format.Malformed(p.f.Path, "", "key data_offsets is missing")
	case e.end < e.begin:
		return format.Malformed(p.f.Path, "", "data_offsets [%d, %d]: the end lies before the begin", e.begin, e.end)
	case e.end > p.data:
		return format.Malformed(p.f.Path, "", "data_offsets [%d, %d]: the end lies beyond the %d bytes of data", e.begin, e.end, p.data)
	}
	want, bad := byteSize(int(e.dtype), e.shape)
	if bad != "" {
		return format.Malformed(p.f.Path, "", "%s", bad)
	}
	if e.end-e.begin != want {
		return format.Malformed(p.f.Path, "", "data_offsets [%d, %d] hold %d bytes, shape %v of %s needs %d", e.begin, e.end, e.end-e.begin, e.shape, dtypes[e.dtype].name, want)
	}
	return nil
}

func (p *parser) dtype() (uint8, error) {
	name, err := p.s.String()
	if err != nil {
		return 0, err
	}
	i := byName(name)
	if i < 0 {
		return 0, p.s.Malformed("unknown dtype %.64q", name)
	}
	return uint8(i), nil
}

func (p *parser) shape() ([]int, error) {
	if cap(p.dims)-len(p.dims) < format.MaxRank {
		p.dims = make([]int, 0, room)
	}
	start := len(p.dims)
	err := p.s.Array(func(i int) error {
		d, err := p.s.Int()
		switch {
		case err != nil:
			return err
		case d < 0 || int64(int(d)) != d:
			return p.s.Malformed("dimension %d is out of range", d)
		case i == format.MaxRank:
			return p.s.Malformed("more than %d dimensions", format.MaxRank)
		}
		p.dims = append(p.dims, int(d))
		return nil
	})
	return p.dims[start:len(p.dims):len(p.dims)], err
}

func (p *parser) offsets() (begin, end int64, err error) {
	var o [2]int64
	n := 0
	err = p.s.Array(func(i int) error {
		v, err := p.s.Int()
		switch {
		case err != nil:
			return err
		case v < 0:
			return p.s.Malformed("offset %d is negative", v)
		case i == len(o):
			return p.s.Malformed("more than two offsets, want begin and end")
		}
		o[i] = v
		n++
		return nil
	})
	if err == nil && n < len(o) {
		err = format.Malformed(p.f.Path, "", "%d offsets, want begin and end", n)
	}
	return o[0], o[1], err
}

// layout sorts the tensors and demands that they cover the data bytes after the header without gap or overlap.
func (f *File) layout(data int64) error {
	slices.SortFunc(f.entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), strings.Compare(a.name, b.name))
	})
	var end int64
	for i := range f.entries {
		e := &f.entries[i]
		switch {
		case e.begin < end: // so there is one before e
			return format.Malformed(f.Path, place(e.name), "begins at byte %d of the data and overlaps tensor %.64q, which ends at byte %d", e.begin, f.entries[i-1].name, end)
		case e.begin > end && i == 0:
			return format.Malformed(f.Path, place(e.name), "is the first and begins at byte %d of the data, want 0", e.begin)
		case e.begin > end:
			return format.Malformed(f.Path, place(e.name), "begins at byte %d of the data and leaves a hole: tensor %.64q ends at byte %d", e.begin, f.entries[i-1].name, end)
		}
		end = e.end
	}
	if end != data {
		return format.Malformed(f.Path, format.Offset(8+f.Header+end), "%d bytes follow the last tensor", data-end)
	}
	f.names = make([]int32, len(f.entries))
	for i := range f.names {
		f.names[i] = int32(i)
	}
	slices.SortFunc(f.names, func(a, b int32) int { return strings.Compare(f.entries[a].name, f.entries[b].name) })
	return nil
}

// byteSize returns the bytes of a tensor of dtypes[t], or what is wrong with its shape.
func byteSize(t int, shape []int) (size int64, bad string) {
	elems, _, ok := format.CheckedSize(shape, 1)
	if !ok {
		return 0, fmt.Sprintf("shape %v: the number of elements overflows", shape)
	}
	hi, n := bits.Mul64(uint64(elems), dtypes[t].bits)
	if hi != 0 {
		return 0, fmt.Sprintf("shape %v of %s: the number of bits overflows", shape, dtypes[t].name)
	}
	if n%8 != 0 {
		return 0, fmt.Sprintf("shape %v of %s: %d bits do not end on a byte", shape, dtypes[t].name, n)
	}
	return int64(n / 8), ""
}

// badName says what is wrong with the name of a tensor, if anything.
func badName(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > MaxName:
		return fmt.Sprintf("has %d bytes, want at most %d", len(name), MaxName)
	case !utf8.ValidString(name):
		return "is not UTF-8"
	case strings.ContainsFunc(name, unicode.IsControl):
		return "holds a control character"
	}
	return ""
}

func place(name string) string { return fmt.Sprintf("tensor %.64q", name) }

// within puts the part of the header where an error occurred in front of its place.
func within(err error, part string) error {
	var e *format.Error
	if !errors.As(err, &e) {
		return err
	}
	if e.Where != "" {
		part += ", " + e.Where
	}
	e.Where = part
	return err
}
