//go:build !linux

package nap

import "time"

// For sleeps as long as Go's timers do.
func For(d time.Duration) { time.Sleep(d) }
