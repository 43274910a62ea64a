//go:build linux && (amd64 || arm64) && !noibverbs

package verbs

import (
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An Arena is memory outside of the Go heap for what the data path hands to the
// driver: work requests, their entries, completions. What is taken from it lives
// until Close. It is not registered with any device and need not be. All methods
// may be called concurrently.
type Arena struct {
	mu     sync.Mutex
	chunks [][]byte
	free   []byte // the rest of the newest chunk
	closed bool
}

const arenaChunk = 64 << 10

// NewArena makes an empty arena; it maps memory as it is needed.
func NewArena() *Arena { return &Arena{} }

// alloc takes size zeroed bytes, aligned to a cache line.
func (a *Arena) alloc(size int) (unsafe.Pointer, error) {
	const line = 64
	if size <= 0 {
		size = line
	}
	size = (size + line - 1) &^ (line - 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, fmt.Errorf("verbs: allocating from an arena: %w", os.ErrClosed)
	}
	if size > len(a.free) {
		chunk := max(arenaChunk, (size+4095)&^4095)
		m, err := unix.Mmap(-1, 0, chunk, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return nil, fmt.Errorf("verbs: mapping %d bytes for work requests: %w", chunk, err)
		}
		a.chunks = append(a.chunks, m)
		a.free = m
	}
	p := unsafe.Pointer(&a.free[0])
	a.free = a.free[size:]
	return p, nil
}

// Bytes takes n zeroed bytes, aligned to a cache line.
func (a *Arena) Bytes(n int) ([]byte, error) {
	p, err := a.alloc(n)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), n), nil
}

// Size is the number of bytes mapped.
func (a *Arena) Size() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	size := 0
	for _, c := range a.chunks {
		size += len(c)
	}
	return size
}

// Close unmaps everything: nothing taken from the arena may be used any more.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed, a.free = true, nil
	var first error
	for _, c := range a.chunks {
		if err := unix.Munmap(c); err != nil && first == nil {
			first = fmt.Errorf("verbs: unmapping an arena: %w", err)
		}
	}
	a.chunks = nil
	return first
}
