package gguf

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/metrics"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// allocated returns the bytes that f allocates, all together, whether or not they are freed.
func allocated(f func()) int64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	before := s[0].Value.Uint64()
	f()
	metrics.Read(s)
	return int64(s[0].Value.Uint64() - before)
}

// budget is what a reader may allocate for a file of n bytes.
func budget(n int) int64 { return 4*int64(n) + 16<<20 }

// measure parses b and holds the reader to its budget.
func measure(t require.TestingT, b []byte) (f *File, err error) {
	n := allocated(func() { f, err = parse(b) })
	require.LessOrEqual(t, n, budget(len(b)), "allocation of a file of %d bytes", len(b))
	return f, err
}

func FuzzGGUF(f *testing.F) {
	for _, c := range hostile {
		f.Add(c.file)
	}
	f.Add(sound().Bytes())
	for _, name := range []string{"kinds.gguf", "llama.gguf", "qwen2.gguf"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := measure(t, b)
		if err != nil {
			require.True(t, format.IsMalformed(err), "%v", err)
			require.Nil(t, file)
			return
		}
		// Accepted: every tensor that can be decoded can be read, and its bytes lie in the file.
		end := int64(0)
		for x := range file.Tensors() {
			require.LessOrEqual(t, len(x.Shape), maxDims)
			k := &types[x.Type]
			size := int64(x.Len()) / k.block * k.bytes
			require.GreaterOrEqual(t, x.at, file.data)
			require.LessOrEqual(t, x.at+size, int64(len(b)))
			if size > 0 {
				require.GreaterOrEqual(t, x.at, end)
				end = x.at + size
			}
			v, err := x.Float64s()
			if k.decode == nil {
				require.True(t, format.IsMalformed(err))
				continue
			}
			require.NoError(t, err)
			require.Len(t, v, x.Len())
			found, ok := file.Tensor(x.Name)
			require.True(t, ok)
			require.Equal(t, x.at, found.at)
		}
		m, err := file.Model()
		if err != nil {
			require.True(t, format.IsMalformed(err), "%v", err)
			return
		}
		for _, name := range m.Names() {
			shape, err := m.Shape(name)
			require.NoError(t, err)
			if v, err := m.Read(name, shape...); err == nil {
				found, _ := m.find(name)
				require.Len(t, v, found.tensor.Len())
			}
		}
	})
}

// TestAllocation measures files that are made to cost as much memory per byte as they can.
func TestAllocation(t *testing.T) {
	const n = 50_000
	strs := start(3, 0, 1).put("k", kindArray, kindString, u64(n))
	for range n {
		strs.put("x")
	}
	keys := start(3, 0, n)
	tensors := start(3, n, 0)
	for i := range n {
		name := fmt.Sprintf("%x", i)
		keys.put(name, kindU8, uint8(1))
		tensors.put(name, u32(0), u32(0), u64(0)) // zero dimensions: a scalar
	}
	empty := start(3, n, 0)
	for i := range n {
		empty.put(fmt.Sprintf("%x", i), u32(1), u64(0), u32(0), u64(0))
	}
	lying := start(3, 0, 1).put("k", kindArray, kindString, u64(4<<20/8)).put(bytes.Repeat([]byte{0xff}, 4<<20))
	for name, c := range map[string]struct {
		b    []byte
		want string
	}{
		"strings": {strs.Bytes(), ""},
		"keys":    {keys.Bytes(), ""},
		"scalars": {tensors.align(32).put(make(raw, 64)).Bytes(), "begins at byte 0 of the data"},
		"empty":   {empty.align(32).Bytes(), ""},
		"lying":   {lying.Bytes(), "a string of 18446744073709551615 bytes"},
		"numbers": {start(3, 0, 1).put("k", kindArray, kindU8, u64(1<<20), make(raw, 1<<20)).Bytes(), ""},
		"text":    {start(3, 0, 1).put("k", kindString, strings.Repeat("x", MaxString)).Bytes(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := measure(t, c.b)
			if c.want != "" {
				refused(t, err, c.want)
				return
			}
			require.NoError(t, err)
			require.NotNil(t, f)
		})
	}
}
