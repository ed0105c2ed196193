//go:build !purego

#include "textflag.h"

// ROUND rounds the lanes of Y0 to bfloat16: adds half a step less one, and one where the last bit kept is odd; a NaN is made quiet.
// Y8 holds 0x7FFF, Y9 1, Y10 0xFFFF0000, Y11 0x400000.
#define ROUND \
	VPSRLD    $16, Y0, Y1     \
	VPAND     Y9, Y1, Y1      \
	VPADDD    Y8, Y1, Y1      \
	VPADDD    Y0, Y1, Y1      \
	VPOR      Y11, Y0, Y2     \
	VCMPPS    $3, Y0, Y0, Y3  \
	VBLENDVPS Y3, Y2, Y1, Y1  \
	VPAND     Y10, Y1, Y1

#define CONSTANTS \
	VPCMPEQD Y10, Y10, Y10 \
	VPSRLD   $31, Y10, Y9  \
	VPSRLD   $17, Y10, Y8  \
	VPSLLD   $16, Y10, Y10 \
	VPSLLD   $22, Y9, Y11

// func roundAVX2(dst, x *float32, n int)
TEXT ·roundAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	CONSTANTS

roundloop:
	VMOVUPS (SI), Y0
	ROUND
	VMOVUPS Y1, (DI)
	ADDQ    $32, SI
	ADDQ    $32, DI
	DECQ    CX
	JNZ     roundloop
	VZEROUPPER
	RET

// func roundScaledAVX2(dst, x, scale *float32, n int)
TEXT ·roundScaledAVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ scale+16(FP), DX
	MOVQ n+24(FP), CX
	CONSTANTS

scaledloop:
	VMOVUPS (SI), Y0
	VMULPS  (DX), Y0, Y0
	ROUND
	VMOVUPS Y1, (DI)
	ADDQ    $32, SI
	ADDQ    $32, DX
	ADDQ    $32, DI
	DECQ    CX
	JNZ     scaledloop
	VZEROUPPER
	RET

// func scaleAVX2(y, scale *float32, n int)
TEXT ·scaleAVX2(SB), NOSPLIT, $0-24
	MOVQ y+0(FP), DI
	MOVQ scale+8(FP), DX
	MOVQ n+16(FP), CX

scaleloop:
	VMOVUPS (DI), Y0
	VMULPS  (DX), Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ    $32, DX
	ADDQ    $32, DI
	DECQ    CX
	JNZ     scaleloop
	VZEROUPPER
	RET
