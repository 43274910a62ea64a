package datanode

import "sync/atomic"

// reads counts how clients came by bytes.
type reads struct {
	served  atomic.Uint64 // READ_BLOCK
	bytes   atomic.Uint64 // that those asked for
	local   atomic.Uint64 // replicas whose descriptors were handed over
	refused atomic.Uint64 // and not
}

// ReadStats are the numbers of a DataNode's reads since it was opened.
type ReadStats struct {
	Served, ServedBytes uint64 // reads over connections, and the bytes that they asked for
	// HandedOver are replicas whose descriptors went to processes of this host, Refused
	// requests for them that were refused.
	HandedOver, Refused uint64
	Local               LocalStats
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
		HandedOver: dn.reads.local.Load(), Refused: dn.reads.refused.Load(),
	}
	r.Local = dn.local.collect()
	return r
}
