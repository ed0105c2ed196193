//go:build !purego

#include "textflag.h"

// A code becomes int32, then float32, which is exact and has nothing in its lower half: that half is free for the other of a pair.

// func pairsBF16(panel *PairBF16, n int)
TEXT ·pairsBF16(SB), NOSPLIT, $0-16
	MOVQ panel+0(FP), DI
	MOVQ n+8(FP), CX

pairsloop:
	VMOVDQU32 (DI), Z0
	VPSLLD $16, Z0, Z1
	VPSRAD $16, Z1, Z1 // the earlier code
	VPSRAD $16, Z0, Z0 // the later one
	VCVTDQ2PS Z1, Z1
	VCVTDQ2PS Z0, Z0
	VPSRLD $16, Z0, Z0
	VPORD  Z0, Z1, Z1
	VMOVDQU32 Z1, (DI)
	ADDQ $64, DI
	DECQ CX
	JNZ  pairsloop
	VZEROUPPER
	RET

// func widenI8BF16(dst *PairBF16, src *int8, ld, n int)
TEXT ·widenI8BF16(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ ld+16(FP), R9
	MOVQ n+24(FP), CX

widenloop:
	VPMOVSXBD (SI), Z1
	VPMOVSXBD (SI)(R9*1), Z0
	VCVTDQ2PS Z1, Z1
	VCVTDQ2PS Z0, Z0
	VPSRLD $16, Z0, Z0
	VPORD  Z0, Z1, Z1
	VMOVDQU32 Z1, (DI)
	LEAQ (SI)(R9*2), SI
	ADDQ $64, DI
	DECQ CX
	JNZ  widenloop
	VZEROUPPER
	RET

// func tiny512(x *float32, n int, limit uint32) uint32
TEXT ·tiny512(SB), NOSPLIT, $0-28
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	MOVL limit+16(FP), AX
	DECL AX
	VPBROADCASTD AX, Z7
	MOVL $0x7fffffff, AX
	VPBROADCASTD AX, Z8
	MOVL $1, AX
	VPBROADCASTD AX, Z9
	KXORW K1, K1, K1

tinyloop:
	VPANDD (SI), Z8, Z0
	VPSUBD Z9, Z0, Z0
	VPCMPUD $1, Z7, Z0, K2
	KORW K2, K1, K1
	ADDQ $64, SI
	DECQ CX
	JNZ  tinyloop
	KMOVW K1, AX
	VZEROUPPER
	MOVL AX, ret+24(FP)
	RET
