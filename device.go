package verbena

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// maxRequests bounds the connection requests that are answered at a time on a
// device's own port.
const maxRequests = 256

// A device is one of a provider's in this process: a domain with its pools and
// workers, opened when an endpoint first needs it.
type device struct {
	r          *Runtime
	name       string // of the transport
	dev        rdma.Device
	attributes rdma.Attributes
	inline     int // bytes of a message that are posted inline

	mu       sync.Mutex
	opened   bool
	openErr  error
	domain   rdma.Domain
	recvPool *slab.Pool // for what peers send, and for what is read
	sendPool *slab.Pool // for eager messages
	// offerPool is for long messages. Peers read it: whoever holds a key can
	// read a whole arena, so nothing else lies there.
	offerPool *slab.Pool
	workers   []*worker
	next      int
	listener  rdma.Listener
	listening sync.WaitGroup
	held      int  // messages of endpoints that are closed
	closed    bool // the domain is, or will be with the last of those messages
	requests  chan struct{}

	count counters
	gone  atomic.Pointer[error] // set when the device has told that it is
}

func newDevice(r *Runtime, transport string, dev rdma.Device) *device {
	d := &device{r: r, name: transport, dev: dev, attributes: dev.Attributes(), requests: make(chan struct{}, maxRequests)}
	d.inline = min(d.attributes.MaxInline, placeSize)
	return d
}

// streams tells whether queue pairs run on the connection of the hello.
func (d *device) streams() bool {
	_, ok := d.dev.(rdma.StreamDevice)
	return ok && d.attributes.Has(rdma.CapStreams)
}

func (d *device) open() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.opened {
		return d.openErr
	}
	d.opened = true
	d.domain, d.openErr = d.dev.OpenDomain(rdma.DomainConfig{OnEvent: d.event})
	if d.openErr != nil {
		d.openErr = fmt.Errorf("open domain on %s: %w", d.attributes.Name, d.openErr)
		return d.openErr
	}
	limit := d.r.cfg.SendMemory
	d.recvPool = slab.New(d.domain, rdma.AccessLocalWrite, d.r.cfg.ReceiveMemory)
	d.sendPool = slab.New(d.domain, 0, limit/2)
	d.offerPool = slab.New(d.domain, rdma.AccessRemoteRead, limit-limit/2)
	return nil
}

// lost tells why the device cannot be used any more, if so.
func (d *device) lost() error {
	if err := d.gone.Load(); err != nil {
		return *err
	}
	return nil
}

// event hears what no request tells. A queue pair's end is also told by its
// Done, which the endpoints watch.
func (d *device) event(ev rdma.Event) {
	d.count.event(ev.Kind)
	level := slog.LevelDebug
	if ev.Kind == rdma.EventDeviceError || ev.Kind == rdma.EventPortDown || ev.Kind == rdma.EventPortUp {
		level = slog.LevelWarn // the operator's business
	}
	d.r.cfg.Logger.Log(d.r.ctx, level, "device event", "device", d.attributes.Name, "event", ev.Kind.String(), "error", ev.Err)
	if ev.Kind != rdma.EventDeviceError {
		return
	}
	err := fmt.Errorf("device %s is gone: %w", d.attributes.Name, ev.Err)
	d.gone.CompareAndSwap(nil, &err)
	d.mu.Lock()
	workers := d.workers
	d.mu.Unlock()
	for _, w := range workers {
		w.fail(fmt.Errorf("%w: %w", ErrPeerDied, err))
	}
}

// claim deals a worker to an endpoint that can have so many requests
// outstanding.
func (d *device) claim(entries int) (*worker, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.workers) >= d.r.cfg.Workers {
		for range d.workers {
			w := d.workers[d.next%len(d.workers)]
			d.next++
			if w.room >= entries && !w.broken.Load() {
				w.room -= entries
				return w, nil
			}
		}
	}
	w, err := newWorker(d, d.domain)
	if err != nil {
		return nil, err
	}
	if w.room < entries {
		return nil, errors.Join(fmt.Errorf("an endpoint needs %d completions, the device's queues have %d: lower the window", entries, w.room), w.close())
	}
	w.room -= entries
	d.workers = append(d.workers[:len(d.workers):len(d.workers)], w)
	return w, nil
}

func (d *device) unclaim(w *worker, entries int) {
	d.mu.Lock()
	w.room += entries
	d.mu.Unlock()
}

// prepare makes an endpoint's queue, ready to be connected.
func (d *device) prepare(ctx context.Context, e *Endpoint) (*queue, error) {
	if err := d.open(); err != nil {
		return nil, err
	}
	q, err := newQueue(ctx, e, d)
	if err != nil {
		d.count.failed.Add(1)
	}
	return q, err
}

// connectStream connects e over conn, which belongs to it from here on.
func (d *device) connectStream(ctx context.Context, e *Endpoint, conn net.Conn) error {
	q, err := d.prepare(ctx, e)
	if err != nil {
		return err
	}
	reply, err := d.dev.(rdma.StreamDevice).ConnectStream(ctx, q.qp, conn, q.parameters().append(nil))
	return q.connected(reply, err)
}

// connectAddress connects e to the port of a device, with the token that the
// answer gave.
func (d *device) connectAddress(ctx context.Context, e *Endpoint, address string, token []byte) error {
	q, err := d.prepare(ctx, e)
	if err != nil {
		return err
	}
	private := append(make([]byte, 0, hello.TokenSize+parametersSize), token...)
	reply, err := q.qp.Connect(ctx, address, q.parameters().append(private))
	return q.connected(reply, err)
}

// connected ends a connect: the queue runs, or is freed.
func (q *queue) connected(reply []byte, err error) error {
	if rejected := (*rdma.RejectedError)(nil); errors.As(err, &rejected) && len(rejected.PrivateData) > 0 {
		err = fmt.Errorf("%w: %q", err, rejected.PrivateData)
	}
	var peer parameters
	if err == nil {
		peer, err = parseParameters(reply)
	}
	if err == nil {
		err = q.start(peer)
	}
	q.settle(err)
	return err
}

// settle counts a queue that got connected, and frees one that did not.
func (q *queue) settle(err error) {
	if err == nil {
		q.d.count.opened.Add(1)
		return
	}
	q.d.count.failed.Add(1)
	q.abandon()
}

// abandon frees a queue that did not get connected.
func (q *queue) abandon() {
	q.free()
	q.e.carrier, q.e.selection.Device = nil, ""
}

// acceptStream is the other side of connectStream.
func (d *device) acceptStream(ctx context.Context, e *Endpoint, conn net.Conn) error {
	request, err := d.dev.(rdma.StreamDevice).RequestFromStream(ctx, conn)
	if err != nil {
		return err
	}
	return d.accept(ctx, e, request, request.PrivateData())
}

func (d *device) accept(ctx context.Context, e *Endpoint, request rdma.ConnectRequest, private []byte) error {
	peer, err := parseParameters(private)
	if err != nil {
		return errors.Join(err, request.Reject([]byte("endpoint parameters not understood")))
	}
	q, err := d.prepare(ctx, e)
	if err != nil {
		return errors.Join(err, request.Reject([]byte("no resources")))
	}
	err = request.Accept(ctx, q.qp, q.parameters().append(nil))
	if err == nil {
		err = q.start(peer)
	}
	q.settle(err)
	return err
}

// listen opens the device's own port, once, and returns its address.
func (d *device) listen() (string, error) {
	if err := d.open(); err != nil {
		return "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener == nil {
		l, err := d.dev.Listen(d.r.ctx, "")
		if err != nil {
			return "", fmt.Errorf("listen on %s: %w", d.attributes.Name, err)
		}
		d.listener = l
		d.listening.Go(func() { d.acceptRequests(l) })
	}
	address := d.listener.Address()
	if len(address) > hello.MaxAddress {
		return "", fmt.Errorf("address of %s is %d bytes long, a hello has room for %d", d.attributes.Name, len(address), hello.MaxAddress)
	}
	return address, nil
}

func (d *device) acceptRequests(l rdma.Listener) {
	for {
		request, err := l.Accept(d.r.ctx)
		switch {
		case d.r.ctx.Err() != nil || errors.Is(err, rdma.ErrClosed):
			if err == nil {
				_ = request.Reject([]byte("closing")) // too late
			}
			return
		case err != nil:
			// The next one may do better, but not for ever in no time.
			d.r.cfg.Logger.Warn("connection request lost", "device", d.name, "error", err)
			select {
			case <-time.After(50 * time.Millisecond):
			case <-d.r.ctx.Done():
			}
			continue
		}
		select {
		case d.requests <- struct{}{}:
			d.listening.Go(func() {
				d.redeem(request)
				<-d.requests
			})
		default:
			_ = request.Reject([]byte("busy")) // the peer tries its next candidate
		}
	}
}

// redeem connects a request with the hello whose token it shows.
func (d *device) redeem(request rdma.ConnectRequest) {
	private := request.PrivateData()
	if len(private) < hello.TokenSize {
		_ = request.Reject([]byte("no token")) // not one of ours
		return
	}
	t := d.r.tickets.take(private[:hello.TokenSize])
	if t == nil || t.endpoint.selection.Transport != d.name {
		d.r.cfg.Logger.Warn("connection request with an unknown token", "device", d.name, "peer", request.RemoteAddress())
		_ = request.Reject([]byte("unknown token"))
		if t != nil {
			t.finish(fmt.Errorf("%w: its token was shown to %s", ErrProtocol, d.name))
		}
		return
	}
	ctx, cancel := context.WithDeadline(t.h.l.ctx, t.h.deadline)
	defer cancel()
	t.finish(d.accept(ctx, t.endpoint, request, private[hello.TokenSize:]))
}

// leave takes over the messages that applications hold of a queue that closes.
func (d *device) leave(held int) {
	d.mu.Lock()
	d.held += held
	d.mu.Unlock()
}

// cameBack counts a message that was taken over. The last one takes the domain
// with it if the runtime has been closed.
func (d *device) cameBack() {
	d.mu.Lock()
	d.held--
	last := d.closed && d.held == 0
	d.mu.Unlock()
	if !last {
		return
	}
	if err := d.closeDomain(); err != nil {
		d.r.cfg.Logger.Error("device not closed", "device", d.name, "error", err)
	}
}

// close frees all but what held messages need; they take the rest with them.
// The endpoints have been closed.
func (d *device) close() error {
	d.mu.Lock()
	l := d.listener
	d.mu.Unlock()
	var errs []error
	if l != nil {
		errs = append(errs, l.Close())
	}
	d.listening.Wait()
	// Nobody claims workers any more.
	for _, w := range d.workers {
		errs = append(errs, w.close())
	}
	if d.domain == nil {
		return errors.Join(errs...)
	}
	errs = append(errs, d.recvPool.Close(), d.sendPool.Close(), d.offerPool.Close())
	d.mu.Lock()
	d.closed = true
	held := d.held
	d.mu.Unlock()
	if held == 0 {
		return errors.Join(append(errs, d.closeDomain())...)
	}
	d.r.cfg.Logger.Warn("runtime closed with messages held; their memory stays until they are released", "device", d.name, "messages", held)
	return errors.Join(errs...)
}

// closeDomain unmaps all memory and ends what still runs.
func (d *device) closeDomain() error {
	err := d.domain.Close()
	for _, w := range d.workers {
		<-w.done
	}
	return err
}
