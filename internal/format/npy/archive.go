package npy

import (
	"bufio"
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"plumbline/internal/format"
)

// maxRatio is the most that deflate expands: a match of 258 bytes takes at least 2 bits.
const maxRatio = 258 * 8 / 2

// Archive is an open .npz file. Its methods are safe for concurrent use.
type Archive struct {
	file    *format.File
	r       io.ReaderAt
	path    string
	opt     Options
	names   []string
	entries map[string]*entry

	mu     sync.Mutex
	arrays map[string]*format.Array
	left   int64 // of the budget for decompressed members

	// Shared by the members, since an archive may have many small ones.
	buf      []byte
	in       *bufio.Reader
	inflater io.ReadCloser
}

// OpenArchive opens the .npz file at path. Its arrays can be read until Close.
//
// The names of all members are checked here and the whole archive is refused for a bad one; the members themselves are
// looked at when they are asked for. Errors are those of Open.
func OpenArchive(path string, opt Options) (*Archive, error) {
	f, err := format.Open(path)
	if err != nil {
		return nil, err
	}
	a, err := ParseArchive(f, opt)
	if err != nil {
		f.Close()
		return nil, err
	}
	return a, nil
}

// ParseArchive is OpenArchive for a file that is open. If it succeeds, the file belongs to the archive and is closed by
// its Close.
func ParseArchive(f *format.File, opt Options) (*Archive, error) {
	a, err := parseArchive(f, f.Size, f.Path, opt)
	if err != nil {
		return nil, err
	}
	a.file = f
	return a, nil
}

func parseArchive(r io.ReaderAt, size int64, path string, opt Options) (*Archive, error) {
	entries, err := readDirectory(r, size, path)
	if err != nil {
		return nil, unread(path, err)
	}
	a := &Archive{
		r: r, path: path, opt: opt, entries: make(map[string]*entry, len(entries)), arrays: map[string]*format.Array{},
	}
	for _, e := range entries {
		a.names = append(a.names, e.name)
		a.entries[e.name] = e
	}
	if a.opt.MaxUncompressed == 0 {
		a.opt.MaxUncompressed = DefaultMaxUncompressed
	}
	a.left = a.opt.MaxUncompressed
	return a, nil
}

// Close closes the file. Arrays whose members are stored without compression cannot be read afterwards.
func (a *Archive) Close() error { return a.file.Close() }

// Names returns the names of the members without ".npy", in the order of the archive's directory.
func (a *Archive) Names() []string { return slices.Clone(a.names) }

// Array opens the member of the given name. The first call verifies the checksum in one pass; a member that is stored
// without compression is read from the file after that, another is kept inflated in memory. Later calls return the same
// array, which must not be modified.
//
// A name that is not in the archive gives an error that is fs.ErrNotExist.
func (a *Archive) Array(name string) (*format.Array, error) {
	e := a.entries[name]
	if e == nil {
		return nil, fmt.Errorf("%s: no member %q among %s: %w", a.path, name, some(a.names), fs.ErrNotExist)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if arr := a.arrays[name]; arr != nil {
		return arr, nil
	}
	shown := a.path + ":" + name
	arr, err := a.open(e, shown)
	if err != nil {
		return nil, unread(shown, err)
	}
	a.arrays[name] = arr
	return arr, nil
}

// some formats the first of names for a message.
func some(names []string) string {
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%q and %d more", names[:most], len(names)-most)
	}
	return fmt.Sprintf("%q", names)
}

func (a *Archive) open(e *entry, shown string) (*format.Array, error) {
	off, err := e.data(a.r, shown)
	if err != nil {
		return nil, err
	}
	raw := &section{r: a.r, off: off, end: off + e.csize}
	switch e.method {
	case stored:
		return a.openStored(e, raw, shown)
	case deflated:
		arr, err := a.inflate(e, raw, shown)
		if raw.err != nil {
			return nil, raw.err // whatever the decompressor made of it
		}
		return arr, err
	}
	return nil, format.Malformed(shown, "", "compression method %d, want 0 (stored) or 8 (deflate)", e.method)
}

// data returns the offset of what is stored of e, after checking that the local header is that of e and that the data
// end before the next entry.
func (e *entry) data(r io.ReaderAt, shown string) (int64, error) {
	want := e.name + ".npy"
	buf := make([]byte, localSize+len(want))
	if _, err := io.ReadFull(&section{r: r, off: e.local, end: e.limit}, buf); err != nil {
		return 0, err
	}
	name, extra := int64(le.Uint16(buf[26:])), int64(le.Uint16(buf[28:]))
	switch {
	case string(buf[:4]) != localSig:
		return 0, format.Malformed(shown, format.Offset(e.local), "no local header: found %q, want %q", buf[:4], localSig)
	case le.Uint16(buf[6:])&flagsRefused != 0:
		return 0, format.Malformed(shown, format.Offset(e.local), "is encrypted (flags %#04x)", le.Uint16(buf[6:]))
	case le.Uint16(buf[8:]) != e.method:
		return 0, format.Malformed(shown, format.Offset(e.local), "compression method %d, in the directory %d", le.Uint16(buf[8:]), e.method)
	case name != int64(len(want)) || string(buf[localSize:]) != want:
		return 0, format.Malformed(shown, format.Offset(e.local), "the name in the local header is not that in the directory, %q", want)
	}
	off := e.local + localSize + name + extra
	if off > e.limit-e.csize {
		return 0, format.Malformed(shown, format.Offset(e.local), "%d bytes reach beyond byte %d, where the next entry or the directory begins",
			e.csize, e.limit)
	}
	return off, nil
}

// openStored returns an array that is read in place.
func (a *Archive) openStored(e *entry, raw *section, shown string) (*format.Array, error) {
	if e.size != e.csize {
		return nil, format.Malformed(shown, "", "directory declares %d bytes, of which %d are stored without compression", e.size, e.csize)
	}
	off := raw.off
	sum := crc32.NewIEEE()
	in := io.TeeReader(raw, sum)
	arr, err := a.preamble(e, in, shown)
	if err != nil {
		return nil, err
	}
	if a.buf == nil {
		a.buf = make([]byte, 256<<10)
	}
	if _, err := io.CopyBuffer(sum, raw, a.buf); err != nil {
		return nil, err
	}
	if err := checkSum(e, sum.Sum32(), shown); err != nil {
		return nil, err
	}
	arr.Data, arr.Offset = a.r, off+arr.Offset
	return arr, nil
}

// inflate returns an array in memory. Nothing is allocated for it before its size was found to be possible and within
// the budget.
func (a *Archive) inflate(e *entry, raw *section, shown string) (*format.Array, error) {
	if a.in == nil {
		a.in = bufio.NewReader(raw)
		a.inflater = flate.NewReader(a.in)
	} else {
		a.in.Reset(raw)
		a.inflater.(flate.Resetter).Reset(a.in, nil)
	}
	sum := crc32.NewIEEE()
	out := io.TeeReader(a.inflater, sum)
	arr, err := a.preamble(e, out, shown)
	if err != nil {
		return nil, corrupt(err, shown)
	}
	if e.csize < e.size/maxRatio {
		return nil, format.Malformed(shown, "", "%d bytes cannot inflate to %d, at most to %d times as much", e.csize, e.size, maxRatio)
	}
	if e.size > a.left {
		return nil, format.Malformed(shown, "", "inflates to %d bytes, over what is left of the budget for decompressed members, %d of %d bytes; "+
			"--max-uncompressed raises it", e.size, a.left, a.opt.MaxUncompressed)
	}
	a.left -= e.size // and not given back if the content is corrupt: what an archive makes us allocate stays within the budget
	data := make([]byte, arr.Bytes())
	if _, err := io.ReadFull(out, data); err != nil {
		return nil, corrupt(err, shown)
	}
	var more [1]byte
	switch _, err := io.ReadFull(out, more[:]); {
	case err == nil:
		return nil, format.Malformed(shown, "", "inflates beyond the %d bytes that its header declares", e.size)
	case err != io.EOF:
		return nil, corrupt(err, shown)
	}
	if rest := int64(a.in.Buffered()) + raw.end - raw.off; rest > 0 {
		return nil, format.Malformed(shown, "", "%d bytes behind the end of the compressed data", rest)
	}
	if err := checkSum(e, sum.Sum32(), shown); err != nil {
		return nil, err
	}
	arr.Data, arr.Offset = bytes.NewReader(data), 0
	return arr, nil
}

// preamble reads the .npy header of e from in and checks that header and data make up the declared size.
func (a *Archive) preamble(e *entry, in io.Reader, shown string) (*format.Array, error) {
	h, err := readHeader(in, e.size, shown)
	if err != nil {
		return nil, err
	}
	arr, err := h.array(shown, a.opt)
	if err != nil {
		return nil, err
	}
	if have, want := e.size-h.size, arr.Bytes(); have != want {
		return nil, format.Malformed(shown, format.Offset(h.size), "%d bytes of data by the directory of the archive, want %d for %s of shape %s",
			have, want, arr.DType, arr.ShapeString())
	}
	return arr, nil
}

// corrupt makes an error of the decompressor one about the content.
func corrupt(err error, shown string) error {
	switch {
	case format.IsMalformed(err):
		return err
	case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
		return format.Malformed(shown, "", "compressed data end before the bytes that the directory of the archive declares")
	}
	return format.Malformed(shown, "", "compressed data: %s", strings.TrimPrefix(err.Error(), "flate: "))
}

func checkSum(e *entry, got uint32, shown string) error {
	if got != e.crc {
		return format.Malformed(shown, "", "CRC-32 is %08x, want %08x", got, e.crc)
	}
	return nil
}
