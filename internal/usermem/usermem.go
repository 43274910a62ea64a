// Package usermem judges memory that a program hands to the runtime: whether it is
// the Go runtime's, which must not be, and what this process may do with it.
//
// It is there for mistakes, not for attacks: whoever hands memory over can do with it
// what it likes.
package usermem

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

var (
	// ErrGo says that the memory belongs to the Go runtime.
	ErrGo = errors.New("it is memory of the Go runtime, which may free it or use it for something else while a peer or a device reaches it: map memory instead (verbena.NewMapping, mmap), or hand over the Buffer if these are bytes of one (verbena.ExposeConfig.Buffer)")
	// ErrTruncatable says that the memory is a mapping of a file that may become
	// shorter, which would end this process by SIGBUS.
	ErrTruncatable = errors.New("it is a mapping of a file that somebody may truncate: hand over the file itself (Endpoint.ExposeFile), or a sealed memfd (verbena.MapDescriptor)")
	// ErrUnmapped says that part of the memory is not mapped, or may not be read.
	ErrUnmapped = errors.New("it is not all mapped for reading")
)

// Facts are what is known of memory.
type Facts struct {
	Writable bool   // this process may write to all of it
	File     string // that could become shorter and is mapped there, or empty
}

// Look judges memory, which has at least one byte. It fails with [ErrGo] or
// [ErrUnmapped].
//
// What the Go runtime uses as its heap it finds everywhere. The stack of a goroutine
// it finds where the kernel names Go's mappings (Linux with CONFIG_ANON_VMA_NAME);
// no slice of one gets here without package unsafe. Memory that has been unmapped and
// mapped anew looks like any other.
func Look(memory []byte) (Facts, error) {
	known := pinnerTells()
	if known {
		for _, at := range []*byte{&memory[0], &memory[len(memory)-1]} {
			if onHeap(unsafe.Pointer(at)) {
				return Facts{}, ErrGo
			}
		}
	}
	f, err := look(uintptr(unsafe.Pointer(&memory[0])), uintptr(len(memory)), known)
	if err != nil {
		return f, fmt.Errorf("%d bytes at %p: %w", len(memory), &memory[0], err)
	}
	return f, nil
}

// onHeap tells whether p points into the Go heap. A Pinner does nothing with any other
// pointer, as its documentation says, and keeps a list of the others, which is the
// first word of what it points to.
func onHeap(p unsafe.Pointer) bool {
	var pinner runtime.Pinner
	pinner.Pin(p)
	list := *(**[]unsafe.Pointer)(unsafe.Pointer(&pinner))
	pinned := list != nil && len(*list) > 0
	pinner.Unpin()
	return pinned
}

var notOnHeap [64]byte

// pinnerTells tells whether this release of Go has Pinners as onHeap knows them.
var pinnerTells = sync.OnceValue(func() bool {
	if unsafe.Sizeof(runtime.Pinner{}) != unsafe.Sizeof(uintptr(0)) {
		return false
	}
	small, large := new([64]byte), make([]byte, 1<<20)
	found := onHeap(unsafe.Pointer(small)) && onHeap(unsafe.Pointer(&large[len(large)-1])) && !onHeap(unsafe.Pointer(&notOnHeap))
	runtime.KeepAlive(small)
	runtime.KeepAlive(large)
	return found
})
