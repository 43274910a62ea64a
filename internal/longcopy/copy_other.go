//go:build !amd64

package longcopy

// Fill copies the beginning of from to the whole of to. They do not overlap, and from is
// at least as long.
func Fill(to, from []byte) { copy(to, from[:len(to)]) }
