#include "textflag.h"

// func toRead(p unsafe.Pointer, length int)
TEXT ·toRead(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ length+8(FP), CX
	TESTQ CX, CX
	JLE done
next:
	PREFETCHT0 (AX)
	ADDQ $64, AX
	SUBQ $64, CX
	JGT next
done:
	RET

// func toWrite(p unsafe.Pointer, length int)
TEXT ·toWrite(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ length+8(FP), CX
	TESTQ CX, CX
	JLE done
next:
	BYTE $0x0F; BYTE $0x0D; BYTE $0x08 // PREFETCHW (AX), which the assembler does not know
	ADDQ $64, AX
	SUBQ $64, CX
	JGT next
done:
	RET
