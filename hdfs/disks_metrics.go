package hdfs

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/verbena-data/verbena/hdfs/internal/datanode"
)

// DiskStats are the state of one of a DataNode's data directories.
type DiskStats = datanode.DiskStats

// Disks returns the state of the DataNode's data directories.
func (d *DataNode) Disks() []DiskStats { return d.state.Disks() }

// SpareStats tell of the files of removed blocks that a DataNode's directories in memory keep for
// new ones to write over.
type SpareStats = datanode.SpareStats

// Spares returns their numbers, of all directories together.
func (d *DataNode) Spares() SpareStats { return d.state.Spares() }

// NewDisksCollector returns the state of the data directories of some DataNodes of this process,
// added up.
func NewDisksCollector(nodes ...*DataNode) prometheus.Collector { return disksCollector(nodes) }

type disksCollector []*DataNode

var (
	directories = prometheus.NewDesc("verbena_hdfs_datanode_directories", "Data directories: in service, hanging (nothing new is put there) and failed (out of service).", []string{"state"}, nil)
	diskWait    = prometheus.NewDesc("verbena_hdfs_datanode_disk_wait_seconds", "Time for which the oldest operation under way on any disk has been waited for.", nil, nil)
	spareBytes  = prometheus.NewDesc("verbena_hdfs_datanode_spare_bytes", "Bytes of the files of removed blocks that are kept for new ones to write over.", nil, nil)
	sparesKept  = prometheus.NewDesc("verbena_hdfs_datanode_spares_kept_total", "Files of removed blocks that have been kept for new ones.", nil, nil)
	sparesUsed  = prometheus.NewDesc("verbena_hdfs_datanode_spares_reused_total", "Files of removed blocks that new ones have been written over.", nil, nil)
	sparesLarge = prometheus.NewDesc("verbena_hdfs_datanode_spares_enlarged_total", "Files of removed blocks that the kernel has put into large pages for new ones.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (disksCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- directories
	ch <- diskWait
	ch <- spareBytes
	ch <- sparesKept
	ch <- sparesUsed
	ch <- sparesLarge
}

// Collect implements [prometheus.Collector].
func (c disksCollector) Collect(ch chan<- prometheus.Metric) {
	states := map[string]int{"in service": 0, "hanging": 0, "failed": 0}
	waited := 0.0
	var spares SpareStats
	for _, d := range c {
		n := d.Spares()
		spares.Bytes, spares.Kept, spares.Reused = spares.Bytes+n.Bytes, spares.Kept+n.Kept, spares.Reused+n.Reused
		spares.Enlarged += n.Enlarged
		for _, s := range d.Disks() {
			switch {
			case s.Failed != nil:
				states["failed"]++
			case s.Hangs:
				states["hanging"]++
			default:
				states["in service"]++
			}
			waited = max(waited, s.Waited.Seconds())
		}
	}
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(directories, prometheus.GaugeValue, float64(n), state)
	}
	ch <- prometheus.MustNewConstMetric(diskWait, prometheus.GaugeValue, waited)
	ch <- prometheus.MustNewConstMetric(spareBytes, prometheus.GaugeValue, float64(spares.Bytes))
	ch <- prometheus.MustNewConstMetric(sparesKept, prometheus.CounterValue, float64(spares.Kept))
	ch <- prometheus.MustNewConstMetric(sparesUsed, prometheus.CounterValue, float64(spares.Reused))
	ch <- prometheus.MustNewConstMetric(sparesLarge, prometheus.CounterValue, float64(spares.Enlarged))
}
