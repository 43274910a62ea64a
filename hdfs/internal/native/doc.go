// Package native is hdfs-data/1, by which blocks are written over messages of registered
// memory: the messages, links on which nobody waits for a peer, and the table of the links
// to DataNodes. docs/hdfs-data.md is the protocol. DataNodes serve it in package datanode,
// clients use it in package client/native.
//
// A packet is one message. It is received as a buffer of the runtime, which a DataNode sends
// on to the next one, writes from, and releases.
package native
