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
	"github.com/verbena-data/verbena/internal/onesided"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// PoolStats are the bytes of a pool, which is memory for one purpose: of registered
// memory "receive", "long", "send", "offer", "exposed", what peers may reach, and "user",
// memory of applications; and of memory that is not, over TCP, "stream", messages that
// arrive, "lent", buffers of applications, "exposed" and "user".
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
	relay                     bool // trusted peers get keys to what others sent
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

	exposed *lending       // memory that applications have exposed
	user    *registrations // memory of applications

	shares *shares // of peers

	// A message for which no receive is posted waits for one.
	waits bool

	mu      sync.Mutex
	queues  []*receives // shared, while there are endpoints that share; empty if the device has none
	number  uint32      // of the last of them
	workers []*worker
	next    int
	shells  int
	owners  int            // of them, with receives of their own
	entered sync.WaitGroup // of shells
	closing bool           // takes no more of them
	held    int            // messages of endpoints that are closed
	closed  bool           // the domain is, or will be with the last of those messages
}

func openDomain(dev rdma.Device, cfg domainConfig) (*domain, error) {
	n := &domain{cfg: cfg, log: cfg.log, attributes: dev.Attributes()}
	n.waits = n.attributes.Has(rdma.CapReceiverNotReady) || n.attributes.Has(rdma.CapReceiverWaits)
	var err error
	if n.domain, err = dev.OpenDomain(rdma.DomainConfig{OnEvent: cfg.onEvent, Unpolled: nobodyPolls}); err != nil {
		return nil, fmt.Errorf("open domain on %s: %w", n.attributes.Name, err)
	}
	receive, send := cfg.receiveMemory, cfg.sendMemory
	n.receivePool = slab.New(n.domain, rdma.AccessLocalWrite, receive/2)
	long := rdma.AccessLocalWrite
	if cfg.relay {
		long |= rdma.AccessRemoteRead
	}
	// What a peer is offered does not change before it is taken.
	n.longPool = slab.New(n.domain, long, receive-receive/2).Steady()
	// One-sided operations read into what is sent, and into buffers.
	n.sendPool = slab.New(n.domain, rdma.AccessLocalWrite, send/2)
	n.offerPool = slab.New(n.domain, rdma.AccessRemoteRead|rdma.AccessLocalWrite, send-send/2).Steady()
	n.exposed, n.user = newLending(send, "bytes"), newRegistrations(n.domain, send)
	n.shares = newShares(n.longPool, n.receivePool.Holds(n.receiveSize()))
	n.unwatch = func() {}
	if !cfg.ignorePressure {
		n.unwatch = watchMemory(n.exposed, n.user, n.receivePool, n.longPool, n.sendPool, n.offerPool)
	}
	return n, nil
}

// has tells whether a pool is one of the domain's.
func (n *domain) has(p *slab.Pool) bool {
	return p != nil && (p == n.receivePool || p == n.longPool || p == n.sendPool || p == n.offerPool)
}

// reaches tells whether the device can use memory where it lies.
func (n *domain) reaches(at *location) bool {
	return n.has(at.pool) || at.user != nil && at.user.of == n.user
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

// polling counts the endpoints of the process that poll. While one does, Go asks its network
// poller every 10 ms only, for all groups of the process.
var polling atomic.Int64

func nobodyPolls() bool { return polling.Load() == 0 }

// enter counts an endpoint, and whether it polls.
func (n *domain) enter(polls bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing {
		return ErrClosed
	}
	n.shells++
	n.entered.Add(1)
	if polls {
		polling.Add(1)
	}
	return nil
}

// hold counts memory that an application has, as the messages are that it holds of
// endpoints that are closed: cameBack gives it back.
func (n *domain) hold() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return ErrClosed
	}
	n.held++
	return nil
}

// leave takes over the messages that applications hold of an endpoint that has
// closed.
func (n *domain) leave(held int, own, polls bool) {
	if polls {
		polling.Add(-1)
	}
	n.mu.Lock()
	n.held += held
	n.shells--
	if own {
		n.owners--
	}
	n.mu.Unlock()
	n.entered.Done()
}

// cameBack counts a message that was taken over. The last one takes the domain
// with it if it has been closed: on a goroutine of its own, since the caller may be
// a worker's, and closeDomain waits for workers.
func (n *domain) cameBack() {
	n.mu.Lock()
	n.held--
	last := n.closed && n.held == 0
	n.mu.Unlock()
	if !last {
		return
	}
	go func() {
		if err := n.closeDomain(); err != nil {
			n.log.Error("domain not closed", "error", err)
		}
	}()
}

// operationsAtOnce is how many one-sided operations of an endpoint are under way.
const operationsAtOnce = onesided.Most

// limits are those of an endpoint with a tuning.
func (n *domain) limits(t Tuning, strict bool) link.Limits {
	l := link.Limits{
		Receive: min(wire.HeaderSize+t.Eager, n.receiveSize()), Window: t.Window, MaxWindow: t.MaxWindow, Chunks: t.Chunks,
		// It must fit into the pool while it moves into more memory.
		MaxMessage: int(min(int64(n.cfg.maxMessage), max(n.longPool.Limit()/2, int64(t.Eager)))),
		Commit:     int(min(commitment, n.longPool.Limit()/64)),
		Operations: operationsAtOnce,
	}
	l.Answers = l.AllAnswers()
	if strict {
		l.Answers = 1
	}
	return l
}

// queuePairConfig is what a queue pair of an endpoint needs, but for queues that it
// shares. own says that its receives are its own.
func (n *domain) queuePairConfig(limits *link.Limits, q *sendQueue, own bool) (rdma.QueuePairConfig, error) {
	a := &n.attributes
	config := rdma.QueuePairConfig{
		SendDepth: limits.SendDepth(), MaxSGE: 1, MaxInline: q.inline, MaxReads: limits.Chunks,
		ReceiverNotReadyRetry: -1, // the peer promised receives
	}
	if q.gathers {
		config.MaxSGE = 2
	}
	if a.MaxReads > 0 {
		config.MaxReads = min(config.MaxReads, a.MaxReads)
	}
	if own {
		config.RecvDepth = limits.Receives(limits.MaxWindow, limits.AllAnswers())
	}
	if m := a.MaxQueueDepth; m > 0 && max(config.SendDepth, config.RecvDepth) > m {
		return config, fmt.Errorf("queues of %d and %d requests, the device has %d at most: lower the window", config.SendDepth, config.RecvDepth, m)
	}
	return config, nil
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
	exposed, waiting := n.exposed.inUse()
	list = append(list, PoolStats{Group: n.cfg.group, Name: "exposed", Used: exposed, Registered: exposed, Limit: n.exposed.limit, Waiting: waiting})
	u := n.user.stats()
	u.Group, u.Registered = n.cfg.group, u.Used
	return append(list, u)
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
	n.user.close()
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
	for _, p := range []*slab.Pool{n.receivePool, n.longPool, n.sendPool, n.offerPool} {
		p.Settle() // of the message that came back last
	}
	err := n.domain.Close()
	for _, w := range n.workers {
		<-w.done
	}
	return err
}
