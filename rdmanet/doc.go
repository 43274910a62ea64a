// Package rdmanet gives Verbena's endpoints the shape of the net package:
// [Dialer] makes a [net.Conn], [Listener] is a [net.Listener], and what already
// speaks over sockets (net/http, gRPC, crypto/tls, a Hadoop RPC server) runs
// over shared memory or iWARP without a change.
//
// One port serves both worlds. A Listener hands out plain TCP connections of
// peers that have never heard of Verbena untouched, beside the connections that
// arrive over endpoints; a Dialer falls back to plain TCP towards such a peer.
// Other services share the port through [verbena.Listener.Service]: make the
// runtime's listener, and a [Listener] of it by [NewListener].
//
// # Parking
//
// Setting up an endpoint costs a TCP connection, a negotiation and the
// registration of memory. So an endpoint outlives the connections it carries:
// when both sides have closed a connection cleanly, the dialer parks the
// endpoint, and its next dial to that peer sends one message on it and has its
// connection at once, without waiting for an answer. An endpoint carries one
// connection at a time. Numbers tell the connections apart, so that no message
// of one can pass for a message of the next. The messages are defined in
// docs/rdmanet.md. An endpoint is parked for [Dialer.ParkedLife] at most, so that dials
// spread over the servers behind an address.
//
// # Differences from TCP
//
// What was written lies in this process until the peer's has taken it, where over
// TCP the kernel has it. So [Conn.Close] waits for the peer's process, for a
// second at most, and says if that was not enough ([Config.CloseWait]). What the peer sends to a
// closed connection is read and thrown away until the peer closes too, for
// [Config.Linger] at most; the peer's later writes fail with EPIPE. A peer that
// was killed, and an endpoint that failed, is ECONNRESET.
//
// Connections are closed before their runtime. One that is not fails with
// net.ErrClosed when the runtime is closed; a Read or WriteTo that has a message
// at that moment finishes with it.
//
// The package imports the root package alone.
package rdmanet
