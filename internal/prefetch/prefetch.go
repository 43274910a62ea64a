// Package prefetch asks for memory that will be read or written soon. A loop that finds each piece only by reading
// the one before waits for every piece that lies in another processor's cache; asked for ahead, they come together.
// The memory may be unmapped by then: the processor ignores what it can't fetch.
package prefetch

import "unsafe"

// Line is how many bytes come at once.
const Line = 64

// ToRead asks for the first bytes of b, as many as most.
func ToRead(b []byte, most int) { toRead(unsafe.Pointer(unsafe.SliceData(b)), min(len(b), most)) }

// LineToRead asks for a line from p on.
func LineToRead(p unsafe.Pointer) { toRead(p, Line) }

// ToWrite is ToRead of memory that will be written: other processors lose it.
func ToWrite(b []byte, most int) { toWrite(unsafe.Pointer(unsafe.SliceData(b)), min(len(b), most)) }
