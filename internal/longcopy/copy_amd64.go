package longcopy

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

//go:noescape
func moveString(to, from unsafe.Pointer, n uintptr)

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

// Fill copies the beginning of from to the whole of to. They do not overlap, and from is
// at least as long. Short pieces are copied as by copy.
func Fill(to, from []byte) {
	if len(to) < stringMove {
		copy(to, from)
		return
	}
	fillLong(to, from[:len(to)])
}

func fillLong(to, from []byte) {
	if fastStrings {
		moveStrings(to, from)
		return
	}
	// Who reads what was stored past the caches has to wait for memory.
	for len(to) > mostCopied {
		n := copy(to[:mostCopied], from)
		to, from = to[n:], from[n:]
	}
	copy(to, from)
}

func moveStrings(to, from []byte) {
	if head := -int(uintptr(unsafe.Pointer(&to[0]))) & 63; head > 0 {
		copy(to[:head], from)
		to, from = to[head:], from[head:]
	}
	for len(to) > 0 {
		n := min(len(to), mostAtOnce)
		moveString(unsafe.Pointer(&to[0]), unsafe.Pointer(&from[0]), uintptr(n))
		to, from = to[n:], from[n:]
	}
}
