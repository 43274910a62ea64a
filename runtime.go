package verbena

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/verbena-data/verbena/internal/budget"
	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/internal/hostid"
	"github.com/verbena-data/verbena/internal/pressure"
)

// A Runtime owns devices, memory and everything that is made with it. All its
// methods may be called concurrently. It must be closed.
type Runtime struct {
	cfg        Config
	host       [hostid.Size]byte
	network    []byte       // identity of the network namespace, or none
	transports []*transport // one for each provider, in order of preference
	own        *Group       // of endpoints of which no other is told
	peers      peerCache
	tickets    tickets
	env        environment
	features   hello.Features // that hellos offer

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	dials   sync.WaitGroup
	unwatch func() // ends following the memory's pressure

	mu        sync.Mutex
	closed    bool
	done      chan struct{} // the first Close is through
	groups    map[*Group]struct{}
	leaving   map[*Group]struct{} // closed, but not through
	endpoints map[*Endpoint]*Group
	listeners map[*Listener]struct{}
	pools     map[string]endpointPool
}

// An endpointPool is a pool as its runtime sees it.
type endpointPool interface {
	stats() EndpointPoolStats
	Close() error
}

// New makes a runtime. It asks each provider for devices; one that has none is
// no error but a reason in later selections.
func New(cfg Config) (*Runtime, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Runtime{
		cfg: cfg, host: hostid.ID(), network: hostid.Network(), done: make(chan struct{}), leaving: map[*Group]struct{}{},
		groups: map[*Group]struct{}{}, endpoints: map[*Endpoint]*Group{}, listeners: map[*Listener]struct{}{}, pools: map[string]endpointPool{},
	}
	r.env = environment{
		log: cfg.Logger, linger: cfg.Linger, peerTimeout: cfg.PeerTimeout, longestOnStream: int(cfg.longestOnStream()),
		arriving: budget.New(cfg.ReceiveMemory, cfg.longestOnStream()), forget: r.forget,
		lent: newLending(cfg.SendMemory, "bytes"),
	}
	r.env.exposed, r.features = newLending(cfg.SendMemory, "bytes"), hello.FeatureOneSided|hello.FeatureServed|hello.FeatureLane
	r.ctx, r.cancel = context.WithCancel(context.Background())
	for _, p := range cfg.Providers {
		r.transports = append(r.transports, newTransport(r.ctx, p, cfg.Logger))
	}
	if r.own, err = r.newGroup(GroupConfig{}); err != nil {
		return nil, err
	}
	r.env.lanes = &lanes{}
	r.env.user = newRegistrations(nil, cfg.SendMemory)
	r.unwatch, r.env.taking = func() {}, func(int64) {}
	if !cfg.IgnorePressure {
		r.env.taking = pressure.Process().Take
		r.unwatch = pressure.Process().Subscribe(func(reading pressure.Reading) {
			follow(reading, r.env.arriving)
			followWithBuffers(reading, bufferClasses[:])
		}, nil)
	}
	return r, nil
}

// Close closes pools, listeners and endpoints, as their own Close does, and gives all
// memory back. It does not wait for messages that are still held: they stay as
// they are, and the Release of the last one of a device gives back what is left
// of the device, which until then is the memory around those messages and what
// the provider needs to keep it.
func (r *Runtime) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		<-r.done
		return nil
	}
	r.closed = true
	defer close(r.done)
	var errs []error
	listeners, pools := slices.Collect(maps.Keys(r.listeners)), slices.Collect(maps.Values(r.pools))
	r.mu.Unlock()
	var draining sync.WaitGroup
	for _, p := range pools {
		draining.Go(func() { _ = p.Close() })
	}
	for _, l := range listeners {
		errs = append(errs, l.Close())
	}
	r.cancel()
	draining.Wait()
	r.unwatch()
	r.env.user.close()
	r.dials.Wait()
	for d := range r.devices() {
		errs = append(errs, d.close())
	}
	r.mu.Lock()
	endpoints, groups, leaving := slices.Collect(maps.Keys(r.endpoints)), slices.Collect(maps.Keys(r.groups)), slices.Collect(maps.Keys(r.leaving))
	r.mu.Unlock()
	errs = append(errs, closeAll(endpoints)...)
	for _, g := range groups {
		errs = append(errs, g.Close())
	}
	for _, g := range leaving {
		<-g.done // whoever closes it hears its error
	}
	reportHeld(&r.env)
	return errors.Join(errs...)
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

// addPool takes a pool in, and returns its name: if numbered is true it is a free one
// that begins with name.
func (r *Runtime) addPool(name string, numbered bool, p endpointPool) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return "", fmt.Errorf("verbena: pool %s: %w", name, ErrClosed)
	}
	base := name
	for i := 2; numbered && r.pools[name] != nil; i++ {
		name = fmt.Sprintf("%s %d", base, i)
	}
	if r.pools[name] != nil {
		return "", fmt.Errorf("verbena: there is a pool %q already", name)
	}
	r.pools[name] = p
	return name, nil
}

func (r *Runtime) removePool(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pools, name)
}

// adopt registers an endpoint of a group that is set up, unless the runtime
// or the group is closed.
func (r *Runtime) adopt(e *Endpoint, g *Group) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.adoptsLocked(g) {
		return ErrClosed
	}
	r.endpoints[e] = g
	return nil
}

// adopts tells whether endpoints of a group may still be set up.
func (r *Runtime) adopts(g *Group) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.adoptsLocked(g)
}

// adoptsLocked is adopts for a holder of mu.
func (r *Runtime) adoptsLocked(g *Group) bool {
	_, there := r.groups[g]
	return there && !r.closed
}

func (r *Runtime) forget(e *Endpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.endpoints[e]; !known {
		return
	}
	delete(r.endpoints, e)
	e.count.past.merge(e.carrier.done())
}

// discard closes an endpoint that nobody has got, without waiting for the peer.
func (r *Runtime) discard(e *Endpoint) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = e.closeWithin(ctx) // nothing was sent on it
}

// NewGroup makes a group, which lasts until the runtime is closed or its own
// Close.
func (r *Runtime) NewGroup(cfg GroupConfig) (*Group, error) {
	if cfg.Name == "" {
		return nil, errors.New("verbena: a group needs a name")
	}
	return r.newGroup(cfg)
}

// Group returns the group of a name, or nil. The runtime's own has none.
func (r *Runtime) Group(name string) *Group {
	r.mu.Lock()
	defer r.mu.Unlock()
	for g := range r.groups {
		if g.cfg.Name == name {
			return g
		}
	}
	return nil
}

func (r *Runtime) newGroup(cfg GroupConfig) (*Group, error) {
	if cfg.ReceiveMemory < 0 || cfg.SendMemory < 0 || cfg.Workers < 0 {
		return nil, fmt.Errorf("verbena: group %s: a negative size in the configuration", cfg.Name)
	}
	if err := cfg.Tuning.check(r.cfg.transports()); err != nil {
		return nil, err
	}
	set(&cfg.ReceiveMemory, r.cfg.ReceiveMemory)
	set(&cfg.SendMemory, r.cfg.SendMemory)
	set(&cfg.Workers, r.cfg.Workers)
	g := &Group{
		cfg: cfg, env: &r.env, tables: []TuningTable{r.cfg.Tuning, cfg.Tuning}, transports: r.cfg.transports(), maxMessage: r.cfg.MaxMessage, ignore: r.cfg.IgnorePressure,
		domains: map[*device]*domain{},
	}
	g.ctx, g.stop = context.WithCancel(context.Background())
	g.done = make(chan struct{})
	g.leave = func() []*Endpoint { return r.dissolve(g) }
	g.gone = func() { r.dissolved(g) }
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, fmt.Errorf("verbena: new group: %w", ErrClosed)
	}
	for other := range r.groups {
		if other.cfg.Name == cfg.Name {
			return nil, fmt.Errorf("verbena: there is a group %q already", cfg.Name)
		}
	}
	r.groups[g] = struct{}{}
	return g, nil
}

// group returns g, or the runtime's own if g is nil. It refuses a group of another
// runtime.
func (r *Runtime) group(g *Group) (*Group, error) {
	switch {
	case g == nil:
		return r.own, nil
	case g.env != &r.env:
		return nil, fmt.Errorf("verbena: group %q belongs to another runtime", g.cfg.Name)
	}
	return g, nil
}

// dissolve takes a group out, and returns its endpoints.
func (r *Runtime) dissolve(g *Group) []*Endpoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.groups, g)
	r.leaving[g] = struct{}{}
	var endpoints []*Endpoint
	for e, of := range r.endpoints {
		if of == g {
			endpoints = append(endpoints, e)
		}
	}
	return endpoints
}

// dissolved forgets a group whose memory has been given back.
func (r *Runtime) dissolved(g *Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.leaving, g)
}

// transport returns the one of a name, or nil.
func (r *Runtime) transport(name string) *transport {
	for _, t := range r.transports {
		if t.name == name {
			return t
		}
	}
	return nil
}

// wantedFor is how long a dial or a handshake waits for a provider that is asked again.
// It asks the system a question or two.
const wantedFor = 100 * time.Millisecond

// want asks a transport's provider for devices again if it had none for a reason that may
// have passed.
func (r *Runtime) want(t *transport) {
	if !t.due() {
		return
	}
	ctx, end, err := r.begin(context.Background())
	if err != nil {
		return // for good
	}
	asked := make(chan struct{})
	go func() {
		defer end()
		t.list(ctx)
		if err := t.unavailable(); err != nil {
			r.cfg.Logger.Debug("transport is still not available", "transport", t.name, "error", err)
		} else {
			r.cfg.Logger.Info("transport is available now", "transport", t.name)
		}
		close(asked)
	}()
	wait := time.NewTimer(wantedFor)
	defer wait.Stop()
	select {
	case <-asked:
	case <-wait.C:
	}
}

// devices are those of all transports.
func (r *Runtime) devices() iter.Seq[*device] {
	return func(yield func(*device) bool) {
		for _, t := range r.transports {
			for _, d := range t.devices() {
				if !yield(d) {
					return
				}
			}
		}
	}
}
