//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/quirks"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
	"github.com/verbena-data/verbena/rdma/internal/domains"
)

// queuePair implements [rdma.QueuePair].
//
// It ends in two steps. Whoever finds a reason calls fail, which changes the state and
// closes done. The goroutine end then moves the device's object to the error state,
// disconnects, waits for what the device flushes, and completes what the device has
// forgotten.
type queuePair struct {
	domain *domain
	uses   domains.Queues[*sharedReceives, *completionQueue]
	config rdma.QueuePairConfig
	number uint32
	tag    uint64 // marks its completions
	cookie uint64
	quirks *quirks.Driver
	hw     *verbs.QP
	arena  *verbs.Arena
	port   uint8

	sendCQ, recvCQ *completionQueue
	shared         *sharedReceives
	readSGE        int
	errFull        error // of PostSend, made once
	errRecvFull    error

	state atomic.Uint32 // rdma.State

	sendMu    sync.Mutex
	sendList  *verbs.SendList
	sends     sendRing // its head by sendCQ's lock
	owesFence bool     // see prepare

	recvMu   sync.Mutex
	recvList *verbs.RecvList
	recvs    recvRing // its head by recvCQ's lock

	postedBefore uint32      // sends.tail at keepAlive's last look; its own
	probing      atomic.Bool // a probe is under way

	suspected atomic.Bool
	silent    atomic.Bool // only shared receives still get completions

	lastReceive     chan struct{} // closed when the device says that no shared receive is left with it
	lastReceiveOnce sync.Once

	mu        sync.Mutex
	err       error
	peer      string
	conn      *connection
	joined    bool // conn carries the connection
	used      bool // a set-up has begun
	closed    bool
	done      chan struct{}
	ended     chan struct{} // closed when end is through; nil before fail
	settled   chan struct{} // closed when the set-up under way is over; nil before
	destroyed chan struct{} // closed when the driver has let go

	freeing sync.Once
}

func (m *domain) NewQueuePair(config rdma.QueuePairConfig) (rdma.QueuePair, error) {
	a := &m.device.attributes
	fail := func(err error) (rdma.QueuePair, error) {
		return nil, fmt.Errorf("ibverbs: queue pair on %s: %w", a.Name, err)
	}
	config, err := domains.QueuePair(config, a)
	if err != nil {
		return fail(err)
	}
	m.members.Lock()
	defer m.members.Unlock()
	uses, err := m.members.Find(&config)
	if err != nil {
		return fail(err)
	}
	p := &queuePair{
		domain: m, config: config, uses: uses, sendCQ: uses.Send, recvCQ: uses.Recv, shared: uses.Shared, quirks: m.device.quirks,
		done: make(chan struct{}), lastReceive: make(chan struct{}), arena: verbs.NewArena(), readSGE: min(config.MaxSGE, a.MaxReadSGE),
	}
	if err := p.create(); err != nil {
		if p.hw != nil {
			_ = p.hw.Destroy()
		}
		_ = p.arena.Close()
		return fail(err)
	}
	p.number = p.hw.Number()
	if p.shared != nil {
		// Only its number tells whose the completion of a shared receive is, and devices
		// use numbers again. So what an earlier queue pair has left is taken first.
		p.recvCQ.drain()
	}
	p.errFull = fmt.Errorf("ibverbs: post to queue pair %d: %w", p.number, rdma.ErrQueueFull)
	p.errRecvFull = fmt.Errorf("ibverbs: post a receive to queue pair %d: %w", p.number, rdma.ErrQueueFull)
	m.addPair(p)
	return p, nil
}

// create makes the device's object and takes it to where receives can be posted.
// The domain's lock is held.
func (p *queuePair) create() (err error) {
	m, c := p.domain, &p.config
	a := &m.device.attributes
	depth, entries := m.device.quirks.SendDepth(c.SendDepth, c.MaxSGE)
	if m.device.probes() {
		depth++
	}
	if p.sendList, err = p.arena.NewSendList(min(chain, depth), entries); err != nil {
		return err
	}
	p.sends.init(c.SendDepth)
	hw := verbs.QPConfig{
		SendCQ: p.sendCQ.hw, RecvCQ: p.recvCQ.hw, Cookie: m.newCookie(),
		SendDepth: depth, SendSGEs: min(entries, max(a.MaxSendSGE, a.MaxReadSGE)), Inline: c.MaxInline,
	}
	p.cookie = hw.Cookie
	if p.shared != nil {
		hw.SRQ = p.shared.hw
	} else {
		hw.RecvDepth, hw.RecvSGEs = c.RecvDepth, min(c.MaxSGE, a.MaxRecvSGE)
		if p.recvList, err = p.arena.NewRecvList(min(chain, c.RecvDepth), c.MaxSGE); err != nil {
			return err
		}
		p.recvs.init(c.RecvDepth)
	}
	if p.hw, err = m.pd.CreateQP(hw); err != nil {
		var errno syscall.Errno
		if errors.As(err, &errno) && errno == syscall.EINVAL {
			err = fmt.Errorf("%w: the device refuses this mixture of depths, entries and inline bytes: %w", rdma.ErrUnsupported, err)
		}
		return err
	}
	p.port = m.device.firstPort()
	return p.hw.ToInit(p.port, verbs.AccessRemoteRead|verbs.AccessRemoteWrite|p.atomicAccess())
}

func (p *queuePair) atomicAccess() verbs.Access {
	if p.domain.device.attributes.Has(rdma.CapAtomics) {
		return verbs.AccessRemoteAtomic
	}
	return 0
}

func (p *queuePair) Number() uint32        { return p.number }
func (p *queuePair) State() rdma.State     { return rdma.State(p.state.Load()) }
func (p *queuePair) Done() <-chan struct{} { return p.done }

func (p *queuePair) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// stateError is why posts fail.
func (p *queuePair) stateError(what string) error {
	state := p.State()
	if state == rdma.StateClosed {
		return fmt.Errorf("ibverbs: %s queue pair %d: %w", what, p.number, rdma.ErrClosed)
	}
	if err := p.Err(); err != nil {
		return fmt.Errorf("ibverbs: %s queue pair %d: %w: it has failed: %w", what, p.number, rdma.ErrState, err)
	}
	return fmt.Errorf("ibverbs: %s queue pair %d: %w: it is in the state %s", what, p.number, rdma.ErrState, state)
}
