// Package history compares what happens on a connection with what must happen.
//
// A link is one connection and what its two ends do on it. A seed determines that:
// rounds of up to 192 random requests in each direction, both directions at once.
// Each end plans both directions and carries them out on a sequential model of the
// memory. So it knows, without a word from the other end, which completions and
// messages must come, in which order, and what every byte must be wherever the verbs
// model guarantees it. The last round ends the link in one of the ways in which
// connections end: in order, abruptly, by a request that the peer must refuse, or by
// a message longer than its receive.
//
// A [Side] runs one end of any number of links at once, over any provider. The other
// end may be in the same process, in another, or on another host. The ends tell each
// other the classes and capabilities of their devices, and check what those promise.
// The package imports no tests, so that programs which run for hours can use it.
package history
