package verbena

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// Stats are the numbers of a runtime at one moment. What counts, counts from the
// runtime's beginning and never goes back.
type Stats struct {
	// Closed tells that the runtime's Close has begun.
	Closed bool
	// Devices in order of preference. TCP, which has no device, is the last.
	Devices []DeviceStats
	// Providers that have no device, with the reason.
	Unavailable map[string]error
	// Counters of providers that have some, by provider and name: see
	// [rdma.CountingProvider]. They are the provider's, which other runtimes of
	// the process may share.
	Counters map[string]map[string]uint64
	// EndpointPools by name.
	EndpointPools []EndpointPoolStats
	// Memory tells how short of it the process is.
	Memory MemoryStats
}

// DeviceStats are the numbers of a device and of the endpoints on it.
type DeviceStats struct {
	Transport string // [rdma.Provider.Name], or [TransportTCP]
	Device    string // its own name; empty for TCP
	// Attributes are what the device can do; zero for TCP.
	Attributes rdma.Attributes

	Endpoints int    // that are not closed yet, also those that have ended
	Opened    uint64 // endpoints ever
	Failed    uint64 // endpoints that did not get connected

	// Messages of the endpoints: those that Send has handed to the transport and
	// those that Receive has returned, and the bytes in them.
	Sent, Received Traffic
	// Operations are the one-sided ones of this side: those that the device was given, and
	// those that the peer's runtime has answered. What peers do to this side's memory, a
	// device does not tell.
	Operations Operations
	// Stalls is how often a sender slept until the peer, or over TCP the connection, had
	// room, and Stalled how long those slept, all together, that have gone on.
	Stalls  uint64
	Stalled time.Duration
	// Events by kind: what the device told of itself and its queue pairs.
	Events map[rdma.EventKind]uint64
	// Gone tells why the device cannot be used any more, if so.
	Gone error
	// Pools are memory by group and purpose. On a device there are none before the
	// first endpoint; TCP has some from the beginning.
	Pools []PoolStats
}

// EndpointStats are the numbers of an endpoint.
type EndpointStats struct {
	Service       string
	Local, Remote string // addresses of the TCP connection that set it up
	Dialled       bool   // by this side
	Group         string // empty for the runtime's own
	Began         time.Time
	Selection     Selection // the transport, and why
	// Err is that of [Endpoint.Err]: nil while the endpoint works, then why it has ended.
	// It stays in the list until it is closed.
	Err error

	// As those of [DeviceStats].
	Sent, Received Traffic
	Operations     Operations
	Stalls         uint64
	Stalled        time.Duration
	// Credits is how many messages the peer takes before it gives credits back, -1 over TCP,
	// where messages need none.
	Credits int
}

// EndpointPoolStats are the numbers of a pool of endpoints.
type EndpointPoolStats struct {
	Name, Service string
	Peers         int // that it knows
	Open, Busy    int // endpoints, and those of them that have a request
	Waiting       int // requests
	PoolCounts
}

// PoolPeerStats are the numbers of a pool towards one peer over one order of
// transports.
type PoolPeerStats struct {
	Addr       string
	Transports []string // in order
	Rule       string   // the first that makes this order, or empty
	Sought     []string // better transports that the pool tries to have back
	Open, Busy int      // endpoints, and those of them that have a request
	Waiting    int      // requests
	Failures   int      // in a row
	Next       time.Time
	PoolCounts
}

// PoolCounts count from the beginning.
type PoolCounts struct {
	Requests uint64 // that got an endpoint
	Waited   uint64 // requests that had to wait for one
	Left     uint64 // requests that got none: the attempt failed, or their context ended
	Opened   uint64 // endpoints
	Failed   uint64 // attempts to connect
	Lost     uint64 // endpoints that the peer or the path ended
	Idle     uint64 // endpoints that were closed because nobody used them
	Replaced uint64 // endpoints that gave way to better ones
}

// Stats returns the runtime's numbers. It waits for each endpoint that just then copies a
// one-sided operation; the rest of the runtime goes on meanwhile.
func (r *Runtime) Stats() Stats {
	s := Stats{Unavailable: map[string]error{}, Counters: map[string]map[string]uint64{}, Memory: memoryStats()}
	index := map[*counters]int{}
	for _, t := range r.transports {
		l := t.listed.Load() // once: it may be listed anew meanwhile
		if l.unavailable != nil {
			s.Unavailable[t.name] = l.unavailable
		}
		for _, d := range l.devices {
			index[&d.count] = len(s.Devices)
			s.Devices = append(s.Devices, d.stats())
		}
		if counting, ok := t.provider.(rdma.CountingProvider); ok {
			s.Counters[t.name] = counting.Counters()
		}
	}
	index[&r.env.tcp] = len(s.Devices)
	b := r.env.arriving
	lent, borrowers := r.env.lent.inUse()
	exposed, exposing := r.env.exposed.inUse()
	s.Devices = append(s.Devices, r.env.tcp.stats(DeviceStats{Transport: TransportTCP, Pools: []PoolStats{
		{Name: "stream", Used: b.Used(), Limit: b.Limit(), Squeezed: b.Squeezed(), Waiting: b.Waiting()},
		{Name: "lent", Used: lent, Limit: r.env.lent.limit, Waiting: borrowers},
		{Name: "exposed", Used: exposed, Limit: r.env.exposed.limit, Waiting: exposing},
		r.env.user.stats(),
	}}))

	r.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(r.pools)) {
		s.EndpointPools = append(s.EndpointPools, r.pools[name].stats())
	}
	r.mu.Unlock()

	// The endpoints are asked before the lock is taken again, since that may take as long
	// as one of them copies. Then all is counted under one lock, so that no endpoint is
	// counted twice or left out while it closes. One that has come meanwhile has done nothing
	// yet, as far as these numbers go.
	asked := map[*Endpoint]activity{}
	for _, e := range r.open() {
		asked[e] = e.carrier.done()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Closed = r.closed
	done := make([]activity, len(s.Devices))
	for c, i := range index {
		done[i] = c.past
	}
	for e := range r.endpoints {
		if i, ok := index[e.count]; ok { // otherwise its device has been listed since
			s.Devices[i].Endpoints++
			done[i].merge(asked[e])
		}
	}
	for i := range done {
		d, a := &s.Devices[i], &done[i]
		d.Sent, d.Received, d.Operations, d.Stalls, d.Stalled = a.sent, a.received, a.operations, a.stalls, a.stalled
	}
	return s
}

// open returns the endpoints that are not closed yet.
func (r *Runtime) open() []*Endpoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.endpoints))
}

// Endpoints returns the numbers of the endpoints that are not closed yet, the oldest first. Err
// tells which of them have ended. It waits
// for each endpoint that just then copies a one-sided operation, as Stats does; the rest of
// the runtime goes on meanwhile.
func (r *Runtime) Endpoints() []EndpointStats {
	type listed struct {
		e *Endpoint
		s EndpointStats
	}
	r.mu.Lock()
	open := make([]listed, 0, len(r.endpoints))
	for e, g := range r.endpoints {
		s := EndpointStats{
			Service: e.service, Local: e.local.String(), Remote: e.remote.String(), Dialled: e.dialled, Group: g.cfg.Name, Began: e.began, Selection: e.selection,
		}
		s.Selection.Candidates = slices.Clone(e.selection.Candidates)
		open = append(open, listed{e, s})
	}
	r.mu.Unlock()
	all := make([]EndpointStats, len(open))
	for i := range open {
		a, s := open[i].e.carrier.done(), &open[i].s
		s.Sent, s.Received, s.Operations, s.Stalls, s.Stalled = a.sent, a.received, a.operations, a.stalls, a.stalled
		s.Credits, s.Err = open[i].e.carrier.credits(), open[i].e.Err()
		all[i] = *s
	}
	slices.SortFunc(all, func(a, b EndpointStats) int {
		return cmp.Or(a.Began.Compare(b.Began), cmp.Compare(a.Remote, b.Remote), cmp.Compare(a.Local, b.Local))
	})
	return all
}

// explain says why the transport of an endpoint that nobody has got was chosen.
func (r *Runtime) explain(e *Endpoint, rule, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.selection.Rule = rule
	e.selection.note(e.selection.Transport, reason)
}

func (c *counters) stats(s DeviceStats) DeviceStats {
	s.Opened, s.Failed = c.opened.Load(), c.failed.Load()
	for kind := range c.events {
		if n := c.events[kind].Load(); n > 0 {
			if s.Events == nil {
				s.Events = map[rdma.EventKind]uint64{}
			}
			s.Events[rdma.EventKind(kind)] = n
		}
	}
	return s
}

func (d *device) stats() DeviceStats {
	s := d.count.stats(DeviceStats{Transport: d.transport, Device: d.attributes.Name, Attributes: d.attributes})
	s.Gone = d.lost()
	d.mu.Lock()
	defer d.mu.Unlock()
	for domain := range d.domains {
		s.Pools = append(s.Pools, domain.pools()...)
	}
	return s
}
