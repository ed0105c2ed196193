package format

import (
	"encoding/binary"
	"math"
	"sync"
)

// DType is the element type of a stored array.
type DType uint8

// The element types that are decoded. Other types may be listed by a reader; reading them is an error.
const (
	Unknown DType = iota
	Bool
	I8
	U8
	I16
	U16
	I32
	U32
	I64
	U64
	F16
	BF16
	F32
	F64
)

var dtypes = [...]struct {
	name string
	size int
}{
	Unknown: {"unknown", 0}, Bool: {"bool", 1},
	I8: {"int8", 1}, U8: {"uint8", 1}, I16: {"int16", 2}, U16: {"uint16", 2},
	I32: {"int32", 4}, U32: {"uint32", 4}, I64: {"int64", 8}, U64: {"uint64", 8},
	F16: {"float16", 2}, BF16: {"bfloat16", 2}, F32: {"float32", 4}, F64: {"float64", 8},
}

// String returns NumPy's name of d (bfloat16 as ml_dtypes has it).
func (d DType) String() string { return dtypes[d].name }

// Size returns the bytes of one element.
func (d DType) Size() int { return dtypes[d].size }

// Float reports whether d is a floating-point type.
func (d DType) Float() bool { return d >= F16 }

// Unit returns the unit roundoff u of a floating-point type, half the distance from 1 to the next number, and eta, its
// smallest positive number. Both are 0 for the other types.
func (d DType) Unit() (u, eta float64) {
	switch d {
	case F16:
		return 0x1p-11, 0x1p-24
	case BF16:
		return 0x1p-8, 0x1p-133
	case F32:
		return 0x1p-24, 0x1p-149
	case F64:
		return 0x1p-53, 0x1p-1074
	}
	return 0, 0
}

// Decode converts len(dst) elements of type d from src to float64. Integers above 2⁵³ are rounded; bool is 0 or 1.
// It panics if src is shorter than len(dst) elements or d cannot be decoded.
func Decode(dst []float64, src []byte, d DType, order binary.ByteOrder) {
	if n := d.Size(); n == 0 || len(src) < n*len(dst) {
		panic("format: Decode: unknown type or short source")
	}
	fill := func(element func(i int) float64) {
		for i := range dst {
			dst[i] = element(i)
		}
	}
	switch d {
	case Bool:
		for i := range dst {
			dst[i] = 0
			if src[i] != 0 {
				dst[i] = 1
			}
		}
	case I8:
		for i := range dst {
			dst[i] = float64(int8(src[i]))
		}
	case U8:
		for i := range dst {
			dst[i] = float64(src[i])
		}
	case I16:
		fill(func(i int) float64 { return float64(int16(order.Uint16(src[2*i:]))) })
	case U16:
		fill(func(i int) float64 { return float64(order.Uint16(src[2*i:])) })
	case I32:
		fill(func(i int) float64 { return float64(int32(order.Uint32(src[4*i:]))) })
	case U32:
		fill(func(i int) float64 { return float64(order.Uint32(src[4*i:])) })
	case I64:
		fill(func(i int) float64 { return float64(int64(order.Uint64(src[8*i:]))) })
	case U64:
		fill(func(i int) float64 { return float64(order.Uint64(src[8*i:])) })
	case F16:
		table := f16Values()
		for i := range dst {
			dst[i] = table[order.Uint16(src[2*i:])]
		}
	case BF16:
		if order == binary.LittleEndian {
			for i := range dst {
				dst[i] = float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16))
			}
			return
		}
		for i := range dst {
			dst[i] = float64(math.Float32frombits(uint32(order.Uint16(src[2*i:])) << 16))
		}
	case F32:
		if order == binary.LittleEndian { // the common case, without an interface call per element
			for i := range dst {
				dst[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:])))
			}
			return
		}
		for i := range dst {
			dst[i] = float64(math.Float32frombits(order.Uint32(src[4*i:])))
		}
	case F64:
		for i := range dst {
			dst[i] = math.Float64frombits(order.Uint64(src[8*i:]))
		}
	}
}

// f16Values returns the value of every binary16, for arrays: computing one takes ten times as long as looking it up.
var f16Values = sync.OnceValue(func() *[1 << 16]float64 {
	var t [1 << 16]float64
	for h := range t {
		t[h] = FromF16(uint16(h))
	}
	return &t
})

// Encode appends src as little-endian elements of type d to dst, rounding to nearest even. It serves the
// floating-point types, I64 and Bool, and panics for the others.
func Encode(dst []byte, src []float64, d DType) []byte {
	for _, v := range src {
		switch d {
		case F64:
			dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(v))
		case F32:
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(float32(v)))
		case F16:
			dst = binary.LittleEndian.AppendUint16(dst, ToF16(v))
		case BF16:
			dst = binary.LittleEndian.AppendUint16(dst, ToBF16(v))
		case I64:
			dst = binary.LittleEndian.AppendUint64(dst, uint64(int64(v)))
		case Bool:
			b := byte(0)
			if v != 0 {
				b = 1
			}
			dst = append(dst, b)
		default:
			panic("format: Encode: type " + d.String())
		}
	}
	return dst
}

// Round returns v as it comes back after storage in the floating-point type d.
func Round(v float64, d DType) float64 {
	switch d {
	case F32:
		return float64(float32(v))
	case F16:
		return FromF16(ToF16(v))
	case BF16:
		return float64(math.Float32frombits(uint32(ToBF16(v)) << 16))
	}
	return v
}

// FromF16 returns the value of an IEEE 754 binary16.
func FromF16(h uint16) float64 {
	sign, exp, frac := h>>15, int(h>>10&31), float64(h&1023)
	var v float64
	switch exp {
	case 0:
		v = math.Ldexp(frac, -24)
	case 31:
		v = math.Inf(1)
		if frac != 0 {
			return math.NaN()
		}
	default:
		v = math.Ldexp(1024+frac, exp-25)
	}
	if sign == 1 {
		return -v
	}
	return v
}

// ToF16 rounds v to the nearest IEEE 754 binary16, ties to even, straight from float64: going through float32 would
// round twice.
func ToF16(v float64) uint16 { return uint16(narrow(v, 10, 5)) }

// ToBF16 rounds v to the nearest bfloat16, ties to even.
func ToBF16(v float64) uint16 { return uint16(narrow(v, 7, 8)) }

// narrow rounds v to a binary format of frac stored fraction bits and expo exponent bits.
func narrow(v float64, frac, expo int) uint32 {
	sign := uint32(math.Float64bits(v)>>63) << (frac + expo)
	bias := 1<<(expo-1) - 1
	inf := uint32(1<<expo-1) << frac
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return sign | inf | 1<<(frac-1)
	case math.IsInf(v, 0):
		return sign | inf
	case a == 0:
		return sign
	default:
		_, e := math.Frexp(a)           // a in [2^(e-1), 2^e)
		step := max(e-1, 1-bias) - frac // exponent of the spacing of the target format at a
		q := math.RoundToEven(math.Ldexp(a, -step))
		bits := uint32(q) + uint32(step+frac+bias-1)<<frac // a carry out of the fraction raises the exponent by itself
		return sign | min(bits, inf)
	}
}
