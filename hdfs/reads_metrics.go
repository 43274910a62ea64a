package hdfs

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/verbena-data/verbena/hdfs/internal/datanode"
)

// ReadStats are the numbers of a DataNode's reads.
type ReadStats = datanode.ReadStats

// Reads returns how clients have read from the DataNode, since it was started.
func (d *DataNode) Reads() ReadStats { return d.state.Reads() }

// NewReadsCollector returns the numbers of the reads of some DataNodes of this process,
// added up.
func NewReadsCollector(nodes ...*DataNode) prometheus.Collector { return readsCollector(nodes) }

type readsCollector []*DataNode

type readsMetric struct {
	name, help string
	kind       prometheus.ValueType
	of         func(*ReadStats) float64
}

func (m *readsMetric) desc() *prometheus.Desc {
	return prometheus.NewDesc("verbena_hdfs_datanode_"+m.name, m.help, nil, nil)
}

var readsMetrics = []readsMetric{
	{"reads_total", "Reads over connections.", prometheus.CounterValue, func(s *ReadStats) float64 { return float64(s.Served) }},
	{"read_bytes_total", "Bytes that reads over connections asked for.", prometheus.CounterValue, func(s *ReadStats) float64 { return float64(s.ServedBytes) }},
	{"reads_at_once_total", "Small reads over endpoints that were answered at once.", prometheus.CounterValue, func(s *ReadStats) float64 { return float64(s.Now) }},
	{"reads_by_ring_total", "Long reads whose bytes the client has fetched out of the DataNode's memory.", prometheus.CounterValue, func(s *ReadStats) float64 { return float64(s.Rings) }},
	{"replicas_open", "Replicas that are kept open between reads now.", prometheus.GaugeValue, func(s *ReadStats) float64 { return float64(s.Open) }},
	{"windows", "Ranges of blocks that clients may read one-sidedly now.", prometheus.GaugeValue, func(s *ReadStats) float64 { return float64(s.Windows.Windows) }},
	{"window_bytes", "Memory of those ranges now, those included that were taken back a moment ago, and of the rings of long reads.", prometheus.GaugeValue, func(s *ReadStats) float64 { return float64(s.Windows.Bytes) }},
	{"windows_granted_total", "Leases of ranges that clients got.", prometheus.CounterValue, func(s *ReadStats) float64 { return float64(s.Windows.Granted) }},
	{"windows_refused_total", "Requests for ranges that were refused.", prometheus.CounterValue, func(s *ReadStats) float64 { return float64(s.Windows.Refused) }},
	{"windows_revoked_total", "Ranges taken back because the replica changed.", prometheus.CounterValue, func(s *ReadStats) float64 { return float64(s.Windows.Revoked) }},
	{"descriptors_handed_over_total", "Replicas whose descriptors were handed to processes of this host.", prometheus.CounterValue, func(s *ReadStats) float64 { return float64(s.HandedOver) }},
	{"descriptors_refused_total", "Requests for descriptors that were refused.", prometheus.CounterValue, func(s *ReadStats) float64 { return float64(s.Refused) }},
	{"descriptors_revoked_total", "Slots taken back because the replica changed.", prometheus.CounterValue, func(s *ReadStats) float64 { return float64(s.Local.Revoked) }},
	{"descriptor_slots", "Slots that clients have now.", prometheus.GaugeValue, func(s *ReadStats) float64 { return float64(s.Local.Slots) }},
	{"descriptor_clients", "Processes with segments of slots now.", prometheus.GaugeValue, func(s *ReadStats) float64 { return float64(s.Local.Segments) }},
	{"descriptor_checksum_bytes", "Memory of checksums for HDFS's clients now.", prometheus.GaugeValue, func(s *ReadStats) float64 { return float64(s.Local.ChecksumBytes) }},
}

// Describe implements [prometheus.Collector].
func (readsCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range readsMetrics {
		ch <- m.desc()
	}
}

// Collect implements [prometheus.Collector].
func (c readsCollector) Collect(ch chan<- prometheus.Metric) {
	stats := make([]ReadStats, len(c))
	for i, d := range c {
		stats[i] = d.Reads()
	}
	for _, m := range readsMetrics {
		sum := 0.0
		for i := range stats {
			sum += m.of(&stats[i])
		}
		ch <- prometheus.MustNewConstMetric(m.desc(), m.kind, sum)
	}
}
