// Package blocktoken is HDFS's block access tokens: what a client gets from the
// NameNode with the place of a block and hands to the DataNodes, which let nobody at
// the block without.
//
// A token is an [Identifier], as Hadoop's BlockTokenIdentifier writes it, and the HMAC-SHA1
// of its bytes under a key that the NameNode and the DataNodes share. Clients do not look
// into either. The generation stamp is what Hadoop's identifier lacks: it is in the field
// for a message of a SASL handshake, of which there is none here.
//
// An [Issuer] makes tokens at the NameNode, [Keys] check them at a DataNode. The
// namenode and datanode packages import this one; it knows neither.
package blocktoken
