package datanode

import (
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
)

// transferPath is what brings a block's packets.
type transferPath int

const (
	byLegacy transferPath = iota
	byNative
	transferPaths
)

// writeTimes are the stages of one block's writing. One goroutine at a time.
type writeTimes struct {
	began                    time.Time
	io, processing, namenode time.Duration
}

// opened counts the making of the replica's files, since began.
func (t *writeTimes) opened(began time.Time) {
	t.began = began
	t.io += time.Since(began)
}

// packet counts what w has done since began, when it had spent files on its files.
func (t *writeTimes) packet(w *store.Writer, began time.Time, files time.Duration) {
	io := w.IO() - files
	t.io += io
	t.processing += time.Since(began) - io
}

// writes counts the blocks that have been written to their end by one path.
type writes struct {
	blocks, bytes                     atomic.Uint64
	elapsed, io, processing, namenode atomic.Int64 // nanoseconds
}

func (w *writes) add(length int64, t *writeTimes) {
	w.elapsed.Add(int64(time.Since(t.began)))
	w.io.Add(int64(t.io))
	w.processing.Add(int64(t.processing))
	w.namenode.Add(int64(t.namenode))
	w.bytes.Add(uint64(length))
	w.blocks.Add(1)
}

// WriteStats are the blocks that clients and other DataNodes have written to a DataNode to
// their end by one path, and where the time went, from the opening of the replica's files
// to the last acknowledgement: after the HDFS paper, table II. The stages of a block
// follow each other; those of different blocks overlap.
type WriteStats struct {
	Blocks, Bytes uint64
	// Communication is all that is no other stage: to wait for packets, to take them out
	// of the transport, to send them on and to acknowledge them.
	Communication time.Duration
	// Processing is to compare packets with their checksums and to keep account of them.
	Processing time.Duration
	// IO is to open, write, sync and close the replica's files.
	IO time.Duration
	// NameNode is to tell the NameNode of the block's end.
	NameNode time.Duration
}

func (w *writes) stats() WriteStats {
	s := WriteStats{
		Blocks: w.blocks.Load(), Bytes: w.bytes.Load(), Processing: time.Duration(w.processing.Load()),
		IO: time.Duration(w.io.Load()), NameNode: time.Duration(w.namenode.Load()),
	}
	s.Communication = max(0, time.Duration(w.elapsed.Load())-s.Processing-s.IO-s.NameNode)
	return s
}

// Writes returns the numbers of a DataNode's writes since it was opened, by hdfs-data/1
// and by the data transfer protocol.
func (dn *DataNode) Writes() (native, legacy WriteStats) {
	return dn.writes[byNative].stats(), dn.writes[byLegacy].stats()
}

// copied counts the replicas that have been copied to other DataNodes by one path.
type copied struct{ blocks, bytes atomic.Uint64 }

func (c *copied) add(length int64) {
	c.bytes.Add(uint64(length))
	c.blocks.Add(1)
}

func (c *copied) count() CopyCount { return CopyCount{c.blocks.Load(), c.bytes.Load()} }

// CopyCount are replicas and their bytes, those of one that went to several DataNodes once.
type CopyCount struct{ Blocks, Bytes uint64 }

// CopyStats are the replicas that a DataNode has sent to others since it was opened, because
// the NameNode or a client wanted more of them.
type CopyStats struct {
	Native, Legacy CopyCount // by hdfs-data/1 and by the data transfer protocol
	// Fallbacks are the copies that were to go by hdfs-data/1 and then went, or were to go,
	// by the other protocol. The reasons: "not offered" by one of the DataNodes, "not
	// connected", "no memory" for the window, "broke off" in the middle.
	Fallbacks map[string]uint64
}

// Copies returns the numbers of copies.
func (dn *DataNode) Copies() CopyStats {
	s := CopyStats{Native: dn.copied[byNative].count(), Legacy: dn.copied[byLegacy].count(), Fallbacks: map[string]uint64{}}
	for why, name := range otherWayNames {
		s.Fallbacks[name] = dn.fellBack[why].Load()
	}
	return s
}

// reads counts how clients came by bytes.
type reads struct {
	served  atomic.Uint64 // READ_BLOCK
	bytes   atomic.Uint64 // that those asked for
	now     atomic.Uint64 // of served, small ones that waited for nothing
	local   atomic.Uint64 // replicas whose descriptors were handed over
	refused atomic.Uint64 // and not
}

// ReadStats are the numbers of a DataNode's reads since it was opened.
type ReadStats struct {
	Served, ServedBytes uint64 // reads over connections, and the bytes that they asked for
	// Now are small reads that were answered at once, of a replica that was open. Open are
	// the replicas that are kept open now.
	Now  uint64
	Open int
	// Rings are those of the reads that went through a ring: long ones, fetched by the
	// client out of the DataNode's memory.
	Rings uint64
	// HandedOver are replicas whose descriptors went to processes of this host, Refused
	// requests for them that were refused.
	HandedOver, Refused uint64
	Local               LocalStats
	Windows             WindowStats
}

// LocalStats are what processes of this host have of a DataNode.
type LocalStats struct {
	Segments, Slots int    // now
	Revoked         uint64 // slots that were taken back while clients had them
	ChecksumBytes   int64  // of memory, now
}

// Reads returns the numbers of reads.
func (dn *DataNode) Reads() ReadStats {
	r := ReadStats{
		Served: dn.reads.served.Load(), ServedBytes: dn.reads.bytes.Load(),
		Now: dn.reads.now.Load(), Open: dn.kept.count(), Rings: dn.rings.served.Load(),
		HandedOver: dn.reads.local.Load(), Refused: dn.reads.refused.Load(),
	}
	r.Local, r.Windows = dn.local.collect(), dn.windows.collect()
	return r
}

// PacketStats are the numbers of what receives packets of hdfs-data/1.
type PacketStats struct {
	Packets uint64
	// Waits is how often a receiver found no message and had to wait for one. So each
	// hop is woken at most Waits times for its packets, set-ups and aborts together.
	Waits uint64
	// Acknowledgements that this DataNode has sent: one may stand for many packets.
	Acknowledgements uint64
	// AckWaits is how often a receiver from a next DataNode had to wait: for answers to
	// set-ups and for acknowledgements, which wake this hop at most once each, too.
	AckWaits uint64
	Reserved int64 // bytes of windows, now
}

// Packets returns the numbers of what receives packets, since the DataNode was opened.
func (dn *DataNode) Packets() PacketStats {
	n := &dn.native
	n.mu.Lock()
	reserved := n.reserved
	n.mu.Unlock()
	s := PacketStats{Packets: n.packets.Load(), Waits: n.waits.Load(), Acknowledgements: n.acks.Load(), Reserved: reserved}
	if n.mirrors != nil {
		s.AckWaits = n.mirrors.Waits()
	}
	return s
}
