//go:build !purego

#include "textflag.h"

// func scaleAVX2(y *float32, sums *int32, sa float32, sb *float32, n int)
TEXT ·scaleAVX2(SB), NOSPLIT, $0-40
	MOVQ         y+0(FP), DI
	MOVQ         sums+8(FP), SI
	VBROADCASTSS sa+16(FP), Y1
	MOVQ         sb+24(FP), DX
	MOVQ         n+32(FP), CX

scaleloop:
	VCVTDQ2PS (SI), Y0 // beyond 2²⁴ half to even, as MXCSR says in Go
	VMULPS    Y1, Y0, Y0
	VMULPS    (DX), Y0, Y0
	VMOVUPS   Y0, (DI)
	ADDQ      $32, SI
	ADDQ      $32, DX
	ADDQ      $32, DI
	DECQ      CX
	JNZ       scaleloop
	VZEROUPPER
	RET
