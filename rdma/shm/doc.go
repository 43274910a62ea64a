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
// A queue pair with a shared receive queue is lent receives of it ahead of need, and
// they are taken back when it is idle and others need them. A message finds its
// receive lent, or is put into a slot all the same and has one when it is polled, or
// asks for one: then the peer's poll or a goroutine of its domain has to run. A
// receive counts as used, for the queue's depth and its limit event, when its message
// is polled.
//
// PostSend carries out what it can before it returns, in order. What has to wait
// (for a receive, or for a mapping) is carried out by the next Poll of the send
// completion queue, or, if nobody polls, by a timer or the peer's wake-up.
//
// A receiver that polls finds messages without any system call at either end. One
// that stops polling a queue pair marks it as cold; then the sender sets a bit in
// the receiver's doorbell, and wakes it if it sleeps: by a futex, or, where Go has one
// processor and nobody polls ([rdma.DomainConfig]), by an eventfd that Go's network poller
// watches.
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
// fails its own connections with an error that says what was wrong.
//
// The kernel tells the user of each peer. It is checked when a socket is accepted,
// before anything is read, and after connecting, before anything is sent. Processes
// of other users are refused unless [Config.AllowUIDs] names them. In a user
// namespace the overflow user (65534) stands for every user that the namespace does
// not map, so a peer of that user is another user's, even if this process's own user
// is shown as 65534, too. Only where the namespace maps every user, as the host's
// own does, is 65534 a user as any other. Refusals name no process, user or socket.
//
// # What a peer reaches
//
// Every peer of a connection can read and write, at any time:
//
//   - the inbox of its connection;
//   - the domain's doorbell, which all connections of the domain share: a peer can
//     see which of them are active, wake the domain for nothing, and make wake-ups
//     late by up to 5 s;
//   - the eventfd of a completion queue, if it has one, and the peer is of the same user.
//
// It can read the domain's table, which tells how many regions are open, and
// nothing of what is in them.
//
// A peer of the same user can also map any region of the domain, whole, with the
// rights of the region, if it knows the key or the handle. Handles count up.
//
// A peer of another user gets regions one by one, as its requests name them:
//
//   - by key, a region with a remote right. It can read all of it, and write to all
//     of it only if the region has [rdma.AccessRemoteWrite] or
//     [rdma.AccessRemoteAtomic], or holds a receive as below. After 1,024 keys that
//     open nothing it is disconnected.
//   - by handle, a region that holds a receive which the connection may use. It can
//     read and write all of it.
//
// It keeps what it has mapped until the region's Close, whatever the single
// requests may do, and the pages after that. So give other users domains of their
// own, or at least regions and shared receive queues of their own. No page is ever
// used again: a new region is zeroed, and no peer has it.
//
// What this process maps of a peer is bounded: 4,096 regions, or 256 of another
// user's, each after this side has asked for it. Connections to one domain of a peer
// share that, but for another user's process in a process namespace that this process
// cannot see into: it cannot be told from others there. Of silent sockets a listener keeps
// 256, and gives way to new ones at the cost of the user who has most; of requests
// that wait for Accept it keeps 1,024, but 64 of one other user.
//
// # Memory of the program, and files
//
// Memory that the program registers is a region like others if it lies in a mapping of
// a memfd: peers map the whole file, with the rights of the region. Without remote
// rights any memory will do; receives do not go there.
//
// A file that a queue pair shares has an entry in the table and a key, as a region has,
// and no memory. The peer of that queue pair, and nobody else, gets the file, opened
// anew for reading, and reads through the descriptor. It looks at the entry before and
// after each read. Of a connection it keeps 512 files open. A file of another user's
// process on FUSE or in /proc, whose reads that process could hold up, ends the connection.
// An overlay, which a user may mount over FUSE, is let in, because containers have their
// files there, and so are network file systems: name a user in AllowUIDs only if it may
// hold up what this process reads of it.
//
// # Regions that are passed on
//
// A process may let its peers read a region of another peer, which it views
// ([rdma.PassingQueuePair]): the owner of the memory, who is asked first, gives it a
// descriptor for reading and its table, and it gives these to whoever reads. All three
// are of the same user, and the reader thus maps memory of a process that it has no
// connection to.
//
// The owner promises by an entry of its table to keep the memory as it is for its peer, for
// as long as the connection to that is up. It shuts the entry before it uses the memory
// again, and the process in the middle shuts its gate before it lets go. The reader
// copies first, and looks at both then: what it has copied is right if neither was shut.
// It is not shown such memory by View. A process that dies shuts nothing and writes nothing,
// and its memory is read on.
//
// A connection passes on 16 regions at most, and a domain 128, each for two descriptors.
// None is passed on a second time.
//
// # SIGBUS
//
// Memfds are sealed against shrinking and growing, and that is verified on receipt.
// That does not keep their makers from freeing pages that are mapped here; whoever
// touches such a page gets a new one, zeroed. Two things could then go wrong, and
// raise SIGBUS. Huge pages may have run out: those of other users are refused, and
// [Config.HugePages] excludes AllowUIDs, because other users can free pages of what
// they may write. And where vm.overcommit_memory is 2 the kernel refuses pages that
// nobody has accounted for: other users are refused there. A faulty process of the
// same user that frees pages of its own memory may still end its peers in these two
// cases. Memory of another user is never allocated by mapping it; what this process
// then touches may be accounted to it, at most what it sends and reads.
//
// # Closing
//
// Closing a region or a queue pair waits until no peer is inside an access to it.
// A peer that is suspended in the middle of a copy is waited for
// [Config.AccessTimeout]. Closing a region then tears the connection down and
// leaves the memory to the peer. Closing a queue pair then returns an error: what
// the peer may still write into are regions that go on to exist.
package shm
