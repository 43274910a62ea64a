// Package simulate runs a NameNode, DataNodes and clients in one process, in virtual time,
// has everything go wrong that can, and checks that nothing acknowledged is lost: random
// histories, each made from a seed. go run ./soak simulate runs thousands of them.
//
// The NameNode and the DataNodes are those that run in production, with all of their
// goroutines. Each is on a machine with a disk in memory ([vfs.NewCrashableMem]), and
// reaches others over a network in memory. DataNodes, but for a few, serve hdfs-data/1 beside
// the legacy protocol, on runtimes of their own whose endpoints that network carries. Clients
// take another way each time they set a pipeline up or read: the legacy protocol as others speak
// it, our client's package for it, and our client's native path. So all of them meet at one
// block. The time is that of a bubble of
// testing/synctest: it passes when everybody waits, so that a minute costs milliseconds.
//
// What goes wrong, as the seed has it: processes die (what they have written stays) and
// machines lose power (what was not synced stays or goes, each 4 KiB and each name
// by itself, so that later writes may survive earlier ones); NameNodes too, and all at once; hosts are
// cut off from each other, and all connections between two of them break; calls come late and twice; disks are full, slow, or hang; one of a
// DataNode's directories fails, and works again when the DataNode has given it up; the NameNode's
// disk has less room than it reserves, and then none; its clock leaps; a DataNode comes back with an old copy of its disk, without its blocks, or
// with a flipped bit. DataNodes restart in order, and tell their writers, some of whom wait for
// them. And ambushes: at the very moment at which a client hears that bytes are acknowledged, all
// DataNodes of its pipeline but one are cut off, and most of the time die or lose power; the
// client may die, too. Each DataNode must have by itself what it has acknowledged. Clients write, hflush, hsync, close, append, truncate, rename, delete
// and read, recover pipelines as Hadoop's does, dawdle, and die.
//
// Checked while this goes on: no read returns a wrong byte. After each round, when all
// faults have ended: every lease ends, every block has as many replicas as it should, each
// replica reads as it was written, and every file is there under its name with all bytes
// that were acknowledged. Bytes may be gone only if all DataNodes that acknowledged them
// have lost power before they were synced, or have had their disks damaged; or all that a recovery
// went on with, because the others did not answer, have had theirs damaged before there were copies.
//
// A slow disk is slow, or hangs, in what is written to and synced of new blocks alone: who waits for
// another operation may hold a lock, and time does not pass in a bubble while anybody waits for a
// sync.Mutex. Writers of blocks hold none meanwhile, and who waits for a writer to stop holds a lock
// for which time passes.
//
// A seed determines what the clients try and what goes wrong when; which of two
// goroutines comes first at the same virtual moment, and what the servers draw themselves
// (placement, jitter, identities), it does not. So a history that failed fails again under its seed
// often, not always. The history is printed, with what the nodes logged.
package simulate
