package hdfs

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/verbena-data/verbena/hdfs/internal/datanode"
)

// WriteStats are the blocks that have been written to a DataNode by one path, and where the
// time went.
type WriteStats = datanode.WriteStats

// PacketStats are the numbers of what receives packets of hdfs-data/1.
type PacketStats = datanode.PacketStats

// Writes returns how blocks have been written to the DataNode since it was started, by
// hdfs-data/1 and by the data transfer protocol.
func (d *DataNode) Writes() (native, legacy WriteStats) { return d.state.Writes() }

// Packets returns the numbers of what receives packets of hdfs-data/1.
func (d *DataNode) Packets() PacketStats { return d.state.Packets() }

// NewWritesCollector returns the numbers of the writes to some DataNodes of this process,
// added up.
func NewWritesCollector(nodes ...*DataNode) prometheus.Collector { return writesCollector(nodes) }

type writesCollector []*DataNode

var (
	blocksWritten = prometheus.NewDesc("verbena_hdfs_datanode_blocks_written_total", "Blocks written to their end.", []string{"path"}, nil)
	bytesWritten  = prometheus.NewDesc("verbena_hdfs_datanode_block_bytes_written_total", "Bytes of the blocks written to their end.", []string{"path"}, nil)
	writeSeconds  = prometheus.NewDesc("verbena_hdfs_datanode_write_seconds_total", "Time of the blocks written to their end, by stage.", []string{"path", "stage"}, nil)
	packets       = prometheus.NewDesc("verbena_hdfs_datanode_native_packets_total", "Packets received by hdfs-data/1.", nil, nil)
	packetAcks    = prometheus.NewDesc("verbena_hdfs_datanode_native_acknowledgements_total", "Acknowledgements sent by hdfs-data/1.", nil, nil)
	packetWaits   = prometheus.NewDesc("verbena_hdfs_datanode_native_waits_total", "How often a receiver of hdfs-data/1 found no message and had to wait.", nil, nil)
)

// writeStages are the stages of a block's writing, by what metrics call them.
var writeStages = []struct {
	name string
	of   func(*WriteStats) time.Duration
}{
	{"communication", func(s *WriteStats) time.Duration { return s.Communication }},
	{"processing", func(s *WriteStats) time.Duration { return s.Processing }},
	{"io", func(s *WriteStats) time.Duration { return s.IO }},
	{"namenode", func(s *WriteStats) time.Duration { return s.NameNode }},
}

// Describe implements [prometheus.Collector].
func (writesCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{blocksWritten, bytesWritten, writeSeconds, packets, packetAcks, packetWaits} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c writesCollector) Collect(ch chan<- prometheus.Metric) {
	paths := []string{"native", "legacy"}
	var blocks, bytes [2]uint64
	seconds := make([][2]float64, len(writeStages))
	var received PacketStats
	for _, d := range c {
		var stats [2]WriteStats
		stats[0], stats[1] = d.Writes()
		for i := range paths {
			blocks[i] += stats[i].Blocks
			bytes[i] += stats[i].Bytes
			for stage := range writeStages {
				seconds[stage][i] += writeStages[stage].of(&stats[i]).Seconds()
			}
		}
		p := d.Packets()
		received.Packets += p.Packets
		received.Acknowledgements += p.Acknowledgements
		received.Waits += p.Waits
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	for i, path := range paths {
		counter(blocksWritten, float64(blocks[i]), path)
		counter(bytesWritten, float64(bytes[i]), path)
		for stage := range writeStages {
			counter(writeSeconds, seconds[stage][i], path, writeStages[stage].name)
		}
	}
	counter(packets, float64(received.Packets))
	counter(packetAcks, float64(received.Acknowledgements))
	counter(packetWaits, float64(received.Waits))
}
