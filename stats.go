package verbena

import (
	"maps"
	"slices"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// Stats are the numbers of a runtime at one moment. What counts, counts from the
// runtime's beginning and never goes back.
type Stats struct {
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

	Endpoints int    // open now
	Opened    uint64 // endpoints ever
	Failed    uint64 // endpoints that did not get connected

	// Messages of the endpoints: those that Send has handed to the transport and
	// those that Receive has returned, and the bytes in them.
	Sent, Received Traffic
	// Events by kind: what the device told of itself and its queue pairs.
	Events map[rdma.EventKind]uint64
	// Gone tells why the device cannot be used any more, if so.
	Gone error
	// Pools are memory by group and purpose. On a device there are none before the
	// first endpoint; TCP has some from the beginning.
	Pools []PoolStats
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

// Stats returns the runtime's numbers. It takes the lock of each endpoint for a
// moment.
func (r *Runtime) Stats() Stats {
	s := Stats{Unavailable: map[string]error{}, Counters: map[string]map[string]uint64{}, Memory: memoryStats()}
	index := map[*counters]int{}
	for _, t := range r.transports {
		if err := t.unavailable(); err != nil {
			s.Unavailable[t.name] = err
		}
		if counting, ok := t.provider.(rdma.CountingProvider); ok {
			s.Counters[t.name] = counting.Counters()
		}
	}
	for d := range r.devices() {
		index[&d.count] = len(s.Devices)
		s.Devices = append(s.Devices, d.stats())
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

	// Under one lock, so that no endpoint is counted twice or left out while it
	// closes.
	r.mu.Lock()
	defer r.mu.Unlock()
	for c, i := range index {
		s.Devices[i].Sent, s.Devices[i].Received = c.past.sent, c.past.received
	}
	for e := range r.endpoints {
		d := &s.Devices[index[e.count]]
		d.Endpoints++
		d.Sent.merge(e.carrier.sentTraffic())
		d.Received.merge(e.carrier.receivedTraffic())
	}
	return s
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
	s := d.count.stats(DeviceStats{Transport: d.transport, Device: d.attributes.Name})
	s.Gone = d.lost()
	d.mu.Lock()
	defer d.mu.Unlock()
	for domain := range d.domains {
		s.Pools = append(s.Pools, domain.pools()...)
	}
	return s
}
