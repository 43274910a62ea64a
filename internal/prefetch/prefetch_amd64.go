package prefetch

import "unsafe"

// toRead asks for so many bytes in whole lines from p on; for none if length is not positive.
//
//go:noescape
func toRead(p unsafe.Pointer, length int)

// toWrite is toRead for this processor alone.
//
//go:noescape
func toWrite(p unsafe.Pointer, length int)
