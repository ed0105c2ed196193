package f32

import "math"

// exp returns eˣ with a relative error below 2⁻²⁶; 0 below −700 and +Inf above 700, both far outside of what float32 holds. NaN gives NaN.
//
// With k = x/ln 2 rounded and r = x − k·ln 2, |r| ≤ 0.3466, it is 2ᵏ·Σ_{i≤7} rⁱ/i!: the tail of the series is below r⁸/8! < 5.3e-9.
// Every product is rounded on its own, so that machines with and without fused operations give the same bits. The sum is taken in two halves of two, so that no chain of operations is long.
func exp(x float64) float64 {
	if !(x >= -700) {
		if x != x {
			return x
		}
		return 0
	}
	if x > 700 {
		return math.Inf(1)
	}
	const magic = 3 << 51 // adding it rounds to an integer, which stands in the low bits
	shifted := float64(x*math.Log2E) + magic
	k := shifted - magic
	r := x - float64(k*math.Ln2)
	rr := float64(r * r)
	low := (1 + r) + float64(rr*(float64(r*(1./6))+0.5))
	high := (float64(r*(1./120)) + 1./24) + float64(rr*(float64(r*(1./5040))+1./720))
	p := low + float64(float64(rr*rr)*high)
	return p * math.Float64frombits(uint64(int64(k)+1023)<<52)
}

// sigmoid returns 1/(1 + e⁻ˣ) with a relative error below 2⁻²⁶.
func sigmoid(x float64) float64 { return 1 / (1 + exp(-x)) }
