//go:build linux && !amd64

package shm

import "unsafe"

func prefetch(unsafe.Pointer)           {}
func prefetchWrite(unsafe.Pointer, int) {}
func demote(unsafe.Pointer, int)        {}
func relax(int)                         {}
