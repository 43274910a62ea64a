//go:build !amd64

package prefetch

import "unsafe"

func toRead(unsafe.Pointer, int) {}

func toWrite(unsafe.Pointer, int) {}
