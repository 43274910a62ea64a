package liveness

import "time"

// leasesPerTimeout is how often a timeout has room for the greatest time between two
// probes: enough for [leastAsked] of them, whatever the last look was late by.
const leasesPerTimeout = 3

// A lease makes a kernel ask often that cannot be told to (before Linux 6.15).
//
// TCP_USER_TIMEOUT ends a connection whose peer's window has been closed for so long,
// whether or not the peer answers probes. But the kernel also puts off no probe beyond
// that moment. So a watcher that moves the moment ahead at each look has both: a probe in
// every lease at least, and no end. The kernel would end the connection only if nobody
// looked for a whole lease.
type lease struct {
	length time.Duration // 0: the kernel bounds its back-off by itself

	since  time.Time // a look before the window was closed, or the last that saw progress
	looked time.Time // the last look
	acked  uint64    // bytes, at that
	runs   bool      // the kernel has a moment
}

// renew takes in a look. If change is set, the kernel is to end the connection when its
// peer's window has been closed for userTimeout, or never if that is 0.
func (l *lease) renew(now time.Time, c counts) (userTimeout time.Duration, change bool) {
	if l.length == 0 {
		return 0, false
	}
	pressed := c.inFlight && c.asked.backoff > 0
	switch {
	case !pressed:
		l.since = now
	case c.acked != l.acked:
		l.since = l.looked // the window was open in between, and was closed later
	}
	l.looked, l.acked = now, c.acked
	if !pressed {
		change, l.runs = l.runs, false
		return 0, change
	}
	l.runs = true
	return now.Sub(l.since) + l.length, true
}
