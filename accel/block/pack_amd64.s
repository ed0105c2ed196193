//go:build !purego

#include "textflag.h"

// The packing of 8 rows, each 8 dwords at a time, into 8 columns of a panel of 16 columns (64 bytes to a row of the panel).

// TRANSPOSE turns the rows Y0 … Y7 of 8 dwords into the columns Y0 … Y7; Y8 … Y15 are overwritten.
#define TRANSPOSE \
	VUNPCKLPS Y1, Y0, Y8 \
	VUNPCKHPS Y1, Y0, Y9 \
	VUNPCKLPS Y3, Y2, Y10 \
	VUNPCKHPS Y3, Y2, Y11 \
	VUNPCKLPS Y5, Y4, Y12 \
	VUNPCKHPS Y5, Y4, Y13 \
	VUNPCKLPS Y7, Y6, Y14 \
	VUNPCKHPS Y7, Y6, Y15 \
	VUNPCKLPD Y10, Y8, Y0 \
	VUNPCKHPD Y10, Y8, Y1 \
	VUNPCKLPD Y11, Y9, Y2 \
	VUNPCKHPD Y11, Y9, Y3 \
	VUNPCKLPD Y14, Y12, Y4 \
	VUNPCKHPD Y14, Y12, Y5 \
	VUNPCKLPD Y15, Y13, Y6 \
	VUNPCKHPD Y15, Y13, Y7 \
	VPERM2F128 $0x20, Y4, Y0, Y8 \
	VPERM2F128 $0x20, Y5, Y1, Y9 \
	VPERM2F128 $0x20, Y6, Y2, Y10 \
	VPERM2F128 $0x20, Y7, Y3, Y11 \
	VPERM2F128 $0x31, Y4, Y0, Y12 \
	VPERM2F128 $0x31, Y5, Y1, Y13 \
	VPERM2F128 $0x31, Y6, Y2, Y14 \
	VPERM2F128 $0x31, Y7, Y3, Y15

// STORE writes the columns Y8 … Y15 below each other.
#define STORE \
	VMOVUPS Y8, (DI) \
	VMOVUPS Y9, 64(DI) \
	VMOVUPS Y10, 128(DI) \
	VMOVUPS Y11, 192(DI) \
	VMOVUPS Y12, 256(DI) \
	VMOVUPS Y13, 320(DI) \
	VMOVUPS Y14, 384(DI) \
	VMOVUPS Y15, 448(DI) \
	ADDQ    $512, DI

// ROWS sets SI to row 0, R10 to row 3, R13 to row 6 and R9 to the distance of rows in bytes.
#define ROWS(shift) \
	MOVQ dst+0(FP), DI \
	MOVQ src+8(FP), SI \
	MOVQ ld+16(FP), R9 \
	MOVQ n+24(FP), CX \
	SHLQ shift, R9 \
	LEAQ (R9)(R9*2), R10 \
	LEAQ (R10)(R9*2), R13 \
	ADDQ R9, R13 \
	ADDQ SI, R10 \
	ADDQ SI, R13

// func turnF32(dst *float32, src *float32, ld, n int)
TEXT ·turnF32(SB), NOSPLIT, $0-32
	ROWS($2)

turnF32loop:
	VMOVUPS (SI), Y0
	VMOVUPS (SI)(R9*1), Y1
	VMOVUPS (SI)(R9*2), Y2
	VMOVUPS (R10), Y3
	VMOVUPS (R10)(R9*1), Y4
	VMOVUPS (R10)(R9*2), Y5
	VMOVUPS (R13), Y6
	VMOVUPS (R13)(R9*1), Y7
	TRANSPOSE
	STORE
	ADDQ $32, SI
	ADDQ $32, R10
	ADDQ $32, R13
	DECQ CX
	JNZ  turnF32loop
	VZEROUPPER
	RET

// func turnI8F32(dst *float32, src *int8, ld, n int)
//
// Every code is widened to int32 and converted, which is exact.
TEXT ·turnI8F32(SB), NOSPLIT, $0-32
	ROWS($0)

turnI8F32loop:
	VPMOVSXBD (SI), Y0
	VPMOVSXBD (SI)(R9*1), Y1
	VPMOVSXBD (SI)(R9*2), Y2
	VPMOVSXBD (R10), Y3
	VPMOVSXBD (R10)(R9*1), Y4
	VPMOVSXBD (R10)(R9*2), Y5
	VPMOVSXBD (R13), Y6
	VPMOVSXBD (R13)(R9*1), Y7
	VCVTDQ2PS Y0, Y0
	VCVTDQ2PS Y1, Y1
	VCVTDQ2PS Y2, Y2
	VCVTDQ2PS Y3, Y3
	VCVTDQ2PS Y4, Y4
	VCVTDQ2PS Y5, Y5
	VCVTDQ2PS Y6, Y6
	VCVTDQ2PS Y7, Y7
	TRANSPOSE
	STORE
	ADDQ $8, SI
	ADDQ $8, R10
	ADDQ $8, R13
	DECQ CX
	JNZ  turnI8F32loop
	VZEROUPPER
	RET

// func turnI8Pairs(dst *Pair, src *int8, ld, n int)
//
// Every code is widened to int16; a dword is a pair of them.
TEXT ·turnI8Pairs(SB), NOSPLIT, $0-32
	ROWS($0)

turnI8Pairsloop:
	VPMOVSXBW (SI), Y0
	VPMOVSXBW (SI)(R9*1), Y1
	VPMOVSXBW (SI)(R9*2), Y2
	VPMOVSXBW (R10), Y3
	VPMOVSXBW (R10)(R9*1), Y4
	VPMOVSXBW (R10)(R9*2), Y5
	VPMOVSXBW (R13), Y6
	VPMOVSXBW (R13)(R9*1), Y7
	TRANSPOSE
	STORE
	ADDQ $16, SI
	ADDQ $16, R10
	ADDQ $16, R13
	DECQ CX
	JNZ  turnI8Pairsloop
	VZEROUPPER
	RET

// func turnF64(dst *float64, src *float64, ld, n int)
TEXT ·turnF64(SB), NOSPLIT, $0-32
	ROWS($3)

turnF64loop:
	VMOVUPD (SI), Y0
	VMOVUPD (SI)(R9*1), Y1
	VMOVUPD (SI)(R9*2), Y2
	VMOVUPD (R10), Y3
	VMOVUPD (R10)(R9*1), Y4
	VMOVUPD (R10)(R9*2), Y5
	VMOVUPD (R13), Y6
	VMOVUPD (R13)(R9*1), Y7
	VUNPCKLPD Y1, Y0, Y8 // k 0 and 2 of rows 0 and 1
	VUNPCKHPD Y1, Y0, Y9 // k 1 and 3
	VUNPCKLPD Y3, Y2, Y10 // k 0 and 2 of rows 2 and 3
	VUNPCKHPD Y3, Y2, Y11 // k 1 and 3
	VUNPCKLPD Y5, Y4, Y12 // k 0 and 2 of rows 4 and 5
	VUNPCKHPD Y5, Y4, Y13 // k 1 and 3
	VUNPCKLPD Y7, Y6, Y14 // k 0 and 2 of rows 6 and 7
	VUNPCKHPD Y7, Y6, Y15 // k 1 and 3
	VPERM2F128 $0x20, Y10, Y8, Y0
	VPERM2F128 $0x20, Y14, Y12, Y1
	VMOVUPD Y0, (DI)
	VMOVUPD Y1, 32(DI)
	VPERM2F128 $0x20, Y11, Y9, Y0
	VPERM2F128 $0x20, Y15, Y13, Y1
	VMOVUPD Y0, 64(DI)
	VMOVUPD Y1, 96(DI)
	VPERM2F128 $0x31, Y10, Y8, Y0
	VPERM2F128 $0x31, Y14, Y12, Y1
	VMOVUPD Y0, 128(DI)
	VMOVUPD Y1, 160(DI)
	VPERM2F128 $0x31, Y11, Y9, Y0
	VPERM2F128 $0x31, Y15, Y13, Y1
	VMOVUPD Y0, 192(DI)
	VMOVUPD Y1, 224(DI)
	ADDQ $256, DI
	ADDQ $32, SI
	ADDQ $32, R10
	ADDQ $32, R13
	DECQ CX
	JNZ  turnF64loop
	VZEROUPPER
	RET

// func widenI8F32(dst *float32, src *int8, ld, n int)
//
// A row of the panel is 16 codes of a row of src.
TEXT ·widenI8F32(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ ld+16(FP), R9
	MOVQ n+24(FP), CX

widenloop:
	VPMOVSXBD (SI), Y0
	VPMOVSXBD 8(SI), Y1
	VCVTDQ2PS Y0, Y0
	VCVTDQ2PS Y1, Y1
	VMOVUPS   Y0, (DI)
	VMOVUPS   Y1, 32(DI)
	ADDQ      R9, SI
	ADDQ      $64, DI
	DECQ      CX
	JNZ       widenloop
	VZEROUPPER
	RET

// func widenI8I16(dst *int16, src *int8, n int)
//
// 16 codes at a time are widened to int16.
TEXT ·widenI8I16(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

extendloop:
	VPMOVSXBW (SI), Y0
	VMOVDQU   Y0, (DI)
	ADDQ      $16, SI
	ADDQ      $32, DI
	DECQ      CX
	JNZ       extendloop
	VZEROUPPER
	RET

// func turnI8Quads(dst *Quad, src *int8, ld, n int)
//
// A dword is four codes.
TEXT ·turnI8Quads(SB), NOSPLIT, $0-32
	ROWS($0)

turnI8Quadsloop:
	VMOVDQU (SI), Y0
	VMOVDQU (SI)(R9*1), Y1
	VMOVDQU (SI)(R9*2), Y2
	VMOVDQU (R10), Y3
	VMOVDQU (R10)(R9*1), Y4
	VMOVDQU (R10)(R9*2), Y5
	VMOVDQU (R13), Y6
	VMOVDQU (R13)(R9*1), Y7
	TRANSPOSE
	STORE
	ADDQ $32, SI
	ADDQ $32, R10
	ADDQ $32, R13
	DECQ CX
	JNZ  turnI8Quadsloop
	VZEROUPPER
	RET

// func flipF32(dst *float32, ldd int, src *float32, ld, n int)
//
// R8 is the distance of rows of dst in bytes, R11 row 3 and R12 row 6 of those that the next 8 columns become.
TEXT ·flipF32(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ ldd+8(FP), R8
	MOVQ src+16(FP), SI
	MOVQ ld+24(FP), R9
	MOVQ n+32(FP), CX
	SHLQ $2, R8
	SHLQ $2, R9
	LEAQ (R9)(R9*2), R10
	LEAQ (R10)(R9*2), R13
	ADDQ R9, R13
	ADDQ SI, R10
	ADDQ SI, R13
	LEAQ (R8)(R8*2), R11
	LEAQ (R11)(R8*2), R12
	ADDQ R8, R12
	ADDQ DI, R11
	ADDQ DI, R12

flipF32loop:
	VMOVUPS (SI), Y0
	VMOVUPS (SI)(R9*1), Y1
	VMOVUPS (SI)(R9*2), Y2
	VMOVUPS (R10), Y3
	VMOVUPS (R10)(R9*1), Y4
	VMOVUPS (R10)(R9*2), Y5
	VMOVUPS (R13), Y6
	VMOVUPS (R13)(R9*1), Y7
	TRANSPOSE
	VMOVUPS Y8, (DI)
	VMOVUPS Y9, (DI)(R8*1)
	VMOVUPS Y10, (DI)(R8*2)
	VMOVUPS Y11, (R11)
	VMOVUPS Y12, (R11)(R8*1)
	VMOVUPS Y13, (R11)(R8*2)
	VMOVUPS Y14, (R12)
	VMOVUPS Y15, (R12)(R8*1)
	ADDQ $32, SI
	ADDQ $32, R10
	ADDQ $32, R13
	LEAQ (DI)(R8*8), DI
	LEAQ (R11)(R8*8), R11
	LEAQ (R12)(R8*8), R12
	DECQ CX
	JNZ  flipF32loop
	VZEROUPPER
	RET

// func rowsF32(dst, src *float32, ld, n int)
TEXT ·rowsF32(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ ld+16(FP), R9
	MOVQ n+24(FP), CX
	SHLQ $2, R9

rowsF32loop:
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	ADDQ R9, SI
	ADDQ $64, DI
	DECQ CX
	JNZ  rowsF32loop
	VZEROUPPER
	RET
