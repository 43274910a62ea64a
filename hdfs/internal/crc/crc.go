// Package crc combines checksums: it computes the CRC-32 of two byte strings one after the
// other from their own CRCs and the length of the second, without the bytes. So the
// checksums of the chunks of a block make that of the block, and those of blocks that of
// the file, whatever the sizes of chunks and blocks. The algorithm is that of zlib's
// crc32_combine: appending a byte of zeros is a linear map over GF(2), and its powers are
// got by squaring.
package crc

import "hash/crc32"

// matrix is a linear map of 32 bits: the images of the single bits.
type matrix [32]uint32

func (m *matrix) times(v uint32) (sum uint32) {
	for i := 0; v != 0; i, v = i+1, v>>1 {
		if v&1 != 0 {
			sum ^= m[i]
		}
	}
	return sum
}

func (m *matrix) squared() (out matrix) {
	for i := range out {
		out[i] = m.times(m[i])
	}
	return out
}

// Combiner combines CRCs of one polynomial. It may be used concurrently.
type Combiner struct {
	zeros [64]matrix // zeros[i] appends 2^i bytes of zeros
}

// NewCombiner returns a combiner for a polynomial in the reversed notation of hash/crc32:
// [crc32.IEEE] or [crc32.Castagnoli].
func NewCombiner(polynomial uint32) *Combiner {
	c := &Combiner{}
	var bit matrix // appends one zero bit
	bit[0] = polynomial
	for i := 1; i < 32; i++ {
		bit[i] = 1 << (i - 1)
	}
	two := bit.squared()
	four := two.squared()
	c.zeros[0] = four.squared()
	for i := 1; i < len(c.zeros); i++ {
		c.zeros[i] = c.zeros[i-1].squared()
	}
	return c
}

// IEEE and Castagnoli are the combiners of HDFS's two checksums.
var (
	IEEE       = NewCombiner(crc32.IEEE)
	Castagnoli = NewCombiner(crc32.Castagnoli)
)

// Combine returns the CRC of a string with the CRC a followed by one of n bytes with the
// CRC b. n is not negative.
func (c *Combiner) Combine(a, b uint32, n int64) uint32 {
	for i := 0; n != 0; i, n = i+1, n>>1 {
		if n&1 != 0 {
			a = c.zeros[i].times(a)
		}
	}
	return a ^ b
}
