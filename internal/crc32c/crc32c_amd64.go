package crc32c

import (
	"math/bits"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// A width is that of the registers, in bits, in which the processor multiplies without carries.
type width int

// widest is this processor's, or 0.
var widest = func() width {
	switch {
	case !cpu.X86.HasSSE42:
		return 0
	case cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ:
		return 512
	case cpu.X86.HasAVX2 && multipliesWide():
		return 256
	}
	return 0
}()

// counts tells that the processor has an instruction for CRC32C, of 64 bits at a time.
var counts = cpu.X86.HasSSE42

// multipliesWide tells whether VPCLMULQDQ takes 256 bits. It asks for leaf 7 of CPUID, which
// processors with AVX2 have.
func multipliesWide() bool

// The factors of fold512 and fold256 are for distances of four registers, of one, and of 128 bits: a
// polynomial's upper and lower half are moved by a distance when they are multiplied by the
// first and the second factor of a pair (V. Gopal et al., Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ, Intel 2009).
var factors512, factors256 = factorsOf(512), factorsOf(256)

func factorsOf(w width) (f [6]uint64) {
	for i, distance := range [...]int{4 * int(w), int(w), 128} {
		f[2*i], f[2*i+1] = power(distance+32), power(distance-32)
	}
	return f
}

// power is x to the n modulo the CRC's polynomial, with its bits in the order of
// the CRC and shifted by the one that a product of reflected factors lacks.
func power(n int) uint64 {
	const polynomial = 0x1EDC6F41
	p := uint32(1)
	for range n {
		carry := p >> 31
		p = p<<1 ^ carry*polynomial
	}
	return uint64(bits.Reverse32(p)) << 1
}

// fold512 is the inverted CRC of n bytes, a positive multiple of 256, after that of what came
// before.
//
//go:noescape
func fold512(crc uint32, data *byte, n int, factors *[6]uint64) uint32

// fold256 is fold512 for a multiple of 128.
//
//go:noescape
func fold256(crc uint32, data *byte, n int, factors *[6]uint64) uint32

// chunk is the length, in bytes, of the chunks that have functions of their own: HDFS's.
const chunk = 512

// places are factors of chunks512 and chunks256, two for each 128 bits of a chunk: they move it
// to the last 128 bits. Those have none, and are added as they are.
var places = func() (f [2 * chunk / 16]uint64) {
	for i := range chunk/16 - 1 {
		distance := 8 * (chunk - 16*(i+1))
		f[2*i], f[2*i+1] = power(distance+32), power(distance-32)
	}
	return f
}()

// chunks512 writes the CRCs of n chunks, 1 or more, to sums. Other than in fold512 no product
// waits for another one of the chunk.
//
//go:noescape
func chunks512(sums, data *byte, n int, places *[2 * chunk / 16]uint64)

// chunks256 does the same.
//
//go:noescape
func chunks256(sums, data *byte, n int, places *[2 * chunk / 16]uint64)

// threeChunks writes the CRCs of 3*n chunks, n being 1 or more, to sums. An instruction takes 3
// cycles on most processors, and one can begin in every cycle. So three chunks side by side, of
// which none waits for another one, cost as much as one.
//
//go:noescape
func threeChunks(sums, data *byte, n int)

// fastSums is Sums for a part of data, the length of which it returns: whole chunks.
func fastSums(sums, data []byte, length int) int {
	n := len(data) / chunk
	if widest == 0 {
		n -= n % 3
	}
	if !counts || length != chunk || n == 0 {
		return 0
	}
	_ = sums[Size*n-1]
	to, from := unsafe.SliceData(sums), unsafe.SliceData(data)
	switch widest {
	case 512:
		chunks512(to, from, n, &places)
	case 256:
		chunks256(to, from, n, &places)
	default:
		threeChunks(to, from, n/3)
	}
	return n * chunk
}

// fast adds most of data and returns the rest. Fewer than eight registers are no faster so.
func fast(crc uint32, data []byte) (uint32, []byte) {
	n := len(data) &^ int(widest/2-1) // four registers at a time
	if widest == 0 || n < int(widest) {
		return crc, data
	}
	if widest == 512 {
		crc = fold512(^crc, unsafe.SliceData(data), n, &factors512)
	} else {
		crc = fold256(^crc, unsafe.SliceData(data), n, &factors256)
	}
	return ^crc, data[n:]
}
