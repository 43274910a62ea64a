// Package liveness notices that the host at the other end of a TCP connection
// is gone while data is on its way there.
//
// The kernel's own means do not suffice. Keep-alive probes pause while
// data is unacknowledged. Retransmission gives up after a quarter of an hour.
// TCP_USER_TIMEOUT ends a connection whose peer is alive but does not read,
// because it counts the time in which the peer's window is closed even though
// the peer answers each probe of that window.
//
// A [Watcher] therefore looks at what the kernel counts (TCP_INFO). A peer is
// gone when this host has transmitted at least twice and no segment at all
// has come back for the whole timeout. A peer that does not read still answers
// probes, so it stays. The kernel is made to probe often enough: by TCP_RTO_MAX_MS
// since Linux 6.15, and before by a TCP_USER_TIMEOUT that moves ahead with each look. The watcher has a timer only while data is on its way: an
// idle connection costs nothing and is the business of keep-alives.
//
// Everything that writes to TCP sockets of its own may use it: the carrier of
// endpoints over plain TCP, and the user-space iWARP provider.
package liveness
