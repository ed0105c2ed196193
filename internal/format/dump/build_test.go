package dump

import (
	"archive/zip"
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/npy"
	"plumbline/internal/format/safetensors"
)

// tensor returns a tensor to be written.
func tensor(name string, d format.DType, shape []int, data ...float64) *Tensor {
	return &Tensor{Name: name, Type: d, Shape: shape, Data: data}
}

// f32 returns a float32 tensor whose elements are begin, begin+1, …
func f32(name string, begin float64, shape ...int) *Tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	t := tensor(name, format.F32, shape)
	t.Data = make([]float64, n)
	for i := range t.Data {
		t.Data[i] = begin + float64(i)
	}
	return t
}

// mask returns a mask tensor from rows such as "0110".
func mask(name string, rows ...string) *Tensor {
	m := make([]bool, 0)
	for _, c := range strings.Join(rows, "") {
		m = append(m, c == '1')
	}
	return NewMask(name, len(rows), len(rows[0]), m)
}

// image returns the bytes of a .safetensors file with the given text as its metadata, none if it is empty.
func image(t require.TestingT, text string, tensors ...*Tensor) []byte {
	var metadata map[string]string
	if text != "" {
		metadata = map[string]string{metadataKey: text}
	}
	list := make([]safetensors.Tensor, len(tensors))
	for i, in := range tensors {
		list[i] = safetensors.Tensor{Name: in.Name, DType: in.Type, Shape: in.Shape, Data: in.Data}
		if in.Type == format.I32 || in.Type == format.U8 {
			raw, err := encodeIntegers(in)
			require.NoError(t, err)
			list[i].Data, list[i].Raw = nil, raw
		}
	}
	var file bytes.Buffer
	require.NoError(t, safetensors.Write(&file, metadata, list))
	return file.Bytes()
}

// put writes such a file.
func put(t *testing.T, path, text string, tensors ...*Tensor) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, image(t, text, tensors...), 0o644))
	return path
}

// member is an array of an archive: elements, or their bytes.
type member struct {
	Name  string
	DType format.DType
	Shape []int
	Data  []float64
	Raw   []byte
}

// archive is an .npz file.
func archive(t testing.TB, members ...member) []byte {
	t.Helper()
	var file bytes.Buffer
	z := zip.NewWriter(&file)
	for _, m := range members {
		w, err := z.Create(m.Name + ".npy")
		require.NoError(t, err)
		_, err = w.Write(append(npy.Header(m.DType, m.Shape), cmp.Or(string(m.Raw), string(format.Encode(nil, m.Data, m.DType)))...))
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return file.Bytes()
}

// putNPZ writes an .npz file and its metadata beside it.
func putNPZ(t *testing.T, path, text string, members ...member) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, archive(t, members...), 0o644))
	if text != "" {
		putText(t, strings.TrimSuffix(path, extNPZ)+extJSON, text)
	}
	return path
}

func putText(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// batch opens the patterns and returns the batch of the first step.
func batch(t *testing.T, patterns ...string) (*Batch, error) {
	t.Helper()
	r, err := Open(t.Context(), patterns)
	if err != nil {
		return nil, err
	}
	return r.Batch(t.Context(), r.Steps()[0])
}

// mustBatch is batch without an error.
func mustBatch(t *testing.T, patterns ...string) *Batch {
	t.Helper()
	b, err := batch(t, patterns...)
	require.NoError(t, err)
	return b
}

// join is filepath.Join.
func join(parts ...string) string { return filepath.Join(parts...) }
