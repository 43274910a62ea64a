// Package metrics shows a runtime's numbers to Prometheus. The runtime itself
// depends on no monitoring system; this package turns its [verbena.Stats] into
// metrics each time somebody asks, so that nothing is counted twice and nothing
// is kept here.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/rdma"
)

// Collector implements [prometheus.Collector] for one runtime.
//
// All metrics have the labels transport ("shm", "iwarp", "ibverbs", "tcp") and
// device, the device's own name, which is empty for TCP and for what a provider
// counts over all its devices; but those of the process's memory have not.
type Collector struct {
	stats func() verbena.Stats
}

// NewCollector returns the collector of r. Register it once.
func NewCollector(r *verbena.Runtime) *Collector { return &Collector{stats: r.Stats} }

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("verbena_"+name, help, append([]string{"transport", "device"}, labels...), nil)
}

var (
	usable     = describe("device_usable", "1 while the device can be used, 0 once it is gone or if the provider has none.")
	endpoints  = describe("endpoints", "Endpoints that are not closed yet, also those that have ended.")
	opened     = describe("endpoints_opened_total", "Endpoints that got connected.")
	failed     = describe("endpoints_failed_total", "Endpoints that did not get connected.")
	messages   = describe("messages_total", "Messages that Send handed to the transport and Receive returned.", "direction")
	payload    = describe("message_bytes_total", "Bytes of those messages.", "direction")
	operations = describe("one_sided_operations_total", "One-sided operations of this side: those that the device was given, and those that the peer's runtime answered.", "kind")
	reached    = describe("one_sided_bytes_total", "Bytes that Puts and Gets of this side carried.")
	stalls     = describe("send_stalls_total", "How often a sender slept until the peer had room.")
	stalled    = describe("send_stalled_seconds_total", "How long senders slept so, all together.")
	events     = describe("device_events_total", "Asynchronous events by kind.", "kind")
	counters   = describe("provider_counters_total", "What the provider counts over all its devices, by name.", "counter")
	used       = describe("pool_used_bytes", "Registered memory that is handed out.", "group", "pool")
	registered = describe("pool_registered_bytes", "Memory registered with the device.", "group", "pool")
	limit      = describe("pool_limit_bytes", "Memory that may be registered.", "group", "pool")
	squeezed   = describe("pool_squeezed", "1 while the pool is kept from growing because memory is short.", "group", "pool")
	waiting    = describe("pool_waiting_requests", "Requests that wait for memory.", "group", "pool")

	poolEndpoints = prometheus.NewDesc("verbena_endpoint_pool_endpoints", "Endpoints of a pool, by what they do.", []string{"pool", "state"}, nil)
	poolPeers     = prometheus.NewDesc("verbena_endpoint_pool_peers", "Peers that a pool knows.", []string{"pool"}, nil)
	poolWaiting   = prometheus.NewDesc("verbena_endpoint_pool_waiting_requests", "Requests that wait for an endpoint.", []string{"pool"}, nil)
	poolRequests  = prometheus.NewDesc("verbena_endpoint_pool_requests_total", "Requests by outcome: got an endpoint, or left without; and those that had to wait.", []string{"pool", "outcome"}, nil)
	poolDials     = prometheus.NewDesc("verbena_endpoint_pool_dials_total", "Attempts to connect by outcome.", []string{"pool", "outcome"}, nil)
	poolEnded     = prometheus.NewDesc("verbena_endpoint_pool_ended_total", "Endpoints that are gone, by reason: lost to the peer or the path, idle, replaced by better ones.", []string{"pool", "reason"}, nil)

	memoryPressure = prometheus.NewDesc("verbena_memory_pressure", "1 for the level of the memory's pressure that holds, 0 for the others.", []string{"level"}, nil)
	memoryLimit    = prometheus.NewDesc("verbena_memory_limit_bytes", "The least of the machine's memory and the limits of the process's cgroups.", nil, nil)
	memoryUsed     = prometheus.NewDesc("verbena_memory_used_bytes", "The use under that limit, by everybody.", nil, nil)
	memoryRoom     = prometheus.NewDesc("verbena_memory_room_bytes", "The least that is left of a limit.", nil, nil)
	memoryStalled  = prometheus.NewDesc("verbena_memory_stalled_seconds_total", "How long tasks of the cgroup, or of the machine, have waited for memory.", nil, nil)
)

// levels are those of the memory's pressure.
var levels = []string{"calm", "tight", "critical"}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{usable, endpoints, opened, failed, messages, payload, operations, reached, stalls, stalled, events, counters, used, registered, limit, squeezed, waiting,
		poolEndpoints, poolPeers, poolWaiting, poolRequests, poolDials, poolEnded, memoryPressure, memoryLimit, memoryUsed, memoryRoom, memoryStalled} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	s := c.stats()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for _, level := range levels {
		gauge(memoryPressure, one(s.Memory.Pressure == level), level)
	}
	if s.Memory.Limit > 0 {
		gauge(memoryLimit, float64(s.Memory.Limit))
		gauge(memoryUsed, float64(s.Memory.Used))
		gauge(memoryRoom, float64(s.Memory.Room))
		ch <- prometheus.MustNewConstMetric(memoryStalled, prometheus.CounterValue, s.Memory.Stalled.Seconds())
	}
	for _, p := range s.EndpointPools {
		gauge(poolEndpoints, float64(p.Busy), p.Name, "busy")
		gauge(poolEndpoints, float64(p.Open-p.Busy), p.Name, "free")
		gauge(poolPeers, float64(p.Peers), p.Name)
		gauge(poolWaiting, float64(p.Waiting), p.Name)
		counter(poolRequests, p.Requests, p.Name, "served")
		counter(poolRequests, p.Left, p.Name, "left")
		counter(poolRequests, p.Waited, p.Name, "waited")
		counter(poolDials, p.Opened, p.Name, "connected")
		counter(poolDials, p.Failed, p.Name, "failed")
		counter(poolEnded, p.Lost, p.Name, "lost")
		counter(poolEnded, p.Idle, p.Name, "idle")
		counter(poolEnded, p.Replaced, p.Name, "replaced")
	}
	for transport := range s.Unavailable {
		gauge(usable, 0, transport, "")
	}
	for transport, values := range s.Counters {
		for name, v := range values {
			counter(counters, v, transport, "", name)
		}
	}
	for _, d := range s.Devices {
		t, name := d.Transport, d.Device
		up := 1.0
		if d.Gone != nil {
			up = 0
		}
		gauge(usable, up, t, name)
		gauge(endpoints, float64(d.Endpoints), t, name)
		counter(opened, d.Opened, t, name)
		counter(failed, d.Failed, t, name)
		counter(messages, d.Sent.Messages, t, name, "sent")
		counter(messages, d.Received.Messages, t, name, "received")
		counter(payload, d.Sent.Bytes, t, name, "sent")
		counter(payload, d.Received.Bytes, t, name, "received")
		counter(operations, d.Operations.Puts, t, name, "put")
		counter(operations, d.Operations.Gets, t, name, "get")
		counter(operations, d.Operations.Atomics, t, name, "atomic")
		counter(reached, d.Operations.Bytes, t, name)
		counter(stalls, d.Stalls, t, name)
		ch <- prometheus.MustNewConstMetric(stalled, prometheus.CounterValue, d.Stalled.Seconds(), t, name)
		if t != verbena.TransportTCP {
			// All kinds from the beginning, so that a rate can be taken of the first.
			for kind := rdma.EventKind(0); kind <= rdma.EventPortUp; kind++ {
				counter(events, d.Events[kind], t, name, kind.String())
			}
		}
		for _, p := range d.Pools {
			gauge(used, float64(p.Used), t, name, p.Group, p.Name)
			gauge(registered, float64(p.Registered), t, name, p.Group, p.Name)
			gauge(limit, float64(p.Limit), t, name, p.Group, p.Name)
			gauge(squeezed, one(p.Squeezed), t, name, p.Group, p.Name)
			gauge(waiting, float64(p.Waiting), t, name, p.Group, p.Name)
		}
	}
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
