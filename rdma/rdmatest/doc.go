// Package rdmatest is the conformance suite of the verbs model.
//
// One call of [Run] in a provider's tests runs all cases that the class and the
// capabilities of its devices ask for. Each case is a script for two sides, the
// initiator and the target. A side may be in another process, driven over a
// control connection ([RemoteDevice], [ServeDevice]); so the two halves of a
// case can run on two hosts, or over two providers that speak the same wire
// protocol.
//
// Every failure must end in the way that package rdma documents for the class,
// never in a hang or a panic: each case runs under a watchdog. What a device may
// lack stands in a table; a case skipped for anything else fails.
package rdmatest
