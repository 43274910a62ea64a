//go:build !noibverbs && !puregocall

#include "textflag.h"

// The shims are entered as C functions, on the system stack, with the frame's
// address as their only argument. BX survives a call by the platform's rules;
// pushing it leaves the stack aligned to 16 bytes for the callee.
//
// frame6: fn 0, a0..a5 8..48, result 56, errno 64
// frame3: fn 0, a0..a2 8..24, result 32, errno 40

// shim6 passes six arguments and always fetches errno.
TEXT ·shim6(SB), NOSPLIT|NOFRAME, $0-0
	PUSHQ BX
	MOVQ  DI, BX
	MOVQ  0(BX), R11
	MOVQ  8(BX), DI
	MOVQ  16(BX), SI
	MOVQ  24(BX), DX
	MOVQ  32(BX), CX
	MOVQ  40(BX), R8
	MOVQ  48(BX), R9
	XORL  AX, AX
	CALL  R11
	MOVQ  AX, 56(BX)
	MOVQ  ·errnoLocation(SB), AX
	TESTQ AX, AX
	JEQ   done
	CALL  AX
	MOVL  (AX), AX
	MOVQ  AX, 64(BX)

done:
	XORL AX, AX
	POPQ BX
	RET

// shim3 passes three arguments and fetches errno only for a result of -1.
TEXT ·shim3(SB), NOSPLIT|NOFRAME, $0-0
	PUSHQ BX
	MOVQ  DI, BX
	MOVQ  0(BX), R11
	MOVQ  8(BX), DI
	MOVQ  16(BX), SI
	MOVQ  24(BX), DX
	XORL  AX, AX
	CALL  R11
	MOVQ  AX, 32(BX)
	CMPL  AX, $-1
	JNE   done
	MOVQ  ·errnoLocation(SB), AX
	TESTQ AX, AX
	JEQ   done
	CALL  AX
	MOVL  (AX), AX
	MOVQ  AX, 40(BX)

done:
	XORL AX, AX
	POPQ BX
	RET

DATA ·shim6Address(SB)/8, $·shim6(SB)
GLOBL ·shim6Address(SB), NOPTR|RODATA, $8
DATA ·shim3Address(SB)/8, $·shim3(SB)
GLOBL ·shim3Address(SB), NOPTR|RODATA, $8
