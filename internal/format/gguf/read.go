package gguf

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"

	"plumbline/internal/format"
)

// The least bytes of a metadata entry (a key of one byte, its type, a value of one) and of a tensor's.
const (
	leastValue = 8 + 1 + 4 + 1
	leastInfo  = 8 + 1 + 4 + 4 + 8
)

// parser reads a file from its start. After an error every method does nothing and err stays.
type parser struct {
	f     *File
	r     *bufio.Reader
	at    int64  // of the next byte
	where string // what is at hand, for messages: "key count", "key", "tensor"
	name  string // of the key or tensor
	buf   [8]byte
	long  []byte // of the string at hand
	err   error
}

func (p *parser) fail(at int64, msg string, args ...any) {
	if p.err != nil {
		return
	}
	where := format.Offset(at)
	switch {
	case p.name != "":
		where = fmt.Sprintf("%s %.64q, %s", p.where, p.name, where)
	case p.where != "":
		where = p.where + ", " + where
	}
	p.err = format.Malformed(p.f.Path, where, msg, args...)
}

// left returns the bytes that have not been read.
func (p *parser) left() int64 { return p.f.Size - p.at }

// bytes fills b.
func (p *parser) bytes(b []byte) {
	if p.err != nil {
		return
	}
	if int64(len(b)) > p.left() {
		p.fail(p.at, "%d bytes are needed, the file has %d more", len(b), p.left())
		return
	}
	n, err := io.ReadFull(p.r, b)
	p.at += int64(n)
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF // the file was cut after it was opened
		}
		p.err = fmt.Errorf("%s: reading at byte %d: %w", p.f.Path, p.at, err)
	}
}

func (p *parser) u32() uint32 {
	p.bytes(p.buf[:4])
	if p.err != nil {
		return 0
	}
	return binary.LittleEndian.Uint32(p.buf[:4])
}

func (p *parser) u64() uint64 {
	p.bytes(p.buf[:8])
	if p.err != nil {
		return 0
	}
	return binary.LittleEndian.Uint64(p.buf[:8])
}

// text reads a string of at most most bytes.
func (p *parser) text(what string, most uint64) string {
	at := p.at
	n := p.u64()
	switch {
	case p.err != nil:
		return ""
	case n > most:
		p.fail(at, "%s of %d bytes, want at most %d", what, n, most)
		return ""
	case n > uint64(p.left()):
		p.fail(at, "%s of %d bytes, the file has %d more", what, n, p.left())
		return ""
	}
	if uint64(cap(p.long)) < n {
		p.long = make([]byte, max(n, 1024))
	}
	p.long = p.long[:n]
	p.bytes(p.long)
	return string(p.long)
}

// parse reads the head, the metadata and the table of tensors.
func (f *File) parse() error {
	p := &parser{f: f, r: bufio.NewReaderSize(io.NewSectionReader(f.r, 0, f.Size), 64<<10)}
	p.where = "magic"
	var magic [4]byte
	p.bytes(magic[:])
	if p.err == nil && string(magic[:]) != "GGUF" {
		p.fail(0, "found %q, want \"GGUF\"", magic)
	}
	p.where = "version"
	version := p.u32()
	switch {
	case p.err != nil:
	case version == 0x02000000 || version == 0x03000000:
		p.fail(4, "a big-endian file, which is not read")
	case version != 2 && version != 3:
		p.fail(4, "%d, want 2 or 3", version)
	}
	f.Version = int(version)
	p.where = "tensor count"
	tensors := p.count(leastInfo, MaxCount)
	p.where = "key count"
	keys := p.count(leastValue, MaxKeys)
	p.where = ""
	for i := 0; i < keys && p.err == nil; i++ {
		p.entry()
	}
	if p.err == nil {
		p.err = f.align()
	}
	if p.err == nil {
		p.table(tensors)
	}
	if p.err != nil {
		return p.err
	}
	return f.layout(p.at)
}

// count reads a count of at most most things of at least least bytes.
func (p *parser) count(least int64, most uint64) int {
	at := p.at
	n := p.u64()
	switch {
	case p.err != nil:
		return 0
	case n > most:
		p.fail(at, "%d, want at most %d", n, most)
		return 0
	case int64(n) > p.left()/least:
		p.fail(at, "%d, but %d bytes hold at most %d", n, p.left(), p.left()/least)
		return 0
	}
	return int(n)
}

// entry reads a key of the metadata and its value.
func (p *parser) entry() {
	at := p.at
	key := p.text("a key", MaxKey)
	switch _, again := p.f.values[key]; {
	case p.err != nil:
		return
	case key == "" || !utf8.ValidString(key):
		p.fail(at, "a key that is empty or not UTF-8")
		return
	case again:
		p.fail(at, "duplicate key %.64q", key)
		return
	}
	p.where, p.name = "key", key
	v := p.value(p.kind(), true)
	if p.err == nil {
		p.f.keys = append(p.f.keys, key)
		p.f.values[key] = v
	}
	p.where, p.name = "", ""
}

// align takes the alignment from the metadata and refuses what is only a part of a model.
func (f *File) align() error {
	v, ok := f.values["general.alignment"]
	if !ok {
		v = uint32(32)
	}
	n, ok := v.(uint32)
	if !ok || n == 0 || n > MaxAlignment || bits.OnesCount32(n) != 1 {
		return format.Malformed(f.Path, "general.alignment", "is %v of type %s, want a uint32 that is a power of two and at most %d", v, kindOf(v), MaxAlignment)
	}
	f.Alignment = int64(n)
	parts, err := f.Int("split.count", 1, 0, math.MaxInt64)
	if err == nil && parts > 1 {
		err = format.Malformed(f.Path, "split.count", "is %d: the file is one part of a model; join the parts with llama-gguf-split --merge", parts)
	}
	return err
}

// table reads the descriptions of n tensors.
func (p *parser) table(n int) {
	p.f.infos = make([]info, 0, n)
	for range n {
		var e info
		at := p.at
		e.name = p.text("a tensor's name", MaxName)
		if p.err == nil && (e.name == "" || !utf8.ValidString(e.name)) {
			p.fail(at, "a tensor's name that is empty or not UTF-8")
		}
		p.where, p.name = "tensor", e.name
		at = p.at
		dims := p.u32()
		if p.err == nil && dims > maxDims {
			p.fail(at, "%d dimensions, want at most %d", dims, maxDims)
		}
		if p.err != nil {
			return
		}
		e.n = uint8(dims)
		at = p.at
		for i := range dims {
			d := p.u64()
			if p.err == nil && d > math.MaxInt {
				p.fail(at, "dimension %d is %d", i, d)
			}
			e.dims[i] = int64(d)
		}
		typeAt := p.at
		kind := p.u32()
		offsetAt := p.at
		offset := p.u64()
		if p.err != nil {
			return
		}
		if kind > math.MaxUint8 || types[uint8(kind)].name == "" {
			p.fail(typeAt, "unknown type %d", kind)
			return
		}
		e.kind = Type(kind)
		if _, bad := e.size(); bad != "" {
			p.fail(at, "%s", bad)
			return
		}
		if offset%uint64(p.f.Alignment) != 0 || offset > uint64(p.f.Size) {
			p.fail(offsetAt, "offset %d, want a multiple of %d inside the file of %d bytes", offset, p.f.Alignment, p.f.Size)
			return
		}
		e.offset = int64(offset)
		p.f.infos = append(p.f.infos, e)
		p.where, p.name = "", ""
	}
}

// size returns the bytes of the elements, or what is wrong with the dimensions.
func (e *info) size() (size int64, bad string) {
	var dims [maxDims]int
	for i := range e.n {
		dims[i] = int(e.dims[i])
	}
	shape := dims[:e.n]
	t := &types[e.kind]
	elems, _, ok := format.CheckedSize(shape, 1)
	if !ok {
		return 0, fmt.Sprintf("dimensions %v: the number of elements overflows", slices.Clone(shape))
	}
	if e.n == 0 && t.block > 1 || e.n > 0 && e.dims[0]%t.block != 0 {
		return 0, fmt.Sprintf("dimensions %v: the first is no multiple of the %d of a block of %s", slices.Clone(shape), t.block, t.name)
	}
	hi, lo := bits.Mul64(uint64(elems/t.block), uint64(t.bytes))
	if hi != 0 || lo > math.MaxInt64 {
		return 0, fmt.Sprintf("dimensions %v: the number of bytes overflows", slices.Clone(shape))
	}
	return int64(lo), ""
}

// layout places the elements, which start at the first multiple of the alignment after the table, and demands that every
// tensor lies inside the file, on no other, and has a name of its own.
func (f *File) layout(end int64) error {
	f.data = (end + f.Alignment - 1) / f.Alignment * f.Alignment
	slices.SortFunc(f.infos, func(a, b info) int { return cmp.Or(cmp.Compare(a.offset, b.offset), strings.Compare(a.name, b.name)) })
	last, at := "", int64(0)
	for i := range f.infos {
		e := &f.infos[i]
		size, _ := e.size()
		if size > 0 && e.offset < at {
			return format.Malformed(f.Path, place(e.name), "begins at byte %d of the data, where tensor %.64q ends at %d", e.offset, last, at)
		}
		if size > f.Size-f.data || e.offset > f.Size-f.data-size {
			return format.Malformed(f.Path, place(e.name), "%d bytes at byte %d of the data, of which the file has %d", size, e.offset, max(0, f.Size-f.data))
		}
		if size > 0 {
			last, at = e.name, e.offset+size
		}
	}
	if rest := f.Size - f.data - at; rest >= f.Alignment && len(f.infos) > 0 {
		f.Notes = append(f.Notes, fmt.Sprintf("%d bytes follow the last tensor", rest))
	}
	f.names = make([]int32, len(f.infos))
	for i := range f.names {
		f.names[i] = int32(i)
	}
	slices.SortFunc(f.names, func(a, b int32) int { return strings.Compare(f.infos[a].name, f.infos[b].name) })
	for i := 1; i < len(f.names); i++ {
		if name := f.infos[f.names[i]].name; name == f.infos[f.names[i-1]].name {
			return format.Malformed(f.Path, place(name), "is there twice")
		}
	}
	return nil
}

func place(name string) string { return fmt.Sprintf("tensor %.64q", name) }
