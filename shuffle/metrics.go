package shuffle

import "github.com/prometheus/client_golang/prometheus"

// NewCollector returns the numbers of an exchange in this process for Prometheus, with the
// exchange's name as label. Register it once; it may outlive the exchange.
func NewCollector(x *Exchange) prometheus.Collector { return collector{x} }

type collector struct{ x *Exchange }

// A metric is a number of an exchange.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*Stats) float64
}

func newMetric(name, help string, kind prometheus.ValueType, of func(*Stats) float64) metric {
	return metric{prometheus.NewDesc("verbena_shuffle_"+name, help, []string{"exchange"}, nil), kind, of}
}

var metrics = []metric{
	newMetric("sent_records_total", "Records in the parts that senders have completed.", prometheus.CounterValue, func(s *Stats) float64 { return float64(s.Sent.Records) }),
	newMetric("sent_bytes_total", "Bytes of those records, with their lengths.", prometheus.CounterValue, func(s *Stats) float64 { return float64(s.Sent.Bytes) }),
	newMetric("sent_local_bytes_total", "The part of the sent bytes that went to threads of this process.", prometheus.CounterValue, func(s *Stats) float64 { return float64(s.Local.Bytes) }),
	newMetric("sent_parts_total", "Parts that senders have completed.", prometheus.CounterValue, func(s *Stats) float64 { return float64(s.Sent.Parts) }),
	newMetric("received_records_total", "Records in the parts that receivers have opened.", prometheus.CounterValue, func(s *Stats) float64 { return float64(s.Received.Records) }),
	newMetric("received_bytes_total", "Bytes of those records, with their lengths.", prometheus.CounterValue, func(s *Stats) float64 { return float64(s.Received.Bytes) }),
	newMetric("messages_total", "Messages to other processes, each with notifications or a block.", prometheus.CounterValue, func(s *Stats) float64 { return float64(s.Messages) }),
	newMetric("sender_stalls_total", "How often a sender waited for room.", prometheus.CounterValue, func(s *Stats) float64 { return float64(s.Stalls) }),
	newMetric("sender_stalled_seconds_total", "How long senders waited for room, all together.", prometheus.CounterValue, func(s *Stats) float64 { return s.Stalled.Seconds() }),
	newMetric("receiver_waits_total", "How often a receiver waited for records.", prometheus.CounterValue, func(s *Stats) float64 { return float64(s.Waits) }),
	newMetric("receiver_waited_seconds_total", "How long receivers waited for records, all together.", prometheus.CounterValue, func(s *Stats) float64 { return s.Waited.Seconds() }),
	newMetric("spilt_bytes_total", "Bytes written to the spill directory.", prometheus.CounterValue, func(s *Stats) float64 { return float64(s.Spilt) }),
	newMetric("memory_bytes", "Memory for records on their way.", prometheus.GaugeValue, func(s *Stats) float64 { return float64(s.Memory) }),
	newMetric("registered_bytes", "The part of it that is registered.", prometheus.GaugeValue, func(s *Stats) float64 { return float64(s.Registered) }),
}

// peersByWay is the one number that has more labels.
var peersByWay = prometheus.NewDesc("verbena_shuffle_peers", "Processes that this one exchanges with, by transport, and by whether blocks are put (one-sided) or sent (two-sided).",
	[]string{"exchange", "transport", "mode"}, nil)

// Describe implements [prometheus.Collector].
func (collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- peersByWay
	for i := range metrics {
		ch <- metrics[i].desc
	}
}

// Collect implements [prometheus.Collector].
func (c collector) Collect(ch chan<- prometheus.Metric) {
	s := c.x.Stats()
	for i := range metrics {
		m := &metrics[i]
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.of(&s), c.x.c.Name)
	}
	type way struct{ transport, mode string }
	peers := map[way]int{} // chosen for different reasons, perhaps
	for _, w := range s.Ways {
		peers[way{w.Transport, w.Mode.String()}] += w.Peers
	}
	for w, n := range peers {
		ch <- prometheus.MustNewConstMetric(peersByWay, prometheus.GaugeValue, float64(n), c.x.c.Name, w.transport, w.mode)
	}
}
