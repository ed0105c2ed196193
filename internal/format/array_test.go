package format

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestShapeString(t *testing.T) {
	for want, shape := range map[string][]int{"()": nil, "(3,)": {3}, "(3, 4)": {3, 4}, "(0, 1, 2)": {0, 1, 2}} {
		require.Equal(t, want, (&Array{Shape: shape}).ShapeString())
	}
}

func TestCheckedSize(t *testing.T) {
	const most = math.MaxInt64
	for _, c := range []struct {
		shape    []int
		item     int
		elems, n int64
		ok       bool
	}{
		{nil, 8, 1, 8, true},
		{nil, 0, 1, 0, true},
		{[]int{}, 1, 1, 1, true},
		{[]int{0}, 8, 0, 0, true},
		{[]int{3, 4}, 2, 12, 24, true},
		{[]int{most}, 1, most, most, true},
		{[]int{most}, 2, 0, 0, false},
		{[]int{most, 1, 1}, 1, most, most, true},
		{[]int{most, 2}, 0, 0, 0, false},
		{[]int{1 << 31, 1 << 31}, 1, 1 << 62, 1 << 62, true},
		{[]int{1 << 31, 1 << 32}, 1, 0, 0, false},
		{[]int{1 << 32, 1 << 32}, 1, 0, 0, false}, // 2⁶⁴, which wraps to 0
		{[]int{1 << 60}, 8, 0, 0, false},
		{[]int{1<<60 - 1}, 8, 1<<60 - 1, most - 7, true},
		{[]int{-1}, 1, 0, 0, false},
		{[]int{-1, -1}, 1, 0, 0, false},
		{[]int{0, -1}, 1, 0, 0, false},
		{[]int{-1, 0}, 1, 0, 0, false},
		{[]int{0, most}, 1, 0, 0, true},
		{[]int{0, most}, 8, 0, 0, false},
		{[]int{most, most, 0}, 1, 0, 0, false},
		{[]int{0, most, most}, 1, 0, 0, false},
	} {
		elems, n, ok := CheckedSize(c.shape, c.item)
		require.Equal(t, c.ok, ok, "%v of %d", c.shape, c.item)
		require.Equal(t, c.elems, elems, "%v of %d", c.shape, c.item)
		require.Equal(t, c.n, n, "%v of %d", c.shape, c.item)
	}
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 9), rapid.Map(rapid.IntRange(0, 62), func(s int) int { return 1 << s }), rapid.Int()), 0, 6).Draw(t, "shape")
		item := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "item")
		product, others := big.NewInt(1), big.NewInt(int64(item))
		valid := true
		for _, d := range shape {
			valid = valid && d >= 0
			product.Mul(product, big.NewInt(int64(d)))
			if d != 0 {
				others.Mul(others, big.NewInt(int64(d)))
			}
		}
		elems, n, ok := CheckedSize(shape, item)
		require.Equal(t, valid && others.IsInt64(), ok)
		if ok {
			require.Equal(t, product.Int64(), elems)
			require.Equal(t, product.Int64()*int64(item), n)
		}
	})
}

// TestFloat64sOrder compares both orders with the formula of the offset of an element: Σ iₖ·Πⱼ₍ⱼ>ₖ₎dⱼ in row-major order,
// Σ iₖ·Πⱼ₍ⱼ<ₖ₎dⱼ in column-major order.
func TestFloat64sOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SliceOfN(rapid.IntRange(0, 5), 0, 5).Draw(t, "shape")
		a := Array{DType: U16, Shape: shape, ColumnMajor: rapid.Bool().Draw(t, "column-major"), BigEndian: rapid.Bool().Draw(t, "big-endian"), Offset: rapid.Int64Range(0, 9).Draw(t, "offset")}
		n := a.Len()
		data := make([]byte, a.Offset)
		for i := range n { // element i of the storage is i
			if a.BigEndian {
				data = binary.BigEndian.AppendUint16(data, uint16(i))
			} else {
				data = binary.LittleEndian.AppendUint16(data, uint16(i))
			}
		}
		a.Data = bytes.NewReader(data)
		got, err := a.Float64s()
		require.NoError(t, err)
		require.Len(t, got, n)
		for at, v := range got {
			index := make([]int, len(shape)) // of the element at in row-major order
			for k, rest := len(shape)-1, at; k >= 0; k-- {
				index[k] = rest % shape[k]
				rest /= shape[k]
			}
			want := 0
			for k, i := range index {
				for j, d := range shape {
					if a.ColumnMajor && j < k || !a.ColumnMajor && j > k {
						i *= d
					}
				}
				want += i
			}
			require.Equal(t, float64(want), v, "index %v", index)
		}
	})
}

// TestReadFloat64 reads ranges that straddle the pieces in which an array is read.
func TestReadFloat64(t *testing.T) {
	n := 2*chunk/4 + 17
	src := make([]float64, n)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range src {
		src[i] = float64(float32(r.NormFloat64()))
	}
	a := Array{Name: "f:a", DType: F32, Shape: []int{n}, Data: bytes.NewReader(Encode(make([]byte, 5), src, F32)), Offset: 5}
	require.Equal(t, int64(4*n), a.Bytes())
	for _, at := range []int{0, 1, chunk/4 - 1, chunk / 4, chunk/4 + 1, n - 1, n} {
		for _, m := range []int{0, 1, chunk/4 - 1, chunk / 4, chunk/4 + 1, n - at} {
			if at+m > n || m < 0 {
				continue
			}
			dst := make([]float64, m)
			require.NoError(t, a.ReadFloat64(dst, at))
			require.Equal(t, src[at:at+m], dst, "%d elements at %d", m, at)
		}
	}
	for _, bad := range [][2]int{{-1, 1}, {0, n + 1}, {n, 1}, {n + 1, 0}} {
		require.PanicsWithValue(t, "format: ReadFloat64: range outside the array", func() { a.ReadFloat64(make([]float64, bad[1]), bad[0]) })
	}

	a.Data = bytes.NewReader(make([]byte, 5+4*n-1)) // one byte short
	require.NoError(t, a.ReadFloat64(make([]float64, n-1), 0))
	err := a.ReadFloat64(make([]float64, n), 0)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.False(t, IsMalformed(err))
	require.ErrorContains(t, err, "f:a: reading at byte ")
}

// hugeReader fails the test if it is read.
type hugeReader struct{ t *testing.T }

func (r hugeReader) ReadAt([]byte, int64) (int, error) {
	r.t.Fatal("an array of an unsupported type was read")
	return 0, nil
}

// TestUnsupported takes an array of so many elements that allocating the result would kill the process.
func TestUnsupported(t *testing.T) {
	a := Array{Name: "f:a", Type: "F4", Shape: []int{1 << 45}, Data: hugeReader{t}}
	_, err := a.Float64s()
	require.EqualError(t, err, "f:a: unsupported element type F4")
	require.True(t, IsMalformed(err))
	require.EqualError(t, a.ReadFloat64(make([]float64, 1), 0), "f:a: unsupported element type F4")
}

// endReader returns io.EOF with the last bytes, as io.ReaderAt allows.
type endReader struct{ *strings.Reader }

func (r endReader) ReadAt(b []byte, at int64) (int, error) {
	n, err := r.Reader.ReadAt(b, at)
	if at+int64(n) == r.Size() {
		err = io.EOF
	}
	return n, err
}

func TestReadFloat64AtEnd(t *testing.T) {
	a := Array{DType: U8, Shape: []int{3}, Data: endReader{strings.NewReader("\x01\x02\x03")}}
	got, err := a.Float64s()
	require.NoError(t, err)
	require.Equal(t, []float64{1, 2, 3}, got)
}
