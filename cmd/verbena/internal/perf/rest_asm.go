//go:build amd64 || arm64

package perf

// rest lets the processor rest between two looks at a word that another processor
// will write. Looks without a rest take the cache line away from the writer: a Write
// of 8 bytes between two processes then takes 72 ns instead of 57.
func rest()
