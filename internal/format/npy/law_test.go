package npy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/format"
)

// sample is an array as a test knows it: its elements, little-endian in C order.
type sample struct {
	dtype format.DType
	shape []int
	raw   []byte
}

// style is one of the ways to put a sample into a .npy file.
type style struct {
	version      byte
	big, columns bool
	order        string // of the descr where it is not < or >
	keys         []int  // order of descr, fortran_order, shape
	quote, space string
	comma        string // behind the last key
	suffix       string // of integers
	align        int
}

var kindSize = map[format.DType]string{
	format.Bool: "b1", format.I8: "i1", format.U8: "u1", format.I16: "i2", format.U16: "u2", format.I32: "i4", format.U32: "u4",
	format.I64: "i8", format.U64: "u8", format.F16: "f2", format.BF16: "V2", format.F32: "f4", format.F64: "f8",
}

func drawSample(t *rapid.T) sample {
	s := sample{dtype: format.DType(rapid.IntRange(int(format.Bool), int(format.F64)).Draw(t, "dtype"))}
	s.shape = rapid.SliceOfN(rapid.IntRange(0, 5), 0, 5).Draw(t, "shape")
	n := s.dtype.Size()
	for _, d := range s.shape {
		n *= d
	}
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	s.raw = make([]byte, n)
	for i := range s.raw {
		s.raw[i] = []byte{byte(r.Uint32()), 0, 0x80, 0xff, 0x7f}[r.IntN(5)]
		if s.dtype == format.Bool {
			s.raw[i] &= 1
		}
	}
	return s
}

func drawStyle(t *rapid.T, d format.DType) style {
	s := style{
		version: byte(rapid.IntRange(1, 3).Draw(t, "version")),
		columns: rapid.Bool().Draw(t, "columns"),
		keys:    rapid.Permutation([]int{0, 1, 2}).Draw(t, "keys"),
		quote:   rapid.SampledFrom([]string{"'", `"`}).Draw(t, "quote"),
		space:   rapid.SampledFrom([]string{"", " ", "\t", " \n ", "\f\r"}).Draw(t, "space"),
		comma:   rapid.SampledFrom([]string{"", ",", " , "}).Draw(t, "comma"),
		align:   rapid.SampledFrom([]int{1, 16, 64}).Draw(t, "align"),
	}
	if s.version < 3 {
		s.suffix = rapid.SampledFrom([]string{"", "L"}).Draw(t, "suffix")
	}
	orders := []string{"<", ">", "="}
	if d.Size() == 1 {
		orders = append(orders, "|")
	}
	if d == format.BF16 {
		orders = []string{"<", "|"}
	}
	s.order = rapid.SampledFrom(orders).Draw(t, "order")
	s.big = s.order == ">"
	return s
}

// encode puts s into a file. Its index arithmetic goes the other way than that of the package: it asks for each place
// in the file which element stands there.
func (st style) encode(s sample) []byte {
	dims := make([]string, len(s.shape))
	for i, d := range s.shape {
		dims[i] = fmt.Sprint(d) + st.suffix
	}
	shape := "(" + strings.Join(dims, ","+st.space) + ")"
	if len(dims) == 1 {
		shape = "(" + dims[0] + ",)"
	}
	pairs := []string{
		st.quote + "descr" + st.quote + ":" + st.space + st.quote + st.order + kindSize[s.dtype] + st.quote,
		st.quote + "fortran_order" + st.quote + st.space + ":" + map[bool]string{false: "False", true: "True"}[st.columns],
		st.quote + "shape" + st.quote + ":" + st.space + shape,
	}
	dict := "{" + st.space + pairs[st.keys[0]] + "," + st.space + pairs[st.keys[1]] + st.space + "," + pairs[st.keys[2]] + st.comma + "}"
	for (12+len(dict)+1)%st.align != 0 {
		dict += " "
	}

	size := s.dtype.Size()
	data := make([]byte, 0, len(s.raw))
	for place := range len(s.raw) / size {
		at := place
		if st.columns {
			index := make([]int, len(s.shape))
			for i, rest := 0, place; i < len(s.shape); i++ {
				index[i], rest = rest%s.shape[i], rest/s.shape[i]
			}
			at = 0
			for i, d := range s.shape {
				at = at*d + index[i]
			}
		}
		element := slices.Clone(s.raw[at*size : (at+1)*size])
		if st.big {
			slices.Reverse(element)
		}
		data = append(data, element...)
	}
	return npyFile(st.version, dict+"\n", data...)
}

// values decodes s by encoding/binary, not by package format.
func (s sample) values() []float64 {
	n := len(s.raw) / s.dtype.Size()
	out := make([]float64, n)
	read := func(ptr any) {
		if err := binary.Read(bytes.NewReader(s.raw), binary.LittleEndian, ptr); err != nil {
			panic(err)
		}
	}
	switch s.dtype {
	case format.Bool, format.U8:
		fill(out, make([]uint8, n), read)
	case format.I8:
		fill(out, make([]int8, n), read)
	case format.I16:
		fill(out, make([]int16, n), read)
	case format.U16:
		fill(out, make([]uint16, n), read)
	case format.I32:
		fill(out, make([]int32, n), read)
	case format.U32:
		fill(out, make([]uint32, n), read)
	case format.I64:
		fill(out, make([]int64, n), read)
	case format.U64:
		fill(out, make([]uint64, n), read)
	case format.F32:
		fill(out, make([]float32, n), read)
	case format.F64:
		fill(out, make([]float64, n), read)
	case format.BF16:
		bits := make([]uint16, n)
		read(bits)
		for i, b := range bits {
			out[i] = float64(math.Float32frombits(uint32(b) << 16))
		}
	case format.F16: // (−1)^s · 2^(e−15) · 1.f, subnormal 2^(−14) · 0.f
		bits := make([]uint16, n)
		read(bits)
		for i, b := range bits {
			e, f := int(b>>10&31), float64(b&1023)/1024
			switch {
			case e == 31 && f != 0:
				out[i] = math.NaN()
			case e == 31:
				out[i] = math.Inf(1)
			case e == 0:
				out[i] = math.Pow(2, -14) * f
			default:
				out[i] = math.Pow(2, float64(e-15)) * (1 + f)
			}
			if b>>15 == 1 {
				out[i] = -out[i]
			}
		}
	}
	return out
}

func fill[T uint8 | int8 | uint16 | int16 | uint32 | int32 | uint64 | int64 | float32 | float64](out []float64, typed []T, read func(any)) {
	read(typed)
	for i, v := range typed {
		out[i] = float64(v)
	}
}

// requireSame compares bit for bit, but for the payload of a NaN.
func requireSame(t require.TestingT, want, got []float64) {
	require.Len(t, got, len(want))
	for i := range want {
		if math.IsNaN(want[i]) && math.IsNaN(got[i]) {
			continue
		}
		require.Equal(t, math.Float64bits(want[i]), math.Float64bits(got[i]), "element %d: want %v, got %v", i, want[i], got[i])
	}
}

// A file in any version, byte order, element order and spelling of the header has the values that were put into it, and
// written again it is the one file that NumPy would write for them.
func TestReadLaw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSample(t)
		st := drawStyle(t, s.dtype)
		file := st.encode(s)
		a, err := parse(bytes.NewReader(file), int64(len(file)), "x.npy", Options{AssumeBF16: true})
		require.NoError(t, err)
		require.Equal(t, s.dtype, a.DType)
		require.True(t, slices.Equal(s.shape, a.Shape), "%v %v", s.shape, a.Shape)
		require.Equal(t, st.columns && len(s.shape) > 1, a.ColumnMajor)
		got, err := a.Float64s()
		require.NoError(t, err)
		requireSame(t, s.values(), got)

		var b bytes.Buffer
		require.NoError(t, WriteArray(&b, a))
		require.Equal(t, append(Header(s.dtype, s.shape), s.raw...), b.Bytes())
		var c bytes.Buffer
		require.NoError(t, WriteRaw(&c, s.dtype, s.shape, s.raw))
		require.Equal(t, b.Bytes(), c.Bytes())

		again, err := parse(bytes.NewReader(b.Bytes()), int64(b.Len()), "x.npy", Options{AssumeBF16: true})
		require.NoError(t, err)
		require.False(t, again.ColumnMajor || again.BigEndian)
		got, err = again.Float64s()
		require.NoError(t, err)
		requireSame(t, s.values(), got)
	})
}

// Every prefix of a file is refused, and every extension read with a note.
func TestLengthLaw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSample(t)
		file := drawStyle(t, s.dtype).encode(s)
		n := rapid.IntRange(0, len(file)-1).Draw(t, "cut")
		_, err := parse(bytes.NewReader(file[:n]), int64(n), "x.npy", Options{AssumeBF16: true})
		require.Error(t, err)
		require.True(t, isRefusal(err), "%v", err)

		more := append(file, make([]byte, 1+n)...)
		a, err := parse(bytes.NewReader(more), int64(len(more)), "x.npy", Options{AssumeBF16: true})
		require.NoError(t, err)
		require.Contains(t, a.Notes, fmt.Sprintf("%d bytes behind the data are ignored", 1+n))
		got, err := a.Float64s()
		require.NoError(t, err)
		requireSame(t, s.values(), got)
	})
}

// What Write stores comes back rounded to the type, and writing that again gives the same file.
func TestWriteLaw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.SampledFrom([]format.DType{format.F16, format.BF16, format.F32, format.F64}).Draw(t, "dtype")
		data := rapid.SliceOfN(rapid.Float64(), 0, 100).Draw(t, "data")
		if rapid.Bool().Draw(t, "many") { // more than one block
			data = append(data, make([]float64, block/8)...)
		}
		want := make([]float64, len(data))
		for i, v := range data {
			want[i] = format.Round(v, d)
		}
		var b, c bytes.Buffer
		require.NoError(t, Write(&b, d, []int{len(data)}, data))
		a, err := parse(bytes.NewReader(b.Bytes()), int64(b.Len()), "x.npy", Options{AssumeBF16: true})
		require.NoError(t, err)
		got, err := a.Float64s()
		require.NoError(t, err)
		requireSame(t, want, got)
		require.NoError(t, Write(&c, d, []int{len(data)}, got))
		require.Equal(t, b.Bytes(), c.Bytes())
	})
}

// An archive of members in any style, stored or deflated, is read like the files it holds.
func TestArchiveLaw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := rapid.SliceOfN(rapid.Custom(drawSample), 0, 5).Draw(t, "samples")
		var entries []zipEntry
		for i, s := range samples {
			entries = append(entries, zipEntry{
				name: fmt.Sprintf("%d.npy", i), content: drawStyle(t, s.dtype).encode(s), deflate: rapid.Bool().Draw(t, "deflate"),
				zip64: rapid.Bool().Draw(t, "zip64"), descriptor: rapid.Bool().Draw(t, "descriptor"),
			})
		}
		file := zipFile(zipEnd{zip64: rapid.Bool().Draw(t, "end"), comment: rapid.SampledFrom([]string{"", "comment"}).Draw(t, "comment")}, entries...)
		a, err := parseArchive(bytes.NewReader(file), int64(len(file)), "x.npz", Options{AssumeBF16: true})
		require.NoError(t, err)
		var members []Member
		for i, s := range samples {
			arr, err := a.Array(fmt.Sprint(i))
			require.NoError(t, err)
			got, err := arr.Float64s()
			require.NoError(t, err)
			requireSame(t, s.values(), got)
			members = append(members, Member{Name: fmt.Sprint(i), DType: s.dtype, Shape: s.shape, Raw: s.raw})
		}
		var b bytes.Buffer
		require.NoError(t, WriteArchive(&b, members))
		a, err = parseArchive(bytes.NewReader(b.Bytes()), int64(b.Len()), "x.npz", Options{AssumeBF16: true})
		require.NoError(t, err)
		require.Len(t, a.Names(), len(samples))
		for i, s := range samples {
			arr, err := a.Array(fmt.Sprint(i))
			require.NoError(t, err)
			got, err := arr.Float64s()
			require.NoError(t, err)
			requireSame(t, s.values(), got)
		}
	})
}

// A change of any one byte of an archive is refused or changes nothing that is read, since a checksum covers the data and
// the names stand twice.
func TestOneByteLaw(t *testing.T) {
	file := zipFile(zipEnd{}, zipEntry{name: "a.npy", content: counted(3)}, zipEntry{name: "b.npy", content: counted(40), deflate: true})
	for at := range file {
		for _, bit := range []byte{1, 0x10, 0x80} {
			mutant := slices.Clone(file)
			mutant[at] ^= bit
			a, err := parseArchive(bytes.NewReader(mutant), int64(len(mutant)), "x.npz", Options{})
			if err != nil {
				require.True(t, isRefusal(err), "%v", err)
				continue
			}
			for _, name := range a.Names() {
				arr, err := a.Array(name)
				if err != nil {
					require.True(t, isRefusal(err), "byte %d: %v", at, err)
					continue
				}
				got, err := arr.Float64s()
				require.NoError(t, err)
				want := map[string]int{"a": 3, "b": 40}[name]
				require.Len(t, got, want, "byte %d of %q", at, name)
				for i, v := range got {
					require.Equal(t, float64(i), v, "byte %d", at)
				}
			}
		}
	}
}
