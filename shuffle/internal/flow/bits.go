package flow

import mathbits "math/bits"

// bits says of each page whether it is in use.
type bits struct {
	words []uint64
	n     int
}

func newBits(n int) bits { return bits{make([]uint64, (n+63)/64), n} }

func (b *bits) set(first, n int) {
	for i := first; i < first+n; i++ {
		b.words[i/64] |= 1 << (i % 64)
	}
}

func (b *bits) clear(first, n int) {
	for i := first; i < first+n; i++ {
		b.words[i/64] &^= 1 << (i % 64)
	}
}

// none tells whether none of n pages is in use.
func (b *bits) none(first, n int) bool { return b.next(first, 0) >= first+n }

// next is the first page from i on that is in use, with flip 0, or free, with flip ^0; or how many pages there are.
func (b *bits) next(i int, flip uint64) int {
	for ; i < b.n; i = i/64*64 + 64 {
		if w := (b.words[i/64] ^ flip) >> (i % 64); w != 0 {
			return min(b.n, i+mathbits.TrailingZeros64(w))
		}
	}
	return b.n
}

// find finds the lowest piece of n free pages, or the longest one if none has so many.
func (b *bits) find(n int) (first, length int) {
	for at := 0; at < b.n; {
		at = b.next(at, ^uint64(0))
		end := b.next(at, 0)
		if end-at >= n {
			return at, n
		}
		if end-at > length {
			first, length = at, end-at
		}
		at = end
	}
	return first, length
}
