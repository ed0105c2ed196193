package quant

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// numbers lists the non-negative finite numbers of a format by its layout: exponent and mantissa bits, as IEEE 754 defines
// them, without the arithmetic of Round.
func numbers(exponent, mantissa int) []float64 {
	var list []float64
	bias := 1<<(exponent-1) - 1
	for e := range 1<<exponent - 1 {
		for m := range 1 << mantissa {
			if e == 0 {
				list = append(list, math.Ldexp(float64(m), 1-bias-mantissa))
			} else {
				list = append(list, math.Ldexp(float64(m+1<<mantissa), e-bias-mantissa))
			}
		}
	}
	return list
}

// Every number of a 16-bit format is itself, everything between two of them goes to the nearer one, and the middle to the
// one with an even mantissa.
func TestRound(t *testing.T) {
	for _, f := range []struct {
		t                  Type
		exponent, mantissa int
	}{{Float16, 5, 10}, {BFloat16, 8, 7}} {
		list := numbers(f.exponent, f.mantissa)
		require.True(t, slices.IsSorted(list))
		for i, x := range list {
			if f.t.Round(x) != x || f.t.Round(-x) != -x {
				t.Fatalf("%v: %v is not itself", f.t, x)
			}
			if i+1 == len(list) {
				break
			}
			next := list[i+1]
			middle := (x + next) / 2
			even := x
			if i%2 == 1 {
				even = next
			}
			below, above := float64(math.Nextafter32(float32(middle), 0)), float64(math.Nextafter32(float32(middle), math.MaxFloat32))
			if f.t.Round(middle) != even || f.t.Round(below) != x || f.t.Round(above) != next || f.t.Round(-middle) != -even {
				t.Fatalf("%v: between %v and %v", f.t, x, next)
			}
		}
		largest := list[len(list)-1]
		step := largest - list[len(list)-2]
		require.Equal(t, math.Inf(1), f.t.Round(largest+step/2), "half a step beyond")
		require.Equal(t, largest, f.t.Round(float64(math.Nextafter32(float32(largest+step/2), 0))))
		require.Equal(t, math.Inf(-1), f.t.Round(-1e39))
		require.True(t, math.IsNaN(f.t.Round(math.NaN())))
		require.True(t, math.Signbit(f.t.Round(math.Copysign(0, -1))))
	}
	require.Equal(t, 65504.0, numbers(5, 10)[len(numbers(5, 10))-1])
	require.Equal(t, float64(float32(0.1)), Float32.Round(0.1))
	require.Equal(t, math.Inf(1), Float32.Round(1e39))
	// By way of float32, as torch converts a float64: the middle of two halves and a little is first the middle.
	require.Equal(t, 1.0, Float16.Round(1+0x1p-11+0x1p-40))
	require.Panics(t, func() { Type(3).Round(1) })
}

// Rounding is monotone, odd and idempotent.
func TestRoundLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := Type(rapid.IntRange(0, 2).Draw(t, "type"))
		x, y := rapid.Float64().Draw(t, "x"), rapid.Float64().Draw(t, "y")
		if x > y {
			x, y = y, x
		}
		require.LessOrEqual(t, f.Round(x), f.Round(y))
		require.Equal(t, -f.Round(x), f.Round(-x))
		require.Equal(t, f.Round(x), f.Round(f.Round(x)))
	})
}

// The constants are those that the frameworks write, and no two are equal.
func TestConstants(t *testing.T) {
	require.Equal(t, float64(float32(1.0/127)), Inv127Float32)
	require.InDelta(t, -3.7e-9, Inv127Float32/Inv127-1, 1e-10)
	require.InDelta(t, -6.5e-8, Inv127SquaredCUDA/Inv127Squared-1, 1e-8)
	require.InDelta(t, 1.8e-5, Inv127SquaredTorch/Inv127Squared-1, 1e-6)
}
