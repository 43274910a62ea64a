package slab

import (
	"sync/atomic"
	"time"
)

const (
	// overdue is after how many ticks the request that has waited longest may take the
	// pool beyond what it is allowed, if there is room.
	overdue = 2
	// longOverdue is after how many ticks it may do so without room: otherwise those who
	// hold memory and wait for more would wait for ever.
	longOverdue = 10
)

// A squeeze is what the pool may have while memory is short.
type squeeze struct {
	allowed int64 // bytes registered; the limit while nothing is short
	on      atomic.Bool
	waited  int         // ticks that the head has waited
	untold  int64       // bytes of plans of which taking has not been told
	due     bool        // the head may take the pool beyond what it is allowed
	counted time.Time   // when the last tick was counted, or the head came
	taking  func(int64) // told before a region is registered; nil for nobody
	room    func(int64) bool
}

// Squeeze keeps the pool from growing beyond allowed bytes until Relax. It gives
// back at once, on a goroutine of its own, what is free, and from then on what comes
// free: after a second, or at once while more is registered than allowed. Requests
// that do not fit wait, but never for ever: the one that has waited longest gets its
// memory after two seconds if there is room (see OnOverdue), and after ten if there is
// none, up to the limit. GetNow, which is for setting something up, is not held back.
func (p *Pool) Squeeze(allowed int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.squeeze.allowed = min(max(allowed, 0), p.limit)
	p.squeeze.on.Store(true)
	if p.closed {
		return
	}
	if p.trim.armed && p.trim.timer.Stop() {
		p.trim.armed = false
	}
	p.armAfter(0)
	p.serve() // it may be more than it was
}

// Relax ends a Squeeze.
func (p *Pool) Relax() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.squeeze.allowed = p.limit
	p.squeeze.on.Store(false)
	p.serve()
}

// InUse is how many bytes the regions have of which something is handed out, or is
// about to be. Those that OnTake's function has not been told of do not count: they may
// yet be given up.
func (p *Pool) InUse() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.registered.Load() - p.squeeze.untold - p.idle
}

// Waiting is how many requests wait.
func (p *Pool) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting()
}

// Squeezed tells that the pool is kept from growing. It takes no lock.
func (p *Pool) Squeezed() bool { return p.squeeze.on.Load() }

// OnTake has taking called before a region of so many bytes is registered, without
// a lock of the pool's: it may call Squeeze. It is set before the pool is used.
func (p *Pool) OnTake(taking func(bytes int64)) { p.squeeze.taking = taking }

// OnOverdue has room asked, with a lock of the pool's, whether so many bytes may be
// registered for a request that has waited for long. Without it there is always room.
// It is set before the pool is used.
func (p *Pool) OnOverdue(room func(bytes int64) bool) { p.squeeze.room = room }

// foretold tells of a plan, and gives it up if it does not fit any more. It is
// called without p.mu.
func (p *Pool) foretold(pl *plan) bool {
	if p.squeeze.taking != nil {
		p.squeeze.taking(int64(pl.size))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.squeeze.untold -= int64(pl.size)
	if p.squeeze.taking == nil || pl.forced || p.registered.Load()-p.squeeze.untold <= p.squeeze.allowed {
		return false
	}
	p.giveUp(pl)
	return true
}

// The methods below are called with p.mu held.

// ceiling is how much may be registered for a request.
func (p *Pool) ceiling(r *request, head bool) int64 {
	if r.now || head && p.squeeze.due {
		return p.limit
	}
	return p.squeeze.allowed
}

// passTheHead counts the ticks of a head that waits while memory is short. The trimmer
// also looks between them.
func (p *Pool) passTheHead() {
	now := time.Now()
	q := &p.squeeze
	if !p.Squeezed() || p.line.head == nil || now.Sub(q.counted) < tick {
		return
	}
	q.counted = now
	q.waited++
	room := q.room == nil || q.room(int64(p.line.head.bytes))
	if q.due = q.waited >= overdue && room || q.waited >= longOverdue; q.due {
		p.serve()
	}
}
