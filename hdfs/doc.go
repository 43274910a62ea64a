// Package hdfs is the HDFS service and its client.
//
// It runs a NameNode, DataNodes, or both in one process as a [Cluster], each on one
// port that serves unmodified clients over TCP and Verbena's own over endpoints.
//
// [Client] works on the files of Verbena's HDFS, over any transport, and of Apache's,
// over TCP: with pipelines that are repaired when DataNodes fail, reads that go on
// elsewhere, flush, sync, append, truncate, and calls that find the active NameNode.
// [Dialer] gives it the RDMA path, and also clients of others that take functions to dial
// with, as that of github.com/colinmarc/hdfs.
//
// What the servers do is in internal/namenode and internal/datanode, what the client
// does in internal/client; this package gives them their ports and their names. It stands on rdmanet, hadoop/rpc and the
// service kit, and knows no provider.
package hdfs
