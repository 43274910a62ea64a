// Package call is the protocol of calls on an endpoint, as a machine without I/O:
// headers, the calls under way in both directions, and the credits that bound them.
// It takes no lock, starts no goroutine and reads no clock. docs/calls.md has the
// wire format.
//
// Both ends are equal: each makes calls and serves them. An end tells the other in a
// greeting how many requests it takes at a time. A call counts until it has been
// answered, whether or not its caller still waits; a notification counts until the
// other end says that it has been handled. So what one end can make the other keep is
// bounded, and every call ends in exactly one answer or with the endpoint.
//
// A call may have a stream of bytes in each direction. Whoever receives one promises
// credit in bytes, and renews it as they are consumed: see Flows.
package call
