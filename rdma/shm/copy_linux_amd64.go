package shm

import "unsafe"

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
