package namenode

import (
	"sync/atomic"
	"time"
)

// A section is a kind of work that holds the lock of the namespace or of the block map.
type section int

const (
	holdEntries section = iota // entries of the log
	holdReap                   // a part of a deleted tree
	holdFreeze                 // a version for a snapshot
	holdReport                 // a part of a report
	holdMonitor                // a turn of the monitor
	sections
)

var sectionNames = [sections]string{"entries", "parts of deleted trees", "versions for snapshots", "reports", "the monitor"}

// holds is the longest time for which each section has had its lock.
type holds [sections]atomic.Int64

// since notes a hold that began at start and ends now.
func (h *holds) since(s section, start time.Time) {
	took := int64(time.Since(start))
	for {
		longest := h[s].Load()
		if took <= longest || h[s].CompareAndSwap(longest, took) {
			return
		}
	}
}
