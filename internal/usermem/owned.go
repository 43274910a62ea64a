package usermem

import (
	"errors"
	"slices"
	"sync"
	"unsafe"
)

// ErrOwned says that the memory is the runtime's.
var ErrOwned = errors.New("it is memory of the runtime, which goes to other endpoints when its Buffer is released: hand over the Buffer itself (verbena.ExposeConfig.Buffer)")

// owned are the runtime's own mappings, ordered, none of which overlap. They are
// reachable from here: memory of a device without a mapping of its own (a fake one's, from
// the Go heap) that never comes back must not become someone else's at this address.
var owned struct {
	sync.RWMutex
	all []ownedSpan
}

type ownedSpan struct {
	span
	memory *byte
}

type span struct{ from, to uintptr }

func spanOf(memory []byte) span {
	from := uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	return span{from, from + uintptr(len(memory))}
}

// place is where the first span is that ends behind address.
func place(address uintptr) int {
	i, _ := slices.BinarySearchFunc(owned.all, address, func(s ownedSpan, address uintptr) int {
		if s.to <= address {
			return -1
		}
		return 1
	})
	return i
}

// Own notes that memory, of at least one byte, is the runtime's until Disown.
func Own(memory []byte) {
	s := spanOf(memory)
	owned.Lock()
	defer owned.Unlock()
	owned.all = slices.Insert(owned.all, place(s.from), ownedSpan{s, unsafe.SliceData(memory)})
}

// Disown ends Own, before the memory is unmapped. For other memory it does nothing.
func Disown(memory []byte) {
	s := spanOf(memory)
	owned.Lock()
	defer owned.Unlock()
	if i := place(s.from); i < len(owned.all) && owned.all[i].span == s {
		owned.all = slices.Delete(owned.all, i, i+1)
	}
}

// Owned tells whether part of memory is the runtime's.
func Owned(memory []byte) bool {
	s := spanOf(memory)
	owned.RLock()
	defer owned.RUnlock()
	i := place(s.from)
	return i < len(owned.all) && owned.all[i].from < s.to
}
