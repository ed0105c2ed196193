package npy

import (
	"bufio"
	"bytes"
	"cmp"
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
	"plumbline/internal/format/zip"
)

// Limits of an archive.
const (
	maxEntries = 10_000
	maxName    = 1024 // bytes, without ".npy"
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
	entries map[string]*zip.Entry

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
	return format.OpenAs(path, func(f *format.File) (*Archive, error) { return ParseArchive(f, opt) })
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
	entries, err := zip.Directory(r, size, path, maxEntries, memberName)
	if err != nil {
		return nil, format.Unread(path, err)
	}
	a := &Archive{
		r: r, path: path, opt: opt, entries: make(map[string]*zip.Entry, len(entries)), arrays: map[string]*format.Array{},
	}
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name, ".npy")
		a.names = append(a.names, name)
		a.entries[name] = e
	}
	a.opt.MaxUncompressed = cmp.Or(a.opt.MaxUncompressed, DefaultMaxUncompressed)
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
		return nil, format.Unread(shown, err)
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

func (a *Archive) open(e *zip.Entry, shown string) (*format.Array, error) {
	off, err := e.Data(a.r, shown)
	if err != nil {
		return nil, err
	}
	raw := &format.Section{R: a.r, Off: off, End: off + e.Packed}
	switch e.Method {
	case zip.Stored:
		return a.openStored(e, raw, shown)
	case zip.Deflated:
		arr, err := a.inflate(e, raw, shown)
		if raw.Err != nil {
			return nil, raw.Err // whatever the decompressor made of it
		}
		return arr, err
	}
	return nil, format.Malformed(shown, "", "compression method %d, want 0 (stored) or 8 (deflate)", e.Method)
}

// openStored returns an array that is read in place.
func (a *Archive) openStored(e *zip.Entry, raw *format.Section, shown string) (*format.Array, error) {
	if e.Size != e.Packed {
		return nil, format.Malformed(shown, "", "directory declares %d bytes, of which %d are stored without compression", e.Size, e.Packed)
	}
	off := raw.Off
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
func (a *Archive) inflate(e *zip.Entry, raw *format.Section, shown string) (*format.Array, error) {
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
	if e.Packed < e.Size/maxRatio {
		return nil, format.Malformed(shown, "", "%d bytes cannot inflate to %d, at most to %d times as much", e.Packed, e.Size, maxRatio)
	}
	if e.Size > a.left {
		return nil, format.Malformed(shown, "", "inflates to %d bytes, over what is left of the budget for decompressed members, %d of %d bytes; "+
			"--max-uncompressed raises it", e.Size, a.left, a.opt.MaxUncompressed)
	}
	a.left -= e.Size // and not given back if the content is corrupt: what an archive makes us allocate stays within the budget
	data := make([]byte, arr.Bytes())
	if _, err := io.ReadFull(out, data); err != nil {
		return nil, corrupt(err, shown)
	}
	var more [1]byte
	switch _, err := io.ReadFull(out, more[:]); {
	case err == nil:
		return nil, format.Malformed(shown, "", "inflates beyond the %d bytes that its header declares", e.Size)
	case err != io.EOF:
		return nil, corrupt(err, shown)
	}
	if rest := int64(a.in.Buffered()) + raw.End - raw.Off; rest > 0 {
		return nil, format.Malformed(shown, "", "%d bytes behind the end of the compressed data", rest)
	}
	if err := checkSum(e, sum.Sum32(), shown); err != nil {
		return nil, err
	}
	arr.Data, arr.Offset = bytes.NewReader(data), 0
	return arr, nil
}

// preamble reads the .npy header of e from in and checks that header and data make up the declared size.
func (a *Archive) preamble(e *zip.Entry, in io.Reader, shown string) (*format.Array, error) {
	h, err := readHeader(in, e.Size, shown)
	if err != nil {
		return nil, err
	}
	arr, err := h.array(shown, a.opt)
	if err != nil {
		return nil, err
	}
	if have, want := e.Size-h.size, arr.Bytes(); have != want {
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

func checkSum(e *zip.Entry, got uint32, shown string) error {
	if got != e.CRC {
		return format.Malformed(shown, "", "CRC-32 is %08x, want %08x", got, e.CRC)
	}
	return nil
}

// memberName returns the name of a member without ".npy", and refuses one that is no .npy file.
func memberName(full string) (string, error) {
	name, ok := strings.CutSuffix(full, ".npy")
	switch {
	case strings.HasSuffix(full, ".pkl"):
		return "", errors.New("refused: pickle (a PyTorch checkpoint?)")
	case !ok:
		return "", errors.New("name does not end in .npy")
	case name == "":
		return "", errors.New("name is empty")
	case len(name) > maxName:
		return "", fmt.Errorf("name of %d bytes, want at most %d", len(name), maxName)
	}
	return name, nil
}
