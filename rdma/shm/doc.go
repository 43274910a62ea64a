// Package shm is the provider for processes of one host: the verbs model over
// shared memory.
//
// Every region is a memfd. Its descriptor goes to a peer over the connection's
// Unix socket when the peer first needs the memory; from then on a Write, Read
// or atomic is done by the initiator's processor in its own mapping, after it has
// checked the key, the bounds and the rights. A Send goes into the receiver's
// ring of 128-byte slots, or, if it is longer than 112 bytes, straight into the
// receive that the peer posted, by one copy. Neither needs the peer to run.
//
// # Progress
//
// PostSend carries out what it can before it returns, in order. What has to wait
// (for a receive, or for a mapping) is carried out by the next Poll of the send
// completion queue, or, if nobody polls, by a timer or the peer's wake-up.
//
// A receiver that polls finds messages without any system call at either end. One
// that stops polling a queue pair marks it as cold; then the sender sets a bit in
// the receiver's doorbell, and wakes it by a futex if it sleeps.
//
// Who publishes something and then looks whether the other side waits uses plain
// stores, where the processor keeps their order; the side that begins to wait makes
// up for that by membarrier(2). Where one of the two processes may not call it,
// both use fences.
//
// # Trust
//
// Processes of the same user are trusted not to be malicious, but may be faulty
// at any time. Whatever stands in shared memory is copied, then checked; the
// truth about what was posted is kept privately. A peer that writes nonsense
// fails its own connections with an error that says what was wrong. Memfds are
// sealed against shrinking and growing, and that is verified on receipt, so no
// access can raise SIGBUS. What a peer may only read it gets through a read-only
// descriptor.
//
// Processes of other users are refused unless [Config.AllowUIDs] names them. Such
// a peer gets, one by one, the regions that it names by key and that have any
// remote right, and those that hold a receive which its connection may use. It
// can read, and unless the region has no right to write, modify all of such a
// region until the region's Close, whatever the single requests may do: give other
// users regions of their own. No page is ever reused: what a peer still maps after
// Close stays with it alone.
//
// # Closing
//
// Closing a region or a queue pair waits until no peer is inside an access to it.
// A peer that is suspended in the middle of a copy is waited for
// [Config.AccessTimeout]. Closing a region then tears the connection down and
// leaves the memory to the peer. Closing a queue pair then returns an error: what
// the peer may still write into are regions that go on to exist.
package shm
