package external

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
)

// sorter orders entries of records that lie in memory.
type sorter struct{ memory []byte }

// few is how many entries insertion sort orders faster than one more round by bytes.
const few = 28

// sort orders entries whose keys are equal in their first depth bytes and whose prefixes
// are the eight bytes from there on.
func (s sorter) sort(entries []entry, depth int) {
	byPrefix(entries, 56)
	// What has equal prefixes is ordered by what follows them.
	for i := 0; i+1 < len(entries); {
		j := i + 1
		for j < len(entries) && entries[j].prefix == entries[i].prefix {
			j++
		}
		if j-i > 1 {
			s.sortTies(entries[i:j], depth+8)
		}
		i = j
	}
}

// sortTies orders entries whose keys are equal up to depth. A key that ends before it is
// equal to the others if zeros follow it: the shorter comes first.
func (s sorter) sortTies(entries []entry, depth int) {
	ended := 0
	for i := range entries {
		if int(entries[i].length) <= depth {
			entries[i], entries[ended] = entries[ended], entries[i]
			ended++
		}
	}
	if ended > 1 {
		slices.SortFunc(entries[:ended], func(a, b entry) int { return cmp.Compare(a.length, b.length) })
	}
	entries = entries[ended:]
	switch {
	case len(entries) < 2:
	case len(entries) < few:
		for i := 1; i < len(entries); i++ {
			e := entries[i]
			rest := s.key(e)[depth:]
			j := i
			for ; j > 0 && bytes.Compare(rest, s.key(entries[j-1])[depth:]) < 0; j-- {
				entries[j] = entries[j-1]
			}
			entries[j] = e
		}
	default:
		common, equal := s.common(entries, depth)
		if equal {
			return
		}
		depth += common
		for i := range entries {
			entries[i].prefix = Prefix(s.key(entries[i])[depth:])
		}
		s.sort(entries, depth)
		for i := range entries {
			entries[i].prefix = Prefix(s.key(entries[i]))
		}
	}
}

// common is how many bytes from depth on all keys share, and whether all are equal.
func (s sorter) common(entries []entry, depth int) (n int, equal bool) {
	first := s.key(entries[0])[depth:]
	n, equal = len(first), true
	for _, e := range entries[1:] {
		other := s.key(e)[depth:]
		equal = equal && len(other) == len(first)
		if n = min(n, len(other)); !bytes.Equal(first[:n], other[:n]) {
			equal = false
			n = differ(first[:n], other)
		}
	}
	return n, equal
}

// differ is where the first difference is of a and what b begins with.
func differ(a, b []byte) int {
	i := 0
	for ; i+8 <= len(a); i += 8 {
		if x := binary.LittleEndian.Uint64(a[i:]) ^ binary.LittleEndian.Uint64(b[i:]); x != 0 {
			return i + bits.TrailingZeros64(x)/8
		}
	}
	for i < len(a) && a[i] == b[i] {
		i++
	}
	return i
}

func (s sorter) key(e entry) []byte { return s.memory[e.at : e.at+e.length] }

// byPrefix orders entries by their prefixes, which differ at most in the bits below
// shift+8: American flag sort (McIlroy, Bostic and McIlroy, Computing Systems 6, 1993), which
// needs no second array.
func byPrefix(entries []entry, shift uint) {
	if len(entries) < few {
		insert(entries)
		return
	}
	var counts [256]int
	for i := range entries {
		counts[byte(entries[i].prefix>>shift)]++
	}
	if counts[byte(entries[0].prefix>>shift)] == len(entries) {
		if shift > 0 {
			byPrefix(entries, shift-8)
		}
		return
	}
	var next, end [256]int
	at := 0
	for b, n := range counts {
		next[b] = at
		at += n
		end[b] = at
	}
	for b := range counts {
		for i := next[b]; i < end[b]; {
			e := entries[i]
			to := byte(e.prefix >> shift)
			if int(to) == b {
				i++
				continue
			}
			// Carry what stands in the way on, until something belongs here.
			for int(to) != b {
				place := next[to]
				next[to]++
				e, entries[place] = entries[place], e
				to = byte(e.prefix >> shift)
			}
			entries[i] = e
			i++
		}
		next[b] = end[b]
	}
	if shift == 0 {
		return
	}
	at = 0
	for _, n := range counts {
		if n > 1 {
			byPrefix(entries[at:at+n], shift-8)
		}
		at += n
	}
}

func insert(entries []entry) {
	for i := 1; i < len(entries); i++ {
		e := entries[i]
		j := i
		for ; j > 0 && e.prefix < entries[j-1].prefix; j-- {
			entries[j] = entries[j-1]
		}
		entries[j] = e
	}
}
