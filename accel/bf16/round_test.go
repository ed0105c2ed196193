package bf16_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/accel/bf16"
	"plumbline/reference/quant"
)

// Every upper half of a float32, with the lower halves around a tie.
func TestRound(t *testing.T) {
	for hi := range uint32(1 << 16) {
		for _, lo := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			x := math.Float32frombits(hi<<16 | lo)
			got := bf16.Round(x)
			if x != x {
				require.True(t, got != got && math.Float32bits(got)&0xffff == 0)
				continue
			}
			want := float32(quant.BFloat16.Round(float64(x)))
			if math.Float32bits(got) != math.Float32bits(want) {
				t.Fatalf("Round(%x) = %x, want %x", x, got, want)
			}
		}
	}
}
