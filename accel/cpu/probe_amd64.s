//go:build !purego

#include "textflag.h"

// A probe keeps 12 chains of products going in Y0 … Y11, so that no multiplier waits for the sum before. Y14 and Y15 are the operands.

#define ZERO \
	VPXOR Y0, Y0, Y0 \
	VPXOR Y1, Y1, Y1 \
	VPXOR Y2, Y2, Y2 \
	VPXOR Y3, Y3, Y3 \
	VPXOR Y4, Y4, Y4 \
	VPXOR Y5, Y5, Y5 \
	VPXOR Y6, Y6, Y6 \
	VPXOR Y7, Y7, Y7 \
	VPXOR Y8, Y8, Y8 \
	VPXOR Y9, Y9, Y9 \
	VPXOR Y10, Y10, Y10 \
	VPXOR Y11, Y11, Y11 \
	VPXOR Y12, Y12, Y12 \
	VPXOR Y13, Y13, Y13 \
	VPXOR Y14, Y14, Y14 \
	VPXOR Y15, Y15, Y15

#define CHAINS(MULADD) \
	MULADD Y14, Y15, Y0 \
	MULADD Y14, Y15, Y1 \
	MULADD Y14, Y15, Y2 \
	MULADD Y14, Y15, Y3 \
	MULADD Y14, Y15, Y4 \
	MULADD Y14, Y15, Y5 \
	MULADD Y14, Y15, Y6 \
	MULADD Y14, Y15, Y7 \
	MULADD Y14, Y15, Y8 \
	MULADD Y14, Y15, Y9 \
	MULADD Y14, Y15, Y10 \
	MULADD Y14, Y15, Y11

// SUM adds the product of signed pairs in Y13.
#define SUM(to) \
	VPMADDWD Y14, Y15, Y13 \
	VPADDD   Y13, to, to

// func probeF32(n int)
TEXT ·probeF32(SB), NOSPLIT, $0-8
	MOVQ n+0(FP), CX
	ZERO

probeF32loop:
	CHAINS(VFMADD231PS)
	DECQ CX
	JNZ  probeF32loop
	VZEROUPPER
	RET

// func probeF64(n int)
TEXT ·probeF64(SB), NOSPLIT, $0-8
	MOVQ n+0(FP), CX
	ZERO

probeF64loop:
	CHAINS(VFMADD231PD)
	DECQ CX
	JNZ  probeF64loop
	VZEROUPPER
	RET

// func probeI16(n int)
TEXT ·probeI16(SB), NOSPLIT, $0-8
	MOVQ n+0(FP), CX
	ZERO

probeI16loop:
	SUM(Y0)
	SUM(Y1)
	SUM(Y2)
	SUM(Y3)
	SUM(Y4)
	SUM(Y5)
	SUM(Y6)
	SUM(Y7)
	SUM(Y8)
	SUM(Y9)
	SUM(Y10)
	SUM(Y11)
	DECQ CX
	JNZ  probeI16loop
	VZEROUPPER
	RET

// func probeRead(p unsafe.Pointer, n int)
TEXT ·probeRead(SB), NOSPLIT, $0-16
	MOVQ  p+0(FP), SI
	MOVQ  n+8(FP), CX
	VPXOR Y0, Y0, Y0
	VPXOR Y1, Y1, Y1
	VPXOR Y2, Y2, Y2
	VPXOR Y3, Y3, Y3

readloop:
	VPADDQ (SI), Y0, Y0
	VPADDQ 32(SI), Y1, Y1
	VPADDQ 64(SI), Y2, Y2
	VPADDQ 96(SI), Y3, Y3
	ADDQ   $128, SI
	DECQ   CX
	JNZ    readloop
	VZEROUPPER
	RET
