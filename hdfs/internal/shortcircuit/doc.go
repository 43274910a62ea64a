// Package shortcircuit is HDFS's protocol for reads without the DataNode: a process of
// the same host is handed the descriptors of a block's two files over a Unix socket, and
// reads them itself. It has what both ends need, and the DataNode's registry; it knows
// neither blocks' files nor clients' caches.
//
// The operations travel as those of data transfer do (package transfer):
//
//	REQUEST_SHORT_CIRCUIT_SHM (89)   a segment of slots; the socket then stays open
//	REQUEST_SHORT_CIRCUIT_FDS (87)   the descriptors of a block, for a slot
//	RELEASE_SHORT_CIRCUIT_FDS (88)   the slot is free again
//
// Descriptors follow the response, with one byte of data of their own ([Send], [Receive]).
//
// # Slots
//
// A segment is shared memory of 8 KiB: slots of 64 bytes, whose first eight are a word in
// the host's byte order.
//
//	bit 63      valid: the client sets it before it asks, the DataNode takes it back
//	bit 62      anchorable: the DataNode keeps the block in memory; never set here
//	bits 0-30   anchors of the client; none may be dropped while the slot is anchorable
//
// The DataNode takes a slot's validity back before it changes, appends to, cuts or deletes
// the block, and the client looks at it before each read. A client that ignores it reads
// old bytes of a block that it was allowed to read; it harms nobody else. A segment ends
// with the socket over which it came, and so with either process.
//
// # The second file
//
// HDFS's meta file of a block begins with seven bytes, big-endian, and the checksums of
// all chunks follow:
//
//	u16 version (1) | u8 checksum type | u32 bytes per chunk
//
// A client that takes [VersionOwn] gets the DataNode's own file instead, and is told in
// the response where in it the checksums are.
package shortcircuit
