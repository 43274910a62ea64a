//go:build !linux

package shuffle

import "time"

// nap sleeps.
func nap(d time.Duration) { time.Sleep(d) }
