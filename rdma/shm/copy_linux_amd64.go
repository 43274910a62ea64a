package shm

import "unsafe"

// demote hands so many lines, at least one, that have been written down to the
// cache that all processors share, for another one to read.
//
//go:noescape
func demote(p unsafe.Pointer, lines int)

// relax lets the processor rest, so many times some nanoseconds.
func relax(times int)
