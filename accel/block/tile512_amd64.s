//go:build !purego

#include "textflag.h"
#include "tile512_amd64.h"

// func tileF32x512(k int, a *float32, lda int, b *float32, c *float32, ldc int, load bool)
TEXT ·tileF32x512(SB), NOSPLIT, $0-49
	ARGUMENTS($2)
	CMPB load+48(FP), $0
	JEQ  tileF32x512zero
	LOAD
	JMP  tileF32x512loop

tileF32x512zero:
	ZERO

tileF32x512loop:
	STEP(VBROADCASTSS, VFMADD231PS, $4)
	JNZ  tileF32x512loop

	SAVE
	VZEROUPPER
	RET

// func PartF32(k int, a *float32, lda int, b *float32, half int, c *float32, ldc int, load bool)
TEXT ·PartF32(SB), NOSPLIT, $0-57
	PARTARGUMENTS
	CMPB load+56(FP), $0
	JEQ  partF32zero
	LOAD
	JMP  partF32loop

partF32zero:
	ZERO

partF32loop:
	STEP(VBROADCASTSS, VFMADD231PS, $4)
	JNZ  partF32loop

	SAVE
	VZEROUPPER
	RET

// func tileF32Half(k int, a *float32, lda int, b *float32, c *float32, ldc int, load bool)
TEXT ·tileF32Half(SB), NOSPLIT, $0-49
	ARGUMENTS($2)
	CMPB load+48(FP), $0
	JEQ  tileF32Halfzero
	HALFLOAD
	JMP  tileF32Halfloop

tileF32Halfzero:
	ZERO

tileF32Halfloop:
	HALFSTEP(VBROADCASTSS, VFMADD231PS, $4)
	JNZ  tileF32Halfloop

	HALFSAVE
	VZEROUPPER
	RET

// func tileF64x512(k int, a *float64, lda int, b *float64, c *float64, ldc int, load bool)
TEXT ·tileF64x512(SB), NOSPLIT, $0-49
	ARGUMENTS($3)
	CMPB load+48(FP), $0
	JEQ  tileF64x512zero
	LOAD
	JMP  tileF64x512loop

tileF64x512zero:
	ZERO

tileF64x512loop:
	STEP(VBROADCASTSD, VFMADD231PD, $8)
	JNZ  tileF64x512loop

	SAVE
	VZEROUPPER
	RET

// func tileVNNI(k int, a *Quad, lda int, b *Quad, c *int32, ldc int, load bool)
//
// VPDPBUSD takes a as unsigned, which is the code plus 128, and b as signed, and adds four exact products. The panel ends with what 128
// in place of 0 adds to each column, negated.
TEXT ·tileVNNI(SB), NOSPLIT, $0-49
	ARGUMENTS($2)
	CMPB load+48(FP), $0
	JEQ  tileVNNIzero
	LOAD
	JMP  tileVNNIloop

tileVNNIzero:
	ZERO

tileVNNIloop:
	STEP(VPBROADCASTD, VPDPBUSD, $4)
	JNZ  tileVNNIloop

	// DI is at the end of the first half.
	VMOVDQU32 (DI)(R8*1), Z24
	VMOVDQU32 64(DI)(R8*1), Z25
	VPADDD Z24, Z0, Z0
	VPADDD Z25, Z1, Z1
	VPADDD Z24, Z2, Z2
	VPADDD Z25, Z3, Z3
	VPADDD Z24, Z4, Z4
	VPADDD Z25, Z5, Z5
	VPADDD Z24, Z6, Z6
	VPADDD Z25, Z7, Z7
	VPADDD Z24, Z8, Z8
	VPADDD Z25, Z9, Z9
	VPADDD Z24, Z10, Z10
	VPADDD Z25, Z11, Z11
	VPADDD Z24, Z12, Z12
	VPADDD Z25, Z13, Z13
	VPADDD Z24, Z14, Z14
	VPADDD Z25, Z15, Z15
	VPADDD Z24, Z16, Z16
	VPADDD Z25, Z17, Z17
	VPADDD Z24, Z18, Z18
	VPADDD Z25, Z19, Z19
	VPADDD Z24, Z20, Z20
	VPADDD Z25, Z21, Z21
	VPADDD Z24, Z22, Z22
	VPADDD Z25, Z23, Z23

	SAVE
	VZEROUPPER
	RET

// func tileVNNIHalf(k int, a *Quad, lda int, b *Quad, c *int32, ldc int, load bool)
TEXT ·tileVNNIHalf(SB), NOSPLIT, $0-49
	ARGUMENTS($2)
	CMPB load+48(FP), $0
	JEQ  tileVNNIHalfzero
	HALFLOAD
	JMP  tileVNNIHalfloop

tileVNNIHalfzero:
	ZERO

tileVNNIHalfloop:
	HALFSTEP(VPBROADCASTD, VPDPBUSD, $4)
	JNZ  tileVNNIHalfloop

	VMOVDQU32 (DI), Z24 // the row after the panel
	VPADDD Z24, Z0, Z0
	VPADDD Z24, Z1, Z1
	VPADDD Z24, Z2, Z2
	VPADDD Z24, Z3, Z3
	VPADDD Z24, Z4, Z4
	VPADDD Z24, Z5, Z5
	VPADDD Z24, Z6, Z6
	VPADDD Z24, Z7, Z7
	VPADDD Z24, Z8, Z8
	VPADDD Z24, Z9, Z9
	VPADDD Z24, Z10, Z10
	VPADDD Z24, Z11, Z11

	HALFSAVE
	VZEROUPPER
	RET
