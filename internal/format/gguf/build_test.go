package gguf

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// builder writes the bytes of a file field by field, so that each can lie.
type builder struct{ bytes.Buffer }

func (b *builder) put(fields ...any) *builder {
	for _, f := range fields {
		switch f := f.(type) {
		case string: // with its length
			binary.Write(b, binary.LittleEndian, uint64(len(f)))
			b.WriteString(f)
		case raw:
			b.Write(f)
		default:
			if err := binary.Write(b, binary.LittleEndian, f); err != nil {
				panic(err)
			}
		}
	}
	return b
}

type raw []byte

func u32(v int) uint32 { return uint32(v) }
func u64(v int) uint64 { return uint64(v) }

// start returns a builder after the counts.
func start(version, tensors, keys int) *builder {
	b := new(builder)
	return b.put(raw("GGUF"), u32(version), u64(tensors), u64(keys))
}

// align pads to a multiple of n.
func (b *builder) align(n int) *builder {
	for b.Len()%n != 0 {
		b.WriteByte(0)
	}
	return b
}

// sound is a file with one key and two tensors: a [1, 2] F32 and b [32] Q8_0.
func sound() *builder {
	b := start(3, 2, 1).put("k", kindU32, uint32(7))
	b.put("a", u32(2), u64(2), u64(1), u32(0), u64(0))
	b.put("b", u32(1), u64(32), u32(8), u64(32))
	b.align(32).put(float32(1), float32(2)).align(32)
	b.put(raw{0, 0x3c}, make(raw, 32)) // d = 1
	return b
}

func parse(b []byte) (*File, error) {
	return ParseAt(bytes.NewReader(b), int64(len(b)), "x.gguf")
}

func refused(t testing.TB, err error, fragments ...string) {
	t.Helper()
	require.Error(t, err)
	require.True(t, format.IsMalformed(err), "%v", err)
	for _, s := range fragments {
		require.ErrorContains(t, err, s)
	}
}
