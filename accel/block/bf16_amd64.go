//go:build !purego

package block

import (
	"math"
	"slices"
	"unsafe"
)

// PairBF16 is two bfloat16 that stand at neighbouring k, the earlier one in the upper half: VDPBF16PS adds the product of the upper halves
// first, each by a fused multiply-add, so that a sum is the chain in the order of k. It takes subnormal numbers for 0 and turns subnormal
// results into 0; sums without them are those of a chain of ordinary fused multiply-adds, bit by bit.
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, Volume 2, VDPBF16PS.
type PairBF16 uint32

// noProduct is a pair of an operand a that leaves a sum as it is, whatever finite pair it meets: −0 and −0.
const noProduct PairBF16 = 0x80008000

// TinyBF16 bounds what a row of an operand must not hold for subnormal numbers to be out of the question: with codes or other whole
// numbers as the other operand, and every element 0 or at least 2⁻¹¹⁹, whose 8 bits end at 2⁻¹²⁶, all products and sums are
// multiples of 2⁻¹²⁶, the smallest normal number. TinySum does it for a float32, with 24 bits, that a sum begins with.
const (
	TinyBF16 = 0x1p-119
	TinySum  = 0x1p-103
)

// BF16 is the tile of pairs of bfloat16 with AVX512-BF16. A panel is two of 16 columns, one after the other.
var BF16 = Tile[PairBF16, float32]{MR: 12, NR: 32, Run: tileBF16}

// BF16Half is BF16 for products of few columns: a panel is one of 16.
var BF16Half = Tile[PairBF16, float32]{MR: 12, NR: 16, Run: tileBF16Half}

// tileBF16 is the Run of BF16.
//
//go:noescape
func tileBF16(k int, a *PairBF16, lda int, b *PairBF16, c *float32, ldc int, load bool)

// tileBF16Half is the Run of BF16Half.
//
//go:noescape
func tileBF16Half(k int, a *PairBF16, lda int, b *PairBF16, c *float32, ldc int, load bool)

// roundBF16 stores 32·n elements rounded to bfloat16 as pairs. It returns 0 if none is apart from 0 by less than the number with the
// bits limit; then the rounding is half to even.
//
//go:noescape
func roundBF16(dst *PairBF16, x *float32, n int, limit uint32) uint32

// roundScaledBF16 is roundBF16 of x·scale.
//
//go:noescape
func roundScaledBF16(dst *PairBF16, x, scale *float32, n int, limit uint32) uint32

// pairsBF16 turns n rows of 16 pairs of codes in int16 into pairs of bfloat16, in place.
//
//go:noescape
func pairsBF16(panel *PairBF16, n int)

// turnPairs16 stores 16 rows of src, 16·n codes each, as a panel of 16 columns of pairs.
//
//go:noescape
func turnPairs16(dst *PairBF16, src *int8, ld, n int)

// widenI8BF16 stores 2·n rows of 16 codes as n rows of pairs.
//
//go:noescape
func widenI8BF16(dst *PairBF16, src *int8, ld, n int)

// PairRow stores a row x, times scale if that is not nil, rounded by round to bfloat16, as pairs. It reports whether an element is tiny.
func PairRow(dst []PairBF16, x, scale []float32, round func(float32) float32) (tiny bool) {
	limit := math.Float32bits(TinyBF16)
	done := len(x) / 32
	if done > 0 {
		if scale == nil {
			tiny = roundBF16(&dst[0], &x[0], done, limit) != 0
		} else {
			tiny = roundScaledBF16(&dst[0], &x[0], &scale[0], done, limit) != 0
		}
	}
	if len(x)%2 == 1 {
		dst[len(x)/2] = noProduct
	}
	for l := done * 32; l < len(x); l++ {
		v := x[l]
		if scale != nil {
			v = float32(v * scale[l])
		}
		tiny = tiny || Tiny(v, TinyBF16)
		half, pair := math.Float32bits(round(v))>>16, &dst[l/2]
		if l%2 == 0 {
			*pair = *pair&0xffff | PairBF16(half<<16)
		} else {
			*pair = *pair&^0xffff | PairBF16(half)
		}
	}
	return tiny
}

// Tiny reports whether x is apart from 0 by less than limit.
func Tiny(x, limit float32) bool { return x != 0 && -limit < x && x < limit }

// AnyTiny reports whether an element is.
func AnyTiny(x []float32, limit float32) bool {
	done := len(x) / 16
	if done > 0 && tiny512(&x[0], done, math.Float32bits(limit)) != 0 {
		return true
	}
	return slices.ContainsFunc(x[done*16:], func(v float32) bool { return Tiny(v, limit) })
}

// tiny512 returns 0 if of 16·n elements none is apart from 0 by less than the number with the bits limit.
//
//go:noescape
func tiny512(x *float32, n int, limit uint32) uint32

// codeBF16 is the bits of a code as bfloat16.
func codeBF16(v int8) PairBF16 { return PairBF16(math.Float32bits(float32(v)) >> 16) }

// TurnI8BF16 packs a panel of [BF16], nr columns, or of [BF16Half] from the codes b [N, length] for a product with its transpose; k and
// depth count pairs.
func TurnI8BF16(dst []PairBF16, nr int, b []int8, ldb, length, k, depth, j, cols int) {
	Panels(nr, columns, func(dst []PairBF16, k, depth, j, cols int) {
		if done := min(depth, length/2-k) / 8 * 8; cols == columns && done > 0 {
			turnPairs16(&dst[0], &b[j*ldb+2*k], ldb, done/8)
			dst, k, depth = dst[done*columns:], k+done, depth-done
		}
		if depth == 0 || 2*k >= length {
			clear(dst[:depth*columns])
			return
		}
		codes := unsafe.Slice((*Pair)(unsafe.Pointer(&dst[0])), len(dst))
		held := min(depth, (length+1)/2-k)
		if 2*(k+depth) > length {
			clear(codes[(held-1)*columns:]) // the half after an odd last code, and the pairs that fill a step up
		}
		TurnI8Pairs(codes, b, ldb, length, k, held, j, cols)
		pairsBF16(&dst[0], depth)
	})(dst, k, depth, j, cols)
}

// WidenI8BF16 packs such a panel from the codes b [length, N] for a product with b itself.
func WidenI8BF16(dst []PairBF16, nr int, b []int8, ldb, length, k, depth, j, cols int) {
	Panels(nr, columns, func(dst []PairBF16, k, depth, j, cols int) {
		from := 0
		if cols == columns {
			from = min(depth, length/2-k)
			if from > 0 {
				widenI8BF16(&dst[0], &b[2*k*ldb+j], ldb, from)
			}
		}
		for l := from; l < depth; l++ {
			out := dst[l*columns:][:columns]
			clear(out)
			if 2*(k+l) >= length {
				continue
			}
			for c, v := range b[2*(k+l)*ldb+j:][:cols] {
				out[c] = codeBF16(v) << 16
			}
			if 2*(k+l)+1 < length {
				for c, v := range b[(2*(k+l)+1)*ldb+j:][:cols] {
					out[c] |= codeBF16(v)
				}
			}
		}
	})(dst, k, depth, j, cols)
}
