// Package tfevents writes and reads the event files of TensorBoard, as far as they hold scalars.
//
// A file is a sequence of records: the length in eight bytes, little-endian, the masked CRC-32C of these eight bytes, the bytes
// of an Event in protocol buffers, and their masked CRC-32C (tensorflow/core/lib/io/record_writer.cc, core/util/event.proto).
package tfevents

import (
	"encoding/binary"
	"hash/crc32"
	"math"
)

// Event is one record. What is zero is not written.
type Event struct {
	WallTime float64 // seconds since 1970
	Step     int64
	Version  string // "brain.Event:2" in the first event of a file
	Start    bool   // the run starts at Step: TensorBoard forgets what it has of that step and later ones
	Scalars  []Scalar
}

// Scalar is a number of a step.
type Scalar struct {
	Tag   string
	Value float64 // written as float32, what TensorBoard shows
}

// Version is what the first event of a file says.
const Version = "brain.Event:2"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// mask returns the checksum of b as records hold it: rotated and offset, since a checksum of data with checksums in it is weak.
func mask(b []byte) uint32 {
	c := crc32.Checksum(b, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}

// Append appends the record of an event to dst.
func Append(dst []byte, e Event) []byte {
	payload := e.encode()
	head := binary.LittleEndian.AppendUint64(nil, uint64(len(payload)))
	dst = binary.LittleEndian.AppendUint32(append(dst, head...), mask(head))
	return binary.LittleEndian.AppendUint32(append(dst, payload...), mask(payload))
}

// The numbers of the fields, and the types of their values on the wire.
const (
	eventWallTime, eventStep, eventVersion, eventSummary, eventSession = 1, 2, 3, 5, 7
	summaryValue                                                       = 1
	valueTag, valueSimple, valueTensor                                 = 1, 2, 8
	tensorType, tensorContent, tensorFloats, tensorDoubles             = 1, 4, 5, 6
	sessionStatus, sessionStart                                        = 1, 1
	typeFloat, typeDouble                                              = 1, 2

	wireVarint, wire64, wireBytes, wire32 = 0, 1, 2, 5
)

func (e *Event) encode() (b []byte) {
	if e.WallTime != 0 {
		b = binary.LittleEndian.AppendUint64(append(b, eventWallTime<<3|wire64), math.Float64bits(e.WallTime))
	}
	if e.Step != 0 {
		b = binary.AppendUvarint(append(b, eventStep<<3|wireVarint), uint64(e.Step))
	}
	if e.Version != "" {
		b = appendBytes(b, eventVersion, []byte(e.Version))
	}
	if e.Scalars != nil {
		var summary []byte
		for _, s := range e.Scalars {
			value := appendBytes(nil, valueTag, []byte(s.Tag))
			value = binary.LittleEndian.AppendUint32(append(value, valueSimple<<3|wire32), math.Float32bits(float32(s.Value)))
			summary = appendBytes(summary, summaryValue, value)
		}
		b = appendBytes(b, eventSummary, summary)
	}
	if e.Start {
		b = appendBytes(b, eventSession, []byte{sessionStatus<<3 | wireVarint, sessionStart})
	}
	return b
}

func appendBytes(b []byte, field byte, content []byte) []byte {
	return append(binary.AppendUvarint(append(b, field<<3|wireBytes), uint64(len(content))), content...)
}
