package safetensors

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// bare returns a file of a header length and n more bytes.
func bare(length uint64, n int) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, length), make([]byte, n)...)
}

const one = `{"dtype":"U8","shape":[1],"data_offsets":[0,1]}` // a tensor of one byte

// entries returns a header of tensors a, b, … with the given entries.
func entries(list ...string) string {
	for i := range list {
		list[i] = fmt.Sprintf(`"%c":%s`, 'a'+i, list[i])
	}
	return "{" + strings.Join(list, ",") + "}"
}

// u8 is the entry of a vector of bytes.
func u8(begin, end int) string {
	return fmt.Sprintf(`{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}`, end-begin, begin, end)
}

// hostile holds files that are refused. reference says whether safetensors 0.8.0 (safetensors.numpy.load) accepts them.
var hostile = []struct {
	name      string
	file      []byte
	reference bool
	err       string
}{
	// The header length.
	{"N = 2^63", bare(1<<63, 100), false, "byte 0: header length 9223372036854775808, want at most 100000000"},
	{"N = 100,000,001", bare(100_000_001, 100), false, "byte 0: header length 100000001, want at most 100000000"},
	{"N = 2^64-1", bare(1<<64-1, 100), false, "byte 0: header length 18446744073709551615, want at most 100000000"},
	{"N = 2^64-8", bare(1<<64-8, 100), false, "byte 0: header length 18446744073709551608, want at most 100000000"},
	{"N beyond the file", bare(100_000_000, 100), false, "byte 0: header length 100000000, but only 100 bytes follow"},
	{"N one beyond the file", bare(101, 100), false, "byte 0: header length 101, but only 100 bytes follow"},
	{"7 bytes", make([]byte, 7), false, "has 7 bytes, want at least the 8 of the header length"},
	{"empty file", nil, false, "has 0 bytes, want at least the 8 of the header length"},
	{"N = 0", bare(0, 100), false, "byte 8: found the end of the data, want an object"},

	// The JSON document.
	{"header not UTF-8", image(`{"a`+"\xff"+`":`+one+`}`, 1), false, "byte 11: invalid UTF-8: byte 0xff"},
	{"header of zeros", bare(100, 100), false, `byte 8: found '\x00', want an object`},
	{"header an array", image(`[`+one+`]`, 1), false, "byte 8: found an array, want an object"},
	{"header a string", image(`"a"`, 0), false, "byte 8: found a string, want an object"},
	{"byte order mark", image("\ufeff{}", 0), false, "byte 8: found a byte order mark, want an object"},
	{"header cut", image(`{"a":{"dtype":"U8","shape":[1],"data_off`, 1), false, `tensor "a", byte 39: string without an end`},
	{"bytes after the object", image(`{"a":`+one+`}{}`, 1), false, "byte 61: found an object after the end"},
	{"NUL after the object", image("{\"a\":"+one+"}\x00", 1), false, `byte 61: found '\x00' after the end`},
	{"depth 10,001", image(strings.Repeat("[", 10001), 0), false, "byte 8: found an array, want an object"},
	{"depth 10,001 in a tensor", image(`{"a":`+strings.Repeat("[", 10001), 0), false, `tensor "a", byte 13: found an array, want an object`},
	{"control character", image("{\"a\n\":"+one+"}", 1), false, "byte 11: control character 0x0a in a string"},
	{"lone surrogate", image(`{"a\ud800":`+one+`}`, 1), false, "byte 11: lone surrogate"},

	// Keys.
	{"duplicate tensor name", image(`{"a":`+one+`,"a":`+one+`}`, 1), true, `byte 61: duplicate key "a"`},
	{"duplicate after unescaping", image(`{"a":`+one+`,"\u0061":`+one+`}`, 1), true, `byte 61: duplicate key "a"`},
	{"zero-size alias under one name", image(`{"b":`+one+`,"a":`+u8(0, 0)+`,"a":`+u8(1, 1)+`}`, 1), true, `byte 113: duplicate key "a"`},
	{"duplicate among many", image(many(100, `"t7":`+u8(0, 0)), 0), true, `duplicate key "t7"`},
	{"duplicate key in a tensor", image(`{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), false, `tensor "a", byte 27: duplicate key "dtype"`},
	{"duplicate metadata key", image(`{"__metadata__":{"x":"1","x":"2"},"a":`+one+`}`, 1), true, `__metadata__, byte 33: duplicate key "x"`},
	{"metadata twice", image(`{"__metadata__":{},"a":`+one+`,"__metadata__":{}}`, 1), false, `byte 79: duplicate key "__metadata__"`},
	{"wrong-case key", image(`{"a":{"dtype":"U8","shape":[1],"DATA_OFFSETS":[0,1]}}`, 1), false, `tensor "a": unknown key "DATA_OFFSETS", want dtype, shape and data_offsets`},
	{"unknown key", image(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0}}`, 1), true, `tensor "a": unknown key "x", want dtype, shape and data_offsets`},
	{"no dtype", image(`{"a":{"shape":[1],"data_offsets":[0,1]}}`, 1), false, `tensor "a": key dtype is missing`},
	{"no shape", image(`{"a":{"dtype":"U8","data_offsets":[0,1]}}`, 1), false, `tensor "a": key shape is missing`},
	{"no offsets", image(`{"a":{"dtype":"U8","shape":[1]}}`, 1), false, `tensor "a": key data_offsets is missing`},
	{"empty entry", image(`{"a":{}}`, 1), false, `tensor "a": key dtype is missing`},
	{"null entry", image(`{"a":null}`, 0), false, `tensor "a", byte 13: found null, want an object`},
	{"entry as an array", image(`{"a":["U8",[1],[0,1]]}`, 1), true, `tensor "a", byte 13: found an array, want an object`},

	// Names.
	{"empty name", image(`{"":`+one+`}`, 1), true, `tensor "": the name is empty`},
	{"name of 1025 bytes", image(`{"`+strings.Repeat("x", 1025)+`":`+one+`}`, 1), true, "the name has 1025 bytes, want at most 1024"},
	{"name with NUL", image(`{"a\u0000b":`+one+`}`, 1), true, `tensor "a\x00b": the name holds a control character`},
	{"name with DEL", image("{\"a\x7f\":"+one+"}", 1), true, "the name holds a control character"},
	{"name with C1", image(`{"a\u0085":`+one+`}`, 1), true, "the name holds a control character"},

	// Metadata.
	{"metadata number", image(`{"__metadata__":{"step":1},"a":`+one+`}`, 1), false, `__metadata__, key "step", byte 32: found a number, want a string`},
	{"metadata null", image(`{"__metadata__":{"step":null},"a":`+one+`}`, 1), false, `__metadata__, key "step", byte 32: found null, want a string`},
	{"metadata object", image(`{"__metadata__":{"step":{}},"a":`+one+`}`, 1), false, `__metadata__, key "step", byte 32: found an object, want a string`},
	{"metadata a string", image(`{"__metadata__":"pt","a":`+one+`}`, 1), false, "__metadata__, byte 24: found a string, want an object"},
	{"no metadata object", image(`{"__metadata__":null,"a":`+one+`}`, 1), true, "__metadata__, byte 24: found null, want an object"},
	{"metadata keys", image(`{"__metadata__":{"":""`+pairs(MaxMetadata)+`}}`, 0), true, "__metadata__: more than 65536 keys"},

	// Types.
	{"unknown dtype", image(`{"a":{"dtype":"F128","shape":[1],"data_offsets":[0,16]}}`, 16), false, `tensor "a", dtype, byte 22: unknown dtype "F128"`},
	{"wrong-case dtype", image(`{"a":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}}`, 4), false, `tensor "a", dtype, byte 22: unknown dtype "f32"`},
	{"dtype a number", image(`{"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}}`, 1), false, `tensor "a", dtype, byte 22: found a number, want a string`},
	{"F4 with an odd count", image(`{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}`, 2), false, `tensor "a": shape [3] of F4: 12 bits do not end on a byte`},
	{"F6 with 3 elements", image(`{"a":{"dtype":"F6_E2M3","shape":[3],"data_offsets":[0,2]}}`, 2), false, `tensor "a": shape [3] of F6_E2M3: 18 bits do not end on a byte`},

	// Shapes.
	{"shape [2, 2^64-2]", image(`{"a":{"dtype":"U8","shape":[2,18446744073709551614],"data_offsets":[0,1]}}`, 1), false, `tensor "a", shape, byte 38: integer 18446744073709551614 does not fit an int64`},
	{"shape overflows", image(`{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0), false, `tensor "a": shape [4294967296 4294967296]: the number of elements overflows`},
	{"shape overflows and is zero", image(`{"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}}`, 0), false, `the number of elements overflows`},
	{"bits overflow", image(`{"a":{"dtype":"F64","shape":[288230376151711744],"data_offsets":[0,0]}}`, 0), false, `tensor "a": shape [288230376151711744] of F64: the number of bits overflows`},
	{"negative dimension", image(`{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}`, 1), false, `tensor "a", shape, byte 36: dimension -1 is out of range`},
	{"two negative dimensions", image(`{"a":{"dtype":"U8","shape":[-1,-1],"data_offsets":[0,1]}}`, 1), false, `tensor "a", shape, byte 36: dimension -1 is out of range`},
	{"float dimension", image(`{"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}`, 1), false, `tensor "a", shape, byte 36: found 1.0, want an integer`},
	{"dimension -0", image(`{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}`, 0), false, `tensor "a", shape, byte 36: found -0, want an integer`},
	{"nine dimensions", image(`{"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}`, 1), true, `tensor "a", shape, byte 52: more than 8 dimensions`},
	{"shape a number", image(`{"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}}`, 1), false, `tensor "a", shape, byte 35: found a number, want an array`},
	{"shape too large", image(`{"a":{"dtype":"U16","shape":[2],"data_offsets":[0,3]}}`, 3), false, `tensor "a": data_offsets [0, 3] hold 3 bytes, shape [2] of U16 needs 4`},
	{"shape too small", image(`{"a":{"dtype":"U16","shape":[],"data_offsets":[0,3]}}`, 3), false, `tensor "a": data_offsets [0, 3] hold 3 bytes, shape [] of U16 needs 2`},

	// Offsets.
	{"overlap", image(entries(u8(0, 4), u8(3, 8)), 8), false, `tensor "b": begins at byte 3 of the data and overlaps tensor "a", which ends at byte 4`},
	{"same bytes twice", image(entries(u8(0, 4), u8(0, 4)), 4), false, `tensor "b": begins at byte 0 of the data and overlaps tensor "a", which ends at byte 4`},
	{"empty tensor inside another", image(entries(u8(0, 4), u8(2, 2)), 4), false, `tensor "b": begins at byte 2 of the data and overlaps tensor "a", which ends at byte 4`},
	{"hole", image(entries(u8(0, 4), u8(5, 8)), 8), false, `tensor "b": begins at byte 5 of the data and leaves a hole: tensor "a" ends at byte 4`},
	{"hole before an empty tensor", image(entries(u8(0, 4), u8(5, 5)), 5), false, `tensor "b": begins at byte 5 of the data and leaves a hole: tensor "a" ends at byte 4`},
	{"first offset not 0", image(entries(u8(1, 4)), 4), false, `tensor "a": is the first and begins at byte 1 of the data, want 0`},
	{"end before begin", image(`{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}}`, 4), false, `tensor "a": data_offsets [4, 0]: the end lies before the begin`},
	{"negative offset", image(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}}`, 1), false, `tensor "a", data_offsets, byte 55: offset -1 is negative`},
	{"file too short", image(entries(u8(0, 4)), 3), false, `tensor "a": data_offsets [0, 4]: the end lies beyond the 3 bytes of data`},
	{"file too long", image(entries(u8(0, 4)), 6), false, "byte 65: 2 bytes follow the last tensor"},
	{"data without tensors", image("{}", 1), false, "byte 10: 1 bytes follow the last tensor"},
	{"offset 2^63", image(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,9223372036854775808]}}`, 1), false, `tensor "a", data_offsets, byte 57: integer 9223372036854775808 does not fit an int64`},
	{"float offset", image(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1.0]}}`, 1), false, `tensor "a", data_offsets, byte 57: found 1.0, want an integer`},
	{"exponent offset", image(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1e0]}}`, 1), false, `tensor "a", data_offsets, byte 57: found 1e0, want an integer`},
	{"one offset", image(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}}`, 1), false, `tensor "a", data_offsets: 1 offsets, want begin and end`},
	{"three offsets", image(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}}`, 1), false, `tensor "a", data_offsets, byte 59: more than two offsets, want begin and end`},
	{"offset a string", image(`{"a":{"dtype":"U8","shape":[1],"data_offsets":["0",1]}}`, 1), false, `tensor "a", data_offsets, byte 55: found a string, want a number`},
}

// pairs returns n different metadata pairs, each after a comma.
func pairs(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"k%d":""`, i)
	}
	return b.String()
}

// many returns a header of n empty tensors t0, t1, … and one more member.
func many(n int, last string) string {
	var b strings.Builder
	b.WriteString("{")
	for i := range n {
		fmt.Fprintf(&b, `"t%d":%s,`, i, u8(0, 0))
	}
	return b.String() + last + "}"
}

func TestHostile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.safetensors")
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(path, c.file, 0o644))
			f, err := Open(path)
			require.Nil(t, f)
			require.ErrorContains(t, err, c.err)
			require.ErrorContains(t, err, path+": ")
			require.True(t, format.IsMalformed(err))
		})
	}
}

// TestAccepted holds files at the edge of what is refused.
func TestAccepted(t *testing.T) {
	for _, c := range []struct {
		name    string
		file    []byte
		tensors int
	}{
		{"no tensors", image("{}", 0), 0},
		{"no tensors, padded", image("{}      ", 0), 0},
		{"rank 0", image(`{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}`, 4), 1},
		{"zero in the shape", image(`{"a":{"dtype":"F32","shape":[3,0,5],"data_offsets":[0,0]}}`, 0), 1},
		{"eight dimensions", image(`{"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}`, 1), 1},
		{"large dimension beside a zero", image(`{"a":{"dtype":"U8","shape":[0,9223372036854775807],"data_offsets":[0,0]}}`, 0), 1},
		{"F4 with an even count", image(`{"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}`, 2), 1},
		{"F6 with 4 elements", image(`{"a":{"dtype":"F6_E3M2","shape":[2,2],"data_offsets":[0,3]}}`, 3), 1},
		{"empty tensors between others", image(entries(u8(0, 4), u8(4, 4), u8(4, 4), u8(4, 8), u8(8, 8), u8(0, 0)), 8), 6},
		{"order of the header", image(entries(u8(4, 8), u8(0, 4)), 8), 2},
		{"order of the keys", image(`{"a":{"data_offsets":[0,1],"shape":[1],"dtype":"U8"}}`, 1), 1},
		{"escaped keys", image(`{"a":{"d\u0074ype":"\u00558","shape":[1],"data_offsets":[0,1]}}`, 1), 1},
		{"white space everywhere", image("{ \"a\" :\n{\t\"dtype\": \"U8\", \"shape\": [ 1 ] ,\"data_offsets\":[ 0 , 1 ] } }\r\n ", 1), 1},
		{"name of 1024 bytes", image(`{"`+strings.Repeat("x", 1024)+`":`+one+`}`, 1), 1},
		{"name of other planes", image(`{"\ud83d\ude00 é":`+one+`}`, 1), 1},
		{"metadata last", image(`{"a":`+one+`,"__metadata__":{"":"","\u0000":"\u0001"}}`, 1), 1},
		{"all metadata keys", image(`{"__metadata__":{`+pairs(MaxMetadata)[1:]+`}}`, 0), 0},
		{"BOOL of 2", append(image(`{"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}`, 0), 2), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := parse(c.file)
			require.NoError(t, err)
			require.Equal(t, c.tensors, f.Len())
			require.Empty(t, f.Notes)
			for _, a := range f.Tensors() {
				if a.DType != format.Unknown {
					_, err := a.Float64s()
					require.NoError(t, err)
				}
			}
		})
	}
}

func TestOrder(t *testing.T) {
	header := fmt.Sprintf(`{"a":%s,"d":%s,"c":%s,"b":%s,"e":%s}`, u8(4, 8), u8(4, 4), u8(0, 4), u8(4, 4), u8(0, 0))
	f, err := parse(image(header, 8))
	require.NoError(t, err)
	var names string
	for name, a := range f.Tensors() {
		names += name
		v, err := a.Float64s()
		require.NoError(t, err)
		if len(v) > 0 {
			require.Equal(t, float64(a.Offset-8-f.Header), v[0], "the bytes count from 0")
		}
	}
	require.Equal(t, "ecbda", names)
}

func TestLeadingWhiteSpace(t *testing.T) {
	f, err := parse(image("\n {\"a\":"+one+"}", 1))
	require.NoError(t, err)
	require.Len(t, f.Notes, 1)
	require.Contains(t, f.Notes[0], "white space before the {")
	require.Equal(t, []byte{0}, raw(t, f, "a"))
}
