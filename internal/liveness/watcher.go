package liveness

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// DefaultTimeout is how long a peer's host may be silent. With the time between
// two looks it makes a partition known within 35 s.
const DefaultTimeout = 30 * time.Second

// keepAliveProbes are sent before an idle connection ends.
const keepAliveProbes = 5

// KeepAlive has the kernel notice that the peer's host of an idle connection is gone: half of
// the timeout passes in silence, the rest in probes. The kernel counts in seconds, so that it
// takes 6 s at least.
func KeepAlive(timeout time.Duration) net.KeepAliveConfig {
	return net.KeepAliveConfig{
		Enable: true, Idle: max(timeout/2, time.Second),
		Interval: max(timeout/(2*keepAliveProbes), time.Second), Count: keepAliveProbes,
	}
}

// looksPerTimeout is how often a watcher looks within a timeout. It notices a
// partition between 1 and 1 + 1/12 timeouts after it began.
const looksPerTimeout = 12

// leastAsked is how many looks must have seen this host transmit since it heard
// the peer. One lost packet proves nothing: a kernel whose back-off is not bounded waits
// for up to two minutes between two probes of a closed window.
const leastAsked = 2

// ErrSilent is what a [SilentError] is.
var ErrSilent = errors.New("the peer's host does not answer")

// A SilentError tells for how long nothing has come from the peer's host. Like
// the kernel's own verdict it is a timeout.
type SilentError struct {
	Peer net.Addr
	For  time.Duration
}

func (e *SilentError) Error() string {
	return fmt.Sprintf("%s has not answered for %s with data on its way to it: its host is gone or the path to it is broken",
		e.Peer, e.For.Round(100*time.Millisecond))
}

// Is tells that the error is [ErrSilent], and stands for ETIMEDOUT.
func (e *SilentError) Is(target error) bool {
	return target == ErrSilent || target == syscall.ETIMEDOUT
}

// Timeout is true.
func (e *SilentError) Timeout() bool { return true }

// A Watcher watches one connection. The methods of a nil Watcher do nothing.
type Watcher struct {
	peer    net.Addr
	raw     syscall.RawConn
	timeout time.Duration
	every   time.Duration
	dead    func(error)

	armed atomic.Bool // the timer runs

	mu      sync.Mutex // held while it looks
	stopped bool
	timer   *time.Timer
	verdict verdict
	lease   lease
}

// Watch returns a watcher of conn. It calls dead, once, when data is on its way
// and the peer's host has been silent for timeout; the error is a [*SilentError].
// dead is to close the connection, with SetLinger(0) so that the kernel
// does not keep the data. It must not wait for a caller of Stop.
//
// The result is nil where the kernel does not tell what is needed: on systems
// other than Linux, and for connections that are not TCP.
func Watch(conn net.Conn, timeout time.Duration, dead func(error)) *Watcher {
	return watch(conn, timeout, dead, boundBackoff)
}

// watch is Watch with what has the kernel ask a peer at least so often; without that a lease does.
func watch(conn net.Conn, timeout time.Duration, dead func(error), bound func(raw syscall.RawConn, limit time.Duration) bool) *Watcher {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	if _, ok := look(raw); !ok {
		return nil
	}
	w := &Watcher{
		peer: conn.RemoteAddr(), raw: raw, dead: dead,
		timeout: timeout, every: max(timeout/looksPerTimeout, time.Millisecond),
	}
	if !bound(raw, timeout/6) {
		w.lease.length = timeout / leasesPerTimeout
	}
	return w
}

// Sent tells that data has been written to the connection. Call it after each
// write: it costs an atomic load while the watcher is looking already.
func (w *Watcher) Sent() {
	if w == nil || w.armed.Load() || !w.armed.CompareAndSwap(false, true) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		w.verdict, w.lease.since = verdict{}, time.Now()
		w.arm()
	}
}

// Stop ends the watching. When it returns dead is not running and will not be
// called.
func (w *Watcher) Stop() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.timer != nil {
		w.timer.Stop()
	}
}

// arm has the timer fire once. The caller holds mu.
func (w *Watcher) arm() {
	if w.timer == nil {
		w.timer = time.AfterFunc(w.every, w.tick)
	} else {
		w.timer.Reset(w.every)
	}
}

func (w *Watcher) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	c, ok := look(w.raw)
	if ok && !c.inFlight {
		// A Sent that came after the look has seen armed and relies on this call,
		// so look again once Sent arms the timer by itself.
		w.renew(time.Now(), c)
		w.armed.Store(false)
		if c, ok = look(w.raw); ok && (!c.inFlight || !w.armed.CompareAndSwap(false, true)) {
			return
		}
		w.verdict = verdict{}
	}
	if !ok {
		return // closed
	}
	now := time.Now()
	w.renew(now, c)
	silent := w.verdict.judge(now, c)
	if silent >= w.timeout && w.verdict.asked >= leastAsked {
		w.stopped = true
		w.dead(&SilentError{Peer: w.peer, For: silent})
		return
	}
	w.arm()
}

// renew has the kernel ask often enough. The caller holds mu.
func (w *Watcher) renew(now time.Time, c counts) {
	if after, change := w.lease.renew(now, c); change {
		setUserTimeout(w.raw, after)
	}
}

// counts are what the kernel tells of a connection.
type counts struct {
	inFlight bool   // something is written that the peer has not acknowledged
	heard    uint32 // segments that came from the peer
	acked    uint64 // bytes that the peer has acknowledged
	asked    asked
}

// asked changes whenever the kernel transmits, or wants to and has no route.
type asked struct {
	segments                     uint32
	retransmits, probes, backoff uint8
}

// A verdict is what looks, one after the other, tell of the peer.
type verdict struct {
	since time.Time // the last look at which the peer had been heard
	last  counts
	asked int // looks after that one which saw a transmission
}

// judge takes in a look and returns for how long the peer has been silent.
func (v *verdict) judge(now time.Time, c counts) time.Duration {
	switch {
	case v.since.IsZero(), c.heard != v.last.heard:
		v.since, v.asked = now, 0
	case c.asked != v.last.asked:
		v.asked++
	}
	v.last = c
	return now.Sub(v.since)
}
