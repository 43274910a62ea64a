package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// baselineA is the paper's: one non-blocking connection for each pair of threads, with a
// circular buffer in each direction at each end. A network thread writes all contiguous
// bytes of a buffer in one system call, reads as many as there is contiguous room for,
// and puts a buffer with data on its receiver's list.
type baselineA struct {
	l         load
	rank      int
	ln        net.Listener
	pairs     [][]*pair // by own thread, by global thread
	receivers []*ringReceiver
	net       netThread
}

// A ring is a circular buffer with one writer and one reader.
type ring struct {
	b    []byte // its length is a power of 2
	_    [64]byte
	head atomic.Uint64 // bytes read
	_    [64]byte
	tail atomic.Uint64 // bytes written
	_    [64]byte
	// listed says that the one who takes from the ring has been told.
	listed atomic.Bool
	// starved says that the one who fills it waits for room.
	starved atomic.Bool
}

func newRing(size int) *ring { return &ring{b: make([]byte, size)} }

func (r *ring) free() int { return len(r.b) - int(r.tail.Load()-r.head.Load()) }

// filled is what can be read in one piece, room what can be written.
func (r *ring) filled() []byte {
	head, tail := r.head.Load(), r.tail.Load()
	at := int(head) & (len(r.b) - 1)
	return r.b[at:min(len(r.b), at+int(tail-head))]
}

func (r *ring) room() []byte {
	head, tail := r.head.Load(), r.tail.Load()
	at := int(tail) & (len(r.b) - 1)
	return r.b[at:min(len(r.b), at+len(r.b)-int(tail-head))]
}

// copyIn writes at an offset behind the tail, copyOut reads behind the head.
func (r *ring) copyIn(offset int, b []byte) {
	at := int(r.tail.Load()+uint64(offset)) & (len(r.b) - 1)
	copy(r.b, b[copy(r.b[at:], b):])
}

func (r *ring) copyOut(offset int, b []byte) {
	at := int(r.head.Load()+uint64(offset)) & (len(r.b) - 1)
	n := copy(b, r.b[at:])
	copy(b[n:], r.b)
}

// A pair is the connection between a thread of this process and another thread. Of two
// threads of this process there is no connection: in is what the other one fills.
type pair struct {
	fd      int // -1 within the process
	out, in *ring
	to      *ringReceiver // who takes from in
	from    *ringSender   // who fills out
}

// netThread moves bytes between rings and connections.
type netThread struct {
	epoll, event int
	pairs        map[int32]*pair
	mu           sync.Mutex
	dirty        []*pair // with something to write
	resume       []*pair // with room again
	sleeping     atomic.Bool
	stop         atomic.Bool
	done         chan error
}

const leastRing = 32 << 10

func (s *baselineA) ringSize() int {
	size := leastRing
	for size < 2*s.l.Record {
		size *= 2
	}
	return size
}

func (s *baselineA) listen(_ context.Context, l load, rank int) (string, error) {
	s.l, s.rank = l, rank
	var err error
	if s.ln, err = net.Listen("tcp", l.listenOn()); err != nil {
		return "", err
	}
	return s.ln.Addr().String(), nil
}

func (s *baselineA) connect(_ context.Context, addresses []string) (exchange, error) {
	n := &s.net
	var err error
	if n.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	if n.event, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return nil, err
	}
	if err := unix.EpollCtl(n.epoll, unix.EPOLL_CTL_ADD, n.event, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(n.event)}); err != nil {
		return nil, err
	}
	n.pairs, n.done = map[int32]*pair{}, make(chan error, 1)
	for range s.l.Threads {
		r := &ringReceiver{l: s.l, net: n}
		r.wake.L = &r.mu
		s.receivers = append(s.receivers, r)
		s.pairs = append(s.pairs, make([]*pair, s.l.partitions()))
	}
	own := s.rank * s.l.Threads
	size := s.ringSize()
	for i := range s.l.Threads { // in is filled by thread j of this process
		for j := range s.l.Threads {
			s.pairs[i][own+j] = &pair{fd: -1, in: newRing(size), to: s.receivers[i]}
		}
	}
	for rank := range s.rank {
		for i := range s.l.Threads {
			for j := range s.l.Threads {
				c, err := net.Dial("tcp", addresses[rank])
				if err != nil {
					return nil, err
				}
				var b [8]byte
				binary.BigEndian.PutUint32(b[:], uint32(own+i))
				binary.BigEndian.PutUint32(b[4:], uint32(j))
				if _, err := c.Write(b[:]); err != nil {
					return nil, err
				}
				if err := s.use(i, rank*s.l.Threads+j, c); err != nil {
					return nil, err
				}
			}
		}
	}
	for range (s.l.Size - 1 - s.rank) * s.l.Threads * s.l.Threads {
		c, err := s.ln.Accept()
		if err != nil {
			return nil, err
		}
		var b [8]byte
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return nil, err
		}
		if err := s.use(int(binary.BigEndian.Uint32(b[4:])), int(binary.BigEndian.Uint32(b[:])), c); err != nil {
			return nil, err
		}
	}
	go func() {
		runtime.LockOSThread()
		n.done <- n.run()
	}()
	return s, nil
}

// use makes a connection that of an own thread and another one.
func (s *baselineA) use(own, other int, c net.Conn) error {
	file, err := c.(*net.TCPConn).File()
	if err != nil {
		return err
	}
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(file.Close(), c.Close(), unix.SetNonblock(fd, true)); err != nil {
		return err
	}
	size := s.ringSize()
	p := &pair{fd: fd, out: newRing(size), in: newRing(size), to: s.receivers[own]}
	s.pairs[own][other] = p
	s.net.pairs[int32(fd)] = p
	return unix.EpollCtl(s.net.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET, Fd: int32(fd)})
}

// tell puts a pair on a list of the network thread, and wakes it if it sleeps.
func (n *netThread) tell(list *[]*pair, p *pair) {
	n.mu.Lock()
	*list = append(*list, p)
	n.mu.Unlock()
	n.wake()
}

func (n *netThread) wake() {
	if n.sleeping.Load() && n.sleeping.CompareAndSwap(true, false) {
		_, _ = unix.Write(n.event, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // it is there already if this fails
	}
}

func (n *netThread) run() error {
	events := make([]unix.EpollEvent, 256)
	var dirty, resume []*pair
	for !n.stop.Load() {
		n.mu.Lock()
		dirty, n.dirty = n.dirty, dirty[:0]
		resume, n.resume = n.resume, resume[:0]
		n.mu.Unlock()
		for _, p := range resume {
			if err := n.read(p); err != nil {
				return err
			}
		}
		for _, p := range dirty {
			p.out.listed.Store(false)
			if err := n.write(p); err != nil {
				return err
			}
		}
		timeout := 0
		if len(dirty)+len(resume) == 0 {
			n.sleeping.Store(true)
			n.mu.Lock()
			if len(n.dirty)+len(n.resume) == 0 && !n.stop.Load() {
				timeout = -1
			}
			n.mu.Unlock()
		}
		count, err := unix.EpollWait(n.epoll, events, timeout)
		n.sleeping.Store(false)
		if err != nil && err != unix.EINTR {
			return err
		}
		for _, e := range events[:max(0, count)] {
			p := n.pairs[e.Fd]
			if p == nil {
				var b [8]byte
				_, _ = unix.Read(n.event, b[:])
				continue
			}
			if e.Events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
				if err := n.read(p); err != nil {
					return err
				}
			}
			if e.Events&unix.EPOLLOUT != 0 {
				if err := n.write(p); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (n *netThread) write(p *pair) error {
	for {
		b := p.out.filled()
		if len(b) == 0 {
			return nil
		}
		count, err := unix.Write(p.fd, b)
		if err == unix.EAGAIN {
			return nil // an event tells of room
		}
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		p.out.head.Add(uint64(count))
		if p.out.starved.Load() && p.out.starved.CompareAndSwap(true, false) {
			p.from.room <- struct{}{}
		}
	}
}

func (n *netThread) read(p *pair) error {
	for {
		b := p.in.room()
		if len(b) == 0 {
			p.in.starved.Store(true)
			if b = p.in.room(); len(b) == 0 {
				return nil // the receiver tells of room
			}
			p.in.starved.Store(false)
		}
		count, err := unix.Read(p.fd, b)
		if err == unix.EAGAIN || err == nil && count == 0 {
			return nil
		}
		if err == unix.ECONNRESET && n.stop.Load() {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		p.in.tail.Add(uint64(count))
		p.to.tell(p)
		if count < len(b) {
			return nil
		}
	}
}

// A ringReceiver is a thread that takes records from rings. Those with data stand on its
// list.
type ringReceiver struct {
	l    load
	net  *netThread
	mu   sync.Mutex
	wake sync.Cond
	list []*pair
}

func (r *ringReceiver) tell(p *pair) {
	if p.in.listed.Load() || p.in.listed.Swap(true) {
		return
	}
	r.mu.Lock()
	r.list = append(r.list, p)
	r.wake.Signal()
	r.mu.Unlock()
}

// lengthSize is the length of what stands before a record. endMark ends the stream.
const (
	lengthSize = 4
	endMark    = 1<<32 - 1
)

func (s *baselineA) receive(thread int, f func([]byte)) error {
	r := s.receivers[thread]
	ends := s.l.partitions()
	scratch := make([]byte, s.l.Record)
	var list []*pair
	for ends > 0 {
		r.mu.Lock()
		for len(r.list) == 0 {
			r.wake.Wait()
		}
		list, r.list = r.list, list[:0]
		r.mu.Unlock()
		for _, p := range list {
			p.in.listed.Store(false)
			in := p.in
			head, tail := in.head.Load(), in.tail.Load()
			mask := uint64(len(in.b) - 1)
			for tail-head >= lengthSize {
				at := head & mask
				var length uint32
				if at+lengthSize <= uint64(len(in.b)) {
					length = binary.LittleEndian.Uint32(in.b[at:])
				} else {
					var b [lengthSize]byte
					in.copyOut(int(head-in.head.Load()), b[:])
					length = binary.LittleEndian.Uint32(b[:])
				}
				if length == endMark {
					head += lengthSize
					ends--
					continue
				}
				if tail-head < lengthSize+uint64(length) {
					break
				}
				at = (head + lengthSize) & mask
				if at+uint64(length) <= uint64(len(in.b)) {
					f(in.b[at : at+uint64(length)])
				} else {
					in.copyOut(int(head+lengthSize-in.head.Load()), scratch[:length])
					f(scratch[:length])
				}
				head += lengthSize + uint64(length)
			}
			in.head.Store(head)
			if in.starved.Load() && in.starved.CompareAndSwap(true, false) {
				if p.fd >= 0 {
					s.net.tell(&s.net.resume, p)
				} else {
					p.from.room <- struct{}{}
				}
			}
		}
	}
	return nil
}

// A ringSender is a thread that fills rings.
type ringSender struct {
	s    *baselineA
	to   []*pair // by global thread
	room chan struct{}
}

func (s *baselineA) sender(thread int) sender {
	w := &ringSender{s: s, room: make(chan struct{}, 1), to: make([]*pair, s.l.partitions())}
	own := s.rank * s.l.Threads
	for other := range w.to {
		p := s.pairs[thread][other]
		if p.fd < 0 { // the receiving thread's, whose in this thread fills
			p = s.pairs[other-own][own+thread]
			p.out = p.in
		}
		p.from = w
		w.to[other] = p
	}
	return w
}

func (w *ringSender) Send(to int, record []byte) error {
	return w.send(to, uint32(len(record)), record)
}

func (w *ringSender) send(to int, mark uint32, record []byte) error {
	p := w.to[to]
	out := p.out
	need := lengthSize + len(record)
	for out.free() < need {
		out.starved.Store(true)
		if out.free() >= need {
			if !out.starved.CompareAndSwap(true, false) {
				<-w.room
			}
			break
		}
		w.tell(p)
		<-w.room
	}
	var b [lengthSize]byte
	binary.LittleEndian.PutUint32(b[:], mark)
	out.copyIn(0, b[:])
	out.copyIn(lengthSize, record)
	out.tail.Add(uint64(need))
	w.tell(p)
	return nil
}

// tell says that a ring has data: to the network thread, or to the thread that takes it.
func (w *ringSender) tell(p *pair) {
	if p.fd < 0 {
		p.to.tell(p)
		return
	}
	if !p.out.listed.Load() && !p.out.listed.Swap(true) {
		w.s.net.tell(&w.s.net.dirty, p)
	}
}

func (w *ringSender) Close() error {
	for to := range w.to {
		if err := w.send(to, endMark, nil); err != nil {
			return err
		}
	}
	return nil
}

func (s *baselineA) finish() error {
	s.net.stop.Store(true)
	s.net.sleeping.Store(true)
	s.net.wake()
	err := <-s.net.done
	for fd := range s.net.pairs {
		err = errors.Join(err, unix.Close(int(fd)))
	}
	return errors.Join(err, unix.Close(s.net.epoll), unix.Close(s.net.event), s.ln.Close())
}

func (s *baselineA) describe(*result) {}
