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

// CopyStats are the replicas that a DataNode has sent to others, because the NameNode or a client
// wanted more of them.
type CopyStats = datanode.CopyStats

// Copies returns how replicas have gone from the DataNode to others since it was started.
func (d *DataNode) Copies() CopyStats { return d.state.Copies() }

// Writes returns how blocks have been written to the DataNode since it was started, by
// hdfs-data/1 and by the data transfer protocol.
func (d *DataNode) Writes() (native, legacy WriteStats) { return d.state.Writes() }

// Packets returns the numbers of what receives packets of hdfs-data/1.
func (d *DataNode) Packets() PacketStats { return d.state.Packets() }

// NewWritesCollector returns the numbers of the writes to some DataNodes of this process, and of
// the replicas that they have copied to others, added up.
func NewWritesCollector(nodes ...*DataNode) prometheus.Collector { return writesCollector(nodes) }

type writesCollector []*DataNode

var (
	blocksWritten = prometheus.NewDesc("verbena_hdfs_datanode_blocks_written_total", "Blocks written to their end.", []string{"path"}, nil)
	bytesWritten  = prometheus.NewDesc("verbena_hdfs_datanode_block_bytes_written_total", "Bytes of the blocks written to their end.", []string{"path"}, nil)
	writeSeconds  = prometheus.NewDesc("verbena_hdfs_datanode_write_seconds_total", "Time of the blocks written to their end, by stage.", []string{"path", "stage"}, nil)
	packets       = prometheus.NewDesc("verbena_hdfs_datanode_native_packets_total", "Packets received by hdfs-data/1.", nil, nil)
	packetAcks    = prometheus.NewDesc("verbena_hdfs_datanode_native_acknowledgements_total", "Acknowledgements sent by hdfs-data/1.", nil, nil)
	packetWaits   = prometheus.NewDesc("verbena_hdfs_datanode_native_waits_total", "How often a receiver of hdfs-data/1 found no message and had to wait.", nil, nil)
	ackWaits      = prometheus.NewDesc("verbena_hdfs_datanode_native_acknowledgement_waits_total", "How often a receiver from a next DataNode of hdfs-data/1 found no message and had to wait.", nil, nil)
	packetWindows = prometheus.NewDesc("verbena_hdfs_datanode_native_reserved_bytes", "Bytes reserved for the windows of blocks that are being written, or copied to others, by hdfs-data/1.", nil, nil)
	blocksCopied  = prometheus.NewDesc("verbena_hdfs_datanode_blocks_copied_total", "Replicas sent to other DataNodes, to their end.", []string{"path"}, nil)
	bytesCopied   = prometheus.NewDesc("verbena_hdfs_datanode_block_bytes_copied_total", "Bytes of the replicas sent to other DataNodes, to their end.", []string{"path"}, nil)
	copyFallbacks = prometheus.NewDesc("verbena_hdfs_datanode_copy_fallbacks_total", "Copies that were to go by hdfs-data/1 and had to take the data transfer protocol, by reason.", []string{"reason"}, nil)
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
	for _, d := range []*prometheus.Desc{blocksWritten, bytesWritten, writeSeconds, packets, packetAcks, packetWaits, ackWaits, packetWindows, blocksCopied, bytesCopied, copyFallbacks} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c writesCollector) Collect(ch chan<- prometheus.Metric) {
	paths := []string{"native", "legacy"}
	var blocks, bytes, copies, copiedBytes [2]uint64
	fallbacks := map[string]uint64{}
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
		copied := d.Copies()
		for i, count := range []datanode.CopyCount{copied.Native, copied.Legacy} {
			copies[i] += count.Blocks
			copiedBytes[i] += count.Bytes
		}
		for why, count := range copied.Fallbacks {
			fallbacks[why] += count
		}
		p := d.Packets()
		received.Packets += p.Packets
		received.Acknowledgements += p.Acknowledgements
		received.Waits += p.Waits
		received.AckWaits += p.AckWaits
		received.Reserved += p.Reserved
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	for i, path := range paths {
		counter(blocksWritten, float64(blocks[i]), path)
		counter(bytesWritten, float64(bytes[i]), path)
		counter(blocksCopied, float64(copies[i]), path)
		counter(bytesCopied, float64(copiedBytes[i]), path)
		for stage := range writeStages {
			counter(writeSeconds, seconds[stage][i], path, writeStages[stage].name)
		}
	}
	for why, count := range fallbacks {
		counter(copyFallbacks, float64(count), why)
	}
	counter(packets, float64(received.Packets))
	counter(packetAcks, float64(received.Acknowledgements))
	counter(packetWaits, float64(received.Waits))
	counter(ackWaits, float64(received.AckWaits))
	ch <- prometheus.MustNewConstMetric(packetWindows, prometheus.GaugeValue, float64(received.Reserved))
}
