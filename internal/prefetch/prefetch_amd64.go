package prefetch

import "unsafe"

// lines asks for so many lines, at least one.
//
//go:noescape
func lines(p unsafe.Pointer, n int)

// linesToWrite asks for so many lines, at least one, for this processor alone.
//
//go:noescape
func linesToWrite(p unsafe.Pointer, n int)
