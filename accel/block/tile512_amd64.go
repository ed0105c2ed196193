//go:build !purego

package block

// The tiles of 512 bits have 24 accumulators, so that a multiplier with a latency of 4 cycles is never idle, twice as many where a core
// has two of them, and a load of a feeds two multiplications.

// F32x512 is the tile of float32 with AVX512. A panel is two of 16 columns, one after the other.
var F32x512 = Tile[float32, float32]{MR: 12, NR: 32, Run: tileF32x512}

// F32Half is F32x512 for products of few columns: a panel is one of 16.
var F32Half = Tile[float32, float32]{MR: 12, NR: 16, Run: tileF32Half}

// F64x512 is the tile of float64 with AVX512. A panel is two of 8 columns, one after the other.
var F64x512 = Tile[float64, float64]{MR: 12, NR: 16, Run: tileF64x512}

// TileF32 returns the tile for a product [m, n] on a processor with AVX512: that of 256 bits where rows of the others would be idle by half.
func TileF32(m, n int) Tile[float32, float32] {
	switch {
	case m <= F32.MR:
		return F32
	case n <= F32Half.NR:
		return F32Half
	}
	return F32x512
}

// TileF64 is TileF32 for float64, that of 256 bits where columns would be idle, too.
func TileF64(m, n int) Tile[float64, float64] {
	if m <= F64.MR || n <= F64.NR {
		return F64
	}
	return F64x512
}

// Quad is four int8 that stand at neighbouring k. As an element of a it holds codes plus 128.
type Quad [4]int8

// VNNI is the tile of quads with AVX512-VNNI. A panel is two of 16 columns, one after the other, and a row that
// [TurnI8Quads] adds.
var VNNI = Tile[Quad, int32]{MR: 12, NR: 32, Tail: 1, Run: tileVNNI}

// VNNIHalf is VNNI for products of few columns: a panel is one of 16 and the row added.
var VNNIHalf = Tile[Quad, int32]{MR: 12, NR: 16, Tail: 1, Run: tileVNNIHalf}

// tileF32x512 is the Run of F32x512. The chains are fused multiply-adds.
//
//go:noescape
func tileF32x512(k int, a *float32, lda int, b *float32, c *float32, ldc int, load bool)

// tileF32Half is the Run of F32Half.
//
//go:noescape
func tileF32Half(k int, a *float32, lda int, b *float32, c *float32, ldc int, load bool)

// PartF32 is the Run of F32x512 for rows of a panel [depth][32] that is longer: half is the distance of its two halves, 16·depth.
//
//go:noescape
func PartF32(k int, a *float32, lda int, b *float32, half int, c *float32, ldc int, load bool)

// tileF64x512 is the Run of F64x512. The chains are fused multiply-adds.
//
//go:noescape
func tileF64x512(k int, a *float64, lda int, b *float64, c *float64, ldc int, load bool)

// tileVNNI is the Run of VNNI. Sums are modulo 2³².
//
//go:noescape
func tileVNNI(k int, a *Quad, lda int, b *Quad, c *int32, ldc int, load bool)

// tileVNNIHalf is the Run of VNNIHalf.
//
//go:noescape
func tileVNNIHalf(k int, a *Quad, lda int, b *Quad, c *int32, ldc int, load bool)

// Panels packs a panel of nr columns as two of width, one after the other, with pack, which packs such a one. If nr is width it is pack.
func Panels[T any](nr, width int, pack func(dst []T, k, depth, j, cols int)) func(dst []T, k, depth, j, cols int) {
	if nr == width {
		return pack
	}
	return func(dst []T, k, depth, j, cols int) {
		pack(dst[:width*depth], k, depth, j, min(cols, width))
		if second := dst[width*depth:][:width*depth]; cols > width {
			pack(second, k, depth, j+width, cols-width)
		} else {
			clear(second)
		}
	}
}
