// Package link is the protocol of endpoints on a queue pair, as a machine without
// I/O: what the device completed and what the application wants go in, posts come
// out. It takes no lock, starts no goroutine, reads no clock and touches no device,
// so tests drive it into every state.
//
// A message of at most the peer's receive size goes eagerly: one Send into a
// receive that the peer posted. A longer one is offered in parts, each of which the
// peer Reads out of this side's memory. Both cost a credit, which stands for a
// receive at the peer. Confirmations of offers, credit messages and the goodbye
// cost none: the peer keeps receives for as many of them as can be on their way.
// So no message meets an empty receive queue, whatever the application does, and
// nothing that frees resources waits for some. docs/endpoints.md defines the
// protocol; package wire is its codec.
//
// The caller owns the memory. It gives the machine opaque handles of type M, one
// for each received message, and gets them back in order from [Machine.Next]. It
// carries out what [Machine.Posts] returns, in order, after each call.
package link
