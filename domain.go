package verbena

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// PoolStats are the bytes of a pool, which is memory for one purpose: of registered
// memory "receive", "long", "send" and "offer"; and "stream", messages that come
// over TCP, which are not registered.
type PoolStats struct {
	Group                   string // its name; empty for the runtime's own
	Name                    string
	Used, Registered, Limit int64
	// Squeezed tells that it is kept from growing because memory is short.
	Squeezed bool
	// Waiting is how many requests wait for memory.
	Waiting int
}

type domainConfig struct {
	group                     string
	receiveMemory, sendMemory int64
	workers, maxMessage       int
	ignorePressure            bool
	tuning                    Tuning
	onEvent                   func(rdma.Event)
	log                       *slog.Logger
}

// commitment is the memory in bytes that a peer which has delivered nothing yet
// gets for a long message on its announcement alone.
const commitment = 4 << 20

// stalled is how long a peer may leave a long message unfinished while others wait
// for memory. Tests make it shorter.
var stalled = 10 * time.Second

// A domain is what a group has on a device: a protection domain with pools of
// registered memory, shared receives and workers.
type domain struct {
	cfg        domainConfig
	log        *slog.Logger
	domain     rdma.Domain
	attributes rdma.Attributes // of the device

	// Pools by purpose, so that none starves another. Receives and eager messages
	// are as long as the messages that they hold; long messages are read into
	// longs. Peers read offers; nothing else lies there.
	receivePool, longPool, sendPool, offerPool *slab.Pool

	unwatch func() // ends following the memory's pressure

	growing atomic.Int64 // bytes of longPool that messages have which may need more

	// A message for which no receive is posted waits for one.
	waits bool

	mu      sync.Mutex
	shared  *receives // while there are endpoints; nil if the device has none
	srq     rdma.SharedReceiveQueue
	workers []*worker
	next    int
	shells  int
	entered sync.WaitGroup // of shells
	closing bool           // takes no more of them
	held    int            // messages of endpoints that are closed
	closed  bool           // the domain is, or will be with the last of those messages
}

func openDomain(dev rdma.Device, cfg domainConfig) (*domain, error) {
	n := &domain{cfg: cfg, log: cfg.log, attributes: dev.Attributes()}
	n.waits = n.attributes.Has(rdma.CapReceiverNotReady) || n.attributes.Has(rdma.CapReceiverWaits)
	var err error
	if n.domain, err = dev.OpenDomain(rdma.DomainConfig{OnEvent: cfg.onEvent}); err != nil {
		return nil, fmt.Errorf("open domain on %s: %w", n.attributes.Name, err)
	}
	receive, send := cfg.receiveMemory, cfg.sendMemory
	n.receivePool = slab.New(n.domain, rdma.AccessLocalWrite, receive/2)
	n.longPool = slab.New(n.domain, rdma.AccessLocalWrite, receive-receive/2)
	n.sendPool = slab.New(n.domain, 0, send/2)
	n.offerPool = slab.New(n.domain, rdma.AccessRemoteRead, send-send/2)
	n.unwatch = func() {}
	if !cfg.ignorePressure {
		n.unwatch = watchMemory(n.receivePool, n.longPool, n.sendPool, n.offerPool)
	}
	return n, nil
}

// receiveSize is the length of the group's receives.
func (n *domain) receiveSize() int { return wire.HeaderSize + n.cfg.tuning.Eager }

// fail ends all endpoints.
func (n *domain) fail(err error) {
	n.mu.Lock()
	workers := n.workers
	n.mu.Unlock()
	for _, w := range workers {
		w.fail(err)
	}
}

// claim deals a worker to an endpoint that can have so many requests
// outstanding.
func (n *domain) claim(entries int) (*worker, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.workers) >= n.cfg.workers {
		for range n.workers {
			w := n.workers[n.next%len(n.workers)]
			n.next++
			if w.room >= entries && !w.broken.Load() {
				w.room -= entries
				return w, nil
			}
		}
	}
	depth := workerQueue
	if m := n.attributes.MaxCompletions; m > 0 {
		depth = min(depth, m)
	}
	reserved := 0
	if n.shared != nil {
		reserved = min(n.shared.depth, depth/2)
	}
	w, err := newWorker(n.domain, depth, reserved, n.orphan)
	if err != nil {
		return nil, err
	}
	if w.room < entries {
		return nil, errors.Join(fmt.Errorf("an endpoint needs %d completions, the device's queues have %d: lower the window", entries, w.room), w.close())
	}
	w.room -= entries
	n.workers = append(n.workers[:len(n.workers):len(n.workers)], w)
	return w, nil
}

// unclaim takes an endpoint's worker back. Its queue pair has been closed. A worker
// that the load has brought goes with its last endpoint.
func (n *domain) unclaim(w *worker, entries int) {
	n.mu.Lock()
	w.room += entries
	surplus := len(n.workers) > n.cfg.workers && w.room == w.size && !w.broken.Load()
	if surplus {
		n.workers = without(n.workers, w)
	}
	n.mu.Unlock()
	if !surplus {
		return
	}
	w.drain() // completions of receives that queue pairs left behind
	if err := w.close(); err != nil {
		n.log.Error("worker not closed", "error", err)
		w.broken.Store(true)
		n.mu.Lock()
		n.workers = append(n.workers[:len(n.workers):len(n.workers)], w) // it ends with the domain
		n.mu.Unlock()
	}
}

func without(workers []*worker, w *worker) []*worker {
	rest := make([]*worker, 0, len(workers)-1)
	for _, each := range workers {
		if each != w {
			rest = append(rest, each)
		}
	}
	return rest
}

// orphan takes back the receive of a completion whose queue pair has gone.
func (n *domain) orphan(c *rdma.Completion) {
	if c.ID&idKind != idReceive {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.shared == nil {
		return
	}
	if b := n.shared.arrived(c.ID); b != nil {
		n.shared.putLate(b)
	}
}

// enter counts an endpoint, and opens the shared receives for the first.
func (n *domain) enter() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing {
		return ErrClosed
	}
	a := &n.attributes
	if n.shared == nil && a.Has(rdma.CapSharedReceive) {
		depth := sharedDepth
		if a.MaxQueueDepth > 0 {
			depth = min(depth, a.MaxQueueDepth)
		}
		if a.MaxCompletions > 0 {
			depth = min(depth, a.MaxCompletions/2)
		}
		q, err := n.domain.NewSharedReceiveQueue(rdma.SharedReceiveConfig{Depth: depth, MaxSGE: 1})
		if err != nil {
			return fmt.Errorf("shared receive queue on %s: %w", a.Name, err)
		}
		n.srq = q
		n.shared = newReceives(q, n.receivePool, n.log, n.receiveSize(), depth, !n.waits)
	}
	n.shells++
	n.entered.Add(1)
	return nil
}

// leave takes over the messages that applications hold of an endpoint that has
// closed. The last endpoint takes the shared receives with it.
func (n *domain) leave(held int) {
	defer n.entered.Done()
	n.mu.Lock()
	n.held += held
	n.shells--
	last := n.shells == 0 && n.shared != nil
	workers := n.workers
	n.mu.Unlock()
	if !last {
		return
	}
	for _, w := range workers {
		w.drain() // completions of receives that queue pairs left behind
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.shells > 0 || n.shared == nil {
		return
	}
	if err := n.shared.close(); err != nil {
		n.log.Error("receives not closed", "error", err)
		return
	}
	n.shared, n.srq = nil, nil
}

// cameBack counts a message that was taken over. The last one takes the domain
// with it if it has been closed.
func (n *domain) cameBack() {
	n.mu.Lock()
	n.held--
	last := n.closed && n.held == 0
	n.mu.Unlock()
	if !last {
		return
	}
	if err := n.closeDomain(); err != nil {
		n.log.Error("domain not closed", "error", err)
	}
}

// limits are those of an endpoint with a tuning.
func (n *domain) limits(t Tuning) link.Limits {
	return link.Limits{
		Receive: min(wire.HeaderSize+t.Eager, n.receiveSize()), Window: t.Window, MaxWindow: t.MaxWindow, Chunks: t.Chunks,
		// It must fit into the pool while it moves into more memory.
		MaxMessage: int(min(int64(n.cfg.maxMessage), max(n.longPool.Limit()/2, int64(t.Eager)))),
		Commit:     int(min(commitment, n.longPool.Limit()/64)),
	}
}

// longShare is how much memory the long messages of one endpoint get for being
// announced. One that Receive waits for may have more.
func (n *domain) longShare() int { return int(n.longPool.Limit() / 16) }

// growingLimit is a quarter of the pool, less an arena that may hold little.
func (n *domain) growingLimit() int64 {
	limit := n.longPool.Limit()
	return max(limit/4-2<<20, limit/8)
}

// tryGrowing gets memory for a message that may come to need more. Together those
// hold so little that a whole message always fits beside them: they never wait for
// each other.
func (n *domain) tryGrowing(size int) (slab.Slab, bool, error) {
	if n.growing.Add(int64(size)) > n.growingLimit() {
		n.growing.Add(-int64(size))
		return slab.Slab{}, false, nil
	}
	memory, ok, err := n.longPool.TryGet(size)
	if !ok || err != nil {
		n.growing.Add(-int64(size))
		return memory, ok, err
	}
	n.growing.Add(int64(memory.Size() - size))
	return memory, true, nil
}

// putLong takes memory of a long message back.
func (n *domain) putLong(memory slab.Slab, growing bool) {
	if growing {
		n.growing.Add(-int64(memory.Size()))
	}
	n.longPool.Put(memory)
}

// endStalled ends endpoints whose peers leave a message unfinished, as long as
// somebody waits for memory: until the function that it returns is called.
func (n *domain) endStalled() (stop func()) {
	limit := stalled
	var mu sync.Mutex
	var timer *time.Timer
	over := false
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(limit, func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		n.mu.Lock()
		workers := n.workers
		n.mu.Unlock()
		for _, w := range workers {
			for _, c := range w.all() {
				c.endIfStalled(limit)
			}
		}
		timer.Reset(limit)
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		timer.Stop()
	}
}

// pools lists the domain's, with the names that statistics have.
func (n *domain) pools() []PoolStats {
	var list []PoolStats
	for _, p := range []struct {
		name string
		pool *slab.Pool
	}{{"receive", n.receivePool}, {"long", n.longPool}, {"send", n.sendPool}, {"offer", n.offerPool}} {
		list = append(list, PoolStats{
			Group: n.cfg.group, Name: p.name, Used: p.pool.Used(), Registered: p.pool.Registered(), Limit: p.pool.Limit(),
			Squeezed: p.pool.Squeezed(), Waiting: p.pool.Waiting(),
		})
	}
	return list
}

// close frees all but what held messages need; they take the rest with them.
// The endpoints have been closed, except for those that are being set up: it waits
// until their dials and handshakes, which find the group closed, have ended them.
func (n *domain) close() error {
	n.mu.Lock()
	n.closing = true
	n.mu.Unlock()
	n.entered.Wait()
	var errs []error
	// Nobody claims workers any more.
	for _, w := range n.workers {
		errs = append(errs, w.close())
	}
	n.unwatch()
	errs = append(errs, n.receivePool.Close(), n.longPool.Close(), n.sendPool.Close(), n.offerPool.Close())
	n.mu.Lock()
	n.closed = true
	held := n.held
	n.mu.Unlock()
	if held == 0 {
		return errors.Join(append(errs, n.closeDomain())...)
	}
	n.log.Warn("closed with messages held; their memory stays until they are released", "group", n.cfg.group, "messages", held)
	return errors.Join(errs...)
}

// closeDomain unmaps all memory and ends what still runs.
func (n *domain) closeDomain() error {
	err := n.domain.Close()
	for _, w := range n.workers {
		<-w.done
	}
	return err
}
