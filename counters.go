package verbena

import (
	"sync/atomic"

	"github.com/verbena-data/verbena/rdma"
)

// Traffic is a number of messages and their bytes.
type Traffic struct{ Messages, Bytes uint64 }

func (t *Traffic) add(bytes int) {
	t.Messages++
	t.Bytes += uint64(bytes)
}

func (t *Traffic) merge(o Traffic) {
	t.Messages += o.Messages
	t.Bytes += o.Bytes
}

// counters are what a device counts. The traffic is that of endpoints which are
// gone; those that are there count their own.
type counters struct {
	opened, failed atomic.Uint64
	events         [16]atomic.Uint64

	past struct { // guarded by the runtime's mu
		sent, received Traffic
	}
}

func (c *counters) event(kind rdma.EventKind) {
	if int(kind) < len(c.events) {
		c.events[kind].Add(1)
	}
}
