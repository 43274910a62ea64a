package release

import "sync/atomic"

// A Flag is a truth that one goroutine at a time sets, and any may look at. Whoever
// sees it set sees what was stored before.
type Flag struct{ word atomic.Uint64 }

// Load tells whether the flag is set.
func (f *Flag) Load() bool { return f.word.Load() != 0 }

// Set sets the flag.
func (f *Flag) Set() { Store(&f.word, 1) }

// Clear takes it back.
func (f *Flag) Clear() { Store(&f.word, 0) }
