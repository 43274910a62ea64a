package slab

import "sync/atomic"

// A shelf holds free slabs of a class where they can be had and put back
// without the pool's lock. Each cell is a stack of two slabs in one word, and
// the word is the whole state: who swaps it for another has seen all of it.
type shelf struct {
	cells [8]atomic.Uint64
}

// A cell has the slab on top in its low bits and the other one above it. A slab
// is its arena's number and its index, and never 0. A cell of 0 is shut and
// takes none.
const (
	cellOpen  = 1 << 63
	cellShift = 31
	cellMask  = 1<<cellShift - 1

	indexBits = 13
	indexMask = 1<<indexBits - 1
	maxNumber = 1<<(cellShift-indexBits) - 1
)

// shelved is how many classes have shelves: those up to 32 KiB and a header.
const shelved = 15

// take returns a slab, or 0.
func (f *shelf) take() uint32 {
	for i := range f.cells {
		w := f.cells[i].Load()
		if w&cellMask != 0 && f.cells[i].CompareAndSwap(w, w&cellOpen|w&^cellOpen>>cellShift) {
			return uint32(w & cellMask)
		}
	}
	return 0
}

// put takes a slab, or tells that there is no room or the shelf is shut.
func (f *shelf) put(s uint32) bool {
	for i := range f.cells {
		w := f.cells[i].Load()
		if w == 0 {
			return false
		}
		if w>>cellShift&cellMask == 0 && f.cells[i].CompareAndSwap(w, cellOpen|w&cellMask<<cellShift|uint64(s)) {
			return true
		}
	}
	return false
}

// count is how many slabs are on the shelf.
func (f *shelf) count() int {
	n := 0
	for i := range f.cells {
		w := f.cells[i].Load()
		if w&cellMask != 0 {
			n++
		}
		if w>>cellShift&cellMask != 0 {
			n++
		}
	}
	return n
}

// open makes a shelf that is shut take slabs.
func (f *shelf) open() {
	for i := range f.cells {
		f.cells[i].Store(cellOpen)
	}
}

// shut appends the slabs of the shelf to into. From then on it takes none.
func (f *shelf) shut(into []uint32) []uint32 {
	for i := range f.cells {
		for w := f.cells[i].Swap(0) &^ cellOpen; w != 0; w >>= cellShift {
			into = append(into, uint32(w&cellMask))
		}
	}
	return into
}
