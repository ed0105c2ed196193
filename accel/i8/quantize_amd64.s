//go:build !purego

#include "textflag.h"

// func absmaxAVX2(x *float32, n int) uint32
TEXT ·absmaxAVX2(SB), NOSPLIT, $0-20
	MOVQ     x+0(FP), SI
	MOVQ     n+8(FP), CX
	VPCMPEQD Y1, Y1, Y1
	VPSRLD   $1, Y1, Y1 // all bits but the sign
	VPXOR    Y0, Y0, Y0

absmaxloop:
	VPAND   (SI), Y1, Y2
	VPMAXUD Y2, Y0, Y0 // bits of non-negative floats are ordered as they are
	ADDQ    $32, SI
	DECQ    CX
	JNZ     absmaxloop

	VEXTRACTI128 $1, Y0, X2
	VPMAXUD      X2, X0, X0
	VPSHUFD      $0x4E, X0, X2 // the upper two dwords
	VPMAXUD      X2, X0, X0
	VPSHUFD      $0xB1, X0, X2 // the neighbour
	VPMAXUD      X2, X0, X0
	VMOVD        X0, AX
	VZEROUPPER
	MOVL         AX, ret+16(FP)
	RET

// func codesAVX2(codes *int8, x *float32, s float32, n int)
TEXT ·codesAVX2(SB), NOSPLIT, $0-32
	MOVQ         codes+0(FP), DI
	MOVQ         x+8(FP), SI
	VBROADCASTSS s+16(FP), Y1
	MOVQ         n+24(FP), CX

codesloop:
	VMULPS       (SI), Y1, Y0
	VCVTPS2DQ    Y0, Y0        // half to even, as MXCSR says in Go
	VEXTRACTI128 $1, Y0, X2
	VPACKSSDW    X2, X0, X0    // 8 words
	VPACKSSWB    X0, X0, X0    // 8 bytes, twice
	VMOVQ        X0, (DI)
	ADDQ         $32, SI
	ADDQ         $8, DI
	DECQ         CX
	JNZ          codesloop
	VZEROUPPER
	RET
