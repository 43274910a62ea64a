package verbena

import (
	"context"
	"errors"
	"sync"

	"github.com/verbena-data/verbena/internal/hostid"
)

// A Runtime owns devices, memory and everything that is made with it. All its
// methods may be called concurrently. It must be closed.
type Runtime struct {
	cfg        Config
	host       [hostid.Size]byte
	transports []*transport // one for each provider, in order of preference
	peers      peerCache
	tickets    tickets
	tcp        counters // of the endpoints without a device

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	dials  sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	endpoints map[*Endpoint]struct{}
	listeners map[*Listener]struct{}
}

// New makes a runtime. It asks each provider for devices; one that has none is
// no error but a reason in later selections.
func New(cfg Config) (*Runtime, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Runtime{
		cfg: cfg, host: hostid.ID(),
		endpoints: map[*Endpoint]struct{}{}, listeners: map[*Listener]struct{}{},
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	for _, p := range cfg.Providers {
		r.transports = append(r.transports, newTransport(r, p))
	}
	return r, nil
}

// Close closes listeners and endpoints, as their own Close does, and gives all
// memory back. It does not wait for messages that are still held: they stay as
// they are, and the Release of the last one of a device gives back what is left
// of the device, which until then is the memory around those messages and what
// the provider needs to keep it.
func (r *Runtime) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	var errs []error
	listeners := keys(r.listeners)
	r.mu.Unlock()
	for _, l := range listeners {
		errs = append(errs, l.Close())
	}
	r.cancel()
	r.dials.Wait()
	r.mu.Lock()
	endpoints := keys(r.endpoints)
	r.mu.Unlock()
	closeErrs := make([]error, len(endpoints))
	var wg sync.WaitGroup
	for i, e := range endpoints {
		wg.Go(func() { closeErrs[i] = e.Close() })
	}
	wg.Wait()
	for d := range r.devices() {
		errs = append(errs, d.close())
	}
	return errors.Join(append(errs, closeErrs...)...)
}

// begin announces a dial, which ends with the runtime: devices may not be closed
// under it. The caller calls end.
func (r *Runtime) begin(ctx context.Context) (_ context.Context, end func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, nil, ErrClosed
	}
	r.dials.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.ctx, func() { cancel(ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		r.dials.Done()
	}, nil
}

// adopt registers an endpoint that is set up, unless the runtime is closed.
func (r *Runtime) adopt(e *Endpoint) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	r.endpoints[e] = struct{}{}
	return nil
}

func (r *Runtime) forget(e *Endpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.endpoints[e]; !known {
		return
	}
	delete(r.endpoints, e)
	c := e.counters()
	c.past.sent.merge(e.carrier.sentTraffic())
	c.past.received.merge(e.in.received())
}

// discard closes an endpoint that nobody has got, without waiting for the peer.
func (r *Runtime) discard(e *Endpoint) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = e.closeWithin(ctx) // nothing was sent on it
}

func keys[K comparable, V any](m map[K]V) []K {
	list := make([]K, 0, len(m))
	for k := range m {
		list = append(list, k)
	}
	return list
}
