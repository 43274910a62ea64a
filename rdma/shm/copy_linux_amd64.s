#include "textflag.h"

// func demote(p unsafe.Pointer, lines int)
TEXT ·demote(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ lines+8(FP), CX
next:
	BYTE $0x0F; BYTE $0x1C; BYTE $0x00 // CLDEMOTE (AX); does nothing where it is not known
	ADDQ $64, AX
	DECQ CX
	JGT next
	RET

// func relax(times int)
TEXT ·relax(SB), NOSPLIT, $0-8
	MOVQ times+0(FP), CX
again:
	PAUSE
	DECQ CX
	JGT again
	RET
