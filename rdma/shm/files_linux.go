package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/memfd"
	"github.com/verbena-data/verbena/rdma"
)

// A shared file is a region without memory: it has an entry in the domain's table,
// which peers look at before and after each read, and a key that one queue pair may
// ask for.

// maxFiles is how many files of a peer's process are kept open at most. Any of them
// gives way to the next, and is asked for again.
const maxFiles = 512

// SharesFiles implements [rdma.FileQueuePair].
func (qp *queuePair) SharesFiles() bool { return qp.remote.greatest >= versionFiles }

type sharedFile struct {
	region *region
	once   sync.Once
	err    error
}

func (f *sharedFile) Key() uint32 { return f.region.key }

func (f *sharedFile) Close() error {
	f.once.Do(func() { f.err = f.region.Close() })
	return f.err
}

// ShareFile implements [rdma.FileQueuePair]. The peer gets the file opened anew for
// reading: what a descriptor has beside the file, its position and its flags, stays
// this side's.
func (qp *queuePair) ShareFile(fd int) (rdma.SharedFile, error) {
	fail := func(err error) (rdma.SharedFile, error) { return nil, fmt.Errorf("shm: share a file: %w", err) }
	if !qp.SharesFiles() {
		return fail(rdma.ErrUnsupported)
	}
	if err := regular(fd); err != nil {
		return fail(err)
	}
	own, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return fail(fmt.Errorf("open it for reading: %w", err))
	}
	r := &region{domain: qp.domain, file: memfd.Own(own), reader: qp, aside: true}
	if err := qp.domain.register(r); err != nil {
		_ = r.file.Close()
		return fail(err)
	}
	return &sharedFile{region: r}, nil
}

func regular(fd int) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%w: it is no regular file", rdma.ErrInvalid)
	}
	return nil
}

// giveFile answers a peer that wants a file.
func (qp *queuePair) giveFile(w want) error {
	d := qp.domain
	d.members.Lock()
	r := d.keys[w.value]
	d.members.Unlock()
	if r == nil || r.closed.Load() || r.reader != qp {
		return qp.giveNothing(w)
	}
	fd, err := r.descriptor(true) // as it is: it has been opened for reading
	if errors.Is(err, rdma.ErrClosed) {
		return qp.giveNothing(w)
	}
	if rdma.Temporary(err) { // for want of descriptors, say: the peer reads by messages, and has not guessed
		return qp.conn.write(grant{want: w}.append(nil))
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	qp.granted.Store(r.handle, struct{}{})
	g := grant{want: w, found: true, handle: r.handle, key: r.key, length: 1, state: r.state}
	return qp.conn.write(g.append(nil), fd)
}

// A peerFile is a file that a peer shares with this process.
type peerFile struct {
	file *os.File
	now  *atomic.Uint64 // the state in the owner's table
	grant
}

func (f *peerFile) open() bool { return f.now.Load() == f.state }

// A fileWait is a question for a file that has no answer yet.
type fileWait struct {
	done chan struct{}
	err  error // set before done
}

// peerFiles are those of a connection.
type peerFiles struct {
	mu       sync.RWMutex // keeps the table mapped, too
	byKey    map[uint32]*peerFile
	byHandle map[uint32]*peerFile
	waits    map[uint32]*fileWait
	closed   bool
}

// ReadPeerFile implements [rdma.FileQueuePair].
func (qp *queuePair) ReadPeerFile(ctx context.Context, key uint32, p []byte, offset int64) (int, error) {
	for {
		f, err := qp.peerFile(ctx, key)
		if err != nil {
			return 0, err
		}
		n, err := f.file.ReadAt(p, offset)
		switch {
		case !qp.files.open(f):
			if err := qp.Err(); err != nil {
				return 0, err
			}
			return 0, errUnshared
		case !errors.Is(err, os.ErrClosed): // it would have given way to another file
			return n, err
		}
	}
}

var errUnshared = fmt.Errorf("shm: %w: the peer does not share this file any more", rdma.ErrRemoteAccess)

// peerFile returns a file that the peer shares, and asks for it if it is not here.
func (qp *queuePair) peerFile(ctx context.Context, key uint32) (*peerFile, error) {
	for attempt := 0; ; attempt++ {
		if err := qp.Err(); err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		f, w, first := qp.files.find(key)
		if f != nil {
			return f, nil
		}
		if first && !qp.askFile(key) {
			// The socket is full for a moment, or too many questions are open.
			qp.files.answer(key, nil, nil)
			if !sleep(ctx, qp.done, time.Duration(min(attempt, 10)+1)*time.Millisecond) {
				continue
			}
		}
		select {
		case <-w.done:
			if w.err != nil {
				return nil, w.err
			}
		case <-qp.done:
		case <-ctx.Done():
		}
	}
}

// sleep waits a little, and reports false if that was cut short.
func sleep(ctx context.Context, done <-chan struct{}, pause time.Duration) bool {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-done:
	case <-ctx.Done():
	}
	return false
}

// askFile sends the question. One goroutine asks at a time, so that the answers come in
// the order of the questions.
func (qp *queuePair) askFile(key uint32) bool {
	qp.sendMu.Lock()
	defer qp.sendMu.Unlock()
	return qp.SharesFiles() && qp.State() == rdma.StateConnected && qp.conn.want(want{file: true, value: key})
}

// find returns a file, or a question for it, which the caller has to ask if it is the
// first.
func (s *peerFiles) find(key uint32) (f *peerFile, w *fileWait, first bool) {
	s.mu.RLock()
	f = s.byKey[key]
	known := f != nil && !s.closed && f.open()
	s.mu.RUnlock()
	if known {
		return f, nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.waits[key]; w != nil {
		return nil, w, false
	}
	if s.waits == nil {
		s.byKey, s.byHandle, s.waits = map[uint32]*peerFile{}, map[uint32]*peerFile{}, map[uint32]*fileWait{}
	}
	w = &fileWait{done: make(chan struct{})}
	s.waits[key] = w
	return nil, w, true
}

// answer ends a question.
func (s *peerFiles) answer(key uint32, f *peerFile, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f != nil && (s.closed || !f.open()) { // what told of its end may have come first
		_ = f.file.Close()
		f = nil
	}
	if f != nil {
		for _, old := range s.byKey {
			if !old.open() || old.key == key || len(s.byKey) >= maxFiles {
				s.forget(old)
			}
		}
		s.byKey[key] = f
		s.byHandle[f.handle] = f
	}
	if w := s.waits[key]; w != nil {
		delete(s.waits, key)
		w.err = err
		close(w.done)
	}
}

// forget closes a file. mu is held.
func (s *peerFiles) forget(f *peerFile) {
	delete(s.byKey, f.key)
	delete(s.byHandle, f.handle)
	_ = f.file.Close() // nothing was written
}

// open tells whether the peer still shares a file.
func (s *peerFiles) open(f *peerFile) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return !s.closed && f.open()
}

// revoked closes a file that the peer does not share any more.
func (s *peerFiles) revoked(handle uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.byHandle[handle]; f != nil && !f.open() {
		s.forget(f)
	}
}

// close closes all. The table is not looked at any more.
func (s *peerFiles) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, f := range s.byKey {
		s.forget(f)
	}
}

// receiveFile takes the answer to a question for a file.
func (qp *queuePair) receiveFile(g grant, p *packet) error {
	if err := qp.conn.answered(g.want); err != nil {
		return err
	}
	if !g.found {
		qp.files.answer(g.value, nil, errUnshared)
		return nil
	}
	if len(p.descriptors) != 1 {
		return fmt.Errorf("%w: a file with %d descriptors", errPacket, len(p.descriptors))
	}
	if err := readable(p.descriptors[0], qp.conn.foreign); err != nil {
		return fmt.Errorf("%w: a file that cannot be read: %w", errPacket, err)
	}
	qp.files.answer(g.value, &peerFile{
		file: os.NewFile(uintptr(p.take(0)), "file of "+qp.peerName()), now: qp.peer.Load().table.state(g.handle), grant: g,
	}, nil)
	return nil
}

// readable tells whether a file of a peer can be read without waiting for the peer, as far
// as that shows. Behind an overlay, which any user may mount in a namespace of its own and
// every container has, may be a file system that is not let in.
func readable(fd int, foreign bool) error {
	if err := regular(fd); err != nil {
		return err
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(fd, &system); err != nil {
		return err
	}
	if !foreign {
		return nil
	}
	switch system.Type {
	case unix.FUSE_SUPER_MAGIC:
		return fmt.Errorf("%w: its file system may be a process of another user", rdma.ErrUnsupported)
	case unix.PROC_SUPER_MAGIC: // such as the memory of a process, which may lie in files of the former
		return fmt.Errorf("%w: a file of /proc", rdma.ErrUnsupported)
	}
	return nil
}
