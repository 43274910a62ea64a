//go:build !race

// Package race tells whether the race detector is in the binary: it allocates,
// and keeps memory, on its own account, and makes everything slow.
package race

// Enabled is false.
const Enabled = false
