// Package hdfs runs the HDFS service: a NameNode, DataNodes, or both in one
// process as a [Cluster], each on one port that serves unmodified clients over
// TCP and Verbena's own over endpoints; and [Dialer], which gives the HDFS
// client of github.com/colinmarc/hdfs the RDMA path.
//
// What the servers do is in internal/namenode and internal/datanode; this
// package gives them their ports. It stands on rdmanet, hadoop/rpc and the
// service kit, and knows no provider.
package hdfs
