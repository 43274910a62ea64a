package shm

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

//go:noescape
func moveString(to, from unsafe.Pointer, n uintptr)

// prefetch asks for a line that will be read soon.
//
//go:noescape
func prefetch(p unsafe.Pointer)

// prefetchWrite asks for so many lines, at least one, that will be written soon.
//
//go:noescape
func prefetchWrite(p unsafe.Pointer, lines int)

// demote hands so many lines, at least one, that have been written down to the
// cache that all processors share, for another one to read.
//
//go:noescape
func demote(p unsafe.Pointer, lines int)

// relax lets the processor rest, so many times some nanoseconds.
func relax(times int)

const (
	// stringMove is from where on a string instruction beats memmove, if its
	// destination is aligned to a line: the processor then need not fetch the
	// lines that it overwrites.
	stringMove = 2048
	// Nothing can preempt an instruction for the collector, so it moves no more
	// than this at once.
	mostAtOnce = 1 << 20
	// mostCopied is less than what Go's copy stores past the caches.
	mostCopied = 512 << 10
)

var fastStrings = cpu.X86.HasERMS

// move fills to with the beginning of from, which does not overlap it.
func move(to, from []byte) {
	switch {
	case len(to) < stringMove:
		copy(to, from)
	case fastStrings:
		moveLarge(to, from)
	default:
		// Go's copy of a MiB or more stores past the caches, and who reads it next has
		// to wait for memory.
		for len(to) > mostCopied {
			n := copy(to[:mostCopied], from)
			to, from = to[n:], from[n:]
		}
		copy(to, from)
	}
}

func moveLarge(to, from []byte) {
	if head := -int(uintptr(unsafe.Pointer(&to[0]))) & 63; head > 0 {
		copy(to[:head], from)
		to, from = to[head:], from[head:]
	}
	for len(to) > 0 {
		n := min(len(to), mostAtOnce)
		moveString(unsafe.Pointer(&to[0]), unsafe.Pointer(&from[:n][0]), uintptr(n))
		to, from = to[n:], from[n:]
	}
}
