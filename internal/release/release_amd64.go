//go:build amd64 && !race

package release

import (
	"sync/atomic"
	"unsafe"
)

// Store sets the word after everything that was stored before.
func Store(word *atomic.Uint64, value uint64) {
	*(*uint64)(unsafe.Pointer(word)) = value
}
