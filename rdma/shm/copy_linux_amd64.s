#include "textflag.h"

// func moveString(to, from unsafe.Pointer, n uintptr)
TEXT ·moveString(SB), NOSPLIT, $0-24
	MOVQ to+0(FP), DI
	MOVQ from+8(FP), SI
	MOVQ n+16(FP), CX
	REP; MOVSB
	RET

// func prefetch(p unsafe.Pointer)
TEXT ·prefetch(SB), NOSPLIT, $0-8
	MOVQ p+0(FP), AX
	PREFETCHT0 (AX)
	RET

// func relax(times int)
TEXT ·relax(SB), NOSPLIT, $0-8
	MOVQ times+0(FP), CX
again:
	PAUSE
	DECQ CX
	JGT again
	RET
