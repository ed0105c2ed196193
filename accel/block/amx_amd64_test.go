//go:build !purego

package block

import (
	"math"
	"math/rand/v2"
	"testing"

	"plumbline/accel/cpu"
	"plumbline/verify/op"
)

// zeroed takes a subnormal number for 0.
func zeroed(x float32) float32 {
	if math.Abs(float64(x)) < 0x1p-126 {
		return float32(math.Copysign(0, float64(x)))
	}
	return x
}

// flushed returns the float64 number x, which must be exact or rounded to odd, as float32: half to even with unbounded exponent, then 0 where that is
// below the smallest normal number.
func flushed(x float64) float32 {
	if math.Abs(x) < 0x1p-125 && math.Abs(float64(float32(x*0x1p60))) < 0x1p-66 {
		return float32(math.Copysign(0, x))
	}
	return float32(x)
}

// fused is a·b + c as AMX rounds it.
func fused(a, b, c float32) float32 {
	p, x := float64(zeroed(a))*float64(zeroed(b)), float64(zeroed(c))
	s := p + x
	t := s - p
	e := (p - (s - t)) + (x - t)
	if bits := math.Float64bits(s); e != 0 && e == e && bits&1 == 0 { // to odd (Boldo and Melquiond 2008)
		if (e > 0) == (s > 0) {
			bits++
		} else {
			bits--
		}
		s = math.Float64frombits(bits)
	}
	return flushed(s)
}

// pairSum is an element of TDPBF16PS: the earlier numbers of 16 pairs as one chain, the later as another, their sum, and that added to c.
func pairSum(c float32, a, b []PairBF16) float32 {
	var early, late float32
	for i := range a {
		early = fused(math.Float32frombits(uint32(a[i])&^0xffff), math.Float32frombits(uint32(b[i])&^0xffff), early)
		late = fused(math.Float32frombits(uint32(a[i])<<16), math.Float32frombits(uint32(b[i])<<16), late)
	}
	return fused(1, fused(1, early, late), c)
}

// The instruction is its model, bit by bit: on plain numbers, on products that spread over all exponents, on those around the smallest normal one, and
// among infinities and NaN.
func TestTilesOfPairs(t *testing.T) {
	if why := cpu.Missing(cpu.AMX); why != "" {
		op.Skip(t, "amx", why)
	}
	r := rand.New(rand.NewPCG(3, 5))
	draws := map[string]func() float32{
		"normal":    func() float32 { return float32(r.NormFloat64()) },
		"spread":    func() float32 { return float32(math.Ldexp(r.NormFloat64(), r.IntN(80)-40)) },
		"subnormal": func() float32 { return float32(math.Ldexp(r.NormFloat64(), -60-r.IntN(12))) },
		"tiny":      func() float32 { return float32(math.Ldexp(r.NormFloat64(), -r.IntN(140))) },
		"bits":      func() float32 { return math.Float32frombits(r.Uint32()) },
		"special": func() float32 {
			if r.IntN(40) > 0 {
				return float32(r.NormFloat64())
			}
			return []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 0, float32(math.Copysign(0, -1))}[r.IntN(5)]
		},
	}
	naive := 0
	for name, draw := range draws {
		for range 12 {
			var a [16][16]PairBF16
			var panel [2 * 256]PairBF16
			var c, want [16][32]float32
			number := func() PairBF16 { return PairBF16(math.Float32bits(draw())>>16<<16 | math.Float32bits(draw())>>16) }
			var columns [32][16]PairBF16
			for i := range a {
				for l := range a[i] {
					a[i][l] = number()
				}
			}
			for j := range columns {
				for l := range 16 {
					columns[j][l] = number()
					panel[j/16*256+l*16+j%16] = columns[j][l]
				}
			}
			for i := range c {
				for j := range c[i] {
					c[i][j] = draw()
					want[i][j] = pairSum(c[i][j], a[i][:], columns[j][:])
					var chain float32
					for l, p := range a[i] {
						chain = fused(math.Float32frombits(uint32(p)&^0xffff), math.Float32frombits(uint32(columns[j][l])&^0xffff), chain)
						chain = fused(math.Float32frombits(uint32(p)<<16), math.Float32frombits(uint32(columns[j][l])<<16), chain)
					}
					if fused(1, chain, c[i][j]) != want[i][j] {
						naive++
					}
				}
			}
			AMXBF16.Run(16, &a[0][0], 16, &panel[0], &c[0][0], 32, true)
			for i := range c {
				for j := range c[i] {
					got, w := c[i][j], want[i][j]
					if math.Float32bits(got) != math.Float32bits(w) && (got == got || w == w) {
						t.Fatalf("%s: element %d, %d is %g (%#x), not %g (%#x)", name, i, j, got, math.Float32bits(got), w, math.Float32bits(w))
					}
				}
			}
		}
	}
	if naive < 1000 {
		t.Errorf("only %d elements tell the order from a chain", naive)
	}
}
