//go:build !amd64

package prefetch

import "unsafe"

func lines(unsafe.Pointer, int) {}

func linesToWrite(unsafe.Pointer, int) {}
