package metrics

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// collected is what TestCollector looks for.
const collected = `
# HELP verbena_device_events_total Asynchronous events by kind.
# TYPE verbena_device_events_total counter
verbena_device_events_total{device="shm0",kind="completion queue overrun",transport="shm"} 0
verbena_device_events_total{device="shm0",kind="device error",transport="shm"} 0
verbena_device_events_total{device="shm0",kind="disconnected",transport="shm"} 0
verbena_device_events_total{device="shm0",kind="port down",transport="shm"} 0
verbena_device_events_total{device="shm0",kind="port up",transport="shm"} 0
verbena_device_events_total{device="shm0",kind="queue pair error",transport="shm"} 4
verbena_device_events_total{device="shm0",kind="shared receive queue limit",transport="shm"} 0
# HELP verbena_device_usable 1 while the device can be used, 0 once it is gone or if the provider has none.
# TYPE verbena_device_usable gauge
verbena_device_usable{device="",transport="ibverbs"} 0
verbena_device_usable{device="",transport="tcp"} 1
verbena_device_usable{device="shm0",transport="shm"} 0
# HELP verbena_endpoint_pool_dials_total Attempts to connect by outcome.
# TYPE verbena_endpoint_pool_dials_total counter
verbena_endpoint_pool_dials_total{outcome="connected",pool="regions"} 7
verbena_endpoint_pool_dials_total{outcome="failed",pool="regions"} 6
# HELP verbena_endpoint_pool_ended_total Endpoints that are gone, by reason: lost to the peer or the path, idle, replaced by better ones.
# TYPE verbena_endpoint_pool_ended_total counter
verbena_endpoint_pool_ended_total{pool="regions",reason="idle"} 4
verbena_endpoint_pool_ended_total{pool="regions",reason="lost"} 5
verbena_endpoint_pool_ended_total{pool="regions",reason="replaced"} 3
# HELP verbena_endpoint_pool_endpoints Endpoints of a pool, by what they do.
# TYPE verbena_endpoint_pool_endpoints gauge
verbena_endpoint_pool_endpoints{pool="regions",state="busy"} 2
verbena_endpoint_pool_endpoints{pool="regions",state="free"} 3
# HELP verbena_endpoint_pool_requests_total Requests by outcome: got an endpoint, or left without; and those that had to wait.
# TYPE verbena_endpoint_pool_requests_total counter
verbena_endpoint_pool_requests_total{outcome="left",pool="regions"} 8
verbena_endpoint_pool_requests_total{outcome="served",pool="regions"} 100
verbena_endpoint_pool_requests_total{outcome="waited",pool="regions"} 9
# HELP verbena_memory_pressure 1 for the level of the memory's pressure that holds, 0 for the others.
# TYPE verbena_memory_pressure gauge
verbena_memory_pressure{level="calm"} 0
verbena_memory_pressure{level="critical"} 0
verbena_memory_pressure{level="tight"} 1
# HELP verbena_memory_room_bytes The least that is left of a limit.
# TYPE verbena_memory_room_bytes gauge
verbena_memory_room_bytes 100
# HELP verbena_memory_stalled_seconds_total How long tasks of the cgroup, or of the machine, have waited for memory.
# TYPE verbena_memory_stalled_seconds_total counter
verbena_memory_stalled_seconds_total 1.5
# HELP verbena_message_bytes_total Bytes of those messages.
# TYPE verbena_message_bytes_total counter
verbena_message_bytes_total{device="",direction="received",transport="tcp"} 0
verbena_message_bytes_total{device="",direction="sent",transport="tcp"} 0
verbena_message_bytes_total{device="shm0",direction="received",transport="shm"} 30
verbena_message_bytes_total{device="shm0",direction="sent",transport="shm"} 700
# HELP verbena_one_sided_bytes_total Bytes that Puts and Gets of this side carried.
# TYPE verbena_one_sided_bytes_total counter
verbena_one_sided_bytes_total{device="",transport="tcp"} 0
verbena_one_sided_bytes_total{device="shm0",transport="shm"} 900
# HELP verbena_one_sided_operations_total One-sided operations of this side: those that the device was given, and those that the peer's runtime answered.
# TYPE verbena_one_sided_operations_total counter
verbena_one_sided_operations_total{device="",kind="atomic",transport="tcp"} 0
verbena_one_sided_operations_total{device="",kind="get",transport="tcp"} 0
verbena_one_sided_operations_total{device="",kind="put",transport="tcp"} 0
verbena_one_sided_operations_total{device="shm0",kind="atomic",transport="shm"} 6
verbena_one_sided_operations_total{device="shm0",kind="get",transport="shm"} 5
verbena_one_sided_operations_total{device="shm0",kind="put",transport="shm"} 4
# HELP verbena_pool_squeezed 1 while the pool is kept from growing because memory is short.
# TYPE verbena_pool_squeezed gauge
verbena_pool_squeezed{device="shm0",group="tables",pool="send",transport="shm"} 1
# HELP verbena_pool_used_bytes Registered memory that is handed out.
# TYPE verbena_pool_used_bytes gauge
verbena_pool_used_bytes{device="shm0",group="tables",pool="send",transport="shm"} 10
# HELP verbena_pool_waiting_requests Requests that wait for memory.
# TYPE verbena_pool_waiting_requests gauge
verbena_pool_waiting_requests{device="shm0",group="tables",pool="send",transport="shm"} 4
# HELP verbena_send_stalls_total How often a sender slept until the peer had room.
# TYPE verbena_send_stalls_total counter
verbena_send_stalls_total{device="",transport="tcp"} 0
verbena_send_stalls_total{device="shm0",transport="shm"} 7
# HELP verbena_send_stalled_seconds_total How long senders slept so, all together.
# TYPE verbena_send_stalled_seconds_total counter
verbena_send_stalled_seconds_total{device="",transport="tcp"} 0
verbena_send_stalled_seconds_total{device="shm0",transport="shm"} 2.5
# HELP verbena_provider_counters_total What the provider counts over all its devices, by name.
# TYPE verbena_provider_counters_total counter
verbena_provider_counters_total{counter="lost_completions",device="",transport="ibverbs"} 3
verbena_provider_counters_total{counter="overruns",device="",transport="ibverbs"} 0
`

func TestCollector(t *testing.T) {
	c := &Collector{stats: func() verbena.Stats {
		return verbena.Stats{
			Memory:      verbena.MemoryStats{Pressure: "tight", Limit: 1000, Used: 900, Room: 100, Stalled: 1500 * time.Millisecond},
			Unavailable: map[string]error{"ibverbs": errors.New("no library")},
			Counters:    map[string]map[string]uint64{"ibverbs": {"lost_completions": 3, "overruns": 0}},
			EndpointPools: []verbena.EndpointPoolStats{{
				Name: "regions", Service: "regions/1", Peers: 3, Open: 5, Busy: 2, Waiting: 1,
				PoolCounts: verbena.PoolCounts{Requests: 100, Waited: 9, Left: 8, Opened: 7, Failed: 6, Lost: 5, Idle: 4, Replaced: 3},
			}},
			Devices: []verbena.DeviceStats{
				{
					Transport: "shm", Device: "shm0", Endpoints: 2, Opened: 5, Failed: 1,
					Sent: verbena.Traffic{Messages: 7, Bytes: 700}, Received: verbena.Traffic{Messages: 3, Bytes: 30},
					Operations: verbena.Operations{Puts: 4, Gets: 5, Atomics: 6, Bytes: 900}, Stalls: 7, Stalled: 2500 * time.Millisecond,
					Events: map[rdma.EventKind]uint64{rdma.EventQueuePairError: 4}, Gone: errors.New("pulled out"),
					Pools: []verbena.PoolStats{{Group: "tables", Name: "send", Used: 10, Registered: 20, Limit: 30, Squeezed: true, Waiting: 4}},
				},
				{Transport: verbena.TransportTCP, Endpoints: 1, Opened: 1},
			},
		}
	}}
	err := testutil.CollectAndCompare(c, strings.NewReader(collected), "verbena_device_events_total", "verbena_device_usable",
		"verbena_endpoint_pool_dials_total", "verbena_endpoint_pool_ended_total", "verbena_endpoint_pool_endpoints", "verbena_endpoint_pool_requests_total",
		"verbena_message_bytes_total", "verbena_one_sided_bytes_total", "verbena_one_sided_operations_total", "verbena_send_stalls_total", "verbena_send_stalled_seconds_total", "verbena_pool_used_bytes", "verbena_pool_squeezed",
		"verbena_pool_waiting_requests", "verbena_memory_pressure", "verbena_memory_room_bytes", "verbena_memory_stalled_seconds_total", "verbena_provider_counters_total")
	if err != nil {
		t.Error(err)
	}
	if problems, err := testutil.CollectAndLint(c); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// A live runtime's metrics can be gathered: none twice, none malformed.
func TestRuntime(t *testing.T) {
	network := fake.NewNetwork()
	r, err := verbena.New(verbena.Config{Providers: []rdma.Provider{
		fake.NewProvider("fake", network.NewDevice(fake.InfiniBand("a")), network.NewDevice(fake.InfiniBand("b"))),
		fake.NewProvider("nothing"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewCollector(r))
	n, err := testutil.GatherAndCount(registry, "verbena_device_usable")
	if err != nil || n != 4 {
		t.Errorf("%d series, want 4: fake's two, nothing's, tcp's; %v", n, err)
	}
}
