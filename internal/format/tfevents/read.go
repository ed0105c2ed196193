package tfevents

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"unicode/utf8"

	"plumbline/internal/format"
)

// Read gives the events of a file to each, in order, until it returns an error. cut says that the last record ends too early,
// which is what a process that was killed leaves.
//
// A checksum that is wrong, and a record that is no Event, are malformed. Scalars are read as PyTorch writes them, simple_value,
// and as TensorFlow 2 does, a tensor of one float or double; other values are passed over.
func Read(path string, each func(Event) error) (cut bool, err error) {
	f, err := format.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	in := bufio.NewReaderSize(io.NewSectionReader(f, 0, f.Size), 1<<16)
	var buf []byte
	var head [12]byte
	for at, n := int64(0), 0; ; n++ {
		from := at
		where := func() string { return fmt.Sprintf("record %d at byte %d", n, from) }
		if _, err := io.ReadFull(in, head[:]); errors.Is(err, io.EOF) {
			return false, nil
		} else if errors.Is(err, io.ErrUnexpectedEOF) {
			return true, nil
		} else if err != nil {
			return false, fmt.Errorf("%s: %w", path, err)
		}
		if got, want := binary.LittleEndian.Uint32(head[8:]), mask(head[:8]); got != want {
			return false, format.Malformed(path, where(), "the checksum of the length is %08x, want %08x", got, want)
		}
		at += 12
		length := binary.LittleEndian.Uint64(head[:8])
		if length > maxRecord {
			return false, format.Malformed(path, where(), "an event of %d bytes, want at most %d, as protocol buffers have", length, maxRecord)
		}
		if left := f.Size - at; left < 4 || length > uint64(left-4) {
			return true, nil // the length is right by its checksum, so the end is missing
		}
		if uint64(cap(buf)) < length+4 {
			buf = make([]byte, length+4)
		}
		buf = buf[:length+4]
		if _, err := io.ReadFull(in, buf); err != nil {
			return false, fmt.Errorf("%s: %w", path, err)
		}
		at += int64(len(buf))
		payload := buf[:length]
		if got, want := binary.LittleEndian.Uint32(buf[length:]), mask(payload); got != want {
			return false, format.Malformed(path, where(), "the checksum of the event is %08x, want %08x", got, want)
		}
		e, err := decode(payload)
		if err != nil {
			return false, format.Malformed(path, where(), "no event: %v", err)
		}
		if err := each(e); err != nil {
			return false, err
		}
	}
}

// maxRecord is the most that protocol buffers serialise. A length above it is no record whose end is missing.
const maxRecord = 1<<31 - 1

var errWire = errors.New("a field ends too early or is of an unknown type")

// field is one of a message: number holds a varint, a 64-bit or a 32-bit value, bytes a message, string or packed list.
type field struct {
	id, wire int
	number   uint64
	bytes    []byte
}

// fields gives the fields of a message to each.
func fields(b []byte, each func(f field) error) error {
	for len(b) > 0 {
		key, n := binary.Uvarint(b)
		if n <= 0 || key>>3 == 0 || key>>3 > 1<<29-1 {
			return errWire
		}
		b = b[n:]
		f := field{id: int(key >> 3), wire: int(key & 7)}
		size := 0
		switch f.wire {
		case wireVarint:
			if f.number, size = binary.Uvarint(b); size <= 0 {
				return errWire
			}
		case wire64:
			if size = 8; len(b) < size {
				return errWire
			}
			f.number = binary.LittleEndian.Uint64(b)
		case wire32:
			if size = 4; len(b) < size {
				return errWire
			}
			f.number = uint64(binary.LittleEndian.Uint32(b))
		case wireBytes:
			length, n := binary.Uvarint(b)
			if n <= 0 || length > uint64(len(b)-n) {
				return errWire
			}
			size = n + int(length)
			f.bytes = b[n:size]
		default:
			return errWire
		}
		b = b[size:]
		if err := each(f); err != nil {
			return err
		}
	}
	return nil
}

func decode(b []byte) (e Event, err error) {
	err = fields(b, func(f field) error {
		switch {
		case f.id == eventWallTime && f.wire == wire64:
			e.WallTime = math.Float64frombits(f.number)
		case f.id == eventStep && f.wire == wireVarint:
			e.Step = int64(f.number)
		case f.id == eventVersion && f.wire == wireBytes:
			e.Version, err = text(f.bytes)
			return err
		case f.id == eventSession && f.wire == wireBytes:
			return fields(f.bytes, func(f field) error {
				if f.id == sessionStatus && f.wire == wireVarint {
					e.Start = f.number == sessionStart
				}
				return nil
			})
		case f.id == eventSummary && f.wire == wireBytes:
			if e.Scalars == nil {
				e.Scalars = make([]Scalar, 0, values(b)) // once: a slice that grows takes several times what it ends with
			}
			return fields(f.bytes, func(f field) error {
				if f.id != summaryValue || f.wire != wireBytes {
					return nil
				}
				s, ok, err := scalar(f.bytes)
				if ok {
					e.Scalars = append(e.Scalars, s)
				}
				return err
			})
		}
		return nil
	})
	return e, err
}

// values counts the values in the summaries of an event, as far as it can be read.
func values(b []byte) (n int) {
	fields(b, func(f field) error {
		if f.id != eventSummary || f.wire != wireBytes {
			return nil
		}
		return fields(f.bytes, func(f field) error {
			if f.id == summaryValue && f.wire == wireBytes && len(f.bytes) >= leastScalar {
				n++
			}
			return nil
		})
	})
	return n
}

// leastScalar is the bytes of a value that is a scalar: its tag of no bytes left out, one float32.
const leastScalar = 5

func text(b []byte) (string, error) {
	if !utf8.Valid(b) {
		return "", errors.New("a text is not UTF-8")
	}
	return string(b), nil
}

// scalar reads a value of a summary; ok says whether it is a scalar.
func scalar(b []byte) (s Scalar, ok bool, err error) {
	err = fields(b, func(f field) (err error) {
		switch {
		case f.id == valueTag && f.wire == wireBytes:
			s.Tag, err = text(f.bytes)
		case f.id == valueSimple && f.wire == wire32:
			s.Value, ok = float64(math.Float32frombits(uint32(f.number))), true
		case f.id == valueTensor && f.wire == wireBytes:
			var one bool
			var v float64
			if v, one, err = tensor(f.bytes); one {
				s.Value, ok = v, true
			}
		}
		return err
	})
	return s, ok, err
}

// tensor returns the only element of a tensor of floats or doubles; ok is false if it is another one.
func tensor(b []byte) (x float64, ok bool, err error) {
	kind, n, v := uint64(0), 0, 0.0
	var content []byte
	one := func(x float64) { n, v = n+1, x }
	err = fields(b, func(f field) error {
		switch {
		case f.id == tensorType && f.wire == wireVarint:
			kind = f.number
		case f.id == tensorContent && f.wire == wireBytes:
			content = f.bytes
		case f.id == tensorFloats && f.wire == wire32:
			one(float64(math.Float32frombits(uint32(f.number))))
		case f.id == tensorFloats && f.wire == wireBytes:
			for c := f.bytes; len(c) >= 4; c = c[4:] {
				one(float64(math.Float32frombits(binary.LittleEndian.Uint32(c))))
			}
		case f.id == tensorDoubles && f.wire == wire64:
			one(math.Float64frombits(f.number))
		case f.id == tensorDoubles && f.wire == wireBytes:
			for c := f.bytes; len(c) >= 8; c = c[8:] {
				one(math.Float64frombits(binary.LittleEndian.Uint64(c)))
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return 0, false, err
	case n == 0 && kind == typeFloat && len(content) == 4:
		one(float64(math.Float32frombits(binary.LittleEndian.Uint32(content))))
	case n == 0 && kind == typeDouble && len(content) == 8:
		one(math.Float64frombits(binary.LittleEndian.Uint64(content)))
	}
	return v, n == 1 && (kind == typeFloat || kind == typeDouble), nil
}

// Is reports whether the first 12 bytes of a file are the head of a record.
func Is(head []byte) bool {
	return len(head) >= 12 && binary.LittleEndian.Uint32(head[8:12]) == mask(head[:8])
}
