//go:build !purego

package block

// The tiles are assembly because the compiler does not vectorise: 12 accumulators of 8 float32, 4 float64 or 8 int32 use the two
// multipliers of every cycle. Their gain is that of BenchmarkGemm.

// F32 is the tile of float32 with AVX2 and FMA.
var F32 = Tile[float32, float32]{MR: 6, NR: 16, Run: tileF32}

// F64 is the tile of float64 with AVX2 and FMA.
var F64 = Tile[float64, float64]{MR: 6, NR: 8, Run: tileF64}

// Pair is two int16 that stand at neighbouring k.
type Pair [2]int16

// I16 is the tile of pairs of int16 with AVX2: a step of k adds both products of a pair.
var I16 = Tile[Pair, int32]{MR: 6, NR: 16, Run: tileI16}

// tileF32 is the Run of F32. The chains are fused multiply-adds.
//
//go:noescape
func tileF32(k int, a *float32, lda int, b *float32, c *float32, ldc int, load bool)

// tileF64 is the Run of F64. The chains are fused multiply-adds.
//
//go:noescape
func tileF64(k int, a *float64, lda int, b *float64, c *float64, ldc int, load bool)

// tileI16 is the Run of I16. Sums are modulo 2³².
//
//go:noescape
func tileI16(k int, a *Pair, lda int, b *Pair, c *int32, ldc int, load bool)
