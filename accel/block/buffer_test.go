package block

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Every request has the smallest of the sizes that holds it, of which there are four to an octave; a size is its own.
func TestClass(t *testing.T) {
	before, smaller := -1, 0
	for bytes := 65; bytes < 1<<14; bytes++ {
		number, size := class(bytes)
		require.GreaterOrEqual(t, size, bytes)
		require.LessOrEqual(t, 4*size, 5*bytes+4, "%d", bytes)
		if number != before {
			require.Greater(t, number, before)
			require.Less(t, smaller, bytes)
			before, smaller = number, size
		}
		require.Equal(t, smaller, size)
	}
	rapid.Check(t, func(t *rapid.T) {
		number, size := class(rapid.IntRange(65, 1<<40).Draw(t, "bytes"))
		again, same := class(size)
		require.Equal(t, [2]int{number, size}, [2]int{again, same})
		require.Less(t, number, len(buffers))
	})
}

// A small request leaves a large buffer to large ones.
func TestBuffersBySize(t *testing.T) {
	const large, small = 1 << 20, 100
	for range 20 {
		a := Get[float32](large)
		require.Len(t, a.Slice, large)
		Put(a)
		b := Get[float32](small)
		require.Len(t, b.Slice, small)
		require.Less(t, len(b.whole), 8*small)
		Put(b)
	}
}
