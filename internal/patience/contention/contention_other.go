//go:build !linux

package contention

import "time"

// Waited is for how long, since the machine came up, at least one thread was ready to run and
// had no processor. It reports false if that is not known.
func Waited() (time.Duration, bool) { return 0, false }
