#include "textflag.h"

// Puts the CRC of the 128 bits that are left of the whole into BX. AX and R8 are overwritten.
#define CRC_OF(X) \
	VMOVQ   X, AX     \
	VPEXTRQ $1, X, R8 \
	XORL    BX, BX    \
	CRC32Q  AX, BX    \
	CRC32Q  R8, BX

// Writes BX as a checksum of the chunk, and goes on to the next one.
#define PUT_SUM \
	NOTL   BX       \
	BSWAPL BX       \
	MOVL   BX, (DI) \
	ADDQ   $4, DI   \
	ADDQ   $512, SI \
	DECQ   CX

// On processors with registers of 512 bits.

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

// func fold512(crc uint32, data *byte, n int, factors *[6]uint64) uint32
TEXT ·fold512(SB), NOSPLIT, $0-36
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

	CRC_OF(X3)
	VZEROUPPER
	MOVL BX, ret+32(FP)
	RET

// Moves the polynomials in Z by the distances of PLACES to the end of the chunk, and adds them
// to SUM. TEMP is overwritten.
#define PLACE(Z, PLACES, TEMP, SUM) \
	VPCLMULQDQ $0x00, PLACES, Z, TEMP \
	VPCLMULQDQ $0x11, PLACES, Z, Z    \
	VPTERNLOGD $0x96, TEMP, Z, SUM

// func chunks512(sums, data *byte, n int, places *[64]uint64)
TEXT ·chunks512(SB), NOSPLIT, $0-32
	MOVQ sums+0(FP), DI
	MOVQ data+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ places+24(FP), DX

	VMOVDQU64 0(DX), Z16
	VMOVDQU64 64(DX), Z17
	VMOVDQU64 128(DX), Z18
	VMOVDQU64 192(DX), Z19
	VMOVDQU64 256(DX), Z20
	VMOVDQU64 320(DX), Z21
	VMOVDQU64 384(DX), Z22
	VMOVDQU64 448(DX), Z23

	MOVL  $0xFFFFFFFF, AX
	VMOVD AX, X15
	MOVL  $0xC0, AX // the last 128 bits
	KMOVW AX, K1

chunk:
	VPXORQ      0(SI), Z15, Z0 // a CRC begins with ones
	VMOVDQU64   64(SI), Z1
	VMOVDQU64   128(SI), Z2
	VMOVDQU64   192(SI), Z3
	VMOVDQU64   256(SI), Z4
	VMOVDQU64   320(SI), Z5
	VMOVDQU64   384(SI), Z6
	VMOVDQU64   448(SI), Z7
	VMOVDQU64.Z 448(SI), K1, Z12
	VPXORQ      Z13, Z13, Z13
	PLACE(Z0, Z16, Z8, Z12)
	PLACE(Z1, Z17, Z9, Z13)
	PLACE(Z2, Z18, Z10, Z12)
	PLACE(Z3, Z19, Z11, Z13)
	PLACE(Z4, Z20, Z8, Z12)
	PLACE(Z5, Z21, Z9, Z13)
	PLACE(Z6, Z22, Z10, Z12)
	PLACE(Z7, Z23, Z11, Z13)

	VPXORQ        Z12, Z13, Z12
	VEXTRACTI64X4 $1, Z12, Y13
	VPXOR         Y13, Y12, Y12
	VEXTRACTI128  $1, Y12, X13
	VPXOR         X13, X12, X12
	CRC_OF(X12)
	PUT_SUM
	JNZ           chunk
	VZEROUPPER
	RET

// On processors with registers of 256 bits. PREFETCHT0 fetches what will be read some KiB later:
// bytes that no cache has come twice as fast so. Nothing need be mapped there.

// Moves the polynomials in Y by the distance of Y8's factors and adds NEXT.
#define FOLD256(Y, NEXT) \
	VPCLMULQDQ $0x00, Y8, Y, Y6 \
	VPCLMULQDQ $0x11, Y8, Y, Y7 \
	VPXOR      NEXT, Y6, Y6     \
	VPXOR      Y6, Y7, Y

// func fold256(crc uint32, data *byte, n int, factors *[6]uint64) uint32
TEXT ·fold256(SB), NOSPLIT, $0-36
	MOVL crc+0(FP), AX
	MOVQ data+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ factors+24(FP), DI

	VMOVDQU 0(SI), Y0
	VMOVDQU 32(SI), Y1
	VMOVDQU 64(SI), Y2
	VMOVDQU 96(SI), Y3
	VMOVD   AX, X4
	VPXOR   Y4, Y0, Y0

	VBROADCASTI128 0(DI), Y8

next:
	ADDQ       $128, SI
	SUBQ       $128, CX
	JZ         last
	PREFETCHT0 2048(SI)
	PREFETCHT0 2112(SI)
	FOLD256(Y0, 0(SI))
	FOLD256(Y1, 32(SI))
	FOLD256(Y2, 64(SI))
	FOLD256(Y3, 96(SI))
	JMP        next

last:
	VBROADCASTI128 16(DI), Y8
	FOLD256(Y0, Y1)
	FOLD256(Y0, Y2)
	FOLD256(Y0, Y3)

	VMOVDQU      32(DI), X5
	VEXTRACTI128 $1, Y0, X1
	FOLD128(X0, X1)

	CRC_OF(X1)
	VZEROUPPER
	MOVL BX, ret+32(FP)
	RET

// Moves the 256 bits AT bytes on in a chunk to its end, and adds them to SUM. TEMP is overwritten.
#define PLACE256(AT, TEMP, SUM) \
	VMOVDQU    AT(SI), Y0              \
	VPCLMULQDQ $0x00, AT(DX), Y0, TEMP \
	VPCLMULQDQ $0x11, AT(DX), Y0, Y0   \
	VPXOR      TEMP, SUM, SUM          \
	VPXOR      Y0, SUM, SUM

// func chunks256(sums, data *byte, n int, places *[64]uint64)
TEXT ·chunks256(SB), NOSPLIT, $0-32
	MOVQ sums+0(FP), DI
	MOVQ data+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ places+24(FP), DX

	MOVL  $0xFFFFFFFF, AX
	VMOVD AX, X15

chunk:
	PREFETCHT0 3072(SI)
	PREFETCHT0 3136(SI)
	PREFETCHT0 3200(SI)
	PREFETCHT0 3264(SI)
	PREFETCHT0 3328(SI)
	PREFETCHT0 3392(SI)
	PREFETCHT0 3456(SI)
	PREFETCHT0 3520(SI)

	VMOVDQU    0(SI), Y0
	VPXOR      Y15, Y0, Y0 // a CRC begins with ones
	VPCLMULQDQ $0x00, 0(DX), Y0, Y8
	VPCLMULQDQ $0x11, 0(DX), Y0, Y9
	VMOVDQU    496(SI), X10 // the last 128 bits are where they belong
	PLACE256(32, Y12, Y9)
	PLACE256(64, Y13, Y10)
	PLACE256(96, Y11, Y8)
	PLACE256(128, Y12, Y9)
	PLACE256(160, Y13, Y10)
	PLACE256(192, Y11, Y8)
	PLACE256(224, Y12, Y9)
	PLACE256(256, Y13, Y10)
	PLACE256(288, Y11, Y8)
	PLACE256(320, Y12, Y9)
	PLACE256(352, Y13, Y10)
	PLACE256(384, Y11, Y8)
	PLACE256(416, Y12, Y9)
	PLACE256(448, Y13, Y10)
	PLACE256(480, Y11, Y8)

	VPXOR        Y8, Y9, Y9
	VPXOR        Y9, Y10, Y10
	VEXTRACTI128 $1, Y10, X11
	VPXOR        X11, X10, X10
	CRC_OF(X10)
	PUT_SUM
	JNZ          chunk
	VZEROUPPER
	RET

// func multipliesWide() bool
TEXT ·multipliesWide(SB), NOSPLIT, $0-1
	MOVL  $7, AX
	XORL  CX, CX
	CPUID
	SHRL  $10, CX
	ANDL  $1, CX
	MOVB  CX, ret+0(FP)
	RET

// On processors with neither.

// Adds 64 bits of each of three chunks, AT bytes on.
#define WORDS(AT) \
	CRC32Q AT(SI), R8       \
	CRC32Q (512+AT)(SI), R9 \
	CRC32Q (1024+AT)(SI), R10

// func threeChunks(sums, data *byte, n int)
TEXT ·threeChunks(SB), NOSPLIT, $0-24
	MOVQ sums+0(FP), DI
	MOVQ data+8(FP), SI
	MOVQ n+16(FP), CX

chunks:
	MOVL $0xFFFFFFFF, R8 // a CRC begins with ones
	MOVL R8, R9
	MOVL R8, R10
	MOVL $8, DX

line:
	PREFETCHT0 3072(SI)
	PREFETCHT0 3584(SI)
	PREFETCHT0 4096(SI)
	WORDS(0)
	WORDS(8)
	WORDS(16)
	WORDS(24)
	WORDS(32)
	WORDS(40)
	WORDS(48)
	WORDS(56)
	ADDQ $64, SI
	DECL DX
	JNZ  line

	NOTL   R8
	NOTL   R9
	NOTL   R10
	BSWAPL R8
	BSWAPL R9
	BSWAPL R10
	MOVL   R8, (DI)
	MOVL   R9, 4(DI)
	MOVL   R10, 8(DI)
	ADDQ   $12, DI
	ADDQ   $1024, SI
	DECQ   CX
	JNZ    chunks
	RET
