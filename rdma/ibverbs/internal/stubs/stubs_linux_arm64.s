//go:build !noibverbs

#include "textflag.h"

// These are C functions: arguments in R0 to R5, the result in R0.
// Script: Limit 0, Taken 8, Result 16, Errno 24, ErrnoLocation 32,
// Available 40, Source 48, Refill 56, Armed 64, Log 128.

// int post(void *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
// Receives have their link at the same offset.
TEXT ·post(SB), NOSPLIT|NOFRAME, $0-0
	ADD  $1024, R0
	ADD  $128, R0, R6
	MOVD 0(R0), R3
	MOVD 8(R0), R4

next:
	CBZ  R1, done
	CMP  R3, R4
	BCS  refuse
	AND  $63, R4, R5
	MOVD R1, (R6)(R5<<3)
	ADD  $1, R4
	MOVD 8(R1), R1
	B    next

done:
	MOVD R4, 8(R0)
	MOVD ZR, R0
	RET

refuse:
	MOVD R4, 8(R0)
	MOVD R1, (R2)
	MOVD 24(R0), R5
	CBZ  R5, result
	SUB  $32, RSP
	MOVD R30, 8(RSP)
	MOVD R19, 16(RSP)
	MOVD R0, R19
	MOVD 32(R0), R9
	CALL (R9)
	MOVD 24(R19), R5
	MOVW R5, (R0)
	MOVD R19, R0
	MOVD 16(RSP), R19
	MOVD 8(RSP), R30
	ADD  $32, RSP

result:
	MOVD 16(R0), R0
	RET

// int poll(void *cq, int n, struct ibv_wc *wc)
TEXT ·poll(SB), NOSPLIT|NOFRAME, $0-0
	ADD  $1024, R0, R9
	MOVD 16(R9), R0
	CBNZ R0, done
	SXTW R1, R1
	MOVD 40(R9), R3
	CMP  R3, R1
	CSEL LT, R1, R3, R3
	MOVD R3, R0
	MOVD 48(R9), R4
	MOVD 56(R9), R5
	CBNZ R5, copy
	MOVD 40(R9), R6
	SUB  R0, R6
	MOVD R6, 40(R9)
	MOVD $48, R7
	MUL  R0, R7
	ADD  R4, R7
	MOVD R7, 48(R9)

copy:
	CBZ  R3, done
	LDP  0(R4), (R5, R6)
	STP  (R5, R6), 0(R2)
	LDP  16(R4), (R5, R6)
	STP  (R5, R6), 16(R2)
	LDP  32(R4), (R5, R6)
	STP  (R5, R6), 32(R2)
	ADD  $48, R4
	ADD  $48, R2
	SUB  $1, R3
	B    copy

done:
	RET

// int notify(void *cq, int solicited)
TEXT ·notify(SB), NOSPLIT|NOFRAME, $0-0
	ADD  $1024, R0, R9
	SXTW R1, R1
	ADD  $1, R1
	MOVD R1, 64(R9)
	MOVD 16(R9), R0
	RET

TEXT ·sum6(SB), NOSPLIT|NOFRAME, $0-0
	ADD  R1<<1, R0
	ADD  R2<<1, R2
	ADD  R2, R0
	ADD  R3<<2, R0
	ADD  R4<<2, R4
	ADD  R4, R0
	ADD  R5<<1, R5
	ADD  R5<<1, R0
	RET

DATA ·postAddress(SB)/8, $·post(SB)
GLOBL ·postAddress(SB), NOPTR|RODATA, $8
DATA ·pollAddress(SB)/8, $·poll(SB)
GLOBL ·pollAddress(SB), NOPTR|RODATA, $8
DATA ·notifyAddress(SB)/8, $·notify(SB)
GLOBL ·notifyAddress(SB), NOPTR|RODATA, $8
DATA ·sum6Address(SB)/8, $·sum6(SB)
GLOBL ·sum6Address(SB), NOPTR|RODATA, $8
