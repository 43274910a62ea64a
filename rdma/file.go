package rdma

import "context"

// A FileQueuePair hands open files to its peer, a process of the same host, which reads
// them by itself. Nothing is mapped, so nobody is harmed if a file becomes shorter.
type FileQueuePair interface {
	QueuePair
	// SharesFiles tells whether both ends can, once they are connected.
	SharesFiles() bool
	// ShareFile lets the peer have the file behind fd, for reading, if it asks for it
	// by the key. fd stays the caller's. It fails if it is no regular file.
	ShareFile(fd int) (SharedFile, error)
	// ReadPeerFile reads from a file that the peer shares under key into p, from offset
	// on. It gets the file at first, and waits for that. Reads of one file may be
	// concurrent. Fewer bytes than p has come with io.EOF: the file ends there. If the
	// peer has ended the sharing before the read is done, it fails with
	// [ErrRemoteAccess]; otherwise with what has ended the queue pair, what reading
	// the file told, or the context's error.
	ReadPeerFile(ctx context.Context, key uint32, p []byte, offset int64) (int, error)
}

// A SharedFile is a file that a peer may read.
type SharedFile interface {
	Key() uint32
	// Close ends it: a read that is not done by then fails, and the peer's process lets
	// go of the file. One that means harm can keep what it was given.
	Close() error
}
