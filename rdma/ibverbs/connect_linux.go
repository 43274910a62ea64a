//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

// begin claims the queue pair for a set-up, which ends when settle is called.
func (p *queuePair) begin(peer string) (settle func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("queue pair %d: %w", p.number, rdma.ErrClosed)
	}
	if p.used || p.State() != rdma.StateInit {
		return nil, fmt.Errorf("queue pair %d: %w: it is or was connected, make another", p.number, rdma.ErrState)
	}
	p.used, p.peer = true, peer
	p.settled = make(chan struct{})
	return func() { close(p.settled) }, nil
}

// join makes the queue pair connected by c.
func (p *queuePair) join(c *connection) error {
	p.mu.Lock()
	if p.State() != rdma.StateInit {
		err := p.err
		p.mu.Unlock()
		return err
	}
	p.joined = true
	p.state.Store(uint32(rdma.StateConnected))
	p.mu.Unlock()
	c.join(p)
	return nil
}

// Connect implements [rdma.QueuePair].
func (p *queuePair) Connect(ctx context.Context, address string, private []byte) ([]byte, error) {
	reply, err := p.connect(ctx, address, private)
	if err != nil {
		return nil, fmt.Errorf("ibverbs: connect to %s from %s: %w", address, p.domain.device.attributes.Name, err)
	}
	return reply, nil
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

// params are the parameters of a connect or an accept.
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
	if p.quirks.OverlooksFirst {
		p.nudgeTarget()
	}
	return reply, nil
}

// resolveAttempt bounds one question for the peer's address of the link layer. Linux
// sends the question before it enters it into the list that answers look at
// (rdma_resolve_ip). It overlooks an answer that comes at once, as from another network
// namespace of the same host, and waits until the question's time is over.
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

// undisturbed calls f on a thread that takes no signals, neither the scheduler's for
// preemption nor the profiler's: see [quirks.Driver.ConnectsInCall].
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
		// RoCE takes half of it for the path's life time, which is a second by default.
		// The longer that is, the later the kernel repeats messages of the set-up and of
		// the end that are lost. Kernels before 5.1 lack the option.
		_ = c.id.SetAckTimeout(ackTimeoutCode(d.provider.config.AckTimeout))
	}
	if err := c.id.ResolveRoute(time.Until(end)); err != nil {
		return nil, explainErrno(err, peer)
	}
	if _, err := c.await(ctx, p, peer, nil, verbs.CMRouteResolved); err != nil {
		return nil, err
	}
	// Some drivers wait for the peer inside of this call.
	failed := make(chan error, 1)
	params := p.params(private)
	call := func() error { return c.id.Connect(params) }
	c.connecting.Go(func() {
		if d.quirks.ConnectsInCall {
			failed <- undisturbed(call)
		} else {
			failed <- call()
		}
	})
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
