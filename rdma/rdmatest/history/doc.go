// Package history compares what happens on a connection with what must happen.
//
// The two ends of a link carry out the same script, which a seed determines:
// rounds of random requests in both directions at once. Each end plans both
// directions on a sequential model of the memory and knows so, without a word
// from the other, which completions and messages must come, in which order, and
// what every byte must be at the points where the verbs model guarantees it. The
// last round of a link ends it in one of the ways in which connections end: in
// order, abruptly, or by a request that the peer must refuse.
//
// A [Side] runs one end of any number of links at once, over any provider; the
// other end may be in the same process, in another, or on another host. What is
// checked follows the class and the capabilities of the two devices, which the
// ends tell each other. The package knows nothing of tests, so that programs
// which run for hours can use it as well.
package history
