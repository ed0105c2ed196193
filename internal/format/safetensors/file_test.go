package safetensors

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// image returns the bytes of a file with the given header and n bytes of data: 0, 1, 2, …
func image(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	for i := range n {
		b = append(b, byte(i))
	}
	return b
}

func parse(b []byte) (*File, error) {
	return ParseAt(bytes.NewReader(b), int64(len(b)), "f.safetensors")
}

// raw returns the bytes of a tensor.
func raw(t require.TestingT, f *File, name string) []byte {
	a, ok := f.Tensor(name)
	require.True(t, ok, name)
	size, bad := byteSize(byName(a.Type), a.Shape)
	require.Empty(t, bad)
	b := make([]byte, size)
	_, err := io.ReadFull(io.NewSectionReader(a.Data, a.Offset, size), b)
	require.NoError(t, err)
	return b
}

// sameFloats demands equal values bit by bit, but takes every NaN for the same.
func sameFloats(t require.TestingT, want, got []float64, msg ...any) {
	require.Len(t, got, len(want), msg...)
	for i := range want {
		if !math.IsNaN(want[i]) || !math.IsNaN(got[i]) {
			require.Equal(t, math.Float64bits(want[i]), math.Float64bits(got[i]), "element %d: want %v, got %v", i, want[i], got[i])
		}
	}
}

// TestReferenceDtypes reads testdata/dtypes.safetensors, which safetensors 0.8.0 (NumPy 2.4.6, ml_dtypes 0.6.0) wrote:
//
//	import numpy as np, ml_dtypes
//	from safetensors.numpy import save_file
//	inf, nan = np.inf, np.nan
//	save_file({
//	  "bool": np.array([True, False, True]),
//	  "u8": np.array([0, 255], "u1"), "i8": np.array([-128, 127], "i1"),
//	  "i16": np.array([-32768, 32767], "<i2"), "u16": np.array([65535], "<u2"),
//	  "i32": np.array([[-2147483648], [2147483647]], "<i4"), "u32": np.array([4294967295], "<u4"),
//	  "i64": np.array([-9007199254740993, 9223372036854775807], "<i8"), "u64": np.array(18446744073709551615, "<u8"),
//	  "f16": np.array([1.5, -0.0, 65504, 2**-24, inf, nan], "<f2"),
//	  "bf16": np.array([[1, -2.5, 3.140625], [2**-133, -inf, nan]], ml_dtypes.bfloat16),
//	  "f32": np.arange(6, dtype="<f4").reshape(1, 2, 3) / 3,
//	  "f64": np.array([0.1, 5e-324, -inf], "<f8"),
//	  "none": np.zeros((0, 3), "<f4"), "scalar é\\\"": np.array(-7.5, "<f4"),
//	}, "dtypes.safetensors", {"note": "tab\there \"é\" \x01 \u2028 </script>"})
func TestReferenceDtypes(t *testing.T) {
	inf, nan, third := math.Inf(1), math.NaN(), func(i float32) float64 { return float64(i / 3) }
	want := []struct {
		name, typ string
		dtype     format.DType
		shape     []int
		values    []float64
	}{ // in the order of the file: U64, I64, F64, F32, U32, …, BOOL, then by name
		{"u64", "U64", format.U64, []int{}, []float64{0x1p64}},
		{"i64", "I64", format.I64, []int{2}, []float64{-9007199254740992, 0x1p63}},
		{"f64", "F64", format.F64, []int{3}, []float64{0.1, 5e-324, -inf}},
		{"f32", "F32", format.F32, []int{1, 2, 3}, []float64{third(0), third(1), third(2), third(3), third(4), third(5)}},
		{"none", "F32", format.F32, []int{0, 3}, []float64{}},
		{`scalar é\"`, "F32", format.F32, []int{}, []float64{-7.5}},
		{"u32", "U32", format.U32, []int{1}, []float64{4294967295}},
		{"i32", "I32", format.I32, []int{2, 1}, []float64{-2147483648, 2147483647}},
		{"bf16", "BF16", format.BF16, []int{2, 3}, []float64{1, -2.5, 3.140625, 0x1p-133, -inf, nan}},
		{"f16", "F16", format.F16, []int{6}, []float64{1.5, math.Copysign(0, -1), 65504, 0x1p-24, inf, nan}},
		{"u16", "U16", format.U16, []int{1}, []float64{65535}},
		{"i16", "I16", format.I16, []int{2}, []float64{-32768, 32767}},
		{"i8", "I8", format.I8, []int{2}, []float64{-128, 127}},
		{"u8", "U8", format.U8, []int{2}, []float64{0, 255}},
		{"bool", "BOOL", format.Bool, []int{3}, []float64{1, 0, 1}},
	}
	path := filepath.Join("testdata", "dtypes.safetensors")
	f, err := Open(path)
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, map[string]string{"note": "tab\there \"é\" \x01 \u2028 </script>"}, f.Metadata)
	require.Empty(t, f.Notes)
	require.Equal(t, len(want), f.Len())
	i := 0
	for name, a := range f.Tensors() {
		w := want[i]
		i++
		require.Equal(t, w.name, name)
		require.Equal(t, path+":"+name, a.Name)
		require.Equal(t, w.typ, a.Type, name)
		require.Equal(t, w.dtype, a.DType, name)
		require.Equal(t, w.shape, a.Shape, name)
		got, err := a.Float64s()
		require.NoError(t, err)
		sameFloats(t, w.values, got, name)
		b, ok := f.Tensor(name)
		require.True(t, ok)
		require.Equal(t, a, b)
	}
	_, ok := f.Tensor("absent")
	require.False(t, ok)
	_, ok = f.Tensor("")
	require.False(t, ok)
	rewrite(t, path, f)
}

// TestReferenceTypes reads testdata/types.safetensors, which holds all types that the Python package of safetensors 0.8.0
// can write, two elements each; every tensor is called after its NumPy type and its bytes count 0, 1, 2, …:
//
//	import numpy as np
//	from safetensors import TensorSpec, serialize
//	buf = np.arange(16, dtype="u1")
//	size = {"bool": 1, "uint8": 1, "int8": 1, "float4_e2m1fn_x2": 1, "float8_e5m2": 1, "float8_e4m3fn": 1, "float8_e8m0fnu": 1,
//	        "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "int32": 4,
//	        "uint32": 4, "float32": 4, "complex64": 8, "float64": 8, "int64": 8, "uint64": 8}
//	open("types.safetensors", "wb").write(serialize({
//	    n: TensorSpec(dtype=n, shape=[2], data_ptr=buf.ctypes.data, data_len=2 * s) for n, s in size.items()}))
func TestReferenceTypes(t *testing.T) {
	path := filepath.Join("testdata", "types.safetensors")
	f, err := Open(path)
	require.NoError(t, err)
	defer f.Close()
	require.Nil(t, f.Metadata)
	var types []string
	for name, a := range f.Tensors() {
		types = append(types, a.Type)
		if a.Type == "F4" { // two elements per byte, and the package doubles the dimension it is given
			require.Equal(t, []int{4}, a.Shape)
		} else {
			require.Equal(t, []int{2}, a.Shape, name)
		}
		b := raw(t, f, name)
		for i := range b {
			require.Equal(t, byte(i), b[i], name)
		}
		_, err := a.Float64s()
		if a.DType == format.Unknown {
			require.ErrorContains(t, err, "unsupported", name)
			require.ErrorContains(t, err, a.Type, name)
			require.True(t, format.IsMalformed(err))
		} else {
			require.NoError(t, err, name)
		}
	}
	require.Equal(t, strings.Fields("U64 I64 F64 C64 F32 U32 I32 BF16 F16 U16 I16 F8_E5M2FNUZ F8_E4M3FNUZ F8_E8M0 F8_E4M3 F8_E5M2 I8 U8 F4 BOOL"), types)
	rewrite(t, path, f)
}

// TestReferenceEmpty reads testdata/empty.safetensors: safetensors.numpy.save_file({}, "empty.safetensors", {"format": "pt"})
// of safetensors 0.8.0, which is what PEFT leaves behind when it saves parameters that ZeRO-3 has taken away.
func TestReferenceEmpty(t *testing.T) {
	path := filepath.Join("testdata", "empty.safetensors")
	f, err := Open(path)
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, int64(40), f.Size)
	require.Equal(t, 0, f.Len())
	require.Equal(t, map[string]string{"format": "pt"}, f.Metadata)
	rewrite(t, path, f)
}

// rewrite demands that the file at path, from which f was read, is written again byte by byte.
func rewrite(t *testing.T, path string, f *File) {
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	var got bytes.Buffer
	require.NoError(t, Write(&got, f.Metadata, tensors(f)))
	require.Equal(t, string(want), got.String())
}

// tensors returns the tensors of f for writing, in the reverse of their order.
func tensors(f *File) []Tensor {
	var list []Tensor
	for name, a := range f.Tensors() {
		list = append(list, Tensor{Name: name, Array: a})
	}
	slices.Reverse(list)
	return list
}

func TestTensorsEndsEarly(t *testing.T) {
	f, err := Open(filepath.Join("testdata", "types.safetensors"))
	require.NoError(t, err)
	n := 0
	for range f.Tensors() {
		if n++; n == 3 {
			break
		}
	}
	require.Equal(t, 3, n)
	a, _ := f.Tensor("float32")
	a.Shape[0] = 17
	b, _ := f.Tensor("float32")
	require.Equal(t, []int{2}, b.Shape, "an array must not share its shape")
	require.NoError(t, f.Close())
	_, err = b.Float64s()
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestParseLeavesFileOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(path, image("{", 0), 0o644))
	f, err := format.Open(path)
	require.NoError(t, err)
	_, err = Parse(f)
	require.True(t, format.IsMalformed(err), "%v", err)
	require.NoError(t, f.Close(), "Parse closed the file")
}

// TestCutFile cuts a file after it was opened.
func TestCutFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	require.NoError(t, WriteFile(path, nil, []Tensor{{Name: "a", DType: format.F32, Shape: []int{4}, Data: []float64{1, 2, 3, 4}}}))
	f, err := Open(path)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, os.Truncate(path, f.Size-1))
	a, _ := f.Tensor("a")
	_, err = a.Float64s()
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.False(t, format.IsMalformed(err))
	require.ErrorIs(t, Write(io.Discard, nil, tensors(f)), io.ErrUnexpectedEOF)

	b := image("{}", 0)
	_, err = ParseAt(bytes.NewReader(b[:9]), int64(len(b)), "f")
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.ErrorContains(t, err, "f: reading at byte 9")
}
