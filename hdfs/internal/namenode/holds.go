package namenode

import (
	"runtime"
	"sync"
	"time"
)

// A section is a kind of work that holds the lock of the namespace or of the block map.
type section int

const (
	holdEntries   section = iota // entries of the log
	holdReap                     // a part of a deleted tree
	holdFreeze                   // a version for a snapshot
	holdReport                   // a part of a report
	holdMonitor                  // a turn of the monitor
	holdHeartbeat                // a heartbeat
	sections
)

var sectionNames = [sections]string{"entries", "parts of deleted trees", "versions for snapshots", "reports", "the monitor", "heartbeats"}

// threadTime, if set, is the processor time of the thread: with it a hold that worked is told from
// one whose thread had no processor.
var threadTime func() time.Duration

// holds tells the longest time for which each section has had its lock.
type holds struct {
	mu      sync.Mutex
	longest [sections]hold
}

// A hold is a time for which a lock was held.
type hold struct {
	begun time.Time
	wall  time.Duration
	// cpu is the processor time of that hold, most that of the hold which had most of it;
	// 0 without threadTime.
	cpu, most time.Duration
}

// begin notes that a lock has been taken.
func (h *holds) begin() hold {
	var b hold
	if threadTime != nil {
		runtime.LockOSThread()
		b.cpu = threadTime()
	}
	b.begun = time.Now()
	return b
}

// end notes that the lock is about to be given back.
func (h *holds) end(s section, b hold) {
	b.wall = time.Since(b.begun)
	if threadTime != nil {
		b.cpu = threadTime() - b.cpu
		runtime.UnlockOSThread()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &h.longest[s]
	b.most = max(l.most, b.cpu)
	if l.most = b.most; b.wall > l.wall {
		*l = b
	}
}

// reset returns a section's longest hold and begins anew.
func (h *holds) reset(s section) hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.longest[s]
	h.longest[s] = hold{}
	return was
}
