// Package longcopy copies long pieces of memory for another processor to read.
//
// The lines of memory that messages pass through are in the cache of the processor that
// has read the last message. Who stores to them has to take each away from it. Go's copy
// fetches the lines besides, and of a MiB or more it stores past the caches at once.
//
// [Fill] lets the processor's string instruction store, which on some processors fetches
// nothing, and looks at the clock: where taking the lines away costs more than memory
// does, the rest of the piece is stored past the caches.
package longcopy
