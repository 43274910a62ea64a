//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

// rejectedByConsumer is the status of a rejection by the peer's program on
// InfiniBand and RoCE ("consumer reject", InfiniBand volume 1, table "REJ
// reason codes"); noListener is that of a port where nobody listens.
const (
	rejectedByConsumer = 28
	noListener         = 8
)

// A connection is an identifier of the connection manager that carries a queue
// pair, or may come to. While it is being set up its events wait for whoever does
// that; afterwards they go to the queue pair.
type connection struct {
	manager *manager
	id      verbs.CMID
	cookie  uint64
	gone    chan struct{} // closed when the identifier has been destroyed
	closing sync.Once
	// connecting is the rdma_connect under way, which may wait for the peer.
	connecting sync.WaitGroup
	// disconnected is closed when the peer has disconnected or has heard of it.
	disconnected chan struct{}
	heard        sync.Once

	mu    sync.Mutex
	inbox []verbs.CMEvent
	wake  chan struct{}
	pair  *queuePair // once it is connected
}

func newConnection(m *manager) *connection {
	return &connection{manager: m, gone: make(chan struct{}), disconnected: make(chan struct{}), wake: make(chan struct{}, 1)}
}

func (c *connection) heardDisconnect() bool {
	select {
	case <-c.disconnected:
		return true
	default:
		return false
	}
}

// linger waits until the peer has heard of the disconnect, or for so long.
func (c *connection) linger(limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-c.disconnected:
	case <-timer.C:
	}
}

// handle implements [handler].
func (c *connection) handle(event verbs.CMEvent) {
	switch event.Type {
	case verbs.CMDisconnected, verbs.CMTimewaitExit, verbs.CMDeviceRemoval:
		c.heard.Do(func() { close(c.disconnected) })
	}
	c.mu.Lock()
	p := c.pair
	if p == nil {
		c.inbox = append(c.inbox, event)
	}
	c.mu.Unlock()
	if p != nil {
		p.happened(event)
		return
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// join gives all events to p from here on.
func (c *connection) join(p *queuePair) {
	for {
		c.mu.Lock()
		if len(c.inbox) == 0 {
			c.pair = p
			c.mu.Unlock()
			return
		}
		event := c.inbox[0]
		c.inbox = c.inbox[1:]
		c.mu.Unlock()
		p.happened(event)
	}
}

// happened acts on an event of a connection.
func (p *queuePair) happened(event verbs.CMEvent) {
	switch event.Type {
	case verbs.CMDisconnected:
		why := fmt.Errorf("%w by the peer", rdma.ErrDisconnected)
		if p.suspected.Load() && p.domain.device.attributes.Class == rdma.ClassIWARP {
			why = fmt.Errorf("%w by the peer, perhaps because it refused an access: the driver does not tell", rdma.ErrDisconnected)
		}
		p.fail(why, rdma.EventDisconnected, true)
	case verbs.CMDeviceRemoval:
		p.domain.remove(errors.New("it is being removed"))
	case verbs.CMConnectError, verbs.CMUnreachable, verbs.CMRejected:
		p.fail(fmt.Errorf("%w: the connection manager reports: %s", rdma.ErrDisconnected, event.Type), rdma.EventDisconnected, true)
	}
}

// close destroys the identifier, in a goroutine that the manager waits for: some
// drivers wait for the peer before they let go of an attempt to connect.
func (c *connection) close() {
	c.closing.Do(func() {
		go func() {
			defer close(c.gone)
			c.connecting.Wait()
			_ = c.manager.destroy(c.id, c.cookie)
		}()
	})
}

// A setupEvent is a step of a set-up that has come.
type setupEvent struct {
	verbs.CMEvent
	private []byte
}

// await waits for one of the events in want. Any other ends the attempt. failed,
// if it is not nil, tells of the end of a call that is under way.
func (c *connection) await(ctx context.Context, p *queuePair, peer string, failed <-chan error, want ...verbs.CMEventType) (setupEvent, error) {
	event, err := c.awaitEvent(ctx, p, peer, failed, want)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("waiting for %q: %w", want[0], err)
	}
	return event, err
}

func (c *connection) awaitEvent(ctx context.Context, p *queuePair, peer string, failed <-chan error, want []verbs.CMEventType) (setupEvent, error) {
	for {
		c.mu.Lock()
		if len(c.inbox) > 0 {
			event := c.inbox[0]
			c.inbox = c.inbox[1:]
			c.mu.Unlock()
			if slices.Contains(want, event.Type) {
				private, _ := unpackPrivate(p.domain.device.attributes.Class, event.PrivateData)
				return setupEvent{event, private}, nil
			}
			if event.Type == verbs.CMAddrChange || event.Type == verbs.CMTimewaitExit {
				continue
			}
			return setupEvent{}, c.explain(p, peer, event)
		}
		c.mu.Unlock()
		select {
		case <-c.wake:
		case err := <-failed:
			if err == nil {
				failed = nil // the call is through, its outcome is an event
				continue
			}
			return setupEvent{}, explainErrno(err, peer)
		case <-p.done:
			return setupEvent{}, fmt.Errorf("queue pair %d was closed meanwhile: %w", p.number, rdma.ErrClosed)
		case <-ctx.Done():
			return setupEvent{}, deadline(ctx)
		}
	}
}

// explain words an event that ends an attempt.
func (c *connection) explain(p *queuePair, peer string, event verbs.CMEvent) error {
	errno := func() error {
		if event.Status < 0 {
			return syscall.Errno(-event.Status)
		}
		return fmt.Errorf("status %d", event.Status)
	}
	switch event.Type {
	case verbs.CMAddrError:
		return fmt.Errorf("no way to the address, or nobody answers for it there (%w): look at ip route get and ip neigh", errno())
	case verbs.CMRouteError:
		return fmt.Errorf("the fabric has no path to it (%w)", errno())
	case verbs.CMRejected:
		private, framed := unpackPrivate(p.domain.device.attributes.Class, event.PrivateData)
		if framed || event.Status == rejectedByConsumer || event.Status == -int32(syscall.ECONNRESET) {
			p.domain.device.provider.counters.rejected.Add(1)
			return &rdma.RejectedError{Peer: peer, PrivateData: private}
		}
		if event.Status == noListener || event.Status == -int32(syscall.ECONNREFUSED) {
			return fmt.Errorf("nobody listens there: %w", syscall.ECONNREFUSED)
		}
		return fmt.Errorf("the peer's host refused (%w)", errno())
	case verbs.CMUnreachable:
		return fmt.Errorf("%w: the peer's host does not answer (%w)", rdma.ErrTimeout, errno())
	case verbs.CMDisconnected:
		return fmt.Errorf("%w by the peer during the set-up", rdma.ErrDisconnected)
	case verbs.CMDeviceRemoval:
		p.domain.remove(errors.New("it is being removed"))
		return fmt.Errorf("%w: device %s is being removed", rdma.ErrUnavailable, p.domain.device.attributes.Name)
	case verbs.CMConnectError:
		return fmt.Errorf("the connection was not established (%w)", errno())
	}
	return fmt.Errorf("unexpected during the set-up: %s (%w)", event.Type, errno())
}

// explainErrno words what a call of the connection manager said.
func explainErrno(err error, peer string) error {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nobody listens there: %w", err)
	case errors.Is(err, syscall.ETIMEDOUT):
		return fmt.Errorf("%w: %s does not answer: %w", rdma.ErrTimeout, peer, err)
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return fmt.Errorf("there is no route: %w", err)
	}
	return err
}

// resolve finds the address of a listener.
func resolve(ctx context.Context, address string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddrPort(address); err == nil {
		return checkPort(a)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%w: want host:port: %w", rdma.ErrInvalid, err)
	}
	number, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return netip.AddrPort{}, err
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return checkPort(netip.AddrPortFrom(found[0].Unmap(), uint16(number)))
}

func checkPort(a netip.AddrPort) (netip.AddrPort, error) {
	if a.Port() == 0 {
		return a, fmt.Errorf("%w: there is no port number", rdma.ErrInvalid)
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), nil
}

// reads is how many Reads and atomics may be outstanding in either direction.
func (p *queuePair) reads() uint8 { return uint8(min(p.config.MaxReads, 255)) }

// params are what goes along with a connect or an accept.
func (p *queuePair) params(private []byte) verbs.ConnParams {
	retries, _ := receiverNotReady(p.config.ReceiverNotReadyRetry)
	return verbs.ConnParams{
		PrivateData: private, ResponderResources: p.reads(), InitiatorDepth: p.reads(),
		RetryCount: uint8(p.domain.device.provider.config.RetryCount), RNRRetryCount: retries,
		SRQ: p.shared != nil, QPNumber: p.number,
	}
}

// move takes the queue pair through states of a connection. iWARP drivers do
// that by themselves.
func (p *queuePair) move(c *connection, peerTakes, peerAsks uint8, to ...verbs.QPState) error {
	retries, timer := receiverNotReady(p.config.ReceiverNotReadyRetry)
	cfg := &p.domain.device.provider.config
	with := verbs.Transition{
		MaxReads: min(p.reads(), peerTakes), MaxReadsAsPeer: min(p.reads(), peerAsks),
		Timeout: ackTimeoutCode(cfg.AckTimeout), RetryCount: uint8(cfg.RetryCount),
		RNRRetryCount: retries, MinRNRTimer: timer,
	}
	for _, state := range to {
		if err := p.hw.Move(c.id, state, p.domain.device.linkOf(c.id.Port()), with); err != nil {
			return err
		}
	}
	return nil
}

func (p *queuePair) connect(ctx context.Context, address string, private []byte) ([]byte, error) {
	var framed []byte
	if len(private) > 0 {
		var err error
		if framed, err = packPrivate(p.domain.device.attributes.Class, private); err != nil {
			return nil, err
		}
	}
	destination, err := resolve(ctx, address)
	if err != nil {
		return nil, err
	}
	settle, err := p.begin(address)
	if err != nil {
		return nil, err
	}
	defer settle()
	ctx, cancel := context.WithTimeout(ctx, p.domain.device.provider.config.SetupTimeout)
	defer cancel()
	counters := &p.domain.device.provider.counters
	c := newConnection(p.domain.device.manager)
	if c.id, c.cookie, err = c.manager.create(c); err != nil {
		counters.connectFailures.Add(1)
		p.fail(err, 0, false)
		return nil, err
	}
	p.mu.Lock()
	p.conn = c
	p.mu.Unlock()
	reply, err := p.initiate(ctx, c, destination, framed)
	if err == nil {
		err = p.join(c)
	}
	if err != nil {
		counters.connectFailures.Add(1)
		p.fail(err, 0, false)
		c.close()
		return nil, err
	}
	counters.connects.Add(1)
	if p.domain.device.driver == driverSIW {
		p.nudgeTarget()
	}
	return reply, nil
}

// resolveAttempt bounds one question for the peer's address of the link layer.
// Linux asks and only then enters the request in the list of those that an answer
// wakes (rdma_resolve_ip): it overlooks an answer that comes at once, as that of
// another namespace of the same host does, until the question's time is over.
const resolveAttempt = time.Second

// resolveAddress finds the peer's address of the link layer and the device.
func (c *connection) resolveAddress(ctx context.Context, p *queuePair, peer string, from, to netip.AddrPort) error {
	end, _ := ctx.Deadline()
	for {
		if err := c.id.ResolveAddress(from, to, min(time.Until(end), resolveAttempt)); err != nil {
			return explainErrno(err, peer)
		}
		event, err := c.await(ctx, p, peer, nil, verbs.CMAddrResolved, verbs.CMAddrError)
		if err != nil || event.Type == verbs.CMAddrResolved {
			return err
		}
		if event.Status != -int32(syscall.ETIMEDOUT) {
			return c.explain(p, peer, event.CMEvent)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("nobody answers for the address: look at ip neigh: %w", deadline(ctx))
		}
	}
}

// undisturbed calls f on a thread that takes no signals, neither the scheduler's
// for preemption nor the profiler's. siw connects its socket inside of rdma_connect:
// interrupted, it resets a connection that the peer may have taken already, and
// begins anew from the same port. Linux siw's listener may die of that reset (6.1:
// the new socket still has the listener's callbacks when its end is told), and then
// refuses everybody.
func undisturbed(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var none, before unix.Sigset_t
	for i := range none.Val {
		none.Val[i] = ^uint64(0)
	}
	for _, fault := range []unix.Signal{unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP} {
		none.Val[0] &^= 1 << (fault - 1) // these are for the thread that does wrong
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &none, &before); err != nil {
		return f()
	}
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }()
	return f()
}

// initiate goes through the steps of rdma_cm's active side.
func (p *queuePair) initiate(ctx context.Context, c *connection, to netip.AddrPort, private []byte) ([]byte, error) {
	d := p.domain.device
	peer := to.String()
	from, err := d.source(to.Addr())
	if err != nil {
		return nil, err
	}
	end, _ := ctx.Deadline()
	if err := c.resolveAddress(ctx, p, peer, from, to); err != nil {
		return nil, err
	}
	if err := d.owns(c.id, "the way there"); err != nil {
		return nil, err
	}
	if d.attributes.Class == rdma.ClassInfiniBand {
		// RoCE takes half of it for the path's life time, otherwise a second, and the
		// kernel waits accordingly before it repeats what is lost of the set-up or the
		// end. Kernels before 5.1 have no such option.
		_ = c.id.SetAckTimeout(ackTimeoutCode(d.provider.config.AckTimeout))
	}
	if err := c.id.ResolveRoute(time.Until(end)); err != nil {
		return nil, explainErrno(err, peer)
	}
	if _, err := c.await(ctx, p, peer, nil, verbs.CMRouteResolved); err != nil {
		return nil, err
	}
	// The call waits on some drivers.
	failed := make(chan error, 1)
	params := p.params(private)
	c.connecting.Go(func() { failed <- undisturbed(func() error { return c.id.Connect(params) }) })
	event, err := c.await(ctx, p, peer, failed, verbs.CMConnectResponse, verbs.CMEstablished)
	if err != nil {
		return nil, err
	}
	if event.Type == verbs.CMConnectResponse {
		if err := p.move(c, event.InitiatorDepth, event.ResponderResources, verbs.QPInit, verbs.QPReadyToReceive, verbs.QPReadyToSend); err != nil {
			return nil, err
		}
		if err := c.id.Establish(); err != nil {
			return nil, err
		}
	}
	return event.private, nil
}
