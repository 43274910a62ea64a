//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

// backlog bounds the requests that nobody has accepted; more are refused.
const backlog = 512

// listener implements [rdma.Listener].
type listener struct {
	device  *Device
	manager *manager
	id      verbs.CMID
	cookie  uint64
	address string

	requests chan *connectRequest
	done     chan struct{} // closed by the end

	mu     sync.Mutex
	ended  bool
	why    error // what Accept returns after the end
	closed chan struct{}
}

// Listen implements [rdma.Device]. The address is host:port; without a host it
// is the device's first address, without a port (or with 0) a free one is chosen.
func (d *Device) Listen(ctx context.Context, address string) (rdma.Listener, error) {
	l, err := d.listen(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("ibverbs: listen at %q on %s: %w", address, d.attributes.Name, err)
	}
	return l, nil
}

func (d *Device) listen(ctx context.Context, address string) (*listener, error) {
	at, err := d.listenAddress(ctx, address)
	if err != nil {
		return nil, err
	}
	l := &listener{
		device: d, manager: d.manager, requests: make(chan *connectRequest, backlog),
		done: make(chan struct{}), closed: make(chan struct{}), why: fmt.Errorf("ibverbs: the listener: %w", rdma.ErrClosed),
	}
	if l.id, l.cookie, err = d.manager.create(l); err != nil {
		return nil, err
	}
	if err = l.id.Bind(at); err == nil {
		if err = d.owns(l.id, "the address"); err == nil {
			err = l.id.Listen(backlog)
		}
	}
	if err != nil {
		_ = d.manager.destroy(l.id, l.cookie)
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("another listener has this port: %w", err)
		}
		return nil, err
	}
	l.address = l.id.LocalAddress().String()
	return l, nil
}

func (d *Device) listenAddress(ctx context.Context, address string) (netip.AddrPort, error) {
	host, port := "", "0"
	if address != "" {
		var err error
		if host, port, err = net.SplitHostPort(address); err != nil {
			return netip.AddrPort{}, fmt.Errorf("%w: want host:port: %w", rdma.ErrInvalid, err)
		}
	}
	if port == "" {
		port = "0"
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%w: the port: %w", rdma.ErrInvalid, err)
	}
	if host == "" {
		own := d.addresses()
		if len(own) == 0 {
			return netip.AddrPort{}, fmt.Errorf("%w: the device has no address now; is its port up, and has its interface an IP address?", rdma.ErrUnavailable)
		}
		return netip.AddrPortFrom(own[0], uint16(number)), nil
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(found[0].Unmap(), uint16(number)), nil
}

func (l *listener) Address() string { return l.address }

// handle implements [handler]: connection requests come by offer.
func (l *listener) handle(event verbs.CMEvent) {
	if event.Type == verbs.CMDeviceRemoval {
		why := fmt.Errorf("ibverbs: the listener at %s: device %s is being removed: %w: %w", l.address, l.device.attributes.Name, rdma.ErrUnavailable, rdma.ErrClosed)
		go l.end(why)
	}
}

// offer has a request wait for Accept.
func (l *listener) offer(r *connectRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		select {
		case l.requests <- r:
			return
		default:
			l.device.provider.config.Logger.Warn("ibverbs refuses a connection: too many wait to be accepted", "listener", l.address, "peer", r.RemoteAddress())
		}
	}
	// Not here: the goroutine of the events must not wait.
	go func() { _ = r.Reject(nil) }()
}

// end closes the listener once.
func (l *listener) end(why error) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		<-l.closed
		return
	}
	l.ended, l.why = true, why
	close(l.done)
	l.mu.Unlock()
	// A request that is on its way finds the listener ended. The manager runs
	// until the last of them is gone.
	for {
		select {
		case r := <-l.requests:
			_ = r.Reject(nil)
			continue
		default:
		}
		break
	}
	_ = l.manager.destroy(l.id, l.cookie)
	close(l.closed)
}

func (l *listener) closedError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

// Accept implements [rdma.Listener].
func (l *listener) Accept(ctx context.Context) (rdma.ConnectRequest, error) {
	select {
	case <-l.done:
		return nil, l.closedError()
	default:
	}
	select {
	case r := <-l.requests:
		return r, nil
	case <-l.done:
		return nil, l.closedError()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close implements [rdma.Listener].
func (l *listener) Close() error {
	l.end(fmt.Errorf("ibverbs: the listener at %s: %w", l.address, rdma.ErrClosed))
	return nil
}

// connectRequest implements [rdma.ConnectRequest].
type connectRequest struct {
	device   *Device
	conn     *connection
	peer     string
	private  []byte
	framed   bool // the peer knows the header of private data
	event    verbs.CMEvent
	answered atomic.Bool
}

// newRequest is called before the event is acknowledged.
func newRequest(l *listener, event verbs.CMEvent) *connectRequest {
	c := newConnection(l.manager)
	c.id = event.ID
	c.cookie = l.manager.adopt(event.ID, c)
	r := &connectRequest{device: l.device, conn: c, peer: event.ID.PeerAddress().String(), event: event}
	r.private, r.framed = unpackPrivate(l.device.attributes.Class, event.PrivateData)
	return r
}

// PrivateData implements [rdma.ConnectRequest].
func (r *connectRequest) PrivateData() []byte { return r.private }

// RemoteAddress implements [rdma.ConnectRequest].
func (r *connectRequest) RemoteAddress() string { return r.peer }

func (r *connectRequest) claim() error {
	if r.answered.Swap(true) {
		return fmt.Errorf("ibverbs: request from %s: %w: it has been answered", r.peer, rdma.ErrState)
	}
	return nil
}

// foreign tells whether the peer is a program that sent data without a header:
// it does not understand one.
func (r *connectRequest) foreign() bool { return !r.framed && len(r.private) > 0 }

func (r *connectRequest) answer(private []byte, always bool) ([]byte, error) {
	if r.foreign() || len(private) == 0 && !always {
		if len(private) > maxPrivate {
			return nil, fmt.Errorf("%w: %d bytes of private data, at most %d", rdma.ErrInvalid, len(private), maxPrivate)
		}
		return private, nil
	}
	return packPrivate(r.device.attributes.Class, private)
}

// Accept implements [rdma.ConnectRequest].
func (r *connectRequest) Accept(ctx context.Context, qp rdma.QueuePair, private []byte) error {
	if err := r.claim(); err != nil {
		return err
	}
	if err := r.accept(ctx, qp, private); err != nil {
		r.device.provider.counters.connectFailures.Add(1)
		return fmt.Errorf("ibverbs: accept %s on %s: %w", r.peer, r.device.attributes.Name, err)
	}
	r.device.provider.counters.accepts.Add(1)
	return nil
}

func (r *connectRequest) accept(ctx context.Context, qp rdma.QueuePair, private []byte) error {
	p, ok := qp.(*queuePair)
	if !ok || p.domain.device != r.device {
		r.refuse(nil)
		return fmt.Errorf("%w: the queue pair is of another device", rdma.ErrInvalid)
	}
	framed, err := r.answer(private, false)
	if err != nil {
		r.refuse(nil)
		return err
	}
	settle, err := p.begin(r.peer)
	if err != nil {
		r.refuse(nil)
		return err
	}
	defer settle()
	c := r.conn
	p.mu.Lock()
	p.conn = c
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, r.device.provider.config.SetupTimeout)
	defer cancel()
	if err = r.respond(ctx, p, framed); err == nil {
		err = p.join(c)
	}
	if err != nil {
		p.fail(err, 0, false)
		c.close()
	}
	return err
}

// respond goes through the steps of rdma_cm's passive side.
func (r *connectRequest) respond(ctx context.Context, p *queuePair, private []byte) error {
	c := r.conn
	if err := r.device.owns(c.id, "the request"); err != nil {
		return err
	}
	params := p.params(private)
	if p.domain.device.attributes.Class == rdma.ClassInfiniBand {
		// What this side has outstanding the peer must take, and the other way round.
		params.InitiatorDepth = min(params.InitiatorDepth, r.event.InitiatorDepth)
		params.ResponderResources = min(params.ResponderResources, r.event.ResponderResources)
		if err := p.move(c, params.InitiatorDepth, params.ResponderResources, verbs.QPInit, verbs.QPReadyToReceive, verbs.QPReadyToSend); err != nil {
			return err
		}
	}
	if err := c.id.Accept(params); err != nil {
		return explainErrno(err, r.peer)
	}
	established, err := c.await(ctx, p, r.peer, nil, verbs.CMEstablished)
	if err == nil && r.device.quirks.OverlooksFirst {
		// The kernel calls the Reads that this side may have outstanding (ord) the
		// responder's resources in this event (cma_iw_handler).
		p.freeSocket(ctx, c, established.ResponderResources > 0)
	}
	return err
}

// Reject implements [rdma.ConnectRequest].
func (r *connectRequest) Reject(private []byte) error {
	if err := r.claim(); err != nil {
		return err
	}
	framed, err := r.answer(private, true)
	if err == nil {
		err = r.conn.id.Reject(framed)
	}
	r.conn.close()
	<-r.conn.gone
	if err != nil {
		return fmt.Errorf("ibverbs: reject %s on %s: %w", r.peer, r.device.attributes.Name, err)
	}
	return nil
}

// refuse rejects where there is an error to tell already.
func (r *connectRequest) refuse(private []byte) {
	if framed, err := r.answer(private, true); err == nil {
		_ = r.conn.id.Reject(framed)
	}
	r.conn.close()
}
