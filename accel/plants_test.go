package accel_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sourcePlant is a bug in the source of a kernel: an edit, and the op whose specification must catch it.
type sourcePlant struct {
	id, op   string
	file     string // below accel
	old, new string // old stands in it once, or its first place is meant
}

// sourcePlants are mistakes that kernels are known to have, each an edit of one line or two. What they do to a result is in the id.
var sourcePlants = []sourcePlant{
	// Register tiles.
	{"tile/f32-last-row-of-b-skipped", "f32.Gemm", "block/tile_amd64.s", "ADDQ $64, DI\n\tDECQ CX\n\tJNZ  tileF32loop", "ADDQ $64, DI\n\tDECQ CX\n\tCMPQ CX, $1\n\tJEQ  tileF32done\n\tTESTQ CX, CX\n\tJNZ  tileF32loop\n\ntileF32done:"},
	{"tile/f32-stale-accumulator", "f32.Gemm", "block/tile_amd64.s", "tileF32zero:\n\tVPXOR Y0, Y0, Y0\n", "tileF32zero:\n"},
	{"tile/f32-stale-last-accumulator", "f32.Gemm", "block/tile_amd64.s", "\tVPXOR Y11, Y11, Y11\n\ntileF32loop", "\ntileF32loop"},
	{"tile/f32-load-ignored", "f32.Gemm", "block/tile_amd64.s", "CMPB load+48(FP), $0\n\tJEQ  tileF32zero", "JMP  tileF32zero"},
	{"tile/f32-always-loads", "f32.Gemm", "block/tile_amd64.s", "CMPB load+48(FP), $0\n\tJEQ  tileF32zero\n", ""},
	{"tile/f32-row-1-twice", "f32.Gemm", "block/tile_amd64.s", "VBROADCASTSS (SI)(R9*2), Y14", "VBROADCASTSS (SI)(R9*1), Y14"},
	{"tile/f32-halves-swapped", "f32.Gemm", "block/tile_amd64.s", "VFMADD231PS Y12, Y14, Y4\n\tVFMADD231PS Y13, Y14, Y5", "VFMADD231PS Y13, Y14, Y4\n\tVFMADD231PS Y12, Y14, Y5"},
	{"tile/f32-accumulator-shared", "f32.Gemm", "block/tile_amd64.s", "VFMADD231PS Y13, Y14, Y9", "VFMADD231PS Y13, Y14, Y8"},
	{"tile/f32-unfused", "f32.Gemm", "block/tile_amd64.s", "VFMADD231PS Y12, Y14, Y0", "VMULPS Y12, Y14, Y15\n\tVADDPS Y15, Y0, Y0"},
	{"tile/f32-negated-product", "f32.Gemm", "block/tile_amd64.s", "VFMADD231PS Y12, Y14, Y10", "VFNMADD231PS Y12, Y14, Y10"},
	{"tile/f32-row-3-where-4", "f32.Gemm", "block/tile_amd64.s", "VMOVUPS Y8, (R12)(R11*1)", "VMOVUPS Y6, (R12)(R11*1)"},
	{"tile/f32-last-store-missing", "f32.Gemm", "block/tile_amd64.s", "\tVMOVUPS Y11, 32(R12)(R11*2)\n\tVZEROUPPER", "\tVZEROUPPER"},
	{"tile/f32-writes-beyond", "f32.Gemm", "block/tile_amd64.s", "VMOVUPS Y11, 32(R12)(R11*2)\n\tVZEROUPPER", "VMOVUPS Y11, 32(R12)(R11*2)\n\tVMOVUPS Y11, 64(R12)(R11*2)\n\tVZEROUPPER"},
	{"tile/f64-one-lane-format", "f64.Gemm", "block/tile_amd64.s", "VFMADD231PD Y12, Y14, Y6", "VFMADD231PS Y12, Y14, Y6"},
	{"tile/f64-stale-accumulator", "f64.Gemm", "block/tile_amd64.s", "tileF64zero:\n\tVPXOR Y0, Y0, Y0\n", "tileF64zero:\n"},
	{"tile/f64-stride-of-floats", "f64.Gemm", "block/tile_amd64.s", "SHLQ $3, R9", "SHLQ $2, R9"},
	{"tile/f64-order-of-operands", "f64.Gemm", "block/tile_amd64.s", "VFMADD231PD Y13, Y14, Y3", "VFMADD213PD Y13, Y14, Y3"},
	{"tile/i16-saturating-add", "i8.Gemm", "block/tile_amd64.s", "VPADDD Y15, Y0, Y0", "VPADDSW Y15, Y0, Y0"},
	{"tile/i16-maddubs", "i8.Gemm", "block/tile_amd64.s", "VPMADDWD Y12, Y14, Y15", "VPMADDUBSW Y12, Y14, Y15"},
	{"tile/i16-low-half-only", "i8.Gemm", "block/tile_amd64.s", "VPMADDWD Y13, Y14, Y15", "VPMULLW Y13, Y14, Y15"},
	{"tile/i16-stale-accumulator", "i8.Gemm", "block/tile_amd64.s", "tileI16zero:\n\tVPXOR Y0, Y0, Y0\n", "tileI16zero:\n"},

	// Packing.
	{"pack/rows-of-a-transpose-swapped", "f32.Gemm", "block/pack_amd64.s", "VUNPCKLPS Y3, Y2, Y10", "VUNPCKLPS Y2, Y3, Y10"},
	{"pack/upper-half-is-lower", "f32.Gemm", "block/pack_amd64.s", "VPERM2F128 $0x31, Y7, Y3, Y15", "VPERM2F128 $0x20, Y7, Y3, Y15"},
	{"pack/one-column-lost", "bf16.W8A16", "block/pack_amd64.s", "VMOVUPS Y15, 448(DI)", "VMOVUPS Y14, 448(DI)"},
	{"pack/unsigned-codes", "bf16.W8A16", "block/pack_amd64.s", "VPMOVSXBD (SI), Y0", "VPMOVZXBD (SI), Y0"},
	{"pack/unsigned-pairs", "i8.Gemm", "block/pack_amd64.s", "VPMOVSXBW (SI), Y0", "VPMOVZXBW (SI), Y0"},
	{"pack/step-of-k", "i8.Gemm", "block/pack_amd64.s", "ADDQ $16, SI\n", "ADDQ $15, SI\n"},
	{"pack/f64-pairs-swapped", "f64.Gemm", "block/pack_amd64.s", "VUNPCKLPD Y5, Y4, Y12", "VUNPCKLPD Y4, Y5, Y12"},
	{"pack/tail-not-read", "f32.Gemm", "block/pack_amd64.go", "for l := from; l < depth; l++ {", "for l := from; l < depth/8*8; l++ {"},
	{"pack/odd-code-in-the-other-half", "i8.Gemm", "block/pack_amd64.go", "dst[whole*columns+r][0] =", "dst[whole*columns+r][1] ="},
	{"pack/odd-row-not-cleared", "i8.Gemm", "block/pack_amd64.go", "out[length/2][1] = 0", "_ = out"},
	{"pack/second-eight-rows-are-the-first", "f32.Gemm", "block/pack_amd64.go", "&src[(j+r0)*ld+k*per]", "&src[j*ld+k*per]"},
	{"pack/reads-a-row-too-many", "i8.Gemm", "block/pack_amd64.go", "n := length / 16\n", "n := (length + 15) / 16\n"},
	{"pack/row-of-b", "f32.Gemm", "block/pack.go", "b[(k+l)*ldb+j:]", "b[(k+max(l-1, 0))*ldb+j:]"},
	{"pack/columns-of-a", "f32.Gemm", "block/pack.go", "out[l] = a[l*lda+i+r]", "out[l] = a[l*lda+r]"},
	{"pack/flip-columns", "f32.Gemm", "block/pack_amd64.s", "VMOVUPS Y9, (DI)(R8*1)\n\tVMOVUPS Y10, (DI)(R8*2)", "VMOVUPS Y10, (DI)(R8*1)\n\tVMOVUPS Y9, (DI)(R8*2)"},
	{"pack/flip-next-rows", "f32.Gemm", "block/pack_amd64.s", "LEAQ (R12)(R8*8), R12\n", "LEAQ (R12)(R8*4), R12\n"},
	{"pack/flip-tail-of-k", "f32.Gemm", "block/pack_amd64.go", "if down < k && across > 0 {", "if down+1 < k && across > 0 {"},
	{"pack/flip-tail-of-the-first-row", "f32.Gemm", "block/pack_amd64.go", "Columns(dst[down:], ld, a[down*lda:],", "Columns(dst[down:], ld, a,"},
	{"pack/flip-tail-of-columns", "f32.Gemm", "block/pack_amd64.go", "lda, k, i+across, rows-across)", "lda, k, i, rows-across)"},
	{"pack/rows-second-half", "f32.Gemm", "block/pack_amd64.s", "VMOVUPS 32(SI), Y1\n\tVMOVUPS Y0, (DI)\n", "VMOVUPS (SI), Y1\n\tVMOVUPS Y0, (DI)\n"},

	// Blocks.
	{"block/k-block-overwrites", "f32.Gemm", "block/block.go", "load := p.Add || k0 > 0", "load := p.Add"},
	{"block/accumulate-ignored", "bf16.W8A16DX", "block/block.go", "load := p.Add || k0 > 0", "load := k0 > 0"},
	{"block/last-k-block-lost", "f64.Gemm", "block/block.go", "for k0 := 0; k0 < p.K; k0 += depth {", "for k0 := 0; k0 < max(depth, p.K/depth*depth); k0 += depth {"},
	{"block/a-not-advanced", "i8.Gemm", "block/block.go", "a[min(i*lda+k0, len(a)-1):]", "a[min(i*lda, len(a)-1):]"},
	{"block/edge-rows-stale", "f32.Gemm", "block/block.go", "copy(last.Slice[r*deep:][:deep], a[(i+r)*lda+k0:])", "copy(last.Slice[r*deep:][:deep], a[(i+r)*lda:])"},
	{"block/edge-writes-whole-tile", "f32.Gemm", "block/block.go", "if i+mr <= i1 && j+nr <= j1 {", "if i+mr <= i1 {"},
	{"block/edge-not-loaded", "f32.Gemm", "block/block.go", "copy(tile[r*nr:][:cols], p.C[(i+r)*p.LDC+j:])", "_ = r"},
	{"block/edge-last-row-lost", "i8.Gemm", "block/block.go", "for r := range rows {\n\t\tcopy(p.C", "for r := range max(rows-1, 1) {\n\t\tcopy(p.C"},
	{"block/last-column-block-lost", "i8.Gemm", "block/block.go", "acrossN := (p.N + width - 1) / width", "acrossN := max(1, p.N/width)"},
	{"block/tall-rows-lost", "f32.Gemm", "block/block.go", "end := min(i1, ib+below)", "end := min(i1, ib+below-6)"},
	{"block/finish-twice", "bf16.W8A16", "block/block.go", "if p.Finish != nil {", "if p.Finish != nil {\n\t\tp.Finish(i0, i1, j0, j1)"},

	// Int8.
	{"i8/scale-of-the-block", "i8.GemmScaled", "i8/gemm_amd64.go", "sb := scaleB[j0:j1]", "sb := scaleB[:j1-j0]"},
	{"i8/scale-of-the-first-row", "i8.GemmScaled", "i8/gemm_amd64.go", "sa, row, out := scaleA[i],", "sa, row, out := scaleA[i0],"},
	{"i8/bias-of-the-block", "i8.GemmScaled", "i8/gemm_amd64.go", "for j, v := range bias[j0:j1] {", "for j, v := range bias[:j1-j0] {"},
	{"i8/k-rounded-down", "i8.Gemm", "i8/gemm_amd64.go", "K: (k + 1) / 2,", "K: max(1, k/2),"},
	{"i8/truncating-conversion", "i8.QuantizeRows", "i8/quantize_amd64.s", "VCVTPS2DQ    Y0, Y0", "VCVTTPS2DQ   Y0, Y0"},
	{"i8/signed-maximum", "i8.QuantizeRows", "i8/quantize_amd64.s", "VPAND   (SI), Y1, Y2", "VMOVDQU (SI), Y2"},
	{"i8/max-over-half", "i8.QuantizeRows", "i8/quantize_amd64.s", "\tVPMAXUD      X2, X0, X0\n\tVPSHUFD      $0x4E", "\tVPSHUFD      $0x4E"},
	{"i8/tail-left-out-of-absmax", "i8.QuantizeRows", "i8/quantize_amd64.go", "for _, v := range row[vectors*8:] {", "for _, v := range row[len(row):] {"},
	{"i8/tail-truncated", "i8.QuantizeRows", "i8/quantize_amd64.go", "math.RoundToEven(", "math.Trunc("},
	{"i8/nan-as-number", "i8.QuantizeRows", "i8/quantize_generic.go", "if !(absmax > 0 && absmax <= math.MaxFloat32) {", "if absmax == 0 {"},
	{"i8/generic-half-away", "i8.QuantizeRows", "i8/quantize_generic.go", "math.RoundToEven(", "math.Round("},
	{"i8/generic-int16", "i8.Gemm", "i8/gemm_generic.go", "s += int32(v) * int32(b[l])", "s += int32(int16(v) * int16(b[l]) * 3 / 3)"},

	// Bfloat16.
	{"bf16/truncated", "bf16.W8A16", "bf16/round_amd64.s", "VPADDD    Y8, Y1, Y1      \\\n\tVPADDD    Y0, Y1, Y1      \\", "VMOVDQU   Y0, Y1          \\"},
	{"bf16/half-up", "bf16.W8A16", "bf16/round_amd64.s", "VPAND     Y9, Y1, Y1      \\", "VMOVDQU   Y9, Y1          \\"},
	{"bf16/nan-becomes-infinite", "bf16.W8A16", "bf16/round_amd64.s", "VBLENDVPS Y3, Y2, Y1, Y1  \\\n", ""},
	{"bf16/scale-not-advanced", "bf16.W8A16DX", "bf16/round_amd64.s", "ADDQ    $32, DX\n\tADDQ    $32, DI\n\tDECQ    CX\n\tJNZ     scaledloop", "ADDQ    $32, DI\n\tDECQ    CX\n\tJNZ     scaledloop"},
	{"bf16/scale-of-the-block", "bf16.W8A16", "bf16/w8a16_amd64.go", "scale[j0:j1]\n", "scale[:j1-j0]\n"},
	{"bf16/tail-not-rounded", "bf16.W8A16", "bf16/w8a16_amd64.go", "out[l] = Round(row[l])", "out[l] = row[l]"},
	{"bf16/tail-without-scale", "bf16.W8A16DX", "bf16/w8a16_amd64.go", "Round(float32(row[j] * scale[j]))", "Round(row[j])"},
	{"bf16/accumulates-always", "bf16.W8A16DX", "bf16/w8a16_amd64.go", "Add: accumulate,", "Add: true,"},
	{"bf16/generic-bias-before-scale", "bf16.W8A16", "bf16/w8a16_generic.go", "s = float32(s * scale[j])", "if bias != nil {\n\t\t\t\ts += bias[j] - bias[j]/scale[j]\n\t\t\t}\n\t\t\ts = float32(s * scale[j])"},

	// Tiles of 512 bits.
	{"tile512/f32-stale-accumulator", "f32.Gemm", "block/tile512_amd64.h", "VPXORD Z13, Z13, Z13 \\\n", ""},
	{"tile512/f32-last-row-of-b-skipped", "f32.Gemm", "block/tile512_amd64.s", "STEP(VBROADCASTSS, VFMADD231PS, $4)\n\tJNZ  tileF32x512loop", "STEP(VBROADCASTSS, VFMADD231PS, $4)\n\tJEQ  tileF32x512end\n\tCMPQ CX, $1\n\tJNE  tileF32x512loop\ntileF32x512end:"},
	{"tile512/f32-load-ignored", "f32.Gemm", "block/tile512_amd64.s", "CMPB load+48(FP), $0\n\tJEQ  tileF32x512zero\n\tLOAD\n\tJMP  tileF32x512loop", "JMP  tileF32x512zero"},
	{"tile512/f32-always-loads", "f32.Gemm", "block/tile512_amd64.s", "CMPB load+48(FP), $0\n\tJEQ  tileF32x512zero\n", ""},
	{"tile512/f32-unfused", "f32.Gemm", "block/tile512_amd64.h", "MULADD Z25, Z26, Z5 ", "VMULPS Z25, Z26, Z27 \\\n\tVADDPS Z27, Z5, Z5 "},
	{"tile512/halves-swapped", "f32.Gemm", "block/tile512_amd64.h", "MULADD Z24, Z26, Z8 \\\n\tMULADD Z25, Z26, Z9", "MULADD Z25, Z26, Z8 \\\n\tMULADD Z24, Z26, Z9"},
	{"tile512/row-7-is-row-6", "i8.Gemm", "block/tile512_amd64.h", "BROADCAST (R13)(R9*1), Z26 \\\n\tMULADD Z24, Z26, Z14", "BROADCAST (R13), Z26 \\\n\tMULADD Z24, Z26, Z14"},
	{"tile512/accumulator-shared", "f64.Gemm", "block/tile512_amd64.h", "MULADD Z25, Z26, Z21 ", "MULADD Z25, Z26, Z20 "},
	{"tile512/row-9-of-a", "f64.Gemm", "block/tile512_amd64.h", "ADDQ R13, R15           ", "ADDQ R10, R15           "},
	{"tile512/last-store-missing", "f32.Gemm", "block/tile512_amd64.h", "VMOVUPS Z22, (BX)(R11*2) \\\n\tVMOVUPS Z23, 64(BX)(R11*2)", "VMOVUPS Z22, (BX)(R11*2)"},
	{"tile512/writes-beyond", "f64.Gemm", "block/tile512_amd64.h", "VMOVUPS Z23, 64(BX)(R11*2)", "VMOVUPS Z23, 64(BX)(R11*2) \\\n\tVMOVUPS Z23, 128(BX)(R11*2)"},
	{"tile512/second-half-of-the-panel-is-the-first", "f32.Gemm", "block/tile512_amd64.h", "VMOVUPS (DI)(R8*1), Z25", "VMOVUPS (DI), Z25"},
	{"tile512/second-half-a-row-late", "f32.Gemm", "block/tile512_amd64.h", "VMOVUPS (DI)(R8*1), Z25", "VMOVUPS 64(DI)(R8*1), Z25"},
	{"tile512/half-stale-accumulator", "i8.Gemm", "block/tile512_amd64.h", "VPXORD Z11, Z11, Z11 \\\n", ""},
	{"tile512/half-load-of-the-row-before", "i8.Gemm", "block/tile512_amd64.h", "VMOVUPS (R12)(R11*1), Z4 ", "VMOVUPS (R12), Z4 "},
	{"tile512/half-row-lost", "i8.Gemm", "block/tile512_amd64.h", "VMOVUPS Z5, (R12)(R11*2) \\\n\tVMOVUPS Z6, (AX)", "VMOVUPS Z6, (AX)"},
	{"tile512/half-f32-stride-of-doubles", "f32.Gemm", "block/tile512_amd64.s", "HALFSTEP(VBROADCASTSS, VFMADD231PS, $4)", "HALFSTEP(VBROADCASTSS, VFMADD231PS, $8)"},
	{"tile512/f64-floats", "f64.Gemm", "block/tile512_amd64.s", "STEP(VBROADCASTSD, VFMADD231PD, $8)", "STEP(VBROADCASTSD, VFMADD231PS, $8)"},
	{"tile512/f64-stride-of-floats", "f64.Gemm", "block/tile512_amd64.s", "ARGUMENTS($3)", "ARGUMENTS($2)"},
	{"tile512/panel-without-its-second-half", "f32.Gemm", "block/tile512_amd64.go", "pack(second, k, depth, j+width, cols-width)", "pack(second, k, depth, j, cols-width)"},
	{"tile512/panel-last-column-of-the-first-half", "i8.Gemm", "block/tile512_amd64.go", "j, min(cols, width))", "j, min(cols, width-1))"},
	{"block/sums-of-a-stripe-lost", "f32.Gemm", "block/block.go", "copy(p.C[i*p.LDC:][j0:j1], stripe.Slice[(i-i0)*ldStripe:])", "copy(p.C[i*p.LDC:][j0:j1], stripe.Slice[i*ldStripe:])"},
	{"block/stripe-not-loaded", "bf16.W8A16DX", "block/block.go", "copy(stripe.Slice[(i-i0)*ldStripe:], p.C[i*p.LDC:][j0:j1])", "_ = i"},
	{"block/stripe-of-the-first-columns", "f64.Gemm", "block/block.go", "copy(stripe.Slice[(i-i0)*ldStripe:], p.C[i*p.LDC:][j0:j1])", "copy(stripe.Slice[(i-i0)*ldStripe:], p.C[i*p.LDC:][:j1-j0])"},

	// Quads of codes.
	{"vnni/saturating", "i8.Gemm", "block/tile512_amd64.s", "HALFSTEP(VPBROADCASTD, VPDPBUSD, $4)", "HALFSTEP(VPBROADCASTD, VPDPBUSDS, $4)"},
	{"vnni/words", "i8.Gemm", "block/tile512_amd64.s", "STEP(VPBROADCASTD, VPDPBUSD, $4)", "STEP(VPBROADCASTD, VPDPWSSD, $4)"},
	{"vnni/no-compensation", "i8.Gemm", "block/tile512_amd64.s", "VMOVDQU32 (DI)(R8*1), Z24\n", "VPXORD Z24, Z24, Z24\n"},
	{"vnni/compensation-of-the-first-half", "i8.Gemm", "block/tile512_amd64.s", "VMOVDQU32 64(DI)(R8*1), Z25", "VMOVDQU32 (DI)(R8*1), Z25"},
	{"vnni/compensation-of-one-row-missing", "i8.Gemm", "block/tile512_amd64.s", "\tVPADDD Z25, Z13, Z13\n", ""},
	{"vnni/half-no-compensation", "i8.Gemm", "block/tile512_amd64.s", "VMOVDQU32 (DI), Z24 // the row after the panel", "VPXORD Z24, Z24, Z24"},
	{"vnni/compensation-by-127", "i8.Gemm", "block/quads_amd64.s", "VPSUBD Z0, Z2, Z0 // −128·Σ", "VPSUBD Z0, Z2, Z0\n\tVPSRAD $7, Z0, Z2\n\tVPSUBD Z2, Z0, Z0"},
	{"vnni/compensation-of-one-block-short", "i8.Gemm", "block/quads_amd64.s", "VPSLLD $7, Z0, Z0", "VPSLLD $6, Z0, Z0"},
	{"vnni/compensation-not-of-the-tail", "i8.Gemm", "block/quads_amd64.go", "sumQuads(&dst[nr*depth+half], &dst[half*depth], depth)", "sumQuads(&dst[nr*depth+half], &dst[half*depth], max(1, min(depth, length/4-k)))"},
	{"vnni/codes-not-offset", "i8.Gemm", "block/quads_amd64.s", "VPXORD (SI), Z1, Z0", "VMOVDQU32 (SI), Z0"},
	{"vnni/tail-not-offset", "i8.Gemm", "block/quads_amd64.s", "VPXORD Z0, Z1, Z0\n\tVMOVDQU8 Z0, K1, (DI)", "VMOVDQU8 Z0, K1, (DI)"},
	{"vnni/tail-of-64-lost", "i8.Gemm", "block/quads_amd64.s", "offsettail:\n\tADDQ $64, CX\n\tJEQ  offsetdone", "offsettail:\n\tJMP  offsetdone"},
	{"vnni/tail-reads-64", "i8.Gemm", "block/quads_amd64.s", "VMOVDQU8.Z (SI), K1, Z0", "VMOVDQU32 (SI), Z0"},
	{"vnni/tail-mask-one-short", "i8.Gemm", "block/quads_amd64.s", "offsettail:\n\tADDQ $64, CX\n\tJEQ  offsetdone", "offsettail:\n\tADDQ $63, CX\n\tJEQ  offsetdone"},
	{"vnni/last-quad-not-cleared", "i8.Gemm", "block/quads_amd64.go", "clear(last) //", "_ = last //"},
	{"vnni/last-quad-one-code-short", "i8.Gemm", "block/quads_amd64.go", "[:length%4])", "[:length%4/2*2])"},
	{"vnni/quads-of-k-rounded-down", "i8.Gemm", "i8/gemm_vnni_amd64.go", "K: (k + 3) / 4,", "K: max(1, k/4),"},
	{"vnni/pack-swapped-rows", "i8.Gemm", "block/pack_amd64.s", "VMOVDQU (SI)(R9*2), Y2\n\tVMOVDQU (R10), Y3", "VMOVDQU (R10), Y2\n\tVMOVDQU (SI)(R9*2), Y3"},
	{"vnni/dots-words", "i8.Gemm", "block/quads_amd64.s", "VPDPBUSD Z4, Z8, Z2\n\tVPDPBUSD Z4, Z9, Z3\n\tADDQ", "VPDPWSSD Z4, Z8, Z2\n\tVPDPBUSD Z4, Z9, Z3\n\tADDQ"},
	{"vnni/dots-tail-reads-64", "i8.Gemm", "block/quads_amd64.s", "VMOVDQU8.Z (DI)(R9*1), K1, Z7", "VMOVDQU32 (DI)(R9*1), Z7"},
	{"vnni/dots-tail-mask-on-neither", "i8.Gemm", "block/quads_amd64.s", "VMOVDQU8.Z (SI), K1, Z4", "VMOVDQU32 (SI), Z4"},
	{"vnni/dots-excess-forgotten", "i8.Gemm", "block/quads_amd64.s", "VPSUBD X1, X0, X0", "VPSUBD X1, X0, X1"},
	{"vnni/dots-excess-unsigned", "i8.Gemm", "block/quads_amd64.go", "sum += int32(v)\n", "sum += int32(uint8(v))\n"},
	{"vnni/dots-upper-half-lost", "i8.Gemm", "block/quads_amd64.s", "VPADDD Y7, Y1, Y1\n", ""},
	{"vnni/dots-writes-four", "i8.Gemm", "block/quads_amd64.go", "for ; j+4 <= j1; j += 4 {", "for ; j < j1; j += 4 {"},
	{"vnni/dots-last-columns-lost", "i8.Gemm", "block/quads_amd64.go", "for ; j < j1; j++ {", "for ; j < j1-1; j++ {"},
	{"vnni/scaled-rows-of-the-first", "i8.GemmScaled", "i8/gemm_vnni_amd64.go", "block.DotI8(sums[i*ldy:], a[i*lda:][:k]", "block.DotI8(sums[i*ldy:], a[:k]"},
	{"i8/sums-of-dense-rows", "i8.GemmScaled", "i8/gemm_amd64.go", "scaleSums(y, ldy, sums, ldy,", "scaleSums(y, ldy, sums, n,"},
	{"i8/scale-before-conversion", "i8.GemmScaled", "i8/gemm_amd64.s", "VMULPS    Y1, Y0, Y0\n\tVMULPS    (DX), Y0, Y0", "VMULPS    (DX), Y0, Y0\n\tVMULPS    Y1, Y0, Y0"},
	{"i8/scale-vector-not-advanced", "i8.GemmScaled", "i8/gemm_amd64.s", "ADDQ      $32, DX\n", ""},

	// Pairs of bfloat16.
	{"vdp/later-of-a-pair-first", "bf16.W8A16", "block/bf16_amd64.s", "VPROLD $16, Z2, Z2 //", "VPROLD $0, Z2, Z2 //"},
	{"vdp/pair-order-of-both", "bf16.W8A16", "block/widen512_amd64.s", "VPSLLD $16, Z0, Z1\n\tVPSRAD $16, Z1, Z1 // the earlier code\n\tVPSRAD $16, Z0, Z0 // the later one", "VPSRAD $16, Z0, Z1\n\tVPSLLD $16, Z0, Z0\n\tVPSRAD $16, Z0, Z0"},
	{"vdp/later-code-unsigned", "bf16.W8A16", "block/widen512_amd64.s", "VPSRAD $16, Z0, Z0 // the later one", "VPSRLD $16, Z0, Z0"},
	{"vdp/rows-of-dx-swapped", "bf16.W8A16DX", "block/widen512_amd64.s", "VPMOVSXBD (SI), Z1\n\tVPMOVSXBD (SI)(R9*1), Z0", "VPMOVSXBD (SI), Z0\n\tVPMOVSXBD (SI)(R9*1), Z1"},
	{"vdp/row-of-dx-skipped", "bf16.W8A16DX", "block/widen512_amd64.s", "LEAQ (SI)(R9*2), SI", "LEAQ (SI)(R9*1), SI"},
	{"vdp/tiny-rows-not-looked-for", "bf16.W8A16", "block/bf16_amd64.s", "KORW K2, K1, K1\n\tKORW K3, K1, K1\n", ""},
	{"vdp/tiny-second-half-not-looked-at", "bf16.W8A16", "block/bf16_amd64.s", "KORW K3, K1, K1\n", ""},
	{"vdp/tiny-limit-too-low", "bf16.W8A16", "block/bf16_amd64.go", "TinyBF16 = 0x1p-119", "TinyBF16 = 0x1p-126"},
	{"vdp/tiny-rows-left", "bf16.W8A16", "bf16/vdp_amd64.go", "forwardAVX512(y[i*ldy:], ldy, x[i*ldx:], ldx, w, ldw, scale, bias, rows, n, k)", "_ = rows"},
	{"vdp/tiny-row-of-the-first", "bf16.W8A16", "bf16/vdp_amd64.go", "forwardAVX512(y[i*ldy:], ldy, x[i*ldx:],", "forwardAVX512(y[i*ldy:], ldy, x,"},
	{"vdp/tiny-sums-not-looked-for", "bf16.W8A16DX", "bf16/vdp_amd64.go", "tiny[r] = tiny[r] || block.AnyTiny(row, block.TinySum); tiny[r]", "tiny[r]"},
	{"vdp/tiny-row-added-twice", "bf16.W8A16DX", "bf16/vdp_amd64.go", "copy(dx[r*lddx:], before[r])", "_ = r"},
	{"vdp/tiny-tail-not-looked-at", "bf16.W8A16", "block/bf16_amd64.go", "tiny = tiny || Tiny(v, TinyBF16)\n", "_ = Tiny\n"},
	{"vdp/odd-half-stale", "bf16.W8A16", "block/bf16_amd64.go", "dst[len(x)/2] = noProduct", "_ = noProduct"},
	{"vdp/odd-half-of-codes-stale", "bf16.W8A16", "block/bf16_amd64.go", "clear(codes[(held-1)*columns:])", "_ = codes[(held-1)*columns:]"},
	{"vdp/odd-last-row-of-dx-lost", "bf16.W8A16DX", "block/bf16_amd64.go", "out[c] = codeBF16(v) << 16\n", "if 2*(k+l)+1 < length {\n\t\t\t\t\tout[c] = codeBF16(v) << 16\n\t\t\t\t}\n"},
	{"vdp/tail-halves-exchanged", "bf16.W8A16", "block/bf16_amd64.go", "if l%2 == 0 {", "if l%2 == 1 {"},
	{"vdp/scale-of-the-tail", "bf16.W8A16DX", "block/bf16_amd64.go", "v = float32(v * scale[l])", "v = float32(v * scale[l-done*32])"},
	{"vdp/scale-not-advanced", "bf16.W8A16DX", "block/bf16_amd64.s", "\tADDQ $128, DX\n", ""},
	{"vdp/halves-of-a-conversion", "bf16.W8A16", "block/bf16_amd64.s", "VMOVUPS (SI), Z0\n\tVMOVUPS 64(SI), Z1\n", "VMOVUPS 64(SI), Z0\n\tVMOVUPS (SI), Z1\n"},
	{"vdp/truncated", "bf16.W8A16", "block/bf16_amd64.s", "VMOVUPS (SI), Z0\n\tVMOVUPS 64(SI), Z1\n", "MOVL $0xffff0000, AX\n\tVPBROADCASTD AX, Z5\n\tVPANDD (SI), Z5, Z0\n\tVPANDD 64(SI), Z5, Z1\n"},
	{"vdp/k-rounded-down", "bf16.W8A16", "bf16/vdp_amd64.go", "K: tile.Steps((k + 1) / 2), C: y", "K: max(1, k/2), C: y"},
	{"vdp/not-added", "bf16.W8A16DX", "bf16/vdp_amd64.go", "C: dx, LDC: lddx, Add: accumulate,", "C: dx, LDC: lddx,"},

	// Tiles of AMX.
	{"amx/one-tile-of-rows-twice", "i8.Gemm", "block/amx_amd64.s", "BYTE $0xd5 // TDPBSSD TMM6, TMM5, TMM2", "BYTE $0xd4 // TDPBSSD TMM6, TMM4, TMM2"},
	{"amx/halves-exchanged", "i8.Gemm", "block/amx_amd64.s", "BYTE $0x43; BYTE $0x5e; BYTE $0xdd // TDPBSSD TMM7, TMM5, TMM3", "BYTE $0x4b; BYTE $0x5e; BYTE $0xdd // TDPBSSD TMM6, TMM5, TMM3"},
	{"amx/unsigned-codes-of-a", "i8.Gemm", "block/amx_amd64.s", "BYTE $0x4b; BYTE $0x5e; BYTE $0xc4 // TDPBSSD TMM6, TMM4, TMM0", "BYTE $0x49; BYTE $0x5e; BYTE $0xc4 // TDPBUSD TMM6, TMM4, TMM0"},
	{"amx/unsigned-codes-of-b", "i8.Gemm", "block/amx_amd64.s", "BYTE $0x4b; BYTE $0x5e; BYTE $0xc4 // TDPBSSD TMM6, TMM4, TMM0", "BYTE $0x4a; BYTE $0x5e; BYTE $0xc4 // TDPBSUD TMM6, TMM4, TMM0"},
	{"amx/stale-accumulator", "i8.Gemm", "block/amx_amd64.s", "BYTE $0xd0 // TILEZERO TMM2\n", "BYTE $0xe0 // TILEZERO TMM4\n"},
	{"amx/fifteen-rows", "i8.Gemm", "block/amx_amd64.s", "$0x1010101010101010", "$0x1010100f10100f0f"},
	{"amx/fifteen-quads", "i8.Gemm", "block/amx_amd64.s", "DATA tileConfig<>+24(SB)/8, $0x0040004000400040\nDATA tileConfig<>+32(SB)/8, $0\nDATA tileConfig<>+40(SB)/8, $0\nDATA tileConfig<>+48(SB)/8, $0x1010101010101010", "DATA tileConfig<>+24(SB)/8, $0x00400040003c003c\nDATA tileConfig<>+32(SB)/8, $0\nDATA tileConfig<>+40(SB)/8, $0\nDATA tileConfig<>+48(SB)/8, $0x0f0f101010101010"},
	{"amx/not-released", "i8.Gemm", "block/amx_amd64.s", "BYTE $0x49; BYTE $0xc0 // TILERELEASE\n\tRET\n", "BYTE $0x49; BYTE $0x00 // LDTILECFG (AX)\n\tRET\n"},
	{"amx/next-pair-of-tiles", "i8.Gemm", "block/amx_amd64.s", "SHLQ $5, R9\n\tADDQ R9, SI\n\tSHRQ $5, R9", "SHLQ $4, R9\n\tADDQ R9, SI\n\tSHRQ $4, R9"},
	{"amx/last-tile-of-rows-lost", "i8.Gemm", "block/amx_amd64.s", "ADDQ $2, R13\n\tJEQ  tilesI8done", "JMP  tilesI8done"},
	{"amx/load-ignored", "i8.Gemm", "block/amx_amd64.s", "CMPB load+56(FP), $0\n\tJEQ  tilesI8pairzero", "JMP  tilesI8pairzero"},
	{"amx/load-ignored-in-the-last", "i8.Gemm", "block/amx_amd64.s", "CMPB load+56(FP), $0\n\tJEQ  tilesI8lastzero", "JMP  tilesI8lastzero"},
	{"amx/step-of-the-second-half", "i8.Gemm", "block/amx_amd64.s", "ADDQ $1024, BX", "ADDQ $960, BX"},
	{"amx/second-half-is-the-first", "i8.Gemm", "block/amx_amd64.s", "ADDQ DI, BX\n", "MOVQ DI, BX\n"},
	{"amx/one-store-missing", "i8.Gemm", "block/amx_amd64.s", "BYTE $0xc4; BYTE $0x82; BYTE $0x7a; BYTE $0x4b; BYTE $0x5c; BYTE $0x23; BYTE $0x40 // TILESTORED TMM3, 64(R11)(R12*1)\n", "\n"},
	{"amx/k-rounded-down", "i8.Gemm", "block/block.go", "(k + step - 1) / step * step", "max(k, step) / step * step"},
	{"amx/codes-of-the-last-quad-lost", "i8.Gemm", "block/amx_amd64.go", "[:length%4])", "[:length%2])"},
	{"amx/rows-from-the-first", "i8.Gemm", "block/amx_amd64.go", "a[(i+r)*lda:]", "a[r*lda:]"},
	{"amx/tiles-not-advanced", "i8.Gemm", "block/block.go", "&a[i*lda+k0], lda, packed, &p.C[", "&a[i*lda], lda, packed, &p.C["},
	{"amx/stripe-of-the-first-panel", "i8.Gemm", "block/block.go", "lda, packed, &stripe.Slice[(i-i0)*ldStripe+q*nr]", "lda, packed, &stripe.Slice[(i-i0)*ldStripe]"},
	{"amx/bf16-one-tile-of-rows-twice", "bf16.W8A16", "block/amx_amd64.s", "BYTE $0xd5 // TDPBF16PS TMM6, TMM5, TMM2", "BYTE $0xd4 // TDPBF16PS TMM6, TMM4, TMM2"},
	{"amx/bf16-stale-accumulator", "bf16.W8A16", "block/amx_amd64.s", "tilesBF16lastzero:\n\tBYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x49; BYTE $0xc0 // TILEZERO TMM0\n", "tilesBF16lastzero:\n"},
	{"amx/bf16-load-ignored", "bf16.W8A16DX", "block/amx_amd64.s", "CMPB load+56(FP), $0\n\tJEQ  tilesBF16pairzero", "JMP  tilesBF16pairzero"},
	{"amx/bf16-k-last-step-lost", "bf16.W8A16", "block/block.go", "(k + step - 1) / step * step", "max(k, step) / step * step"},
	{"amx/bf16-steps-of-half", "bf16.W8A16", "bf16/amx_amd64.go", "forwardPairs(block.AMXBF16,", "forwardPairs(block.BF16,"},
	{"amx/bf16-filled-up-with-what-lay-there", "bf16.W8A16", "bf16/vdp_amd64.go", "clear(dst[(r-i)*ld+(k+1)/2:][:tile.Steps((k+1)/2)-(k+1)/2])", "for l := range dst[(r-i)*ld+(k+1)/2:][:tile.Steps((k+1)/2)-(k+1)/2] {\n\t\t\t\t\tdst[(r-i)*ld+(k+1)/2+l] = 0x7fc07fc0\n\t\t\t\t}"},
	{"amx/bf16-filled-up-in-dx", "bf16.W8A16DX", "bf16/vdp_amd64.go", "clear(dst[(r-i)*ld+(n+1)/2:][:tile.Steps((n+1)/2)-(n+1)/2])", "for l := range dst[(r-i)*ld+(n+1)/2:][:tile.Steps((n+1)/2)-(n+1)/2] {\n\t\t\t\t\tdst[(r-i)*ld+(n+1)/2+l] = 0x7fc07fc0\n\t\t\t\t}"},
	{"amx/bf16-rows-of-codes-that-are-not-there", "bf16.W8A16DX", "block/bf16_amd64.go", "if 2*(k+l) >= length {", "if 2*(k+l) > length+32 {"},
	{"amx/bf16-tiny-rows-left", "bf16.W8A16", "bf16/vdp_amd64.go", "forwardAVX512(y[i*ldy:], ldy, x[i*ldx:], ldx, w, ldw, scale, bias, rows, n, k)", "_ = rows"},
	{"amx/turn-rows-4-and-8-exchanged", "i8.Gemm", "block/turn512_amd64.s", "VINSERTI32X4 $1, (R10), Z0, Z0", "VINSERTI32X4 $1, (R11), Z0, Z0"},
	{"amx/turn-quads-exchanged", "i8.Gemm", "block/turn512_amd64.s", "VPUNPCKHQDQ Z6, Z4, Z9", "VPUNPCKHQDQ Z7, Z5, Z9"},
	{"amx/turn-row-not-advanced", "i8.Gemm", "block/turn512_amd64.s", "ADDQ $16, R12\n", "ADDQ $15, R12\n"},
	{"amx/turn-unsigned-code", "bf16.W8A16", "block/turn512_amd64.s", "VPSRAD $24, z, Z3", "VPSRLD $24, z, Z3"},
	{"amx/turn-later-of-a-pair-lost", "bf16.W8A16", "block/turn512_amd64.s", "VPORD Z3, Z2, Z2", "VPORD Z2, Z2, Z2"},
	{"amx/turn-columns-after-the-first-lost", "i8.Gemm", "block/amx_amd64.go", "dst, k, depth = dst[done*columns:], k+done, depth-done", "dst, k, depth = dst[done*columns:], k+done/2, depth-done"},
	{"amx/turn-pairs-of-the-rest", "bf16.W8A16", "block/bf16_amd64.go", "dst, k, depth = dst[done*columns:], k+done, depth-done", "dst, k, depth = dst[done*columns:], k, depth-done"},

	// Attention.
	{"attention/keys-to-come-weigh", "f32.Attention", "f32/attention_amd64.go", "hidden[j] = float32(math.Inf(-1))", "hidden[j] -= float32(math.SmallestNonzeroFloat32)"},
	{"attention/queries-of-a-key-lost", "f32.AttentionBackward", "f32/attention_amd64.go", "<= s.from+i {", "<= s.from+i+1 && from+1 < n {"},
	{"attention/slopes-of-keys-to-come", "f32.AttentionBackward", "f32/attention_amd64.go", "clear(all[q.to-s.from:])", "_ = all"},
	{"attention/sums-stale", "f32.AttentionBackward", "f32/attention_amd64.go", "clear(sumV)", "_ = sumV"},
	{"attention/rows-of-values-from-0", "f32.Attention", "f32/attention_amd64.go", "ld, b, j, t.from, t.to-t.from, false)", "ld, b, j, 0, t.to-t.from, false)"},
	{"attention/tile-sees-what-its-first-row-sees", "f32.Attention", "f32/attention_amd64.go", "max(tile.to, r.to)", "tile.to"},
	{"attention/not-scaled-back", "f32.AttentionBackward", "f32/attention_amd64.go", "x.back(row, row, weights, a.Scale)", "x.back(row, row, weights, 1)"},
	{"attention512/halves-of-a-part", "f32.AttentionBackward", "f32/attention_amd64.go", "b.k*16, &c[0]", "k*16, &c[0]"},
	{"attention512/not-scaled", "f32.Attention", "f32/rows_amd64.s", "VMULPS  (DI), Z1, Z0\n\tVCMPPS  $3, Z0, Z0, K2", "VMOVUPS (DI), Z0\n\tVCMPPS  $3, Z0, Z0, K2"},
	{"attention512/second-half-not-stored", "f32.Attention", "f32/rows_amd64.s", "\tVMOVUPS   Y5, 32(DI)\n", ""},
	{"attention512/half-of-the-sum", "f32.Attention", "f32/rows_amd64.s", "VADDPD    Z5, Z18, Z18\n", ""},

	{"attention512/rotation-not-turned-back", "f32.RoPE", "f32/rows_amd64.s", "VPXORD  (R8), Z6, Z3", "VMOVUPS (R8), Z3"},
	{"attention512/rotation-reads-what-it-wrote", "f32.RoPE", "f32/rows_amd64.s", "VMULPS  Z3, Z0, Z5\n\tVADDPS  Z5, Z4, Z4\n\tVMOVUPS Z4, (SI)", "VMULPS  (DI), Z3, Z5\n\tVADDPS  Z5, Z4, Z4\n\tVMOVUPS Z4, (SI)"},

	// Portable code.
	{"generic/f32-double-rounding", "f32.Gemm", "f32/fma.go", "return roundOdd(p, x)", "return float32(s)"},
	{"generic/f32-unfused", "f32.Gemm", "f32/gemm_generic.go", "s = FMA(a[i*aRow+l*aCol], b[l*bRow+j*bCol], s)", "s += float32(a[i*aRow+l*aCol] * b[l*bRow+j*bCol])"},
	{"generic/f64-reversed", "f64.Gemm", "f64/gemm_generic.go", "for l := range k {", "for l := k - 1; l >= 0; l-- {"},
	{"generic/f64-float32-sum", "f64.Gemm", "f64/gemm_generic.go", "c[i*ldc+j] = s\n", "c[i*ldc+j] = float64(float32(s))\n"},
}

// The edits fit the sources: a plant that no longer does is to be mended, not left out.
func TestPlantsFitTheSources(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range sourcePlants {
		require.False(t, seen[p.id], p.id)
		seen[p.id] = true
		text, err := os.ReadFile(filepath.FromSlash(p.file))
		require.NoError(t, err)
		require.Contains(t, string(text), p.old, p.id)
		require.NotEqual(t, p.old, p.new, p.id)
	}
	t.Logf("%d plants", len(sourcePlants))
}

func (p *sourcePlant) edited(t *testing.T) string {
	text, err := os.ReadFile(filepath.FromSlash(p.file))
	require.NoError(t, err)
	return strings.Replace(string(text), p.old, p.new, 1)
}
