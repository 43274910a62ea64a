// Package local is the path to replicas on this host without their DataNode: a [Path]
// gets the descriptors of a block's files from the DataNode (package shortcircuit), keeps
// a bounded number of them, and reads by itself, comparing with the checksums. Whatever
// can't be had that way goes the way of the path that it wraps. Apache's DataNodes hand
// descriptors over as Verbena's do.
//
// A DataNode's socket is at a configured path, as HDFS has it, or where the DataNode says:
// Verbena's tells a name that only it knows, and the number of its user, who must be
// behind the socket.
//
// Nothing is mapped but memory that nobody can make shorter: blocks are read by pread.
// Before each read the block's slot is looked at. If the DataNode has taken it back, or
// has ended, the read goes on along the other path.
package local
