#include "textflag.h"

// Moves the polynomials in Z by the distance of Z5's factors and adds NEXT.
#define FOLD(Z, NEXT) \
	VPCLMULQDQ $0x00, Z5, Z, Z6   \
	VPCLMULQDQ $0x11, Z5, Z, Z7   \
	VMOVDQU64  NEXT, Z            \
	VPTERNLOGD $0x96, Z6, Z7, Z

// The same of 128 bits.
#define FOLD128(X, NEXT) \
	VPCLMULQDQ $0x00, X5, X, X6 \
	VPCLMULQDQ $0x11, X5, X, X7 \
	VPXOR      X6, X7, X6       \
	VPXOR      X6, NEXT, NEXT

// func fold(crc uint32, data *byte, n int, factors *[6]uint64) uint32
TEXT ·fold(SB), NOSPLIT, $0-36
	MOVL crc+0(FP), AX
	MOVQ data+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ factors+24(FP), DI

	VMOVDQU64 0(SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VMOVD     AX, X4
	VPXORQ    Z4, Z0, Z0

	VBROADCASTI32X4 0(DI), Z5

next:
	ADDQ $256, SI
	SUBQ $256, CX
	JZ   last
	FOLD(Z0, 0(SI))
	FOLD(Z1, 64(SI))
	FOLD(Z2, 128(SI))
	FOLD(Z3, 192(SI))
	JMP  next

last:
	VBROADCASTI32X4 16(DI), Z5
	FOLD(Z0, Z1)
	FOLD(Z0, Z2)
	FOLD(Z0, Z3)

	VMOVDQU       32(DI), X5
	VEXTRACTI32X4 $1, Z0, X1
	VEXTRACTI32X4 $2, Z0, X2
	VEXTRACTI32X4 $3, Z0, X3
	FOLD128(X0, X1)
	FOLD128(X1, X2)
	FOLD128(X2, X3)

	// What is left has the CRC of the whole.
	VMOVQ   X3, AX
	VPEXTRQ $1, X3, DX
	VZEROUPPER
	XORL    BX, BX
	CRC32Q  AX, BX
	CRC32Q  DX, BX
	MOVL    BX, ret+32(FP)
	RET
