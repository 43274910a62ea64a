//go:build !linux

package verbena

import "time"

// rest lets others run for a moment, and Go look at the network.
func rest() { time.Sleep(time.Nanosecond) }
