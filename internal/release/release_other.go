//go:build !amd64 || race

package release

import "sync/atomic"

// Store sets the word after everything that was stored before.
func Store(word *atomic.Uint64, value uint64) { word.Store(value) }
