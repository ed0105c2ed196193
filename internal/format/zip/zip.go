// Package zip reads the directory of a zip archive: which entries there are and where their bytes lie.
//
// It is stricter than archive/zip, which does not compare a checksum of 0, reads as many directory records as it finds
// whatever number is declared (several times the memory of the file that holds them), and accepts bytes before the
// archive and entries that overlap. It reads what the standard library of Python reads as well: where the two could see
// different members in one file, the file is refused.
//
// Record layouts: PKWARE APPNOTE 6.3.10, sections 4.3.7 (local header), 4.3.12 (directory), 4.3.14 to 4.3.16 (ends).
package zip

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"plumbline/internal/format"
)

const (
	localSize, dirSize, endSize, locatorSize, end64Size = 30, 46, 22, 20, 56

	localSig, dirSig, endSig, locatorSig, end64Sig = "PK\x03\x04", "PK\x01\x02", "PK\x05\x06", "PK\x06\x07", "PK\x06\x06"

	// Traditional and strong encryption, compressed patch data, masked headers.
	flagsRefused = 1<<0 | 1<<5 | 1<<6 | 1<<13
	flagUTF8     = 1 << 11
)

// The compression methods that readers of this project know.
const (
	Stored   = 0
	Deflated = 8
)

var le = binary.LittleEndian

// Entry is a member of an archive as the central directory declares it.
type Entry struct {
	Name         string
	Method       uint16
	CRC          uint32
	Size, Packed int64 // bytes of the member, and of what is stored of it
	local        int64 // offset of the local header
	limit        int64 // offset of the next local header or of the directory
}

// directory is where the central directory lies and how many entries it has.
type directory struct{ entries, off, end int64 }

// Directory returns the entries of the zip archive r of size bytes in the order of its central directory. name is the
// file's, for messages. An archive of more than most entries is refused, and so is one with a member whose name accept
// refuses. accept returns the name under which a member is known, which [CheckName] must pass.
//
// What is wrong with the content is a *format.Error.
func Directory(r io.ReaderAt, size int64, name string, most int, accept func(full string) (name string, err error)) ([]*Entry, error) {
	d, err := findDirectory(r, size, name, most)
	if err != nil {
		return nil, err
	}
	s := &format.Section{R: r, Off: d.off, End: d.end}
	br, scratch := bufio.NewReader(s), make([]byte, dirSize, 1024)
	entries := make([]*Entry, 0, min(d.entries, (d.end-d.off)/dirSize))
	names := make(map[string]bool, cap(entries))
	for i := range d.entries {
		e, err := readEntry(br, &scratch, name, i, accept)
		if s.Err != nil {
			return nil, s.Err
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil, format.Malformed(name, "", "central directory ends inside entry %d of %d", i+1, d.entries)
		}
		if err != nil {
			return nil, err
		}
		if names[e.Name] {
			return nil, format.Malformed(name, fmt.Sprintf("entry %q", e.Name), "is there twice")
		}
		names[e.Name] = true
		entries = append(entries, e)
	}
	if _, err := br.ReadByte(); err != io.EOF {
		if s.Err != nil {
			return nil, s.Err
		}
		return nil, format.Malformed(name, "", "central directory goes on behind its %d entries", d.entries)
	}
	return entries, separate(entries, d.off, name)
}

// separate checks that no entry reaches into the next or into the directory, which begins at end, and sets the limits.
func separate(entries []*Entry, end int64, name string) error {
	byOffset := slices.Clone(entries)
	slices.SortFunc(byOffset, func(a, b *Entry) int { return cmp.Compare(b.local, a.local) })
	for _, e := range byOffset { // from the last to the first
		least := localSize + int64(len(e.Name))
		if e.local > end-least || e.Packed > end-least-e.local {
			return format.Malformed(name, fmt.Sprintf("entry %q", e.Name),
				"%d bytes at byte %d reach beyond byte %d, where the next entry or the directory begins", e.Packed, e.local, end)
		}
		e.limit = end
		end = e.local
	}
	return nil
}

// endRecord is what the record at the end of an archive says: disk numbers, entries on this disk, entries, and length and
// offset of the central directory.
type endRecord [5]uint64

// elsewhere has the values that stand for "see the zip64 end record".
var elsewhere = endRecord{math.MaxUint16, math.MaxUint16, math.MaxUint16, math.MaxUint32, math.MaxUint32}

// findDirectory finds the central directory by the end record, and by its 64-bit form where there is one.
func findDirectory(r io.ReaderAt, size int64, name string, most int) (d directory, err error) {
	tail := make([]byte, min(size, endSize+math.MaxUint16)) // the end record and the longest comment
	if _, err := io.ReadFull(&format.Section{R: r, Off: size - int64(len(tail)), End: size}, tail); err != nil {
		return d, err
	}
	at := strings.LastIndex(string(tail), endSig)
	if at < 0 || len(tail)-at < endSize {
		return d, notZip(r, size, name)
	}
	tail = tail[at:]
	if comment := int(le.Uint16(tail[20:])); comment != len(tail)-endSize {
		return d, format.Malformed(name, "", "zip end record declares a comment of %d bytes, %d follow it", comment, len(tail)-endSize)
	}
	end := size - int64(len(tail)) // of the directory, and where its records must end
	rec := endRecord{
		uint64(le.Uint16(tail[4:])) | uint64(le.Uint16(tail[6:])), uint64(le.Uint16(tail[8:])), uint64(le.Uint16(tail[10:])),
		uint64(le.Uint32(tail[12:])), uint64(le.Uint32(tail[16:])),
	}
	if end >= locatorSize {
		if rec, end, err = widen(r, rec, end, name); err != nil {
			return d, err
		}
	}
	disks, here, all, length, off := rec[0], rec[1], rec[2], rec[3], rec[4]
	switch {
	case disks != 0 || here != all:
		return d, format.Malformed(name, "", "zip archive of several disks")
	case length > uint64(end) || off != uint64(end)-length:
		return d, format.Malformed(name, "", "central directory is declared as %d bytes at byte %d, want it to end at byte %d", length, off, end)
	case all > uint64(most):
		return d, format.Malformed(name, "", "%d entries, want at most %d", all, most)
	}
	return directory{int64(all), int64(off), end}, nil
}

// widen returns what the zip64 end record says and where it lies, if there is one for the end record rec at byte end,
// and otherwise rec and end. Readers differ in when they look for it, so the two records must agree.
func widen(r io.ReaderAt, rec endRecord, end int64, name string) (endRecord, int64, error) {
	var loc [locatorSize]byte
	at := end - locatorSize
	if _, err := io.ReadFull(&format.Section{R: r, Off: at, End: end}, loc[:]); err != nil {
		return rec, 0, err
	}
	if string(loc[:4]) != locatorSig {
		return rec, end, nil
	}
	end, at = at, at-end64Size
	if declared := le.Uint64(loc[8:]); at < 0 || declared != uint64(at) || le.Uint32(loc[4:]) != 0 || le.Uint32(loc[16:]) != 1 {
		return rec, 0, format.Malformed(name, format.Offset(end), "zip64 end record is declared at byte %d, want byte %d of the only disk", declared, at)
	}
	var buf [end64Size]byte
	if _, err := io.ReadFull(&format.Section{R: r, Off: at, End: end}, buf[:]); err != nil {
		return rec, 0, err
	}
	if string(buf[:4]) != end64Sig || le.Uint64(buf[4:]) != end64Size-12 {
		return rec, 0, format.Malformed(name, format.Offset(at), "no zip64 end record of %d bytes where one is declared", end64Size)
	}
	wide := endRecord{
		uint64(le.Uint32(buf[16:])) | uint64(le.Uint32(buf[20:])), le.Uint64(buf[24:]), le.Uint64(buf[32:]), le.Uint64(buf[40:]), le.Uint64(buf[48:]),
	}
	for i, v := range rec {
		if v != elsewhere[i] && v != wide[i] {
			return rec, 0, format.Malformed(name, format.Offset(at), "zip64 end record says %d, end record %d", wide, rec)
		}
	}
	return wide, at, nil
}

// notZip says what a file without an end record is.
func notZip(r io.ReaderAt, size int64, name string) error {
	const numpy = "\x93NUMPY" // the start of a .npy file
	var pre [len(numpy)]byte
	n := min(size, int64(len(pre)))
	if _, err := io.ReadFull(&format.Section{R: r, End: n}, pre[:n]); err != nil {
		return err
	}
	switch got := string(pre[:n]); {
	case n == 0:
		return format.Malformed(name, "", "is empty, want a zip archive")
	case got[0] == 0x80:
		return format.Malformed(name, format.Offset(0), "refused: pickle; want a zip archive")
	case got == numpy:
		return format.Malformed(name, format.Offset(0), "is a .npy file, want a zip archive")
	case strings.HasPrefix(got, localSig):
		return format.Malformed(name, "", "truncated zip archive: no end record")
	}
	return format.Malformed(name, "", "not a zip archive: no end record")
}

// readEntry reads entry i of the central directory, into scratch, which grows as it has to.
func readEntry(r *bufio.Reader, scratch *[]byte, name string, i int64, accept func(string) (string, error)) (*Entry, error) {
	if _, err := io.ReadFull(r, (*scratch)[:dirSize]); err != nil {
		return nil, err
	}
	if string((*scratch)[:4]) != dirSig {
		return nil, format.Malformed(name, fmt.Sprintf("central directory entry %d", i+1), "found %q, want %q", (*scratch)[:4], dirSig)
	}
	named := dirSize + int(le.Uint16((*scratch)[28:])) // where the name ends
	all := named + int(le.Uint16((*scratch)[30:]))     // and the extra field
	*scratch = slices.Grow((*scratch)[:dirSize], all-dirSize)[:all]
	if _, err := io.ReadFull(r, (*scratch)[dirSize:]); err != nil {
		return nil, err
	}
	buf, full, extra := (*scratch)[:dirSize], string((*scratch)[dirSize:named]), (*scratch)[named:]
	if _, err := r.Discard(int(le.Uint16(buf[32:]))); err != nil {
		return nil, err
	}
	refuse := func(msg string, args ...any) error {
		return format.Malformed(name, fmt.Sprintf("entry %.80q", full), msg, args...)
	}
	flags := le.Uint16(buf[8:])
	known, err := accept(full)
	if err == nil && flags&flagUTF8 == 0 && strings.IndexFunc(full, func(r rune) bool { return r >= utf8.RuneSelf }) >= 0 {
		err = errNotUTF8
	}
	if err == nil {
		err = CheckName(known)
	}
	switch {
	case err != nil:
		return nil, refuse("%v", err)
	case flags&flagsRefused != 0:
		return nil, refuse("is encrypted (flags %#04x)", flags)
	case le.Uint16(buf[34:]) != 0:
		return nil, refuse("lies on disk %d", le.Uint16(buf[34:]))
	}
	// The sizes and the offset, in the order in which the zip64 field has those that do not fit.
	v := [3]uint64{uint64(le.Uint32(buf[24:])), uint64(le.Uint32(buf[20:])), uint64(le.Uint32(buf[42:]))}
	if err := zip64(&v, extra); err != nil {
		return nil, refuse("%v", err)
	}
	return &Entry{
		Name: full, Method: le.Uint16(buf[10:]), CRC: le.Uint32(buf[16:]),
		Size: int64(v[0]), Packed: int64(v[1]), local: int64(v[2]),
	}, nil
}

// unicodePath is the field that gives an entry another name in UTF-8 (APPNOTE 4.6.9), which some readers take and others do
// not.
const unicodePath = 0x7075

// zip64 replaces the values of v that do not fit 32 bits by those of the zip64 field in extra.
func zip64(v *[3]uint64, extra []byte) error {
	missing, seen := slices.Contains(v[:], math.MaxUint32), false
	for len(extra) >= 4 {
		id, n := le.Uint16(extra), int(le.Uint16(extra[2:]))
		if extra = extra[4:]; n > len(extra) {
			return fmt.Errorf("extra field of %d bytes, %d are left", n, len(extra))
		}
		field := extra[:n]
		extra = extra[n:]
		switch {
		case id == unicodePath:
			return errors.New("a field with another name in UTF-8, which readers disagree about")
		case id == 1 && seen:
			return errors.New("two zip64 fields")
		case id == 1:
			seen = true
		}
		if id != 1 || !missing {
			continue
		}
		missing = false
		for i := range v {
			if v[i] != math.MaxUint32 {
				continue
			}
			if len(field) < 8 {
				return errors.New("zip64 field is too short")
			}
			v[i], field = le.Uint64(field), field[8:]
		}
	}
	if missing {
		return errors.New("a size or offset does not fit 32 bits, and there is no zip64 field")
	}
	if big := max(v[0], v[1], v[2]); big > math.MaxInt64 {
		return fmt.Errorf("zip64 field has %d, want at most 2⁶³−1", big)
	}
	return nil
}

var errNotUTF8 = errors.New("name is not UTF-8, or not marked as such")

// CheckName refuses names that a program which extracts the archive could follow out of its folder, and names that two
// programs may read differently.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("name is empty")
	case !utf8.ValidString(name):
		return errNotUTF8
	case strings.IndexFunc(name, unicode.IsControl) >= 0:
		return errors.New("name has a control character")
	case strings.Contains(name, `\`):
		return errors.New("name has a backslash")
	case name[0] == '/' || len(name) > 2 && name[1:3] == ":/":
		return errors.New("name is absolute")
	case slices.Contains(strings.Split(name, "/"), ".."):
		return errors.New(`name has the path element ".."`)
	}
	return nil
}

// Data returns the offset in r of what is stored of e, after checking that the local header is that of e and that the
// data end before the next entry. shown names the member in messages.
func (e *Entry) Data(r io.ReaderAt, shown string) (int64, error) {
	buf := make([]byte, localSize+len(e.Name))
	if _, err := io.ReadFull(&format.Section{R: r, Off: e.local, End: e.limit}, buf); err != nil {
		return 0, err
	}
	name, extra := int64(le.Uint16(buf[26:])), int64(le.Uint16(buf[28:]))
	switch {
	case string(buf[:4]) != localSig:
		return 0, format.Malformed(shown, format.Offset(e.local), "no local header: found %q, want %q", buf[:4], localSig)
	case le.Uint16(buf[6:])&flagsRefused != 0:
		return 0, format.Malformed(shown, format.Offset(e.local), "is encrypted (flags %#04x)", le.Uint16(buf[6:]))
	case le.Uint16(buf[8:]) != e.Method:
		return 0, format.Malformed(shown, format.Offset(e.local), "compression method %d, in the directory %d", le.Uint16(buf[8:]), e.Method)
	case name != int64(len(e.Name)) || string(buf[localSize:]) != e.Name:
		return 0, format.Malformed(shown, format.Offset(e.local), "the name in the local header is not that in the directory, %q", e.Name)
	}
	off := e.local + localSize + name + extra
	if off > e.limit-e.Packed {
		return 0, format.Malformed(shown, format.Offset(e.local), "%d bytes reach beyond byte %d, where the next entry or the directory begins",
			e.Packed, e.limit)
	}
	return off, nil
}
