package safetensors

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/format"
)

// TestWriteData writes testdata/dtypes.safetensors again, from float64 where the type allows.
func TestWriteData(t *testing.T) {
	path := filepath.Join("testdata", "dtypes.safetensors")
	f, err := Open(path)
	require.NoError(t, err)
	defer f.Close()
	var list []Tensor
	data := 0
	for name, a := range f.Tensors() {
		w := Tensor{Name: name, DType: a.DType, Shape: a.Shape}
		if a.DType.Float() || a.DType == format.Bool {
			w.Data, err = a.Float64s()
			require.NoError(t, err)
			data++
		} else {
			w.Raw = raw(t, f, name)
		}
		list = append(list, w)
	}
	require.Equal(t, 7, data)
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	var got bytes.Buffer
	require.NoError(t, Write(&got, f.Metadata, list))
	require.Equal(t, string(want), got.String())
}

// TestWriteGolden pins bytes by hand: the header length, the order F32 before F16 before U8 and b before a, the padding.
func TestWriteGolden(t *testing.T) {
	var got bytes.Buffer
	require.NoError(t, Write(&got, map[string]string{"z": "\"\\/\b\f\n\r\t\x00\x1f\x7f", "a": "é"}, []Tensor{
		{Name: "c", DType: format.U8, Shape: []int{2}, Raw: []byte{1, 2}},
		{Name: "a", DType: format.F16, Shape: []int{}, Data: []float64{1}},
		{Name: "b", DType: format.F32, Shape: []int{1, 1}, Data: []float64{-2}},
	}))
	header := `{"__metadata__":{"a":"é","z":"\"\\/\b\f\n\r\t\u0000\u001f` + "\x7f" + `"},` +
		`"b":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},` +
		`"a":{"dtype":"F16","shape":[],"data_offsets":[4,6]},` +
		`"c":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}}`
	header += strings.Repeat(" ", 7&-len(header))
	require.Equal(t, string(image(header, 0))+"\x00\x00\x00\xc0\x00\x3c\x01\x02", got.String())

	got.Reset()
	require.NoError(t, Write(&got, nil, nil))
	require.Equal(t, string(image("{}      ", 0)), got.String())
	got.Reset()
	require.NoError(t, Write(&got, map[string]string{}, nil))
	require.Equal(t, string(image(`{"__metadata__":{}}     `, 0)), got.String())
	f, err := parse(got.Bytes())
	require.NoError(t, err)
	require.NotNil(t, f.Metadata)
}

func TestWriteRefuses(t *testing.T) {
	ok := Tensor{Name: "ok", DType: format.U8, Shape: []int{1}, Raw: []byte{1}}
	array := func(a format.Array) *format.Array { a.Data = strings.NewReader("12345678"); return &a }
	for _, c := range []struct {
		tensor Tensor
		err    string
	}{
		{Tensor{DType: format.F32}, "the name is empty"},
		{Tensor{Name: strings.Repeat("x", 1025), DType: format.F32}, "the name has 1025 bytes, want at most 1024"},
		{Tensor{Name: "a\n", DType: format.F32}, "the name holds a control character"},
		{Tensor{Name: "a\xff", DType: format.F32}, "the name is not UTF-8"},
		{Tensor{Name: "__metadata__", DType: format.F32}, "the name is reserved"},
		{Tensor{Name: "ok", DType: format.U8, Shape: []int{0}}, `two tensors are called "ok"`},
		{Tensor{Name: "a", Shape: []int{0}}, "element type without a safetensors name"},
		{Tensor{Name: "a", Array: array(format.Array{Type: "|V2"})}, "element type without a safetensors name"},
		{Tensor{Name: "a", Array: array(format.Array{Type: "F4", Shape: []int{3}})}, "12 bits do not end on a byte"},
		{Tensor{Name: "a", DType: format.F32, Shape: []int{1, 1, 1, 1, 1, 1, 1, 1, 1}, Data: []float64{1}}, "9 dimensions, want at most 8"},
		{Tensor{Name: "a", DType: format.F32, Shape: []int{-1}}, "shape [-1]: the number of elements overflows"},
		{Tensor{Name: "a", DType: format.F32, Shape: []int{1 << 62, 4}}, "the number of elements overflows"},
		{Tensor{Name: "a", DType: format.F64, Shape: []int{1 << 58}, Raw: []byte{}}, "the number of bits overflows"},
		{Tensor{Name: "a", DType: format.F32, Shape: []int{2}, Data: []float64{1}}, "1 elements in Data, shape [2] needs 2"},
		{Tensor{Name: "a", DType: format.F32, Shape: []int{2}}, "0 elements in Data, shape [2] needs 2"},
		{Tensor{Name: "a", DType: format.F32, Shape: []int{0}, Data: []float64{1}}, "1 elements in Data, shape [0] needs 0"},
		{Tensor{Name: "a", DType: format.F32, Shape: []int{1}, Raw: []byte{1, 2, 3}}, "3 bytes in Raw, shape [1] of F32 needs 4"},
		{Tensor{Name: "a", DType: format.F32, Shape: []int{1}, Raw: make([]byte, 4), Data: []float64{1}}, "more than one of Data, Raw and Array"},
		{Tensor{Name: "a", Raw: []byte{1}, Array: array(format.Array{DType: format.U8})}, "more than one of Data, Raw and Array"},
		{Tensor{Name: "a", Data: []float64{1}, Array: array(format.Array{DType: format.U8})}, "more than one of Data, Raw and Array"},
		{Tensor{Name: "a", Array: array(format.Array{DType: format.F32, Shape: []int{1, 2}, ColumnMajor: true})}, "column-major or big-endian"},
		{Tensor{Name: "a", Array: array(format.Array{DType: format.F32, BigEndian: true})}, "column-major or big-endian"},
		{Tensor{Name: "a", DType: format.I32, Shape: []int{1}, Data: []float64{1}}, "Data cannot be stored as int32, use Raw"},
		{Tensor{Name: "a", DType: format.I64, Shape: []int{2}, Data: []float64{1, 1.5}}, "element 1 is 1.5, which int64 cannot hold"},
		{Tensor{Name: "a", DType: format.I64, Shape: []int{1}, Data: []float64{0x1p63}}, "element 0 is 9.223372036854775808e+18, which int64 cannot hold"},
		{Tensor{Name: "a", DType: format.I64, Shape: []int{1}, Data: []float64{math.NaN()}}, "element 0 is NaN, which int64 cannot hold"},
		{Tensor{Name: "a", DType: format.Bool, Shape: []int{1}, Data: []float64{2}}, "element 0 is 2, which bool cannot hold"},
		{Tensor{Name: "a", DType: format.Bool, Shape: []int{1}, Data: []float64{math.NaN()}}, "element 0 is NaN, which bool cannot hold"},
	} {
		var w bytes.Buffer
		err := Write(&w, nil, []Tensor{ok, c.tensor})
		require.ErrorContains(t, err, "safetensors: ")
		require.ErrorContains(t, err, strings.Replace(c.err, "9.223372036854775808e+18", fmt.Sprint(0x1p63), 1))
		require.Zero(t, w.Len(), "%s: bytes were written", c.err)

		dir := t.TempDir()
		require.ErrorContains(t, WriteFile(filepath.Join(dir, "f"), nil, []Tensor{ok, c.tensor}), "safetensors: ")
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
	}
	for _, m := range []map[string]string{{"a\xff": ""}, {"": "\xed\xa0\x80"}} {
		require.ErrorContains(t, Write(io.Discard, m, nil), "is not UTF-8")
	}
	big := map[string]string{}
	for i := range MaxMetadata + 1 {
		big[fmt.Sprint(i)] = ""
	}
	require.ErrorContains(t, Write(io.Discard, big, nil), "65537 metadata keys, want at most 65536")
	require.ErrorContains(t, Write(io.Discard, map[string]string{"a": strings.Repeat("x", MaxHeader)}, nil), "want at most 100000000")
	require.ErrorContains(t, Write(io.Discard, nil, make([]Tensor, MaxTensors+1)), "1000001 tensors, want at most 1000000")
	half := format.Array{DType: format.U8, Type: "U8", Shape: []int{1 << 60}, Data: strings.NewReader("")}
	var halves []Tensor
	for i := range 8 {
		halves = append(halves, Tensor{Name: fmt.Sprint(i), Array: &half})
	}
	require.ErrorContains(t, Write(io.Discard, nil, halves), "the sizes of the tensors overflow")
}

// broken fails at its n-th byte.
type broken struct{ n int }

var errBroken = errors.New("broken")

func (w *broken) Write(b []byte) (int, error) {
	if w.n -= len(b); w.n < 0 {
		return len(b) + w.n, errBroken
	}
	return len(b), nil
}

func TestWriteError(t *testing.T) {
	list := []Tensor{
		{Name: "a", DType: format.F32, Shape: []int{5000}, Data: make([]float64, 5000)},
		{Name: "b", DType: format.U8, Shape: []int{100}, Raw: make([]byte, 100)},
		{Name: "c", Array: &format.Array{DType: format.I8, Type: "I8", Shape: []int{100}, Data: bytes.NewReader(make([]byte, 100))}},
	}
	var whole bytes.Buffer
	require.NoError(t, Write(&whole, nil, list))
	for n := range whole.Len() {
		if n < 500 || n%511 == 0 || n > whole.Len()-300 {
			require.ErrorIs(t, Write(&broken{n}, nil, list), errBroken, "%d", n)
		}
	}
	require.NoError(t, Write(&broken{whole.Len()}, nil, list))
}

// randomTensors draws tensors of all decoded types, with shapes of rank 0 to 8 and zeros among the dimensions, and bytes
// of any kind; the values of floating-point types are NaN and Inf now and then.
func randomTensors(r *rand.Rand, n int) (map[string]string, []Tensor) {
	runes := []rune("ab.0\"\\/é€😀 _{},:[]\u2028<")
	text := func() string {
		var b strings.Builder
		for range r.IntN(8) {
			b.WriteRune(runes[r.IntN(len(runes))])
		}
		return b.String()
	}
	var metadata map[string]string
	if k := r.IntN(5); k > 0 {
		metadata = map[string]string{}
		for range k - 1 {
			metadata[text()+"\x00\n"[:r.IntN(3)]] = text()
		}
	}
	list := make([]Tensor, n)
	for i := range list {
		w := &list[i]
		w.Name = fmt.Sprint(text(), i)
		w.DType = format.Bool + format.DType(r.IntN(int(format.F64-format.Bool)+1))
		w.Shape = make([]int, r.IntN(format.MaxRank+1))
		elems := 1
		for j := range w.Shape {
			if w.Shape[j] = 1 + r.IntN(3); r.IntN(20) == 0 {
				w.Shape[j] = 0
			}
			elems *= w.Shape[j]
		}
		if w.DType.Float() && r.IntN(2) == 0 {
			w.Data = make([]float64, elems)
			for j := range w.Data {
				w.Data[j] = []float64{r.NormFloat64(), math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), 0x1p-1074, 65520}[max(0, r.IntN(20)-13)]
			}
			continue
		}
		w.Raw = make([]byte, elems*w.DType.Size())
		for j := range w.Raw {
			w.Raw[j] = byte(r.Uint32())
		}
	}
	return metadata, list
}

// TestRoundTrip writes, reads, writes and reads.
func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.safetensors")
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		metadata, list := randomTensors(r, rapid.IntRange(0, 20).Draw(t, "n"))
		var first bytes.Buffer
		require.NoError(t, Write(&first, metadata, list))
		require.Zero(t, (first.Len()-dataBytes(list))%8, "the data must start at a multiple of 8")

		slices.Reverse(list)
		require.NoError(t, WriteFile(path, maps.Clone(metadata), list))
		again, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, first.Bytes(), again, "the order of the tensors must not matter")

		f, err := Open(path)
		require.NoError(t, err)
		defer f.Close()
		require.Equal(t, metadata, f.Metadata)
		require.Equal(t, len(list), f.Len())
		var before *format.Array
		for _, a := range f.Tensors() {
			require.Zero(t, a.Offset%int64(a.DType.Size()), "%s is not aligned", a.Name)
			if a.Bytes() == 0 {
				continue // of those that lie at one place only the names are in order
			}
			if before != nil {
				require.LessOrEqual(t, a.DType.Size(), before.DType.Size(), "alignment must not increase")
				require.Equal(t, before.Offset+before.Bytes(), a.Offset)
			}
			before = a
		}
		for _, w := range list {
			a, ok := f.Tensor(w.Name)
			require.True(t, ok, w.Name)
			require.Equal(t, w.DType, a.DType)
			require.Equal(t, w.Shape, a.Shape)
			if w.Raw != nil {
				require.Equal(t, w.Raw, raw(t, f, w.Name))
				continue
			}
			got, err := a.Float64s()
			require.NoError(t, err)
			want := make([]float64, len(w.Data))
			for i, v := range w.Data {
				want[i] = format.Round(v, w.DType)
			}
			sameFloats(t, want, got, w.Name)
		}
		again = again[:0]
		b := bytes.NewBuffer(again)
		require.NoError(t, Write(b, f.Metadata, tensors(f)))
		require.Equal(t, first.Bytes(), b.Bytes())
	})
}

func dataBytes(list []Tensor) (n int) {
	for _, w := range list {
		elems := 1
		for _, d := range w.Shape {
			elems *= d
		}
		n += elems * w.DType.Size()
	}
	return n
}

// TestConcurrentReads runs under the race detector.
func TestConcurrentReads(t *testing.T) {
	f, err := Open(filepath.Join("testdata", "dtypes.safetensors"))
	require.NoError(t, err)
	defer f.Close()
	done := make(chan error)
	for range 8 {
		go func() {
			for range 20 {
				for name := range f.Tensors() {
					a, _ := f.Tensor(name)
					if _, err := a.Float64s(); err != nil {
						done <- err
						return
					}
				}
			}
			done <- nil
		}()
	}
	for range 8 {
		require.NoError(t, <-done)
	}
}
