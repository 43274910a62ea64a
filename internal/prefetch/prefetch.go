// Package prefetch asks for memory that will be read soon. A loop that finds each piece only by reading
// the one before waits for every piece that lies in another processor's cache; asked for ahead, they come together.
package prefetch

import "unsafe"

// line is how many bytes come at once.
const line = 64

// Lines asks for the first bytes of b, as many as most. The processor may ignore it.
func Lines(b []byte, most int) {
	if n := min(len(b), most); n > 0 {
		lines(unsafe.Pointer(&b[0]), (n+line-1)/line)
	}
}
