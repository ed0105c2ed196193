package pickle

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"plumbline/internal/format"
)

var le = binary.LittleEndian

// stream reads a program byte by byte and jumps over what it carries.
type stream struct {
	r               io.ReaderAt
	path            string
	start, pos, end int64  // offsets in r
	buf             []byte // holds what is around pos: a text is often asked for after the opcodes behind it
	at              int64  // offset of buf
	far             [maxText]byte
}

// malformed refuses the program at byte off.
func (s *stream) malformed(off int64, msg string, args ...any) error {
	return format.Malformed(s.path, format.Offset(off), msg, args...)
}

// window returns the bytes from pos on that are in memory, at least want of them and want at most 4096.
func (s *stream) window(want int64) ([]byte, error) {
	if want > s.end-s.pos {
		return nil, s.malformed(s.pos, "pickle ends, want %d bytes more", want-(s.end-s.pos))
	}
	if s.pos < s.at || s.pos+want > s.at+int64(len(s.buf)) {
		at := max(s.start, s.pos-int64(cap(s.buf))/2)
		s.buf = s.buf[:min(int64(cap(s.buf)), s.end-at)]
		if n, err := s.r.ReadAt(s.buf, at); n < len(s.buf) {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF // the file was cut after it was opened
			}
			return nil, fmt.Errorf("%s: reading at byte %d: %w", s.path, at+int64(n), err)
		}
		s.at = at
	}
	return s.buf[s.pos-s.at:], nil
}

// take returns the next n bytes, at most 8, until the next read.
func (s *stream) take(n int64) ([]byte, error) {
	w, err := s.window(n)
	if err != nil {
		return nil, err
	}
	s.pos += n
	return w[:n], nil
}

// number returns the next n bytes as an unsigned little-endian number.
func (s *stream) number(n int64) (uint64, error) {
	b, err := s.take(n)
	if err != nil {
		return 0, err
	}
	var wide [8]byte
	copy(wide[:], b)
	return le.Uint64(wide[:]), nil
}

// skip jumps over n bytes.
func (s *stream) skip(n uint64) error {
	if n > uint64(s.end-s.pos) {
		return s.malformed(s.pos, "%d bytes are declared, %d are left", n, s.end-s.pos)
	}
	s.pos += int64(n)
	return nil
}

// line jumps behind the next line feed and returns where the text before it lies.
func (s *stream) line() (span, error) {
	from := s.pos
	for s.pos < s.end {
		w, err := s.window(1)
		if err != nil {
			return span{}, err
		}
		if i := bytes.IndexByte(w, '\n'); i >= 0 {
			s.pos += int64(i) + 1
			return span{from, s.pos - 1 - from}, nil
		}
		s.pos += int64(len(w))
	}
	return span{}, s.malformed(from, "pickle ends inside a line")
}

// span is a place in the file.
type span struct{ off, n int64 }

// bytes returns the first maxText bytes of sp, until the next read.
func (s *stream) bytes(sp span) ([]byte, error) {
	sp.n = min(sp.n, maxText)
	if from := sp.off - s.at; from >= 0 && from+sp.n <= int64(len(s.buf)) {
		return s.buf[from:][:sp.n], nil
	}
	b := s.far[:sp.n]
	if n, err := s.r.ReadAt(b, sp.off); n < len(b) {
		return nil, fmt.Errorf("%s: reading at byte %d: %w", s.path, sp.off, err)
	}
	return b, nil
}
