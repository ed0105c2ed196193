package f32_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/accel/f32"
)

// FMA against exact arithmetic, on operands whose sums lie at halves, among subnormal numbers and across zero.
func TestFMA(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	draw := func() float32 {
		switch r.IntN(4) {
		case 0:
			return float32(r.NormFloat64())
		case 1: // few bits, so that halves occur
			return float32(math.Ldexp(float64(r.IntN(9)-4), r.IntN(60)-30))
		case 2:
			return math.Float32frombits(r.Uint32()&0x807fffff | uint32(r.IntN(3))<<23) // subnormal or just above
		}
		return float32(math.Ldexp(r.Float64()+1, r.IntN(250)-130))
	}
	for range 300_000 {
		a, b, c := draw(), draw(), draw()
		exact := new(big.Float).SetPrec(2000).Mul(big.NewFloat(float64(a)), big.NewFloat(float64(b)))
		exact.Add(exact, big.NewFloat(float64(c)))
		want, _ := exact.Float32()
		got := f32.FMA(a, b, c)
		if got != want {
			t.Fatalf("FMA(%x, %x, %x) = %x, want %x", a, b, c, got, want)
		}
	}
	inf := float32(math.Inf(1))
	require.Equal(t, inf, f32.FMA(inf, 2, 3))
	require.Equal(t, -inf, f32.FMA(1, 1, -inf))
	require.True(t, math.IsNaN(float64(f32.FMA(inf, 0, 1))))
	require.True(t, math.IsNaN(float64(f32.FMA(inf, 1, -inf))))
	require.Equal(t, float32(math.MaxFloat32), f32.FMA(math.MaxFloat32, 2, -math.MaxFloat32))
}
