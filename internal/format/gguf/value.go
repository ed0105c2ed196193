package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
)

// kind is the type of a metadata value, by its number in the file.
type kind uint32

const (
	kindU8 kind = iota
	kindI8
	kindU16
	kindI16
	kindU32
	kindI32
	kindF32
	kindBool
	kindString
	kindArray
	kindU64
	kindI64
	kindF64
)

// kindSize is the least bytes of a value.
var kindSize = [...]int64{kindU8: 1, kindI8: 1, kindU16: 2, kindI16: 2, kindU32: 4, kindI32: 4, kindF32: 4, kindBool: 1, kindString: 8, kindArray: 12, kindU64: 8, kindI64: 8, kindF64: 8}

func (p *parser) kind() kind {
	at := p.at
	k := kind(p.u32())
	if p.err == nil && int(k) >= len(kindSize) {
		p.fail(at, "unknown value type %d", k)
		return 0
	}
	return k
}

// value reads a value of that kind; an array holds no arrays.
func (p *parser) value(k kind, array bool) any {
	if p.err != nil {
		return nil
	}
	switch k {
	case kindString:
		return p.text("a string", MaxString)
	case kindArray:
		if !array {
			p.fail(p.at, "an array of arrays")
			return nil
		}
		return p.array()
	}
	at := p.at
	b := p.buf[:kindSize[k]]
	p.bytes(b)
	if p.err != nil {
		return nil
	}
	switch k {
	case kindU8:
		return b[0]
	case kindI8:
		return int8(b[0])
	case kindU16:
		return binary.LittleEndian.Uint16(b)
	case kindI16:
		return int16(binary.LittleEndian.Uint16(b))
	case kindU32:
		return binary.LittleEndian.Uint32(b)
	case kindI32:
		return int32(binary.LittleEndian.Uint32(b))
	case kindF32:
		return math.Float32frombits(binary.LittleEndian.Uint32(b))
	case kindU64:
		return binary.LittleEndian.Uint64(b)
	case kindI64:
		return int64(binary.LittleEndian.Uint64(b))
	case kindF64:
		return math.Float64frombits(binary.LittleEndian.Uint64(b))
	}
	if b[0] > 1 {
		p.fail(at, "%d, want 0 or 1 for a bool", b[0])
	}
	return b[0] == 1
}

func (p *parser) array() any {
	k := p.kind()
	at := p.at
	n := p.u64()
	if p.err != nil {
		return nil
	}
	if k == kindArray {
		p.fail(at, "an array of arrays")
		return nil
	}
	if n > uint64(p.left()/kindSize[k]) {
		p.fail(at, "an array of %d elements, but %d bytes hold at most %d", n, p.left(), p.left()/kindSize[k])
		return nil
	}
	switch k {
	case kindU8:
		return elements[uint8](p, k, n)
	case kindI8:
		return elements[int8](p, k, n)
	case kindU16:
		return elements[uint16](p, k, n)
	case kindI16:
		return elements[int16](p, k, n)
	case kindU32:
		return elements[uint32](p, k, n)
	case kindI32:
		return elements[int32](p, k, n)
	case kindF32:
		return elements[float32](p, k, n)
	case kindU64:
		return elements[uint64](p, k, n)
	case kindI64:
		return elements[int64](p, k, n)
	case kindF64:
		return elements[float64](p, k, n)
	case kindBool:
		return elements[bool](p, k, n)
	}
	list := make([]string, n)
	for i := range list {
		if list[i] = p.text("a string", MaxString); p.err != nil {
			return nil
		}
	}
	return list
}

// elements reads n numbers of T, which is the type of kind k; the file has the bytes.
func elements[T any](p *parser, k kind, n uint64) any {
	list := make([]T, n)
	chunk := make([]byte, min(n, 4096)*uint64(kindSize[k]))
	for done := uint64(0); done < n && p.err == nil; {
		part := list[done:min(n, done+4096)]
		b := chunk[:len(part)*int(kindSize[k])]
		at := p.at
		if p.bytes(b); p.err != nil {
			return nil
		}
		if bools, ok := any(part).([]bool); ok {
			for i, v := range b {
				if v > 1 {
					p.fail(at+int64(i), "%d, want 0 or 1 for a bool", v)
				}
				bools[i] = v == 1
			}
		} else if _, err := binary.Decode(b, binary.LittleEndian, part); err != nil {
			panic("gguf: " + err.Error()) // T has a fixed size, and b is that long
		}
		done += uint64(len(part))
	}
	return list
}

// kindOf names the type of a metadata value.
func kindOf(v any) string {
	if s, ok := strings.CutPrefix(fmt.Sprintf("%T", v), "[]"); ok {
		return "an array of " + s
	}
	return fmt.Sprintf("%T", v)
}
