#include "textflag.h"

// func moveString(to, from unsafe.Pointer, n uintptr)
TEXT ·moveString(SB), NOSPLIT, $0-24
	MOVQ to+0(FP), DI
	MOVQ from+8(FP), SI
	MOVQ n+16(FP), CX
	REP; MOVSB
	RET
