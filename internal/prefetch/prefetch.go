// Package prefetch asks for memory that will be read or written soon. A loop that finds each piece only by reading
// the one before waits for every piece that lies in another processor's cache; asked for ahead, they come together.
package prefetch

import "unsafe"

// Line is how many bytes come at once.
const Line = 64

// Lines asks for the first bytes of b, as many as most. The processor may ignore it.
func Lines(b []byte, most int) {
	if n := min(len(b), most); n > 0 {
		lines(unsafe.Pointer(&b[0]), (n+Line-1)/Line)
	}
}

// ToWrite is Lines of memory that will be written: other processors lose it.
func ToWrite(b []byte, most int) {
	if n := min(len(b), most); n > 0 {
		linesToWrite(unsafe.Pointer(&b[0]), (n+Line-1)/Line)
	}
}
