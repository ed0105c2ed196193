package npy

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"plumbline/internal/format"
)

var le = binary.LittleEndian

const (
	magic = "\x93NUMPY"

	// maxHeader is the longest header that is read, the default of NumPy's max_header_size. Shapes of rank 8 need less
	// than 300 bytes; only structured types come near it.
	maxHeader = 10_000
)

// header is the preamble of a .npy file: what its dict says, and where the data begin.
type header struct {
	descr   literal
	fortran bool
	shape   []int
	notes   []string
	size    int64 // bytes before the data
}

// readHeader reads the preamble of a .npy file of size bytes from r, and no byte more. An error that is not a
// *format.Error is one of r.
func readHeader(r io.Reader, size int64, name string) (*header, error) {
	var pre [12]byte
	got, err := io.ReadFull(r, pre[:min(size, 8)])
	if err != nil {
		return nil, err
	}
	if err := checkMagic(pre[:got], name); err != nil {
		return nil, err
	}
	width := 2 // bytes of the header length
	if pre[6] > 1 {
		width = 4
	}
	start := int64(8 + width)
	if size < start {
		return nil, format.Malformed(name, "", "%d bytes, want at least %d: the header length is cut", size, start)
	}
	if _, err := io.ReadFull(r, pre[8:start]); err != nil {
		return nil, err
	}
	n := int64(le.Uint32(pre[8:]))
	switch {
	case n > size-start:
		return nil, format.Malformed(name, format.Offset(8), "header length %d goes beyond the file, %d bytes are left", n, size-start)
	case n > maxHeader:
		return nil, format.Malformed(name, format.Offset(8), "header length %d, want at most %d", n, maxHeader)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, err
	}
	if pre[6] == 3 && !utf8.Valid(text) {
		return nil, format.Malformed(name, format.Offset(start), "header is not valid UTF-8, as version 3.0 requires")
	}
	p := &parser{text: text, name: name, base: start, suffixL: pre[6] < 3}
	h, err := p.header()
	if err != nil {
		return nil, err
	}
	h.size = start + n
	return h, nil
}

// checkMagic checks the first 8 bytes of a file, or all that it has: the magic string and the version.
func checkMagic(pre []byte, name string) error {
	switch {
	case len(pre) == 0:
		return format.Malformed(name, "", "is empty, want a .npy file")
	case pre[0] == 0x80: // the opcode PROTO, first in every pickle since protocol 2
		return format.Malformed(name, format.Offset(0), "refused: pickle; want a .npy file, which begins with %q", magic)
	case strings.HasPrefix(string(pre), "PK\x03\x04"):
		return format.Malformed(name, format.Offset(0), "is a zip archive (.npz?), want a .npy file, which begins with %q", magic)
	case !strings.HasPrefix(string(pre), magic[:min(len(magic), len(pre))]):
		return format.Malformed(name, format.Offset(0), "bad magic: found %q, want %q", pre[:min(len(magic), len(pre))], magic)
	case len(pre) < 8:
		return format.Malformed(name, "", "%d bytes, want at least 10: the preamble is cut", len(pre))
	case pre[6] < 1 || pre[6] > 3 || pre[7] != 0:
		return format.Malformed(name, format.Offset(6), "version %d.%d, want 1.0, 2.0 or 3.0", pre[6], pre[7])
	}
	return nil
}

// header parses the dict and checks its keys and the types of its values.
func (p *parser) header() (*header, error) {
	h := &header{}
	seen := map[string]bool{}
	err := p.dict(func(key, value literal) error {
		if seen[key.text] {
			return p.fail(key.pos, "header has the key %.40q twice", key.text)
		}
		seen[key.text] = true
		switch key.text {
		case "descr":
			h.descr = value
		case "fortran_order":
			if value.kind != word || value.text != "True" && value.text != "False" {
				return p.fail(value.pos, "fortran_order is %s, want True or False", value)
			}
			h.fortran = value.text == "True"
		case "shape":
			return p.shape(h, value)
		default:
			return p.fail(key.pos, "header has the unknown key %.40q, want exactly descr, fortran_order and shape", key.text)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, key := range []string{"descr", "fortran_order", "shape"} {
		if !seen[key] {
			return nil, p.fail(0, "header has no key %q", key)
		}
	}
	if p.sawL {
		h.notes = append(h.notes, "the header has integers of Python 2 (a suffix L)")
	}
	return h, nil
}

// shape checks that value is a tuple of plain integers and stores it in h.
func (p *parser) shape(h *header, value literal) error {
	if value.kind != tuple {
		return p.fail(value.pos, "shape is %s, want a tuple of integers", value)
	}
	if value.n > format.MaxRank {
		return p.fail(value.pos, "shape has rank %d, want at most %d", value.n, format.MaxRank)
	}
	h.shape = make([]int, len(value.items))
	for i, item := range value.items {
		digits := item.text
		negative := strings.HasPrefix(digits, "-")
		digits = strings.TrimPrefix(digits, "-")
		switch {
		case item.kind != word || !plainInteger(digits):
			return p.fail(item.pos, "dimension %d of the shape is %s, want an integer", i, item)
		case negative:
			return p.fail(item.pos, "dimension %d of the shape is %s: negative", i, item)
		}
		n, err := strconv.ParseInt(digits, 10, strconv.IntSize)
		if err != nil {
			return p.fail(item.pos, "dimension %d of the shape is %s, want at most %d", i, item, math.MaxInt)
		}
		h.shape[i] = int(n)
	}
	return nil
}

// plainInteger reports whether s is a decimal integer as Python writes it, without sign, underscores or leading zeros.
func plainInteger(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s == "0" || s != "" && s[0] != '0'
}

// array returns the array that h declares, without its data, after checking that it can be decoded and that its size
// can be expressed.
func (h *header) array(name string, opt Options) (*format.Array, error) {
	switch h.descr.kind {
	case list:
		return nil, format.Malformed(name, "header key 'descr'", "structured dtype is not supported: %s", h.descr)
	case tuple:
		return nil, format.Malformed(name, "header key 'descr'", "subarray dtype is not supported: %s", h.descr)
	case word:
		return nil, format.Malformed(name, "header key 'descr'", "found %s, want a string", h.descr)
	}
	d, big, note, err := elementType(h.descr.text, opt.AssumeBF16)
	if err != nil {
		return nil, format.Malformed(name, "header key 'descr'", "%v", err)
	}
	a := &format.Array{
		Name: name, DType: d, Type: h.descr.text, BigEndian: big, Shape: h.shape, Offset: h.size,
		ColumnMajor: h.fortran && len(h.shape) > 1, // order means nothing below rank 2
		Notes:       h.notes,
	}
	if note != "" {
		a.Notes = append(a.Notes, note)
	}
	if _, _, ok := format.CheckedSize(h.shape, d.Size()); !ok {
		return nil, format.Malformed(name, "header key 'shape'", "%s of %s has more than 2⁶³−1 bytes", a.ShapeString(), d)
	}
	return a, nil
}

// String formats l for a message.
func (l literal) String() string {
	switch l.kind {
	case str:
		return fmt.Sprintf("the string %.40q", l.text)
	case word:
		return fmt.Sprintf("%.40s", l.text)
	case tuple:
		return fmt.Sprintf("a tuple of %d", l.n)
	default:
		return fmt.Sprintf("a list of %d", l.n)
	}
}
