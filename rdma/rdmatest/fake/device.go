package fake

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// A Network connects the devices that it made. The zero value is not usable.
type Network struct {
	// mu guards everything that the network's devices made.
	mu        sync.Mutex
	listeners map[string]*listener
	attempts  map[uint64]*attempt // those over streams, by token
	regions   map[uint32]*region  // by key
	number    uint32              // of the last queue pair
	port      int                 // of the last listener without an address
	free      map[int][][]byte    // memory that BugStaleKey reuses, by size
}

// NewNetwork returns an empty network.
func NewNetwork() *Network {
	return &Network{
		listeners: map[string]*listener{},
		attempts:  map[uint64]*attempt{},
		regions:   map[uint32]*region{},
		free:      map[int][][]byte{},
	}
}

// Config configures a device.
type Config struct {
	rdma.Attributes
	// HeapMemory takes regions from the Go heap, where the race detector sees
	// who touches them without being ordered by a completion. Polling memory for
	// written data is then itself a reported race. Otherwise regions are mapped,
	// and touching one after Close is a fault.
	HeapMemory bool
	// PromptReads carries out Reads and atomics at once. Otherwise their data
	// arrives as late as the model allows: after all later requests that carry
	// no Fence.
	PromptReads bool
	Bugs        Bugs
}

// InfiniBand returns the configuration of a device of the InfiniBand class that
// can do everything.
func InfiniBand(name string) Config {
	return Config{Attributes: rdma.Attributes{
		Provider: "fake",
		Name:     name,
		Class:    rdma.ClassInfiniBand,
		Capabilities: rdma.CapSendImmediate | rdma.CapWriteImmediate | rdma.CapAtomics | rdma.CapSharedReceive |
			rdma.CapPolledWrites | rdma.CapReceiverNotReady | rdma.CapStreams | rdma.CapSendInvalidate,
		MaxInline:       256,
		MaxSendSGE:      8,
		MaxReadSGE:      8,
		MaxRecvSGE:      8,
		MaxQueueDepth:   4096,
		MaxCompletions:  1 << 16,
		MaxReads:        16,
		MaxMessage:      1 << 30,
		MaxRegion:       1 << 30,
		MaxPrivateData:  256,
		MemoryAlignment: pageSize,
	}}
}

// IWARP returns the configuration of a device of the iWARP class with what
// iWARP always has: no immediate data, no atomics, one local entry of a Read.
func IWARP(name string) Config {
	c := InfiniBand(name)
	c.Class = rdma.ClassIWARP
	c.Capabilities = rdma.CapSharedReceive | rdma.CapStreams | rdma.CapSendInvalidate
	c.MaxReadSGE = 1
	return c
}

// A Device is one adapter of a network. It is an [rdma.StreamDevice], too; its
// methods for streams fail with [rdma.ErrUnsupported] without
// [rdma.CapStreams].
type Device struct {
	network *Network
	config  Config

	// Under the network's mu.
	domains   map[*domain]struct{}
	dead      bool
	stopped   bool
	running   chan struct{} // closed while the device is not stopped
	refusal   error
	holding   bool
	held      []heldCompletion
	dropAfter int // operations until the connection drops, if above 0
	emitted   int // completions, for bugs that strike now and then
}

var _ rdma.StreamDevice = (*Device)(nil)

type heldCompletion struct {
	queue *completionQueue
	entry entry
	wakes bool
}

// NewDevice adds a device. Its name must be unique in the network.
func (n *Network) NewDevice(c Config) *Device {
	running := make(chan struct{})
	close(running)
	return &Device{network: n, config: c, domains: map[*domain]struct{}{}, running: running}
}

// A Provider offers devices under a name.
type Provider struct {
	name    string
	devices []rdma.Device
}

// NewProvider returns a provider of devices. With none, Devices fails with
// [rdma.ErrUnavailable].
func NewProvider(name string, devices ...*Device) *Provider {
	p := &Provider{name: name}
	for _, d := range devices {
		p.devices = append(p.devices, d)
	}
	return p
}

// Name implements [rdma.Provider].
func (p *Provider) Name() string { return p.name }

// Devices implements [rdma.Provider].
func (p *Provider) Devices(ctx context.Context) ([]rdma.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(p.devices) == 0 {
		return nil, fmt.Errorf("fake: provider %s was made without devices: %w", p.name, rdma.ErrUnavailable)
	}
	return append([]rdma.Device(nil), p.devices...), nil
}

// Attributes implements [rdma.Device].
func (d *Device) Attributes() rdma.Attributes { return d.config.Attributes }

// Kill ends the device as the death of its process would: its peers lose their
// connections, its listeners are gone, and nothing of it moves any more. What
// was made of it must still be closed.
func (d *Device) Kill() {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	d.dead = true
	for _, l := range d.network.listeners {
		if l.device == d {
			l.close()
		}
	}
	for dom := range d.domains {
		for q := range dom.queuePairs {
			if peer := q.peer; peer != nil && q.state == rdma.StateConnected && !d.has(BugDeathUnseen) {
				peer.lost(fmt.Errorf("fake: peer %s died: %w", d.config.Name, rdma.ErrDisconnected))
			}
			q.cond.Broadcast()
		}
	}
}

// Stop suspends the device as SIGSTOP does its process: it answers nobody, and
// nothing that its peers ask of it is carried out, until Continue.
func (d *Device) Stop() {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	if !d.stopped {
		d.stopped = true
		d.running = make(chan struct{})
	}
}

// Continue ends Stop.
func (d *Device) Continue() {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	if d.stopped {
		d.stopped = false
		close(d.running)
		d.kick()
	}
}

// kick lets everything that may wait for the device look again.
func (d *Device) kick() {
	for dom := range d.domains {
		for q := range dom.queuePairs {
			q.cond.Broadcast()
			if q.peer != nil {
				q.peer.cond.Broadcast()
			}
		}
	}
}

// Refuse makes every later Connect to the device fail with err, until it is
// called with nil.
func (d *Device) Refuse(err error) {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	d.refusal = err
}

// HoldCompletions keeps the completions of the device back until it is called
// with false.
func (d *Device) HoldCompletions(hold bool) {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	d.holding = hold
	if hold {
		return
	}
	held := d.held
	d.held = nil
	for _, h := range held {
		h.queue.push(h.entry, h.wakes)
	}
}

// Held lists the completions that are held back, in their order. The data of a receive
// is where it belongs already.
func (d *Device) Held() []rdma.Completion {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	list := make([]rdma.Completion, len(d.held))
	for i := range d.held {
		list[i] = d.held[i].entry.completion
	}
	return list
}

// DropAfter drops the connection that carries out the device's nth request
// from now on, instead of carrying it out. Zero or less takes it back.
func (d *Device) DropAfter(n int) {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	d.dropAfter = n
}

// Overrun makes queue lose completions at once, as if it had been too small.
func (d *Device) Overrun(queue rdma.CompletionQueue) {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	if c, ok := queue.(*completionQueue); ok {
		c.overran()
	}
}

// OpenDomain implements [rdma.Device].
func (d *Device) OpenDomain(c rdma.DomainConfig) (rdma.Domain, error) {
	dom := &domain{
		device:     d,
		network:    d.network,
		onEvent:    c.OnEvent,
		regions:    map[*region]struct{}{},
		queues:     map[*completionQueue]struct{}{},
		shared:     map[*sharedReceiveQueue]struct{}{},
		queuePairs: map[*queuePair]struct{}{},
		quit:       make(chan struct{}),
		notify:     make(chan struct{}, 1),
	}
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	if d.dead {
		return nil, fmt.Errorf("fake: device %s was killed: %w", d.config.Name, rdma.ErrUnavailable)
	}
	d.domains[dom] = struct{}{}
	if c.OnEvent != nil {
		dom.running.Go(dom.deliver)
	}
	return dom, nil
}

// Listen implements [rdma.Device]. An address is any text.
func (d *Device) Listen(ctx context.Context, address string) (rdma.Listener, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	n := d.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if d.dead {
		return nil, fmt.Errorf("fake: listen on %s: device was killed: %w", d.config.Name, rdma.ErrUnavailable)
	}
	if address == "" {
		n.port++
		address = fmt.Sprintf("%s:%d", d.config.Name, n.port)
	}
	if n.listeners[address] != nil {
		return nil, fmt.Errorf("fake: listen on %s: the address is taken: %w", address, rdma.ErrInUse)
	}
	l := &listener{device: d, address: address, incoming: make(chan *attempt, 1024), closed: make(chan struct{})}
	n.listeners[address] = l
	return l, nil
}

type listener struct {
	device   *Device
	address  string
	incoming chan *attempt
	closed   chan struct{}
}

func (l *listener) Address() string { return l.address }

func (l *listener) Accept(ctx context.Context) (rdma.ConnectRequest, error) {
	for {
		if err := l.device.awaitRunning(ctx, l.closed); err != nil {
			return nil, fmt.Errorf("fake: accept at %s: %w", l.address, err)
		}
		select {
		case a := <-l.incoming:
			return &connectRequest{attempt: a, device: l.device}, nil
		case <-l.closed:
			return nil, fmt.Errorf("fake: accept at %s: listener: %w", l.address, rdma.ErrClosed)
		case <-ctx.Done():
			return nil, fmt.Errorf("fake: accept at %s: %w", l.address, ctx.Err())
		}
	}
}

// awaitRunning waits while the device is stopped.
func (d *Device) awaitRunning(ctx context.Context, closed chan struct{}) error {
	d.network.mu.Lock()
	running := d.running
	d.network.mu.Unlock()
	select {
	case <-running:
		return nil
	default:
	}
	select {
	case <-running:
		return nil
	case <-closed:
		return rdma.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *listener) Close() error {
	l.device.network.mu.Lock()
	defer l.device.network.mu.Unlock()
	l.close()
	return nil
}

// close needs mu.
func (l *listener) close() {
	n := l.device.network
	if n.listeners[l.address] != l {
		return
	}
	delete(n.listeners, l.address)
	close(l.closed)
	for {
		select {
		case a := <-l.incoming:
			a.end(nil, fmt.Errorf("fake: %s refused: its listener was closed: %w", l.address, rdma.ErrDisconnected))
		default:
			return
		}
	}
}

// An attempt is a Connect that waits for its answer.
type attempt struct {
	from    *queuePair
	to      string
	private []byte

	// Under mu.
	ended  bool
	answer chan struct{} // closed when it has ended
	reply  []byte
	err    error
}

// end answers; it needs mu. It reports false if the attempt had ended before.
func (a *attempt) end(reply []byte, err error) bool {
	if a.ended {
		return false
	}
	a.ended = true
	a.reply, a.err = reply, err
	a.from.attempt = nil
	if err != nil {
		a.from.fail(err)
	}
	close(a.answer)
	return true
}

// wait waits for the answer.
func (a *attempt) wait(ctx context.Context) ([]byte, error) {
	select {
	case <-a.answer:
		return a.reply, a.err
	case <-ctx.Done():
	}
	mu := &a.from.domain.network.mu
	mu.Lock()
	defer mu.Unlock()
	err := fmt.Errorf("fake: connect to %s: no answer: %w", a.to, ctx.Err())
	if ctx.Err() == context.DeadlineExceeded {
		err = fmt.Errorf("fake: connect to %s: no answer: %w: %w", a.to, rdma.ErrTimeout, ctx.Err())
	}
	a.end(nil, err)
	return a.reply, a.err
}

type connectRequest struct {
	attempt *attempt
	device  *Device
	stream  *stream // nil unless over one
}

func (r *connectRequest) PrivateData() []byte { return r.attempt.private }

func (r *connectRequest) RemoteAddress() string {
	return fmt.Sprintf("%s/%d", r.attempt.from.domain.device.config.Name, r.attempt.from.number)
}

func (r *connectRequest) Accept(ctx context.Context, qp rdma.QueuePair, private []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	from := r.attempt.from
	q, ok := qp.(*queuePair)
	n := r.device.network
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case !ok || q.domain.device != r.device:
		return fmt.Errorf("fake: accept: the queue pair is of another device: %w", rdma.ErrInvalid)
	case len(private) > r.device.config.MaxPrivateData:
		return fmt.Errorf("fake: accept: %d bytes of private data, at most %d fit: %w",
			len(private), r.device.config.MaxPrivateData, rdma.ErrInvalid)
	case q.state != rdma.StateInit || q.attempt != nil:
		return fmt.Errorf("fake: accept: queue pair %d is %s: %w", q.number, q.state, rdma.ErrState)
	case r.attempt.ended:
		err := fmt.Errorf("fake: accept: %s no longer waits: %w", r.RemoteAddress(), rdma.ErrDisconnected)
		q.fail(err)
		return err
	}
	if r.device.has(BugCutsPrivateData) && len(private) > 0 {
		private = private[:len(private)-1]
	}
	q.peer, from.peer = from, q
	if r.stream != nil {
		q.attach(r.stream)
	}
	q.connected()
	from.connected()
	r.attempt.end(append([]byte(nil), private...), nil)
	return nil
}

func (r *connectRequest) Reject(private []byte) error {
	n := r.device.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(private) > r.device.config.MaxPrivateData {
		return fmt.Errorf("fake: reject: %d bytes of private data, at most %d fit: %w",
			len(private), r.device.config.MaxPrivateData, rdma.ErrInvalid)
	}
	err := &rdma.RejectedError{Peer: r.attempt.to, PrivateData: append([]byte(nil), private...)}
	ended := r.attempt.end(nil, err)
	if r.stream != nil {
		r.stream.conn.Close()
	}
	if !ended {
		return fmt.Errorf("fake: reject: %s no longer waits: %w", r.RemoteAddress(), rdma.ErrState)
	}
	return nil
}

// begin checks and starts a Connect; it needs mu.
func (q *queuePair) begin(to string, private []byte) (*attempt, error) {
	d := q.domain.device
	switch {
	case len(private) > d.config.MaxPrivateData:
		return nil, fmt.Errorf("fake: connect to %s: %d bytes of private data, at most %d fit: %w",
			to, len(private), d.config.MaxPrivateData, rdma.ErrInvalid)
	case q.state != rdma.StateInit || q.attempt != nil:
		return nil, fmt.Errorf("fake: connect to %s: queue pair %d is %s: %w", to, q.number, q.state, rdma.ErrState)
	case d.dead:
		return nil, fmt.Errorf("fake: connect to %s: device %s was killed: %w", to, d.config.Name, rdma.ErrUnavailable)
	}
	q.attempt = &attempt{from: q, to: to, private: append([]byte(nil), private...), answer: make(chan struct{})}
	return q.attempt, nil
}

func (q *queuePair) Connect(ctx context.Context, address string, private []byte) ([]byte, error) {
	n := q.domain.network
	n.mu.Lock()
	a, err := q.begin(address, private)
	if err == nil {
		l := n.listeners[address]
		switch {
		case l == nil:
			err = fmt.Errorf("fake: connect to %s: nobody listens there: %w", address, rdma.ErrDisconnected)
		case l.device.refusal != nil:
			err = fmt.Errorf("fake: connect to %s: %w", address, l.device.refusal)
		default:
			select {
			case l.incoming <- a:
			default:
				err = fmt.Errorf("fake: connect to %s: its backlog is full: %w", address, rdma.ErrDisconnected)
			}
		}
		if err != nil {
			a.end(nil, err)
		}
	}
	n.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if q.domain.device.has(BugDeafConnect) {
		ctx = context.WithoutCancel(ctx)
	}
	return a.wait(ctx)
}

// randomKey returns a key that no region of the network has; it needs mu.
func (n *Network) randomKey() uint32 {
	for {
		var b [4]byte
		rand.Read(b[:])
		key := binary.NativeEndian.Uint32(b[:])
		if key != 0 && n.regions[key] == nil {
			return key
		}
	}
}

const pageSize = 4096

// never is a retry time without end.
const never = time.Duration(-1)
