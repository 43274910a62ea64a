//go:build !noibverbs

#include "textflag.h"

// These are C functions: arguments in DI, SI, DX, CX, R8, R9, the result in AX.
// Script: Limit 0, Taken 8, Result 16, Errno 24, ErrnoLocation 32,
// Available 40, Source 48, Refill 56, Armed 64, Log 128.

// int post(void *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
// Receives have their link at the same offset.
TEXT ·post(SB), NOSPLIT|NOFRAME, $0-0
	ADDQ $1024, DI
	MOVQ 8(DI), R8

next:
	TESTQ SI, SI
	JEQ   done
	CMPQ  R8, 0(DI)
	JCC   refuse
	MOVQ  R8, AX
	ANDQ  $63, AX
	MOVQ  SI, 128(DI)(AX*8)
	INCQ  R8
	MOVQ  8(SI), SI
	JMP   next

done:
	MOVQ R8, 8(DI)
	XORL AX, AX
	RET

refuse:
	MOVQ  R8, 8(DI)
	MOVQ  SI, (DX)
	CMPQ  24(DI), $0
	JEQ   result
	PUSHQ BX
	MOVQ  DI, BX
	MOVQ  32(DI), AX
	CALL  AX
	MOVQ  24(BX), CX
	MOVL  CX, (AX)
	MOVQ  BX, DI
	POPQ  BX

result:
	MOVQ 16(DI), AX
	RET

// int poll(void *cq, int n, struct ibv_wc *wc)
TEXT ·poll(SB), NOSPLIT|NOFRAME, $0-0
	ADDQ  $1024, DI
	MOVQ  16(DI), AX
	TESTQ AX, AX
	JNE   done
	MOVLQSX SI, SI
	MOVQ  40(DI), CX
	CMPQ  SI, CX
	CMOVQLT SI, CX
	MOVQ  CX, AX
	MOVQ  48(DI), R8
	CMPQ  56(DI), $0
	JNE   copy
	SUBQ  AX, 40(DI)
	MOVQ  AX, R9
	IMULQ $48, R9
	ADDQ  R9, 48(DI)

copy:
	TESTQ CX, CX
	JEQ   done
	MOVOU 0(R8), X0
	MOVOU 16(R8), X1
	MOVOU 32(R8), X2
	MOVOU X0, 0(DX)
	MOVOU X1, 16(DX)
	MOVOU X2, 32(DX)
	ADDQ  $48, R8
	ADDQ  $48, DX
	DECQ  CX
	JMP   copy

done:
	RET

// int notify(void *cq, int solicited)
TEXT ·notify(SB), NOSPLIT|NOFRAME, $0-0
	ADDQ $1024, DI
	MOVLQSX SI, SI
	INCQ SI
	MOVQ SI, 64(DI)
	MOVQ 16(DI), AX
	RET

TEXT ·sum6(SB), NOSPLIT|NOFRAME, $0-0
	LEAQ  (DI)(SI*2), AX
	IMULQ $3, DX
	ADDQ  DX, AX
	LEAQ  (AX)(CX*4), AX
	LEAQ  (R8)(R8*4), R8
	ADDQ  R8, AX
	IMULQ $6, R9
	ADDQ  R9, AX
	RET

DATA ·postAddress(SB)/8, $·post(SB)
GLOBL ·postAddress(SB), NOPTR|RODATA, $8
DATA ·pollAddress(SB)/8, $·poll(SB)
GLOBL ·pollAddress(SB), NOPTR|RODATA, $8
DATA ·notifyAddress(SB)/8, $·notify(SB)
GLOBL ·notifyAddress(SB), NOPTR|RODATA, $8
DATA ·sum6Address(SB)/8, $·sum6(SB)
GLOBL ·sum6Address(SB), NOPTR|RODATA, $8
