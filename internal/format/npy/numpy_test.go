package npy

import (
	"bytes"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// The files in testdata were written by NumPy 2.4.6 with ml_dtypes 0.6.0 on Python 3.11 (linux/amd64):
//
//	import numpy as np, ml_dtypes
//	from numpy.lib import format as F
//	np.save("f8_c.npy", np.array([[1, -2.5, 1e300], [np.inf, -0.0, 5e-324]]))
//	np.save("f4_fortran.npy", np.asfortranarray(np.array([[1, 2, 3], [4, 5, 6]], "<f4")))
//	np.save("f2_big.npy", np.array([1.5, -65504, 6e-8], ">f2"))
//	np.save("i8_big_fortran.npy", np.asfortranarray(np.arange(-3, 3, dtype=">i8").reshape(3, 2)))
//	np.save("bf16.npy", np.array([1, -3.140625, 1e38], ml_dtypes.bfloat16))
//	np.save("bool.npy", np.array([True, False, True]))
//	np.save("scalar.npy", np.float32(0.1))
//	np.save("empty.npy", np.zeros((0, 4), "u2"))
//	F.write_array(open("u1_v2.npy", "wb"), np.array([0, 7, 255], "u1"), version=(2, 0))
//	F.write_array(open("i4_v3.npy", "wb"), np.array([[-2**31], [2**31 - 1]], "<i4"), version=(3, 0))
//	np.save("object.npy", np.array([None]), allow_pickle=True)
//	np.save("struct.npy", np.zeros(1, [("x", "<f4"), ("é", "<i2", (2,))]))
//	np.save("longdouble.npy", np.zeros(1, "g"))
//	np.save("complex.npy", np.zeros(1, "c8"))
//	np.save("unicode.npy", np.array(["ab"]))
//	np.save("datetime.npy", np.zeros(1, "M8[ns]"))
//	np.savez("savez.npz", a=np.arange(3.0), **{"b/c": np.array([[1, 2], [3, 4]], ">i2"), "é": np.float64(2)})
//	np.savez_compressed("compressed.npz", a=np.arange(3.0), o=np.array([None]))
//
// The expected values below are those of these lines; 6e-8 is nearest to 2⁻²⁴ in float16, 1e38 to 1.171875·2¹²⁶ in
// bfloat16.
var numpyFiles = []struct {
	file    string
	dtype   format.DType
	shape   []int
	columns bool
	values  []float64
	same    bool // Write gives the same bytes
}{
	{"f8_c.npy", format.F64, []int{2, 3}, false, []float64{1, -2.5, 1e300, math.Inf(1), math.Copysign(0, -1), 5e-324}, true},
	{"f4_fortran.npy", format.F32, []int{2, 3}, true, []float64{1, 2, 3, 4, 5, 6}, false},
	{"f2_big.npy", format.F16, []int{3}, false, []float64{1.5, -65504, 0x1p-24}, false},
	{"i8_big_fortran.npy", format.I64, []int{3, 2}, true, []float64{-3, -2, -1, 0, 1, 2}, false},
	{"bf16.npy", format.BF16, []int{3}, false, []float64{1, -3.140625, 0x1.2cp126}, false},
	{"bool.npy", format.Bool, []int{3}, false, []float64{1, 0, 1}, true},
	{"scalar.npy", format.F32, []int{}, false, []float64{0x1.99999ap-4}, true},
	{"empty.npy", format.U16, []int{0, 4}, false, []float64{}, true},
	{"u1_v2.npy", format.U8, []int{3}, false, []float64{0, 7, 255}, false},
	{"i4_v3.npy", format.I32, []int{2, 1}, false, []float64{-1 << 31, 1<<31 - 1}, false},
}

func TestNumPyFiles(t *testing.T) {
	for _, c := range numpyFiles {
		t.Run(c.file, func(t *testing.T) {
			f, err := Open("testdata/"+c.file, Options{AssumeBF16: true})
			require.NoError(t, err)
			defer f.Close()
			require.Equal(t, c.dtype, f.DType)
			require.Equal(t, c.shape, f.Shape)
			require.Equal(t, c.columns, f.ColumnMajor)
			if c.dtype != format.BF16 {
				require.Empty(t, f.Notes)
			}
			got, err := f.Float64s()
			require.NoError(t, err)
			require.Len(t, got, len(c.values))
			for i := range got {
				require.Equal(t, math.Float64bits(c.values[i]), math.Float64bits(got[i]), "element %d: %v", i, got[i])
			}
			if !c.same {
				return
			}
			want, err := os.ReadFile("testdata/" + c.file)
			require.NoError(t, err)
			var b bytes.Buffer
			require.NoError(t, WriteArray(&b, f.Array))
			require.Equal(t, want, b.Bytes())
			if c.dtype.Float() || c.dtype == format.Bool {
				b.Reset()
				require.NoError(t, Write(&b, c.dtype, c.shape, c.values))
				require.Equal(t, want, b.Bytes())
			}
		})
	}
}

func TestNumPyFilesRefused(t *testing.T) {
	for file, fragment := range map[string]string{
		"object.npy": "refused: pickle", "struct.npy": "structured dtype", "longdouble.npy": "x86 long double", "complex.npy": "complex elements",
		"unicode.npy": "unicode string elements", "datetime.npy": "datetime64 elements", "bf16.npy": "--assume-bf16",
	} {
		_, err := Open("testdata/"+file, Options{})
		requireRefused(t, err, "testdata/"+file, fragment)
	}
}

func TestNumPyArchives(t *testing.T) {
	a, err := OpenArchive("testdata/savez.npz", Options{MaxUncompressed: 1})
	require.NoError(t, err)
	defer a.Close()
	require.Equal(t, []string{"a", "b/c", "é"}, a.Names())
	for name, want := range map[string][]float64{"a": {0, 1, 2}, "b/c": {1, 2, 3, 4}, "é": {2}} {
		arr, err := a.Array(name)
		require.NoError(t, err)
		got, err := arr.Float64s()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}

	c, err := OpenArchive("testdata/compressed.npz", Options{})
	require.NoError(t, err)
	defer c.Close()
	require.Equal(t, []string{"a", "o"}, c.Names())
	arr, err := c.Array("a")
	require.NoError(t, err)
	got, err := arr.Float64s()
	require.NoError(t, err)
	require.Equal(t, []float64{0, 1, 2}, got)
	_, err = c.Array("o")
	requireRefused(t, err, "testdata/compressed.npz:o", "refused: pickle")
}
