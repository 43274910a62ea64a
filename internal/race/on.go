//go:build race

package race

// Enabled is true.
const Enabled = true
