//go:build !purego

#include "textflag.h"

// The numbers of exp in exp.go.
DATA expNumbers<>+0(SB)/8, $1.4426950408889634074  // log₂ e
DATA expNumbers<>+8(SB)/8, $6755399441055744.0     // 3·2⁵¹
DATA expNumbers<>+16(SB)/8, $0.69314718055994530942 // ln 2
DATA expNumbers<>+24(SB)/8, $1.98412698412698412698e-4
DATA expNumbers<>+32(SB)/8, $1.38888888888888888889e-3
DATA expNumbers<>+40(SB)/8, $8.33333333333333333333e-3
DATA expNumbers<>+48(SB)/8, $4.16666666666666666667e-2
DATA expNumbers<>+56(SB)/8, $1.66666666666666666667e-1
DATA expNumbers<>+64(SB)/8, $0.5
DATA expNumbers<>+72(SB)/8, $1.0
DATA expNumbers<>+80(SB)/8, $-700.0
DATA expNumbers<>+88(SB)/8, $1023
DATA expNumbers<>+96(SB)/8, $-100.0
DATA expNumbers<>+104(SB)/8, $100.0
GLOBL expNumbers<>(SB), RODATA|NOPTR, $112

#define NUMBERS \
	VBROADCASTSD expNumbers<>+0(SB), Z31 \
	VBROADCASTSD expNumbers<>+8(SB), Z30 \
	VBROADCASTSD expNumbers<>+16(SB), Z29 \
	VBROADCASTSD expNumbers<>+24(SB), Z28 \
	VBROADCASTSD expNumbers<>+32(SB), Z27 \
	VBROADCASTSD expNumbers<>+40(SB), Z26 \
	VBROADCASTSD expNumbers<>+48(SB), Z25 \
	VBROADCASTSD expNumbers<>+56(SB), Z24 \
	VBROADCASTSD expNumbers<>+64(SB), Z23 \
	VBROADCASTSD expNumbers<>+72(SB), Z22 \
	VBROADCASTSD expNumbers<>+80(SB), Z21 \
	VPBROADCASTQ expNumbers<>+88(SB), Z20

// EXP stores eˣ in P, step by step what exp does: products and sums are rounded on their own. X stays; K, R, Z10, Z11, Z12 and K1 are overwritten.
// K1 is false below −700 alone, where the result is 0; k stands in the low bits of K, from where it becomes the exponent of 2ᵏ.
#define EXP(X, P, K, R) \
	VCMPPD   $0x15, Z21, X, K1 \
	VMULPD   Z31, X, K \
	VADDPD   Z30, K, K \
	VSUBPD   Z30, K, P \
	VMULPD   Z29, P, P \
	VSUBPD   P, X, R \
	VMULPD   R, R, Z10 \
	VMULPD   Z28, R, Z11 \
	VADDPD   Z27, Z11, Z11 \
	VMULPD   Z26, R, Z12 \
	VADDPD   Z25, Z12, Z12 \
	VMULPD   Z10, Z11, Z11 \
	VADDPD   Z11, Z12, Z12 \
	VMULPD   Z24, R, Z11 \
	VADDPD   Z23, Z11, Z11 \
	VMULPD   Z10, Z11, Z11 \
	VADDPD   Z22, R, P \
	VADDPD   Z11, P, P \
	VMULPD   Z10, Z10, Z10 \
	VMULPD   Z10, Z12, Z12 \
	VADDPD   Z12, P, P \
	VPADDQ   Z20, K, K \
	VPSLLQ   $52, K, K \
	VMULPD.Z K, P, K1, P

// func expSum(x *float32, n int, top float64, sum *[8]float64)
TEXT ·expSum(SB), NOSPLIT, $0-32
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ sum+24(FP), DX
	VBROADCASTSD top+16(FP), Z19
	NUMBERS
	VMOVUPD (DX), Z18

expSumLoop:
	VCVTPS2PD (SI), Z0
	VSUBPD    Z19, Z0, Z0
	EXP(Z0, Z1, Z2, Z3)
	VADDPD    Z1, Z18, Z18
	VCVTPD2PS Z1, Y1
	VMOVUPS   Y1, (SI)
	ADDQ      $32, SI
	DECQ      CX
	JNZ       expSumLoop
	VMOVUPD   Z18, (DX)
	VZEROUPPER
	RET

// func headSum(x *float32, n int, top float64, sum, weighted *[8]float64)
TEXT ·headSum(SB), NOSPLIT, $0-40
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ sum+24(FP), DX
	MOVQ weighted+32(FP), DI
	VBROADCASTSD top+16(FP), Z19
	NUMBERS
	VMOVUPD (DX), Z18
	VMOVUPD (DI), Z17
	VPXORQ  Z16, Z16, Z16

headSumLoop:
	VCVTPS2PD (SI), Z0
	VSUBPD    Z19, Z0, Z0
	EXP(Z0, Z1, Z2, Z3)
	VADDPD    Z1, Z18, Z18
	VCMPPD    $4, Z16, Z1, K2      // what has no weight adds nothing: its logit may be −Inf
	VMULPD    Z0, Z1, Z4
	VADDPD    Z4, Z17, K2, Z17
	ADDQ      $32, SI
	DECQ      CX
	JNZ       headSumLoop
	VMOVUPD   Z18, (DX)
	VMOVUPD   Z17, (DI)
	VZEROUPPER
	RET

// func headSlopes(x *float32, n int, top, inv, dlp, dh, log, entropy float64)
TEXT ·headSlopes(SB), NOSPLIT, $0-64
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	VBROADCASTSD top+16(FP), Z19
	VBROADCASTSD inv+24(FP), Z18
	VBROADCASTSD dlp+32(FP), Z17
	VBROADCASTSD dh+40(FP), Z15
	VBROADCASTSD log+48(FP), Z14
	VBROADCASTSD entropy+56(FP), Z13
	NUMBERS
	VPXORQ  Z16, Z16, Z16
	VSUBPD  Z17, Z16, Z17          // −dlp
	VCMPPD  $4, Z16, Z15, K3       // dh ≠ 0

headSlopesLoop:
	VCVTPS2PD (SI), Z0
	VSUBPD    Z19, Z0, Z0
	EXP(Z0, Z1, Z2, Z3)
	VMULPD    Z18, Z1, Z1          // p
	VMULPD    Z17, Z1, Z4
	VCMPPD    $4, Z16, Z1, K3, K2  // both p and dh are not 0
	VMULPD    Z15, Z1, Z5
	VSUBPD    Z14, Z0, Z6
	VADDPD    Z13, Z6, Z6
	VMULPD    Z6, Z5, Z5
	VSUBPD    Z5, Z4, K2, Z4
	VCVTPD2PS Z4, Y4
	VMOVUPS   Y4, (SI)
	ADDQ      $32, SI
	DECQ      CX
	JNZ       headSlopesLoop
	VZEROUPPER
	RET

// func gatedSilu(y, gate, up *float32, n int)
TEXT ·gatedSilu(SB), NOSPLIT, $0-32
	MOVQ y+0(FP), DI
	MOVQ gate+8(FP), SI
	MOVQ up+16(FP), DX
	MOVQ n+24(FP), CX
	NUMBERS
	VBROADCASTSD expNumbers<>+96(SB), Z19
	VPXORQ Z16, Z16, Z16

gatedSiluLoop:
	VCVTPS2PD (SI), Z0
	VSUBPD    Z0, Z16, Z4
	EXP(Z4, Z1, Z2, Z3)
	VADDPD    Z22, Z1, Z1
	VDIVPD    Z1, Z22, Z1          // σ
	VCMPPD    $0x15, Z19, Z0, K2   // 0 below −100
	VMULPD.Z  Z1, Z0, K2, Z1
	VCVTPS2PD (DX), Z5
	VMULPD    Z5, Z1, Z1
	VCVTPD2PS Z1, Y1
	VMOVUPS   Y1, (DI)
	ADDQ      $32, SI
	ADDQ      $32, DX
	ADDQ      $32, DI
	DECQ      CX
	JNZ       gatedSiluLoop
	VZEROUPPER
	RET

// func gatedSiluBack(dgate, dup, dy, gate, up *float32, n int)
TEXT ·gatedSiluBack(SB), NOSPLIT, $0-48
	MOVQ dgate+0(FP), DI
	MOVQ dup+8(FP), R8
	MOVQ dy+16(FP), R9
	MOVQ gate+24(FP), SI
	MOVQ up+32(FP), DX
	MOVQ n+40(FP), CX
	NUMBERS
	VBROADCASTSD expNumbers<>+96(SB), Z19
	VBROADCASTSD expNumbers<>+104(SB), Z18
	VPXORQ Z16, Z16, Z16

gatedSiluBackLoop:
	VCVTPS2PD (SI), Z0
	VSUBPD    Z0, Z16, Z4
	EXP(Z4, Z1, Z2, Z3)
	VADDPD    Z22, Z1, Z5
	VDIVPD    Z5, Z22, Z5          // s = σ
	VCMPPD    $0x15, Z19, Z0, K2
	VMULPD    Z5, Z0, Z6           // x·s
	VMULPD    Z5, Z1, Z7           // e·s
	VMULPD    Z7, Z6, Z7
	VADDPD.Z  Z7, Z5, K2, Z7       // the slope, 0 below −100
	VMOVAPD.Z Z6, K2, Z6           // the value
	VCMPPD    $0x1E, Z18, Z0, K3
	VMOVAPD   Z22, K3, Z7          // 1 above 100
	VCVTPS2PD (R9), Z8
	VCVTPS2PD (DX), Z9
	VMULPD    Z9, Z8, Z9
	VMULPD    Z7, Z9, Z9
	VMULPD    Z6, Z8, Z8
	VCVTPD2PS Z9, Y9
	VCVTPD2PS Z8, Y8
	VMOVUPS   Y9, (DI)
	VMOVUPS   Y8, (R8)
	ADDQ      $32, SI
	ADDQ      $32, DX
	ADDQ      $32, DI
	ADDQ      $32, R8
	ADDQ      $32, R9
	DECQ      CX
	JNZ       gatedSiluBackLoop
	VZEROUPPER
	RET

// func maxAndNaN(x *float32, n int) (top float32, nan bool)
TEXT ·maxAndNaN(SB), NOSPLIT, $0-21
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	VMOVUPS (SI), Y0
	VCMPPS  $3, Y0, Y0, K1
	DECQ    CX
	JZ      maxDone

maxLoop:
	ADDQ    $32, SI
	VMOVUPS (SI), Y1
	VCMPPS  $3, Y1, Y1, K2
	KORB    K2, K1, K1
	VMAXPS  Y1, Y0, Y0
	DECQ    CX
	JNZ     maxLoop

maxDone:
	VEXTRACTF128 $1, Y0, X1
	VMAXPS  X1, X0, X0
	VPSHUFD $0x4E, X0, X1
	VMAXPS  X1, X0, X0
	VPSHUFD $0xB1, X0, X1
	VMAXPS  X1, X0, X0
	VMOVSS  X0, top+16(FP)
	KMOVB   K1, AX
	TESTB   AX, AX
	SETNE   nan+20(FP)
	VZEROUPPER
	RET

// func scaleRow(x *float32, n int, by float32)
TEXT ·scaleRow(SB), NOSPLIT, $0-20
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	VBROADCASTSS by+16(FP), Y1

scaleRowLoop:
	VMULPS  (SI), Y1, Y0
	VMOVUPS Y0, (SI)
	ADDQ    $32, SI
	DECQ    CX
	JNZ     scaleRowLoop
	VZEROUPPER
	RET

// func dotLanes(a, b *float32, n int, sum *[8]float64)
// The product of two float32 numbers is exact in float64: fused or not, the bits are the same.
TEXT ·dotLanes(SB), NOSPLIT, $0-32
	MOVQ a+0(FP), SI
	MOVQ b+8(FP), DX
	MOVQ n+16(FP), CX
	MOVQ sum+24(FP), DI
	VMOVUPD (DI), Z2

dotLanesLoop:
	VCVTPS2PD   (SI), Z0
	VCVTPS2PD   (DX), Z1
	VFMADD231PD Z1, Z0, Z2
	ADDQ        $32, SI
	ADDQ        $32, DX
	DECQ        CX
	JNZ         dotLanesLoop
	VMOVUPD     Z2, (DI)
	VZEROUPPER
	RET

// func scaledDotLanes(w, d, x *float32, n int, sum *[8]float64)
TEXT ·scaledDotLanes(SB), NOSPLIT, $0-40
	MOVQ w+0(FP), SI
	MOVQ d+8(FP), DX
	MOVQ x+16(FP), R8
	MOVQ n+24(FP), CX
	MOVQ sum+32(FP), DI
	VMOVUPD (DI), Z2

scaledDotLoop:
	VMOVUPS     (SI), Y0
	VMULPS      (DX), Y0, Y0
	VCVTPS2PD   Y0, Z0
	VCVTPS2PD   (R8), Z1
	VFMADD231PD Z1, Z0, Z2
	ADDQ        $32, SI
	ADDQ        $32, DX
	ADDQ        $32, R8
	DECQ        CX
	JNZ         scaledDotLoop
	VMOVUPD     Z2, (DI)
	VZEROUPPER
	RET

// func softmaxBackRow(ds, dp, p *float32, n int, dot, by float32)
TEXT ·softmaxBackRow(SB), NOSPLIT, $0-40
	MOVQ ds+0(FP), DI
	MOVQ dp+8(FP), SI
	MOVQ p+16(FP), DX
	MOVQ n+24(FP), CX
	VBROADCASTSS dot+32(FP), Y1
	VBROADCASTSS by+36(FP), Y2

softmaxBackLoop:
	VMOVUPS (SI), Y0
	VSUBPS  Y1, Y0, Y0
	VMULPS  (DX), Y0, Y0
	VMULPS  Y2, Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ    $32, SI
	ADDQ    $32, DX
	ADDQ    $32, DI
	DECQ    CX
	JNZ     softmaxBackLoop
	VZEROUPPER
	RET

// func rmsNormRow(y, x, w *float32, n int, r float32)
TEXT ·rmsNormRow(SB), NOSPLIT, $0-36
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ w+16(FP), DX
	MOVQ n+24(FP), CX
	VBROADCASTSS r+32(FP), Y1

rmsNormLoop:
	VMULPS  (SI), Y1, Y0
	VMULPS  (DX), Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ    $32, SI
	ADDQ    $32, DX
	ADDQ    $32, DI
	DECQ    CX
	JNZ     rmsNormLoop
	VZEROUPPER
	RET

// func rmsNormBackRow(dx, dy, x, w *float32, n int, r, s float32)
TEXT ·rmsNormBackRow(SB), NOSPLIT, $0-48
	MOVQ dx+0(FP), DI
	MOVQ dy+8(FP), R8
	MOVQ x+16(FP), SI
	MOVQ w+24(FP), DX
	MOVQ n+32(FP), CX
	VBROADCASTSS r+40(FP), Y4
	VBROADCASTSS s+44(FP), Y5

rmsNormBackLoop:
	VMOVUPS (DX), Y0
	VMULPS  (R8), Y0, Y0           // w·dy
	VMULPS  (SI), Y5, Y1           // x·s
	VSUBPS  Y1, Y0, Y0
	VMULPS  Y4, Y0, Y0
	VADDPS  (DI), Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ    $32, SI
	ADDQ    $32, DX
	ADDQ    $32, DI
	ADDQ    $32, R8
	DECQ    CX
	JNZ     rmsNormBackLoop
	VZEROUPPER
	RET

// func addRow(dst, x, y *float32, n int)
TEXT ·addRow(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ y+16(FP), DX
	MOVQ n+24(FP), CX

addRowLoop:
	VMOVUPS (SI), Y0
	VADDPS  (DX), Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ    $32, SI
	ADDQ    $32, DX
	ADDQ    $32, DI
	DECQ    CX
	JNZ     addRowLoop
	VZEROUPPER
	RET

// func softmaxRow(x *float32, n int, by float32) bool
TEXT ·softmaxRow(SB), NOSPLIT, $0-25
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	VBROADCASTSS by+16(FP), Z1
	MOVQ  SI, DI
	MOVQ  CX, DX
	MOVL  $0xff800000, AX
	VPBROADCASTD AX, Z2            // −Inf, and the largest so far
	VMOVAPS Z2, Z3
	KXORW K1, K1, K1

softmaxScale:
	VMULPS  (DI), Z1, Z0
	VCMPPS  $3, Z0, Z0, K2
	KORW    K2, K1, K1
	VMAXPS  Z0, Z2, Z2
	VMOVUPS Z0, (DI)
	ADDQ    $64, DI
	DECQ    DX
	JNZ     softmaxScale
	VEXTRACTF64X4 $1, Z2, Y0
	VMAXPS  Y0, Y2, Y2
	VEXTRACTF128 $1, Y2, X0
	VMAXPS  X0, X2, X2
	VPSHUFD $0x4E, X2, X0
	VMAXPS  X0, X2, X2
	VPSHUFD $0xB1, X2, X0
	VMAXPS  X0, X2, X2
	KMOVW   K1, AX
	TESTL   AX, AX
	JNE     softmaxNaN
	VUCOMISS X2, X3
	JEQ     softmaxNothing
	JMP     softmaxExp

softmaxNaN:
	MOVL  $0x7fc00000, AX
	VMOVD AX, X2

softmaxExp:
	VCVTSS2SD X2, X2, X2
	VBROADCASTSD X2, Z19
	NUMBERS
	VPXORQ Z18, Z18, Z18
	MOVQ   SI, DI
	MOVQ   CX, DX

softmaxExpLoop:
	VCVTPS2PD (DI), Z0
	VSUBPD    Z19, Z0, Z0
	EXP(Z0, Z1, Z2, Z3)
	VADDPD    Z1, Z18, Z18
	VCVTPD2PS Z1, Y1
	VMOVUPS   Y1, (DI)
	VCVTPS2PD 32(DI), Z4
	VSUBPD    Z19, Z4, Z4
	EXP(Z4, Z5, Z6, Z7)
	VADDPD    Z5, Z18, Z18
	VCVTPD2PS Z5, Y5
	VMOVUPS   Y5, 32(DI)
	ADDQ      $64, DI
	DECQ      DX
	JNZ       softmaxExpLoop

	// The parts 0+4, 1+5, 2+6, 3+7; then 0+4+2+6 and 1+5+3+7.
	VEXTRACTF64X4 $1, Z18, Y0
	VADDPD  Y0, Y18, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPD  X1, X0, X0
	VPSHUFD $0x4E, X0, X1
	VADDSD  X1, X0, X0
	VMOVSD  expNumbers<>+72(SB), X1
	VDIVSD  X0, X1, X0
	VCVTSD2SS X0, X0, X0
	VBROADCASTSS X0, Z0

softmaxShare:
	VMULPS  (SI), Z0, Z1
	VMOVUPS Z1, (SI)
	ADDQ    $64, SI
	DECQ    CX
	JNZ     softmaxShare
	VZEROUPPER
	MOVB    $1, ret+24(FP)
	RET

softmaxNothing:
	VZEROUPPER
	MOVB $0, ret+24(FP)
	RET

// func rotateRow(x, y, cos, sin *float32, n int, flip uint32)
TEXT ·rotateRow(SB), NOSPLIT, $0-44
	MOVQ x+0(FP), DI
	MOVQ y+8(FP), SI
	MOVQ cos+16(FP), DX
	MOVQ sin+24(FP), R8
	MOVQ n+32(FP), CX
	MOVL flip+40(FP), AX
	VPBROADCASTD AX, Z6

rotateRowLoop:
	VMOVUPS (DI), Z0
	VMOVUPS (SI), Z1
	VMOVUPS (DX), Z2
	VPXORD  (R8), Z6, Z3
	VMULPS  Z2, Z0, Z4             // x·cos − y·sin
	VMULPS  Z3, Z1, Z5
	VSUBPS  Z5, Z4, Z4
	VMOVUPS Z4, (DI)
	VMULPS  Z2, Z1, Z4             // y·cos + x·sin
	VMULPS  Z3, Z0, Z5
	VADDPS  Z5, Z4, Z4
	VMOVUPS Z4, (SI)
	ADDQ    $64, DI
	ADDQ    $64, SI
	ADDQ    $64, DX
	ADDQ    $64, R8
	DECQ    CX
	JNZ     rotateRowLoop
	VZEROUPPER
	RET
