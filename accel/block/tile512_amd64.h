// A tile is 12 rows by 2 vectors of 64 bytes. Accumulators: Z0 Z1 row 0, Z2 Z3 row 1 … Z22 Z23 row 11. Z24 Z25 hold a row of the panel,
// Z26 an element of a in every lane.
// SI is row 0 of a, R10 row 3, R13 row 6, R15 row 9, R9 the distance of rows in bytes; DI the first half of the panel, R8 the distance
// of the second; DX, R12, AX and BX are rows 0, 3, 6 and 9 of c, R11 their distance; CX counts k.

// ARGUMENTS loads them; a and c have elements of 1<<shift bytes.
#define ARGUMENTS(shift) \
	MOVQ k+0(FP), CX        \
	MOVQ a+8(FP), SI        \
	MOVQ lda+16(FP), R9     \
	MOVQ b+24(FP), DI       \
	MOVQ c+32(FP), DX       \
	MOVQ ldc+40(FP), R11    \
	SHLQ shift, R9          \
	SHLQ shift, R11         \
	MOVQ CX, R8             \
	SHLQ $6, R8             \
	LEAQ (R9)(R9*2), R15    \
	LEAQ (SI)(R15*1), R10   \
	LEAQ (SI)(R15*2), R13   \
	ADDQ R13, R15           \
	LEAQ (R11)(R11*2), BX   \
	LEAQ (DX)(BX*1), R12    \
	LEAQ (DX)(BX*2), AX     \
	ADDQ AX, BX

// PARTARGUMENTS does it for a function that is told the distance of the halves.
#define PARTARGUMENTS \
	MOVQ k+0(FP), CX        \
	MOVQ a+8(FP), SI        \
	MOVQ lda+16(FP), R9     \
	MOVQ b+24(FP), DI       \
	MOVQ half+32(FP), R8    \
	MOVQ c+40(FP), DX       \
	MOVQ ldc+48(FP), R11    \
	SHLQ $2, R9             \
	SHLQ $2, R11            \
	SHLQ $2, R8             \
	LEAQ (R9)(R9*2), R15    \
	LEAQ (SI)(R15*1), R10   \
	LEAQ (SI)(R15*2), R13   \
	ADDQ R13, R15           \
	LEAQ (R11)(R11*2), BX   \
	LEAQ (DX)(BX*1), R12    \
	LEAQ (DX)(BX*2), AX     \
	ADDQ AX, BX

#define ZERO \
	VPXORD Z0, Z0, Z0 \
	VPXORD Z1, Z1, Z1 \
	VPXORD Z2, Z2, Z2 \
	VPXORD Z3, Z3, Z3 \
	VPXORD Z4, Z4, Z4 \
	VPXORD Z5, Z5, Z5 \
	VPXORD Z6, Z6, Z6 \
	VPXORD Z7, Z7, Z7 \
	VPXORD Z8, Z8, Z8 \
	VPXORD Z9, Z9, Z9 \
	VPXORD Z10, Z10, Z10 \
	VPXORD Z11, Z11, Z11 \
	VPXORD Z12, Z12, Z12 \
	VPXORD Z13, Z13, Z13 \
	VPXORD Z14, Z14, Z14 \
	VPXORD Z15, Z15, Z15 \
	VPXORD Z16, Z16, Z16 \
	VPXORD Z17, Z17, Z17 \
	VPXORD Z18, Z18, Z18 \
	VPXORD Z19, Z19, Z19 \
	VPXORD Z20, Z20, Z20 \
	VPXORD Z21, Z21, Z21 \
	VPXORD Z22, Z22, Z22 \
	VPXORD Z23, Z23, Z23

// LOAD and SAVE move the accumulators from and to c.
#define LOAD \
	VMOVUPS (DX), Z0 \
	VMOVUPS 64(DX), Z1 \
	VMOVUPS (DX)(R11*1), Z2 \
	VMOVUPS 64(DX)(R11*1), Z3 \
	VMOVUPS (DX)(R11*2), Z4 \
	VMOVUPS 64(DX)(R11*2), Z5 \
	VMOVUPS (R12), Z6 \
	VMOVUPS 64(R12), Z7 \
	VMOVUPS (R12)(R11*1), Z8 \
	VMOVUPS 64(R12)(R11*1), Z9 \
	VMOVUPS (R12)(R11*2), Z10 \
	VMOVUPS 64(R12)(R11*2), Z11 \
	VMOVUPS (AX), Z12 \
	VMOVUPS 64(AX), Z13 \
	VMOVUPS (AX)(R11*1), Z14 \
	VMOVUPS 64(AX)(R11*1), Z15 \
	VMOVUPS (AX)(R11*2), Z16 \
	VMOVUPS 64(AX)(R11*2), Z17 \
	VMOVUPS (BX), Z18 \
	VMOVUPS 64(BX), Z19 \
	VMOVUPS (BX)(R11*1), Z20 \
	VMOVUPS 64(BX)(R11*1), Z21 \
	VMOVUPS (BX)(R11*2), Z22 \
	VMOVUPS 64(BX)(R11*2), Z23

#define SAVE \
	VMOVUPS Z0, (DX) \
	VMOVUPS Z1, 64(DX) \
	VMOVUPS Z2, (DX)(R11*1) \
	VMOVUPS Z3, 64(DX)(R11*1) \
	VMOVUPS Z4, (DX)(R11*2) \
	VMOVUPS Z5, 64(DX)(R11*2) \
	VMOVUPS Z6, (R12) \
	VMOVUPS Z7, 64(R12) \
	VMOVUPS Z8, (R12)(R11*1) \
	VMOVUPS Z9, 64(R12)(R11*1) \
	VMOVUPS Z10, (R12)(R11*2) \
	VMOVUPS Z11, 64(R12)(R11*2) \
	VMOVUPS Z12, (AX) \
	VMOVUPS Z13, 64(AX) \
	VMOVUPS Z14, (AX)(R11*1) \
	VMOVUPS Z15, 64(AX)(R11*1) \
	VMOVUPS Z16, (AX)(R11*2) \
	VMOVUPS Z17, 64(AX)(R11*2) \
	VMOVUPS Z18, (BX) \
	VMOVUPS Z19, 64(BX) \
	VMOVUPS Z20, (BX)(R11*1) \
	VMOVUPS Z21, 64(BX)(R11*1) \
	VMOVUPS Z22, (BX)(R11*2) \
	VMOVUPS Z23, 64(BX)(R11*2)

// STEP adds the products of one step of k.
#define STEP(BROADCAST, MULADD, size) \
	VMOVUPS (DI), Z24 \
	VMOVUPS (DI)(R8*1), Z25 \
	BROADCAST (SI), Z26 \
	MULADD Z24, Z26, Z0 \
	MULADD Z25, Z26, Z1 \
	BROADCAST (SI)(R9*1), Z26 \
	MULADD Z24, Z26, Z2 \
	MULADD Z25, Z26, Z3 \
	BROADCAST (SI)(R9*2), Z26 \
	MULADD Z24, Z26, Z4 \
	MULADD Z25, Z26, Z5 \
	BROADCAST (R10), Z26 \
	MULADD Z24, Z26, Z6 \
	MULADD Z25, Z26, Z7 \
	BROADCAST (R10)(R9*1), Z26 \
	MULADD Z24, Z26, Z8 \
	MULADD Z25, Z26, Z9 \
	BROADCAST (R10)(R9*2), Z26 \
	MULADD Z24, Z26, Z10 \
	MULADD Z25, Z26, Z11 \
	BROADCAST (R13), Z26 \
	MULADD Z24, Z26, Z12 \
	MULADD Z25, Z26, Z13 \
	BROADCAST (R13)(R9*1), Z26 \
	MULADD Z24, Z26, Z14 \
	MULADD Z25, Z26, Z15 \
	BROADCAST (R13)(R9*2), Z26 \
	MULADD Z24, Z26, Z16 \
	MULADD Z25, Z26, Z17 \
	BROADCAST (R15), Z26 \
	MULADD Z24, Z26, Z18 \
	MULADD Z25, Z26, Z19 \
	BROADCAST (R15)(R9*1), Z26 \
	MULADD Z24, Z26, Z20 \
	MULADD Z25, Z26, Z21 \
	BROADCAST (R15)(R9*2), Z26 \
	MULADD Z24, Z26, Z22 \
	MULADD Z25, Z26, Z23 \
	ADDQ size, SI \
	ADDQ size, R10 \
	ADDQ size, R13 \
	ADDQ size, R15 \
	ADDQ $64, DI \
	DECQ CX

// A half tile is 12 rows by one vector: accumulators Z0 … Z11, Z24 a row of the panel.

#define HALFLOAD \
	VMOVUPS (DX), Z0 \
	VMOVUPS (DX)(R11*1), Z1 \
	VMOVUPS (DX)(R11*2), Z2 \
	VMOVUPS (R12), Z3 \
	VMOVUPS (R12)(R11*1), Z4 \
	VMOVUPS (R12)(R11*2), Z5 \
	VMOVUPS (AX), Z6 \
	VMOVUPS (AX)(R11*1), Z7 \
	VMOVUPS (AX)(R11*2), Z8 \
	VMOVUPS (BX), Z9 \
	VMOVUPS (BX)(R11*1), Z10 \
	VMOVUPS (BX)(R11*2), Z11

#define HALFSAVE \
	VMOVUPS Z0, (DX) \
	VMOVUPS Z1, (DX)(R11*1) \
	VMOVUPS Z2, (DX)(R11*2) \
	VMOVUPS Z3, (R12) \
	VMOVUPS Z4, (R12)(R11*1) \
	VMOVUPS Z5, (R12)(R11*2) \
	VMOVUPS Z6, (AX) \
	VMOVUPS Z7, (AX)(R11*1) \
	VMOVUPS Z8, (AX)(R11*2) \
	VMOVUPS Z9, (BX) \
	VMOVUPS Z10, (BX)(R11*1) \
	VMOVUPS Z11, (BX)(R11*2)

#define HALFSTEP(BROADCAST, MULADD, size) \
	VMOVUPS (DI), Z24 \
	BROADCAST (SI), Z26 \
	MULADD Z24, Z26, Z0 \
	BROADCAST (SI)(R9*1), Z26 \
	MULADD Z24, Z26, Z1 \
	BROADCAST (SI)(R9*2), Z26 \
	MULADD Z24, Z26, Z2 \
	BROADCAST (R10), Z26 \
	MULADD Z24, Z26, Z3 \
	BROADCAST (R10)(R9*1), Z26 \
	MULADD Z24, Z26, Z4 \
	BROADCAST (R10)(R9*2), Z26 \
	MULADD Z24, Z26, Z5 \
	BROADCAST (R13), Z26 \
	MULADD Z24, Z26, Z6 \
	BROADCAST (R13)(R9*1), Z26 \
	MULADD Z24, Z26, Z7 \
	BROADCAST (R13)(R9*2), Z26 \
	MULADD Z24, Z26, Z8 \
	BROADCAST (R15), Z26 \
	MULADD Z24, Z26, Z9 \
	BROADCAST (R15)(R9*1), Z26 \
	MULADD Z24, Z26, Z10 \
	BROADCAST (R15)(R9*2), Z26 \
	MULADD Z24, Z26, Z11 \
	ADDQ size, SI \
	ADDQ size, R10 \
	ADDQ size, R13 \
	ADDQ size, R15 \
	ADDQ $64, DI \
	DECQ CX
