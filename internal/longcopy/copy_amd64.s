#include "textflag.h"

// func moveString(to, from unsafe.Pointer, n uintptr)
TEXT ·moveString(SB), NOSPLIT, $0-24
	MOVQ to+0(FP), DI
	MOVQ from+8(FP), SI
	MOVQ n+16(FP), CX
	REP; MOVSB
	RET

// func streamLines(to, from unsafe.Pointer, lines uintptr)
// The fence orders the stores before what the caller stores next: a flag, say, by which
// the reader learns of them.
TEXT ·streamLines(SB), NOSPLIT, $0-24
	MOVQ to+0(FP), DI
	MOVQ from+8(FP), SI
	MOVQ lines+16(FP), CX
	TESTQ CX, CX
	JZ   done

line:
	MOVOU  (SI), X0
	MOVOU  16(SI), X1
	MOVOU  32(SI), X2
	MOVOU  48(SI), X3
	MOVNTO X0, (DI)
	MOVNTO X1, 16(DI)
	MOVNTO X2, 32(DI)
	MOVNTO X3, 48(DI)
	ADDQ   $64, SI
	ADDQ   $64, DI
	DECQ   CX
	JNZ    line

done:
	SFENCE
	RET

// func ticks() int64
// The processor's time stamp, read when what stands before it is done. Not every virtual
// processor has RDTSCP.
TEXT ·ticks(SB), NOSPLIT, $0-8
	LFENCE
	RDTSC
	SHLQ $32, DX
	ORQ  DX, AX
	MOVQ AX, ret+0(FP)
	RET
