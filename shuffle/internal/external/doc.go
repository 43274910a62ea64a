// Package external sorts the records of one partition in a bounded amount of memory: what
// does not fit is sorted in parts, which go to temporary files as runs, and merged.
//
// Records lie in memory outside Go's heap, each with an entry of 16 bytes that holds the
// first eight bytes of its key as a number. Most comparisons touch entries alone. Records
// are ordered as bytes, the shorter first where one begins with the other; equal records
// can't be told apart. The package knows nothing of shuffles and file systems: records come
// by Add and leave through an io.Writer.
package external
