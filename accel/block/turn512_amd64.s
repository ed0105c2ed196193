//go:build !purego

#include "textflag.h"

// Sixteen rows of codes become columns, four codes at a time: a register holds 16 bytes of rows r, r+4, r+8 and r+12, one in each lane, so that turning
// squares of four by four dwords within lanes turns all sixteen rows.
// SI, R10, R11 and R12 are rows 0, 4, 8 and 12, R9 the distance of rows, R13 three times that; DI walks along the panel, CX counts 16 bytes.

#define TURN16 \
	MOVQ dst+0(FP), DI \
	MOVQ src+8(FP), SI \
	MOVQ ld+16(FP), R9 \
	MOVQ n+24(FP), CX \
	LEAQ (R9)(R9*2), R13 \
	LEAQ (SI)(R9*4), R10 \
	LEAQ (R10)(R9*4), R11 \
	LEAQ (R11)(R9*4), R12

// QUADS leaves quads 0 … 3 of the rows in Z8 … Z11; Z0 … Z7 are overwritten.
#define QUADS \
	VMOVDQU (SI), X0 \
	VMOVDQU (SI)(R9*1), X1 \
	VMOVDQU (SI)(R9*2), X2 \
	VMOVDQU (SI)(R13*1), X3 \
	VINSERTI32X4 $1, (R10), Z0, Z0 \
	VINSERTI32X4 $1, (R10)(R9*1), Z1, Z1 \
	VINSERTI32X4 $1, (R10)(R9*2), Z2, Z2 \
	VINSERTI32X4 $1, (R10)(R13*1), Z3, Z3 \
	VINSERTI32X4 $2, (R11), Z0, Z0 \
	VINSERTI32X4 $2, (R11)(R9*1), Z1, Z1 \
	VINSERTI32X4 $2, (R11)(R9*2), Z2, Z2 \
	VINSERTI32X4 $2, (R11)(R13*1), Z3, Z3 \
	VINSERTI32X4 $3, (R12), Z0, Z0 \
	VINSERTI32X4 $3, (R12)(R9*1), Z1, Z1 \
	VINSERTI32X4 $3, (R12)(R9*2), Z2, Z2 \
	VINSERTI32X4 $3, (R12)(R13*1), Z3, Z3 \
	VPUNPCKLDQ Z1, Z0, Z4 \
	VPUNPCKHDQ Z1, Z0, Z5 \
	VPUNPCKLDQ Z3, Z2, Z6 \
	VPUNPCKHDQ Z3, Z2, Z7 \
	VPUNPCKLQDQ Z6, Z4, Z8 \
	VPUNPCKHQDQ Z6, Z4, Z9 \
	VPUNPCKLQDQ Z7, Z5, Z10 \
	VPUNPCKHQDQ Z7, Z5, Z11 \
	ADDQ $16, SI \
	ADDQ $16, R10 \
	ADDQ $16, R11 \
	ADDQ $16, R12

// func turnQuads16(dst *Quad, src *int8, ld, n int)
TEXT ·turnQuads16(SB), NOSPLIT, $0-32
	TURN16

turnQuads16loop:
	QUADS
	VMOVDQU32 Z8, (DI)
	VMOVDQU32 Z9, 64(DI)
	VMOVDQU32 Z10, 128(DI)
	VMOVDQU32 Z11, 192(DI)
	ADDQ $256, DI
	DECQ CX
	JNZ  turnQuads16loop
	VZEROUPPER
	RET

// PAIRS stores the codes of a quad in z as two rows of pairs of bfloat16: a code becomes int32, then float32, which is exact and has nothing in its
// lower half, where the later of a pair goes. Z0 … Z3 are overwritten.
#define PAIRS(z, low, high) \
	VPSLLD $24, z, Z0 \
	VPSLLD $16, z, Z1 \
	VPSLLD $8, z, Z2 \
	VPSRAD $24, Z0, Z0 \
	VPSRAD $24, Z1, Z1 \
	VPSRAD $24, Z2, Z2 \
	VPSRAD $24, z, Z3 \
	VCVTDQ2PS Z0, Z0 \
	VCVTDQ2PS Z1, Z1 \
	VCVTDQ2PS Z2, Z2 \
	VCVTDQ2PS Z3, Z3 \
	VPSRLD $16, Z1, Z1 \
	VPSRLD $16, Z3, Z3 \
	VPORD Z1, Z0, Z0 \
	VPORD Z3, Z2, Z2 \
	VMOVDQU32 Z0, low(DI) \
	VMOVDQU32 Z2, high(DI)

// func turnPairs16(dst *PairBF16, src *int8, ld, n int)
TEXT ·turnPairs16(SB), NOSPLIT, $0-32
	TURN16

turnPairs16loop:
	QUADS
	PAIRS(Z8, 0, 64)
	PAIRS(Z9, 128, 192)
	PAIRS(Z10, 256, 320)
	PAIRS(Z11, 384, 448)
	ADDQ $512, DI
	DECQ CX
	JNZ  turnPairs16loop
	VZEROUPPER
	RET

// func ahead(p *int8, ld, rows, lines int)
//
// Rows of so many cache lines are fetched into the second level.
TEXT ·ahead(SB), NOSPLIT, $0-32
	MOVQ p+0(FP), SI
	MOVQ ld+8(FP), R9
	MOVQ rows+16(FP), DX
	MOVQ lines+24(FP), R8

aheadrow:
	MOVQ SI, DI
	MOVQ R8, CX

aheadline:
	PREFETCHT1 (DI)
	ADDQ $64, DI
	DECQ CX
	JNZ  aheadline
	ADDQ R9, SI
	DECQ DX
	JNZ  aheadrow
	RET
