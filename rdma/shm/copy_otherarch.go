//go:build linux && !amd64

package shm

import "unsafe"

func prefetch(unsafe.Pointer)           {}
func prefetchWrite(unsafe.Pointer, int) {}
func demote(unsafe.Pointer, int)        {}
func relax(int)                         {}

// move fills to with the beginning of from, which does not overlap it.
func move(to, from []byte) { copy(to, from) }
