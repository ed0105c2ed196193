//go:build !purego

package cpu

import (
	"sync"
	"unsafe"
)

var probes = []Probe{
	{"peak/f32", "avx2", "op", AVX2, func(n int) float64 { probeF32(n); return 12 * 8 * 2 * float64(n) }},
	{"peak/f32", "avx512", "op", AVX512, func(n int) float64 { probeF32x16(n); return 12 * 16 * 2 * float64(n) }},
	{"peak/f64", "avx2", "op", AVX2, func(n int) float64 { probeF64(n); return 12 * 4 * 2 * float64(n) }},
	{"peak/f64", "avx512", "op", AVX512, func(n int) float64 { probeF64x8(n); return 12 * 8 * 2 * float64(n) }},
	{"peak/i8", "avx2", "op", AVX2, func(n int) float64 { probeI16(n); return 12 * 16 * 2 * float64(n) }},
	{"peak/i8", "avx512vnni", "op", AVX512VNNI, func(n int) float64 { probeVNNI(n); return 12 * 64 * 2 * float64(n) }},
	{"peak/i8", "amx", "op", AMX, func(n int) float64 { n /= 8; probeTilesI8(n); return 4 * 16 * 16 * 64 * 2 * float64(n) }},
	// Without an instruction for it bfloat16 is multiplied as float32.
	{"peak/bf16", "avx2", "op", AVX2, func(n int) float64 { probeF32(n); return 12 * 8 * 2 * float64(n) }},
	{"peak/bf16", "avx512", "op", AVX512, func(n int) float64 { probeF32x16(n); return 12 * 16 * 2 * float64(n) }},
	{"peak/bf16", "avx512bf16", "op", AVX512BF16, func(n int) float64 { probeBF16(n); return 12 * 32 * 2 * float64(n) }},
	{"peak/bf16", "amx", "op", AMX, func(n int) float64 { n /= 8; probeTilesBF16(n); return 4 * 16 * 16 * 32 * 2 * float64(n) }},
	{"peak/dram-read", "avx2", "byte", AVX2, func(n int) float64 {
		big := readBuffer()
		blocks := min(n, len(big)/(128/8)) // of 128 bytes
		probeRead(unsafe.Pointer(&big[0]), blocks)
		return 128 * float64(blocks)
	}},
}

// readBuffer is larger than the caches; its pages are touched.
var readBuffer = sync.OnceValue(func() []uint64 {
	x := make([]uint64, 256<<20/8)
	for i := range x {
		x[i] = uint64(i)
	}
	return x
})

// probeF32 runs n times 12 fused multiply-adds of 8 float32 on registers.
func probeF32(n int)

// probeF64 runs n times 12 fused multiply-adds of 4 float64 on registers.
func probeF64(n int)

// probeI16 runs n times 12 products of 16 int16 on registers, whose pairs are summed and added to int32: what int8 codes take
// without VNNI.
func probeI16(n int)

// probeF32x16 is probeF32 with 16 lanes.
func probeF32x16(n int)

// probeF64x8 is probeF64 with 8 lanes.
func probeF64x8(n int)

// probeVNNI runs n times 12 VPDPBUSD on registers: 64 products of codes each.
func probeVNNI(n int)

// probeBF16 runs n times 12 VDPBF16PS on registers: 32 products each.
func probeBF16(n int)

// probeTilesI8 runs n times 4 TDPBSSD on tiles: 16·16·64 products of codes each.
func probeTilesI8(n int)

// probeTilesBF16 runs n times 4 TDPBF16PS on tiles: 16·16·32 products each.
func probeTilesBF16(n int)

// inUse is what XGETBV says of the states of this thread that are not at rest: a bit for each.
func inUse() uint64

// TilesInUse reports whether the tiles of this thread hold something, as they do between LDTILECFG and TILERELEASE. A kernel that leaves it so costs
// every switch of threads 8 KB, and the processor its sleep. It is false where there are no tiles.
func TilesInUse() bool {
	const tileConfig, tileData = 1 << 17, 1 << 18
	return Missing(AMX) == "" && inUse()&(tileConfig|tileData) != 0
}

// probeRead reads n times 128 bytes.
//
//go:noescape
func probeRead(p unsafe.Pointer, n int)
