// Package stream carries Hadoop RPC's messages over a byte stream, as all of
// Hadoop's clients and servers do: frames behind a big-endian 32-bit length. A
// [Reader] hands them over where they lie in its buffer, a [Writer] gathers
// them into few system calls. Both use pooled memory.
//
// It knows nothing of what a frame means. It imports package carrier, whose
// Sender a Writer is, and internal/liveness.
package stream
