package npy

import (
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// The header of np.save(f, np.zeros((2, 3), "f4")) by NumPy 2.4.6.
func TestHeader(t *testing.T) {
	want := "\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }" + pad(58) + "\n"
	require.Equal(t, want, string(Header(format.F32, []int{2, 3})))

	// 128 bytes hold them all, as in NumPy: 26 digits in 8 dimensions are the most.
	for _, shape := range [][]int{{}, {0}, {1 << 62}, {1<<63 - 1}, {1, 1, 1, 1, 1, 1, 1, 1}, {1, 1000, 1000, 1000, 1000, 1000, 1000, 1}, {1, 1 << 62, 1, 1, 1, 1, 1, 1}, {0, 1 << 62, 1, 1, 1}} {
		h := Header(format.I8, shape)
		require.Len(t, h, 128, "%v", shape)
		require.Equal(t, byte('\n'), h[127])
		a, err := parse(&zeroReader{head: h}, 1<<63-1, "x", Options{})
		if len(shape) == 1 && shape[0] == 1<<63-1 {
			requireRefused(t, err, "x", "bytes of data, want 9223372036854775807") // no file has room for the header as well
			continue
		}
		require.NoError(t, err)
		require.Equal(t, shape, a.Shape)
		require.Equal(t, int64(128), a.Offset)
	}
}

// zeroReader is a file that begins with head and is 0 after it.
type zeroReader struct{ head []byte }

func (z *zeroReader) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	if off < int64(len(z.head)) {
		copy(p, z.head[off:])
	}
	return len(p), nil
}

func TestWritePanics(t *testing.T) {
	for name, f := range map[string]func(){
		"unknown type":      func() { Header(format.Unknown, []int{1}) },
		"negative":          func() { Header(format.F32, []int{-1}) },
		"overflow":          func() { Header(format.F32, []int{1 << 40, 1 << 40}) },
		"rank 9":            func() { Header(format.F32, make([]int, 9)) },
		"too few elements":  func() { Write(io.Discard, format.F32, []int{2}, make([]float64, 1)) },
		"too many elements": func() { Write(io.Discard, format.F32, []int{0}, make([]float64, 1)) },
		"too few bytes":     func() { WriteRaw(io.Discard, format.F32, []int{2}, make([]byte, 7)) },
	} {
		require.Panics(t, f, name)
	}
}

var errFull = errors.New("no space left")

// full fails after n bytes.
type full struct{ n int }

func (f *full) Write(p []byte) (int, error) {
	if f.n -= len(p); f.n < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestWriteErrors(t *testing.T) {
	data := make([]float64, 100_000)
	a, err := parse(bytes.NewReader(counted(100_000)), int64(len(counted(100_000))), "x", Options{})
	require.NoError(t, err)
	for _, n := range []int{0, 128, 300_000} {
		require.ErrorIs(t, Write(&full{n}, format.F64, []int{100_000}, data), errFull)
		require.ErrorIs(t, WriteRaw(&full{n}, format.F64, []int{100_000}, make([]byte, 800_000)), errFull)
		require.ErrorIs(t, WriteArray(&full{n}, a), errFull)
		require.ErrorIs(t, WriteArchive(&full{n}, []Member{{Name: "a", DType: format.F64, Shape: []int{100_000}, Data: data}}), errFull)
	}
	a.DType, a.Type = format.Unknown, "F4"
	requireRefused(t, WriteArray(io.Discard, a), "x", "unsupported element type F4")
}

// A failed write leaves what was there and no other file.
func TestWriteFileAtomic(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.npy")
	require.NoError(t, WriteFile(path, format.F32, []int{2}, []float64{1, 2}))
	before, err := os.ReadFile(path)
	require.NoError(t, err)

	require.Error(t, WriteArchiveFile(path, []Member{{Name: "a", DType: format.F32, Shape: []int{1}, Data: []float64{3}}, {Name: "../b"}}))
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, before, after)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 1)

	f, err := Open(path, Options{})
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, WriteFile(path, format.F64, []int{1}, []float64{7})) // replaces the file, not what f reads
	got, err := f.Float64s()
	require.NoError(t, err)
	require.Equal(t, []float64{1, 2}, got)
}

func TestWriteArchive(t *testing.T) {
	members := []Member{
		{Name: "a", DType: format.F64, Shape: []int{2, 1}, Data: []float64{1, 2}},
		{Name: "layer.0/w é", DType: format.BF16, Shape: []int{}, Data: []float64{1.00390625 + 0x1p-20}},
		{Name: "u", DType: format.U32, Shape: []int{2}, Raw: []byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}},
		{Name: "none", DType: format.I8, Shape: []int{0}, Raw: []byte{}},
	}
	path := filepath.Join(t.TempDir(), "x.npz")
	require.NoError(t, WriteArchiveFile(path, members))
	a, err := OpenArchive(path, Options{AssumeBF16: true, MaxUncompressed: 1})
	require.NoError(t, err)
	defer a.Close()
	require.Equal(t, []string{"a", "layer.0/w é", "u", "none"}, a.Names())
	for i, want := range [][]float64{{1, 2}, {1.0078125}, {1, 1<<32 - 1}, {}} { // above the tie between 1 and 1 + 2⁻⁷
		arr, err := a.Array(members[i].Name)
		require.NoError(t, err)
		require.Equal(t, members[i].DType, arr.DType)
		require.Equal(t, members[i].Shape, arr.Shape)
		got, err := arr.Float64s()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}

	var one, two bytes.Buffer
	require.NoError(t, WriteArchive(&one, members))
	require.NoError(t, WriteArchive(&two, members))
	require.Equal(t, one.Bytes(), two.Bytes())
	z, err := zip.NewReader(bytes.NewReader(one.Bytes()), int64(one.Len()))
	require.NoError(t, err)
	for _, f := range z.File {
		require.Equal(t, time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC), f.Modified.UTC())
		require.Equal(t, zip.Store, f.Method)
	}

	for _, name := range []string{"", "/a", "..", "a\x00b", `a\b`} {
		require.ErrorContains(t, WriteArchive(io.Discard, []Member{{Name: name, DType: format.I8, Shape: []int{0}}}), "name")
	}
	require.ErrorContains(t, WriteArchive(io.Discard, []Member{members[0], members[0]}), `member "a" is there twice`)
	require.ErrorContains(t, WriteArchive(io.Discard, make([]Member, 10_001)), "at most 10000")
}

// WriteArray writes a stored array as a .npy file. Its elements keep their bits; order and byte order become C and
// little-endian. An array in C order is copied block by block, one in Fortran order needs memory for its elements.
func WriteArray(w io.Writer, a *format.Array) error {
	if descrs[a.DType] == "" {
		return format.Malformed(a.Name, "", "unsupported element type %s", a.Type)
	}
	columns := a.ColumnMajor && len(a.Shape) > 1
	if _, err := w.Write(Header(a.DType, a.Shape)); err != nil {
		return err
	}
	in := &format.Section{R: a.Data, Off: a.Offset, End: a.Offset + a.Bytes()}
	buf := make([]byte, min(block, a.Bytes()))
	if columns {
		buf = make([]byte, a.Bytes())
	}
	for in.Off < in.End {
		part := buf[:min(int64(len(buf)), in.End-in.Off)]
		if _, err := io.ReadFull(in, part); err != nil {
			return format.Unread(a.Name, err)
		}
		size := a.DType.Size()
		if a.BigEndian {
			for i := 0; i < len(part); i += size {
				slices.Reverse(part[i : i+size])
			}
		}
		if columns {
			part = rowMajor(part, a.Shape, size)
		}
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// rowMajor returns the elements of size bytes in src, which has the given shape in Fortran order, in C order.
func rowMajor(src []byte, shape []int, size int) []byte {
	dst := make([]byte, 0, len(src))
	var walk func(axis, at int)
	strides := make([]int, len(shape))
	stride := size
	for i, n := range shape {
		strides[i] = stride
		stride *= n
	}
	walk = func(axis, at int) {
		for range shape[axis] {
			if axis == len(shape)-1 {
				dst = append(dst, src[at:at+size]...)
			} else {
				walk(axis+1, at)
			}
			at += strides[axis]
		}
	}
	walk(0, 0)
	return dst
}
