package crc32c

import (
	"math/bits"
	"unsafe"

	"golang.org/x/sys/cpu"
)

const (
	block = 256 // bytes that one round of fold takes
	// least is the length, in bytes, from which folding is faster.
	least = 2 * block
)

var (
	able   = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasSSE42
	counts = cpu.X86.HasSSE42 // it has an instruction for CRC32C, of 64 bits at a time
)

// factors of fold, for distances of 2048, 512 and 128 bits: a polynomial's upper
// and lower half are moved by a distance when they are multiplied by the first and
// the second factor of a pair (V. Gopal et al., Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ, Intel 2009).
var factors = [6]uint64{
	power(2048 + 32), power(2048 - 32),
	power(512 + 32), power(512 - 32),
	power(128 + 32), power(128 - 32),
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

// fold is the inverted CRC of n bytes, a positive multiple of block, after that
// of what came before.
//
//go:noescape
func fold(crc uint32, data *byte, n int, factors *[6]uint64) uint32

// chunk is the length, in bytes, of the chunks that have a function of their own: HDFS's.
const chunk = 512

// places are factors of sums512, two for each 128 bits of a chunk: they move it to the last 128
// bits. Those have none, and are added as they are.
var places = func() (f [2 * chunk / 16]uint64) {
	for i := range chunk/16 - 1 {
		distance := 8 * (chunk - 16*(i+1))
		f[2*i], f[2*i+1] = power(distance+32), power(distance-32)
	}
	return f
}()

// sums512 writes the CRCs of n chunks, 1 or more, to sums. Other than in fold no product waits for
// another one of the chunk.
//
//go:noescape
func sums512(sums, data *byte, n int, places *[2 * chunk / 16]uint64)

// threeSums512 writes the CRCs of 3*n chunks, n being 1 or more, to sums. An instruction takes 3
// cycles on most processors, and one can begin in every cycle. So three chunks side by side, of
// which none waits for another one, cost as much as one.
//
//go:noescape
func threeSums512(sums, data *byte, n int)

// fastSums is Sums for a part of data, the length of which it returns: whole chunks.
func fastSums(sums, data []byte, length int) int {
	n := len(data) / chunk
	if !able {
		n -= n % 3
	}
	if !able && !counts || length != chunk || n == 0 {
		return 0
	}
	_ = sums[Size*n-1]
	if able {
		sums512(unsafe.SliceData(sums), unsafe.SliceData(data), n, &places)
	} else {
		threeSums512(unsafe.SliceData(sums), unsafe.SliceData(data), n/3)
	}
	return n * chunk
}

// fast adds most of data and returns the rest.
func fast(crc uint32, data []byte) (uint32, []byte) {
	if !able || len(data) < least {
		return crc, data
	}
	n := len(data) &^ (block - 1)
	return ^fold(^crc, unsafe.SliceData(data), n, &factors), data[n:]
}
