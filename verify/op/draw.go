package op

import (
	"math"
	"math/rand/v2"

	"plumbline/internal/rng"
)

// Families of values (tolerances 7).
const (
	Uniform   = "uniform"   // U(−1, 1)
	Normal    = "normal"    // N(0, 1)
	Heavy     = "heavy"     // ±2^U(−20, 20)
	Cancel    = "cancel"    // neighbours that cancel but for their last bits
	Sparse    = "sparse"    // 15 of 16 are zeros of either sign
	Edge      = "edge"      // zeros, subnormal numbers, 1 ± ulp, powers of two
	Whole     = "exact"     // −3 … 3: every sum is exact
	Constant  = "constant"  // 0.1 everywhere
	Tiny      = "tiny"      // normal, with stretches around the smallest normal number of float32, or a few such among zeros
	Tie       = "tie"       // halves of a quantisation grid
	Saturate  = "saturate"  // the largest codes, and values near the largest that cannot overflow
	NonFinite = "nonfinite" // normal, with a few NaN and infinities
)

// plain are the families that every op with float operands takes.
var plain = []string{Normal, Heavy, Uniform, Edge, Cancel, Sparse, Whole, Constant, Saturate, NonFinite}

// value returns the generator of a tensor's elements in float32, which a spec may narrow further.
func value(c Case, tensor uint64) func(i int) float32 {
	s, special := rng.New(c.Seed, tensor), rng.New(c.Seed, tensor+1<<32)
	normal := func(i int) float32 { return float32(s.Normal(uint64(i))) }
	switch c.Family {
	case Normal:
		return normal
	case Uniform:
		return func(i int) float32 { return float32(2*s.Uniform(uint64(i)) - 1) }
	case Heavy:
		return func(i int) float32 {
			v := math.Exp2(40*s.Uniform(uint64(i)) - 20)
			return float32(math.Copysign(v, special.Uniform(uint64(i))-0.5))
		}
	case Cancel:
		return func(i int) float32 {
			v := s.Normal(uint64(i &^ 1))
			if i&1 == 1 {
				v = -v * (1 + 0x1p-20*special.Uniform(uint64(i)))
			}
			return float32(v)
		}
	case Sparse:
		return func(i int) float32 {
			if w := special.Word(uint64(i)); w%16 != 0 {
				return float32(math.Copysign(0, float64(int64(w))))
			}
			return normal(i)
		}
	case Edge:
		table := [...]float32{0, 0x1p-149, 0x1p-126, 0x1.fffffcp-127, 1, 1 + 0x1p-23, 1 - 0x1p-24, 2, 0x1p-60, 0x1p40, 3, 0x1p-75, 1.5 * 0x1p-74}
		return func(i int) float32 {
			w := special.Word(uint64(i))
			v := table[w>>1%uint64(len(table))]
			if w&1 == 1 {
				v = -v
			}
			return v
		}
	case Tiny:
		few := c.Seed&1 == 1 // tiny numbers among zeros, which a sum of normal ones would hide
		return func(i int) float32 {
			v := normal(i)
			if few {
				if w := special.Word(uint64(i)); w%31 == 0 {
					return v * [...]float32{0x1p-126, 0x1p-119}[w>>32%2]
				}
				return 0
			}
			switch special.Word(uint64(i/50)) % 3 {
			case 0:
				v *= 0x1p-126
			case 1:
				v *= 0x1p-119
			}
			return v
		}
	case Whole, Tie:
		return func(i int) float32 { return float32(s.Word(uint64(i))%7) - 3 }
	case Constant:
		return func(int) float32 { return 0.1 }
	case Saturate: // products of two of them and sums of 2¹⁷ such products stay below 2¹²⁸
		return func(i int) float32 { return float32(math.Copysign(0x1.fffffep54, special.Uniform(uint64(i))-0.5)) }
	case NonFinite:
		// NaN whose bits a careless rounding turns into an infinity or a zero are among them.
		table := [...]uint32{0x7fc00000, 0x7f800000, 0xff800000, 0x7fffffff, 0xffffffff, 0x7f800001}
		return func(i int) float32 {
			if w := special.Word(uint64(i)); w%61 == 0 {
				return math.Float32frombits(table[w>>8%uint64(len(table))])
			}
			return normal(i)
		}
	}
	panic("op: no family is named " + c.Family)
}

// words returns the generator of a tensor's random bits.
func words(c Case, tensor uint64) func(i int) uint64 {
	s := rng.New(c.Seed, tensor)
	return func(i int) uint64 { return s.Word(uint64(i)) }
}

// codes returns the generator of int8 codes of a tensor.
func codes(c Case, tensor uint64) func(i int) int8 {
	s := rng.New(c.Seed, tensor)
	switch c.Family {
	case Saturate:
		table := [...]int8{127, -127}
		if long := len(c.Dims) > 2 && c.Dims[2] > 65536; long || c.Seed&4 == 0 {
			table = [...]int8{127, 127} // all of a sign: the largest sums
		}
		return func(i int) int8 { return table[s.Word(uint64(i))%2] }
	case Whole, Constant:
		return func(i int) int8 { return int8(s.Word(uint64(i))%7) - 3 }
	case Sparse:
		return func(i int) int8 {
			if w := s.Word(uint64(i)); w%16 == 0 {
				return int8(w >> 8 % 255)
			}
			return 0
		}
	}
	return func(i int) int8 { return int8(int(s.Word(uint64(i))%255) - 127) }
}

// sizes of dimensions lie around the edges of vectors, tiles and blocks.
var sizes = []int{0, 1, 2, 3, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 18, 24, 31, 32, 33, 47, 48, 49, 63, 64, 65}

// long are sizes around the edges of blocks in the caches. A case has one of them at most.
var long = []int{127, 128, 129, 191, 192, 193, 197, 255, 256, 257, 259, 511, 513}

// dims draws n sizes; in one case of four one of them is long.
func dims(r *rand.Rand, n int) []int {
	d := make([]int, n)
	for i := range d {
		d[i] = sizes[r.IntN(len(sizes))]
	}
	if r.IntN(4) == 0 {
		for i := range d {
			d[i] = sizes[r.IntN(20)] // at most 32
		}
		d[r.IntN(n)] = long[r.IntN(len(long))]
	}
	return d
}

// stride is the distance of rows of cols elements: exact, or with 1 to 5 elements between.
func stride(cols, pad int) int { return cols + pad }
