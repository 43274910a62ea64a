// Package store keeps a DataNode's replicas on disk: the bytes of each block
// and their checksums, through a vfs.FS so that crashes can be rehearsed. It
// knows neither connections nor the NameNode. It has one directory or several, on a disk each:
//
//	DIR/VERSION                     identity: cluster, block pool, DataNode, storage
//	DIR/in_use.lock                 held while a process has the store open
//	DIR/boot                        the machine boot in which the store was last opened
//	DIR/blocks/XX/blk_ID            the bytes; XX is the second lowest byte of the id
//	DIR/blocks/XX/blk_ID_GEN.meta   checksums; GEN is the generation stamp
//	DIR/blocks/XX/blk_ID_GEN.promised   recovery GEN was told that the block is not here
//	DIR/spare/N                     the bytes of a removed replica, to be written over; where DIR is in memory
//
// A replica is in one of them, chosen when it is made: they take turns, and those without room
// for a block are passed over. A directory that fails is taken out of service with all its
// replicas; the others go on. Directories may come and go while no process has the store
// open. All must be one DataNode's; a new one becomes that.
//
// # One file decides
//
// The meta file alone says what a replica is. Its first 512 bytes (one sector,
// one page) hold an immutable header and four slots; the checksums of the full
// chunks follow, each written once. The checksum of a chunk that is not full
// yet never stands in the array, where it would have to be overwritten: it
// stands in a slot together with the length that it covers.
//
//	durable A, durable B   the lengths of the last two hsyncs, in turn
//	flushed                the length after the last packet that ended inside a chunk
//	final                  the length of the finalized replica; valid only when it is
//
// Finalizing a replica is therefore one small write, and cannot happen by half;
// nothing moves between directories. A new generation stamp is a rename within
// a directory. Cutting a replica writes a new meta file and renames it over.
//
// # What survives
//
// Data is written before checksums and both before a packet is acknowledged, so
// after the death of the process the page cache holds every acknowledged byte,
// and a finalized replica is whole. After the death of the machine a replica is
// as long as its checksums verify, and at least as long as its last hsync: the
// durable slots are written in turn, each followed by fsync, so one of them
// always describes bytes that are on disk. A finalized replica that was never
// fsynced is verified when the store is opened after another boot, and is
// taken back to a replica that waits for recovery if it does not hold. A replica that was
// not final is torn after another boot: its header says so until a writer or a
// recovery has looked after it.
package store
