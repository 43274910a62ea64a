package longcopy

import (
	"math"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/cpu"
)

//go:noescape
func moveString(to, from unsafe.Pointer, n uintptr)

//go:noescape
func streamLines(to, from unsafe.Pointer, lines uintptr)

func ticks() int64

const (
	cacheLine = 64
	// stringMove is from where on a string instruction beats memmove, if its
	// destination is aligned to a line: some processors then need not fetch the
	// lines that they overwrite.
	stringMove = 2048
	// Nothing can preempt an instruction for the collector, so it moves no more
	// than this at once.
	mostAtOnce = 1 << 20
	// mostCopied is less than what Go's copy stores past the caches.
	mostCopied = 512 << 10
)

var fastStrings = cpu.X86.HasERMS

// Fill copies the beginning of from to the whole of to. They do not overlap, and from is
// at least as long. Short pieces are copied as by copy.
func Fill(to, from []byte) {
	if len(to) < stringMove {
		copy(to, from)
		return
	}
	from = from[:len(to)]
	if head := -int(uintptr(unsafe.Pointer(&to[0]))) & (cacheLine - 1); head > 0 {
		copy(to[:head], from)
		to, from = to[head:], from[head:]
	}
	if len(to) < timedFrom {
		throughCache(to, from)
		return
	}
	fillTimed(to, from)
}

// throughCache stores to memory that stays in this processor's cache. to begins at a line.
func throughCache(to, from []byte) {
	if fastStrings && !chasing(to, from) {
		for len(to) > 0 {
			n := min(len(to), mostAtOnce)
			moveString(unsafe.Pointer(&to[0]), unsafe.Pointer(&from[0]), uintptr(n))
			to, from = to[n:], from[n:]
		}
		return
	}
	for len(to) > mostCopied {
		n := copy(to[:mostCopied], from)
		to, from = to[n:], from[n:]
	}
	copy(to, from)
}

// chasing tells whether to begins a little behind where from does within a page. An AMD
// EPYC of family 25 moves such strings at 2 GB/s in place of 40: a distance of 1 to 31
// bytes was slow, 0 and 32 were not. Up to 63 Go's copy takes them, which is as fast.
func chasing(to, from []byte) bool {
	distance := (uintptr(unsafe.Pointer(&to[0])) - uintptr(unsafe.Pointer(&from[0]))) % 4096
	return distance-1 < cacheLine-1
}

// pastCache stores to memory at once. to begins at a line.
func pastCache(to, from []byte) {
	for len(to) >= cacheLine {
		n := min(len(to), mostAtOnce) &^ (cacheLine - 1)
		streamLines(unsafe.Pointer(&to[0]), unsafe.Pointer(&from[0]), uintptr(n/cacheLine))
		to, from = to[n:], from[n:]
	}
	copy(to, from)
}

const (
	// timedFrom is how long a piece must be at least for parts of it to be timed: looks
	// at the clock are little beside it.
	timedFrom = 32 << 10
	// Parts are timed one by one: two of 8 KiB, and then each of 128 KiB. Of the first one
	// the processor's store buffer takes 4 KiB, so the second one tells more.
	firstPart, laterPart = 8 << 10, 128 << 10
	// learntFrom is how long a part must be at least that tells how fast memory is.
	learntFrom = 48 << 10

	// Storing past the caches pays if it is twice as fast: what the reader then has to
	// get from memory costs it about as much again. The first part must take four times as
	// long to tell.
	worth, forSure = 2, 4
)

// pastCaches is how many ticks laterPart takes that is stored past the caches. It follows
// what is measured.
var pastCaches atomic.Int64

// firstPastCaches is what pastCaches begins with, on the first call: the least of a few
// tries on memory of this process. By processors it is 10 to 30 GB/s, and one that stores
// slowly there should not begin with hopes: what has been stored past the caches is slow to
// store through them the next time, which would seem to justify it.
var firstPastCaches = sync.OnceValue(func() int64 {
	const tries = 4 // the first one for the pages
	memory := make([]byte, 2*laterPart+cacheLine)
	memory = memory[-int(uintptr(unsafe.Pointer(&memory[0])))&(cacheLine-1):]
	to, from := memory[:laterPart], memory[laterPart:2*laterPart]
	least := int64(math.MaxInt64)
	for range tries {
		throughCache(from, to)
		before := ticks()
		pastCache(to, from)
		least = min(least, ticks()-before)
	}
	least = max(1, least)
	pastCaches.Store(least)
	return least
})

// fillTimed copies a long piece through the cache for as long as that is fast, and the rest
// past it. to begins at a line.
func fillTimed(to, from []byte) {
	firstPastCaches()
	before := ticks()
	doubted := false
	for part, factor := firstPart, int64(forSure); len(to) > 0; factor = worth {
		part = min(part, len(to))
		throughCache(to[:part], from)
		to, from = to[part:], from[part:]
		now := ticks()
		taken := now - before
		before = now
		doubts := slow(taken, factor*int64(part))
		// A thread is seldom descheduled within the short parts, and within the long ones
		// often: one of those says little.
		if doubts && (part <= firstPart || doubted) {
			break
		}
		doubted = doubts
		if factor == worth {
			part = laterPart
		}
	}
	if len(to) == 0 {
		return
	}
	pastCache(to, from)
	if len(to) >= learntFrom {
		learn((ticks() - before) * laterPart / int64(len(to)))
	}
}

// slow tells whether a part took longer than so many bytes past the caches.
func slow(taken, bytes int64) bool {
	past := pastCaches.Load()
	if taken > past*bytes/laterPart {
		return true
	}
	if first := firstPastCaches(); past > first && taken > first*bytes/laterPart {
		// It would have been. In case memory was slow once, it is tried again by and by.
		pastCaches.Store(past - past/256)
	}
	return false
}

// learn takes a measured time for laterPart past the caches into account.
func learn(taken int64) {
	past := pastCaches.Load()
	// This thread may have been descheduled meanwhile, or have changed processors.
	taken = min(max(taken, 0), 4*past)
	pastCaches.Store(max(1, past+(taken-past)/8))
}
