//go:build !noibverbs && !puregocall

#include "textflag.h"

// The shims are entered as C functions, on the system stack, with the frame's
// address as their only argument. R19 survives a call by the platform's rules.
//
// frame6: fn 0, a0..a5 8..48, result 56, errno 64
// frame3: fn 0, a0..a2 8..24, result 32, errno 40

// shim6 passes six arguments and always fetches errno.
TEXT ·shim6(SB), NOSPLIT|NOFRAME, $0-0
	SUB  $32, RSP
	MOVD R30, 8(RSP)
	MOVD R19, 16(RSP)
	MOVD R0, R19
	MOVD 0(R19), R9
	MOVD 8(R19), R0
	MOVD 16(R19), R1
	MOVD 24(R19), R2
	MOVD 32(R19), R3
	MOVD 40(R19), R4
	MOVD 48(R19), R5
	CALL (R9)
	MOVD R0, 56(R19)
	MOVD ·errnoLocation(SB), R9
	CBZ  R9, done
	CALL (R9)
	MOVWU (R0), R0
	MOVD R0, 64(R19)

done:
	MOVD ZR, R0
	MOVD 16(RSP), R19
	MOVD 8(RSP), R30
	ADD  $32, RSP
	RET

// shim3 passes three arguments and fetches errno only for a result of -1.
TEXT ·shim3(SB), NOSPLIT|NOFRAME, $0-0
	SUB  $32, RSP
	MOVD R30, 8(RSP)
	MOVD R19, 16(RSP)
	MOVD R0, R19
	MOVD 0(R19), R9
	MOVD 8(R19), R0
	MOVD 16(R19), R1
	MOVD 24(R19), R2
	CALL (R9)
	MOVD R0, 32(R19)
	CMNW $1, R0
	BNE  done
	MOVD ·errnoLocation(SB), R9
	CBZ  R9, done
	CALL (R9)
	MOVWU (R0), R0
	MOVD R0, 40(R19)

done:
	MOVD ZR, R0
	MOVD 16(RSP), R19
	MOVD 8(RSP), R30
	ADD  $32, RSP
	RET

DATA ·shim6Address(SB)/8, $·shim6(SB)
GLOBL ·shim6Address(SB), NOPTR|RODATA, $8
DATA ·shim3Address(SB)/8, $·shim3(SB)
GLOBL ·shim3Address(SB), NOPTR|RODATA, $8
