//go:build !purego

#include "textflag.h"

// func offsetI8(dst *Quad, src *int8, n int)
//
// Adding 128 turns the highest bit. The last bytes go through a mask, which also keeps what lies beyond them from being touched.
TEXT ·offsetI8(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVL $0x80808080, AX
	VPBROADCASTD AX, Z1
	SUBQ $64, CX
	JLT  offsettail

offsetloop:
	VPXORD (SI), Z1, Z0
	VMOVDQU32 Z0, (DI)
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $64, CX
	JGE  offsetloop

offsettail:
	ADDQ $64, CX
	JEQ  offsetdone
	MOVQ $-1, AX
	SHLQ CX, AX
	NOTQ AX
	KMOVQ AX, K1
	VMOVDQU8.Z (SI), K1, Z0
	VPXORD Z0, Z1, Z0
	VMOVDQU8 Z0, K1, (DI)

offsetdone:
	VZEROUPPER
	RET

// func sumQuads(dst *Quad, panel *Quad, n int)
//
// Z1 holds 1 in every byte, so that VPDPBUSD adds four codes.
TEXT ·sumQuads(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ panel+8(FP), SI
	MOVQ n+16(FP), CX
	MOVL $0x01010101, AX
	VPBROADCASTD AX, Z1
	VPXORD Z0, Z0, Z0
	VPXORD Z2, Z2, Z2

sumloop:
	VPDPBUSD (SI), Z1, Z0
	ADDQ $64, SI
	DECQ CX
	JNZ  sumloop
	VPSLLD $7, Z0, Z0
	VPSUBD Z0, Z2, Z0 // −128·Σ
	VMOVDQU32 Z0, (DI)
	VZEROUPPER
	RET

// func dotsVNNI(k int, a *int8, b *int8, ldb int, c *int32, excess int32)
//
// b plus 128 is the unsigned operand; excess is what that adds to a sum, 128·Σa. Z0 … Z3 hold 16 partial sums of each row of b.
TEXT ·dotsVNNI(SB), NOSPLIT, $0-44
	MOVQ k+0(FP), CX
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DI
	MOVQ ldb+24(FP), R9
	MOVQ c+32(FP), DX
	MOVL $0x80808080, AX
	VPBROADCASTD AX, Z5
	LEAQ (DI)(R9*2), R10
	VPXORD Z0, Z0, Z0
	VPXORD Z1, Z1, Z1
	VPXORD Z2, Z2, Z2
	VPXORD Z3, Z3, Z3
	SUBQ $64, CX
	JLT  dotstail

dotsloop:
	VMOVDQU32 (SI), Z4
	VPXORD (DI), Z5, Z6
	VPXORD (DI)(R9*1), Z5, Z7
	VPXORD (R10), Z5, Z8
	VPXORD (R10)(R9*1), Z5, Z9
	VPDPBUSD Z4, Z6, Z0
	VPDPBUSD Z4, Z7, Z1
	VPDPBUSD Z4, Z8, Z2
	VPDPBUSD Z4, Z9, Z3
	ADDQ $64, SI
	ADDQ $64, DI
	ADDQ $64, R10
	SUBQ $64, CX
	JGE  dotsloop

dotstail:
	ADDQ $64, CX
	JEQ  dotssum
	MOVQ $-1, AX
	SHLQ CX, AX
	NOTQ AX
	KMOVQ AX, K1
	VMOVDQU8.Z (SI), K1, Z4
	VMOVDQU8.Z (DI), K1, Z6
	VMOVDQU8.Z (DI)(R9*1), K1, Z7
	VMOVDQU8.Z (R10), K1, Z8
	VMOVDQU8.Z (R10)(R9*1), K1, Z9
	VPXORD Z5, Z6, Z6
	VPXORD Z5, Z7, Z7
	VPXORD Z5, Z8, Z8
	VPXORD Z5, Z9, Z9
	VPDPBUSD Z4, Z6, Z0
	VPDPBUSD Z4, Z7, Z1
	VPDPBUSD Z4, Z8, Z2
	VPDPBUSD Z4, Z9, Z3

dotssum:
	VEXTRACTI64X4 $1, Z0, Y6
	VEXTRACTI64X4 $1, Z1, Y7
	VEXTRACTI64X4 $1, Z2, Y8
	VEXTRACTI64X4 $1, Z3, Y9
	VPADDD Y6, Y0, Y0
	VPADDD Y7, Y1, Y1
	VPADDD Y8, Y2, Y2
	VPADDD Y9, Y3, Y3
	VPHADDD Y1, Y0, Y0
	VPHADDD Y3, Y2, Y2
	VPHADDD Y2, Y0, Y0 // four sums in each half
	VEXTRACTI128 $1, Y0, X1
	VPADDD X1, X0, X0
	MOVL excess+40(FP), AX
	VPBROADCASTD AX, X1
	VPSUBD X1, X0, X0
	VMOVDQU X0, (DX)
	VZEROUPPER
	RET
