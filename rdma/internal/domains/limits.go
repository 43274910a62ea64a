package domains

import (
	"fmt"

	"github.com/verbena-data/verbena/rdma"
)

// defaultReads is how many Reads and atomics a queue pair may have outstanding that
// does not say, if the device takes so many.
const defaultReads = 16

// A limit is a number of a configuration and what it may be.
type limit struct {
	name              string
	value, from, upTo int
}

func check(limits ...limit) error {
	for _, l := range limits {
		if l.value < l.from || l.value > l.upTo {
			return fmt.Errorf("%w: %s is %d, must be %d to %d", rdma.ErrInvalid, l.name, l.value, l.from, l.upTo)
		}
	}
	return nil
}

// orDefault is n, or what is meant by an n of 0.
func orDefault(n, byDefault int) int {
	if n == 0 {
		return byDefault
	}
	return n
}

// QueuePair fills in the defaults of a configuration and checks it against the
// device's limits. The error wraps [rdma.ErrInvalid].
func QueuePair(c rdma.QueuePairConfig, a *rdma.Attributes) (rdma.QueuePairConfig, error) {
	c.SendDepth, c.RecvDepth, c.MaxSGE = orDefault(c.SendDepth, 1), orDefault(c.RecvDepth, 1), orDefault(c.MaxSGE, 1)
	c.MaxReads = orDefault(c.MaxReads, min(defaultReads, a.MaxReads))
	return c, check(
		limit{"SendDepth", c.SendDepth, 1, a.MaxQueueDepth},
		limit{"RecvDepth", c.RecvDepth, 1, a.MaxQueueDepth},
		limit{"MaxSGE", c.MaxSGE, 1, max(a.MaxSendSGE, a.MaxReadSGE, a.MaxRecvSGE)},
		limit{"MaxInline", c.MaxInline, 0, a.MaxInline},
		limit{"MaxReads", c.MaxReads, 1, a.MaxReads},
	)
}

// SharedReceive is QueuePair for a shared receive queue, of at most depth receives of
// at most sges entries. The error wraps [rdma.ErrUnsupported] if the device has none.
func SharedReceive(c rdma.SharedReceiveConfig, a *rdma.Attributes, depth, sges int) (rdma.SharedReceiveConfig, error) {
	if !a.Has(rdma.CapSharedReceive) {
		return c, rdma.ErrUnsupported
	}
	c.MaxSGE = orDefault(c.MaxSGE, 1)
	return c, check(
		limit{"Depth", c.Depth, 1, depth},
		limit{"MaxSGE", c.MaxSGE, 1, sges},
		limit{"LimitEvent", c.LimitEvent, 0, c.Depth},
	)
}

// CompletionQueue checks the depth of a completion queue.
func CompletionQueue(depth int, a *rdma.Attributes) error {
	return check(limit{"the depth", depth, 1, a.MaxCompletions})
}

// accesses are the rights that there are, with the capability that each needs.
var accesses = [...]struct {
	right rdma.Access
	needs rdma.Capabilities
	name  string
}{
	{right: rdma.AccessLocalWrite}, {right: rdma.AccessRemoteRead}, {right: rdma.AccessRemoteWrite},
	{rdma.AccessRemoteAtomic, rdma.CapAtomics, "atomics"},
	{rdma.AccessRemoteInvalidate, rdma.CapSendInvalidate, "Send with invalidate"},
}

// Region checks the size and the rights of memory to be registered.
func Region(size int, access rdma.Access, a *rdma.Attributes) error {
	if size < 1 || int64(size) > a.MaxRegion {
		return fmt.Errorf("%w: %d bytes, must be 1 to %d", rdma.ErrInvalid, size, a.MaxRegion)
	}
	for _, each := range accesses {
		if access&each.right != 0 && !a.Has(each.needs) {
			return fmt.Errorf("%w: %s", rdma.ErrUnsupported, each.name)
		}
		access &^= each.right
	}
	if access != 0 {
		return fmt.Errorf("%w: there is no right %#x", rdma.ErrInvalid, uint8(access))
	}
	return nil
}
