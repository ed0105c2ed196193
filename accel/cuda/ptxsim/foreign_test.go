package ptxsim

import (
	bin "encoding/binary"
	"math/bits"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func foreign(t *testing.T) *Module {
	b, err := os.ReadFile("testdata/foreign.ptx")
	require.NoError(t, err)
	m, err := Parse(string(b))
	require.NoError(t, err)
	return m
}

// launch runs a kernel of the module over buffers, in every schedule, and returns what the buffers hold then.
func launch(t *testing.T, m *Module, name string, grid, block [3]int, shared int, buffers [][]byte, tail ...uint32) [][]byte {
	k, err := m.Kernel(name)
	require.NoError(t, err)
	var first [][]byte
	for _, o := range Schedules {
		var mem Memory
		var args []byte
		var at []uint64
		for _, b := range buffers {
			p, err := mem.Alloc(int64(len(b)))
			require.NoError(t, err)
			require.NoError(t, mem.Write(p, b))
			args = bin.LittleEndian.AppendUint64(args, p)
			at = append(at, p)
		}
		for _, v := range tail {
			args = bin.LittleEndian.AppendUint32(args, v)
		}
		_, err := k.Run(&mem, Launch{Grid: grid, Block: block, Shared: shared, Args: args, Options: o})
		require.NoError(t, err)
		var out [][]byte
		for i, b := range buffers {
			got := make([]byte, len(b))
			require.NoError(t, mem.Read(got, at[i]))
			out = append(out, got)
		}
		if first == nil {
			first = out
		}
		require.Equal(t, first, out)
	}
	return first
}

func as[T any](t *testing.T, b []byte) []T {
	var x T
	out := make([]T, len(b)/bin.Size(x))
	_, err := bin.Decode(b, bin.LittleEndian, out)
	require.NoError(t, err)
	return out
}

func bytesOf(t *testing.T, x any) []byte {
	b, err := bin.Append(nil, bin.LittleEndian, x)
	require.NoError(t, err)
	return b
}

func TestForeignKernels(t *testing.T) {
	m := foreign(t)
	r := rand.New(rand.NewPCG(2, 7))
	const n = 1000
	x := make([]int32, n)
	sum := int32(0)
	for i := range x {
		x[i] = int32(r.Uint32())
		sum += x[i]
	}
	out := launch(t, m, "reduce", [3]int{3, 1, 1}, [3]int{128, 1, 1}, 4*128, [][]byte{bytesOf(t, x), bytesOf(t, []int32{5})}, n)
	require.Equal(t, sum+5, as[int32](t, out[1])[0])

	const rows, cols = 35, 50
	d := make([]float64, rows*cols)
	for i := range d {
		d[i] = r.NormFloat64()
	}
	out = launch(t, m, "transpose", [3]int{4, 3, 1}, [3]int{16, 16, 1}, 0, [][]byte{bytesOf(t, d), bytesOf(t, make([]float64, rows*cols))}, rows, cols)
	for i, v := range as[float64](t, out[1]) {
		require.Equal(t, d[i%rows*cols+i/rows], v)
	}

	s := make([][4]float32, 77)
	for i := range s {
		for j := range s[i] {
			s[i][j] = float32(r.NormFloat64() * 10)
		}
	}
	out = launch(t, m, "stencil", [3]int{2, 1, 1}, [3]int{64, 1, 1}, 0, [][]byte{bytesOf(t, s), bytesOf(t, make([][4]float32, 77))}, 77)
	for i, v := range as[[4]float32](t, out[1]) {
		a, b, c := s[(i+76)%77], s[i], s[(i+1)%77]
		sum := 0.25*a[0] + float32(0.5*b[0])
		require.Equal(t, [4]float32{sum + 0.25*c[0], a[1] - c[1], max(a[2], min(b[2], c[2])), float32(int(b[3])) + float32(bits.OnesCount(uint(i)))}, v)
	}

	letters, bins := make([]byte, 3000), [256]uint32{}
	for i := range letters {
		letters[i] = byte(r.IntN(256) & r.IntN(256))
		bins[letters[i]]++
	}
	out = launch(t, m, "histogram", [3]int{4, 1, 1}, [3]int{96, 1, 1}, 0, [][]byte{letters, make([]byte, 1024)}, 3000)
	require.Equal(t, bins[:], as[uint32](t, out[1]))

	long, want := make([]int64, 333), make([]int64, 333)
	for i := range long {
		long[i] = int64(r.Uint64())
		want[i] = long[i]
		if i > 0 {
			want[i] += want[i-1]
		}
	}
	out = launch(t, m, "scan", [3]int{1, 1, 1}, [3]int{128, 1, 1}, 0, [][]byte{bytesOf(t, long), make([]byte, 8*333)}, 333)
	require.Equal(t, want, as[int64](t, out[1]))

	start := make([]uint32, 100)
	for i := range start {
		start[i] = uint32(1 + r.IntN(5000))
	}
	out = launch(t, m, "collatz", [3]int{2, 1, 1}, [3]int{64, 1, 1}, 0, [][]byte{bytesOf(t, start), make([]byte, 400)}, 100)
	for i, v := range as[int32](t, out[1]) {
		steps := int32(0)
		for c := start[i]; c != 1; steps++ {
			if c&1 != 0 {
				c = 3*c + 1
			} else {
				c >>= 1
			}
		}
		require.Equal(t, steps, v)
	}
}
