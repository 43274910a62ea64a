package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// baselineB has one connection for each pair of processes. Threads collect records for a
// partition in a batch. A full batch is queued at the connection, whose writer takes all
// that are queued in one system call; the reader takes as much as there is at a time, and
// hands whole batches over where they lie.
type baselineB struct {
	l     load
	rank  int
	ln    net.Listener
	conns []*multiplexed // by process
	inbox []chan batch   // by thread
	loops sync.WaitGroup
}

// batchBytes is how many bytes of records go together.
const batchBytes = 16 << 10

// A batch is records, each behind its length as uvarint. Its memory is used again when
// all of what lies in it has been released.
type batch struct {
	data  []byte
	chunk *chunk
	end   bool // of a sender
}

type chunk struct {
	memory []byte
	users  atomic.Int32
	pool   *sync.Pool
}

func (c *chunk) release() {
	if c.users.Add(-1) == 0 {
		c.pool.Put(c)
	}
}

func newPool(size int) *sync.Pool {
	p := &sync.Pool{}
	p.New = func() any { return &chunk{memory: make([]byte, size), pool: p} }
	return p
}

var batchPool = newPool(batchBytes)

func takeBatch() *chunk {
	c := batchPool.Get().(*chunk)
	c.users.Store(1)
	return c
}

func (s *baselineB) listen(_ context.Context, l load, rank int) (string, error) {
	s.l, s.rank = l, rank
	s.conns = make([]*multiplexed, l.Size)
	s.inbox = make([]chan batch, l.Threads)
	for i := range s.inbox {
		s.inbox[i] = make(chan batch, 2*l.partitions())
	}
	var err error
	if s.ln, err = net.Listen("tcp", l.listenOn()); err != nil {
		return "", err
	}
	return s.ln.Addr().String(), nil
}

func (s *baselineB) connect(_ context.Context, addresses []string) (exchange, error) {
	for rank := range s.rank {
		c, err := net.Dial("tcp", addresses[rank])
		if err != nil {
			return nil, err
		}
		if _, err := c.Write(binary.BigEndian.AppendUint32(nil, uint32(s.rank))); err != nil {
			return nil, err
		}
		s.use(rank, c)
	}
	for range s.l.Size - 1 - s.rank {
		c, err := s.ln.Accept()
		if err != nil {
			return nil, err
		}
		var b [4]byte
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return nil, err
		}
		s.use(int(binary.BigEndian.Uint32(b[:])), c)
	}
	return s, nil
}

func (s *baselineB) use(rank int, c net.Conn) {
	m := &multiplexed{s: s, c: c}
	m.wake.L, m.room.L = &m.mu, &m.mu
	s.conns[rank] = m
	s.loops.Go(m.write)
	s.loops.Go(m.read)
}

// frameHeader is u16 thread of the receiver, u16 1 if it is the sender's last, u32 length.
const frameHeader = 8

// queueLimit is how many bytes wait at a connection before threads do.
const queueLimit = 1 << 20

// multiplexed is the connection to a process.
type multiplexed struct {
	s      *baselineB
	c      net.Conn
	mu     sync.Mutex
	wake   sync.Cond
	room   sync.Cond
	queue  []outgoing
	queued int
	closed bool
	err    error
}

type outgoing struct {
	header [frameHeader]byte
	data   []byte
	chunk  *chunk
}

func (m *multiplexed) put(thread int, b batch) error {
	o := outgoing{data: b.data, chunk: b.chunk}
	binary.BigEndian.PutUint16(o.header[:], uint16(thread))
	if b.end {
		o.header[3] = 1
	}
	binary.BigEndian.PutUint32(o.header[4:], uint32(len(b.data)))
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.queued >= queueLimit && m.err == nil {
		m.room.Wait()
	}
	m.queue = append(m.queue, o)
	m.queued += len(b.data)
	m.wake.Signal()
	return m.err
}

func (m *multiplexed) write() {
	var queue []outgoing
	var vector net.Buffers
	for {
		m.mu.Lock()
		for len(m.queue) == 0 && !m.closed {
			m.wake.Wait()
		}
		if len(m.queue) == 0 {
			m.mu.Unlock()
			return
		}
		queue, m.queue = m.queue, queue[:0]
		m.queued = 0
		m.room.Broadcast()
		m.mu.Unlock()
		vector = vector[:0]
		for i := range queue {
			vector = append(vector, queue[i].header[:], queue[i].data)
		}
		v := vector
		_, err := v.WriteTo(m.c)
		for i := range queue {
			if queue[i].chunk != nil {
				queue[i].chunk.release()
			}
		}
		if err != nil {
			m.mu.Lock()
			m.err = err
			m.room.Broadcast()
			m.mu.Unlock()
			return
		}
	}
}

// readBytes is how much is read at a time.
const readBytes = 256 << 10

func (m *multiplexed) read() {
	pool := newPool(readBytes)
	take := func() *chunk {
		c := pool.Get().(*chunk)
		c.users.Store(1)
		return c
	}
	c, begin, end := take(), 0, 0
	for {
		for end-begin >= frameHeader {
			b := c.memory[begin:end]
			n := int(binary.BigEndian.Uint32(b[4:]))
			if len(b) < frameHeader+n {
				break
			}
			c.users.Add(1)
			m.s.inbox[binary.BigEndian.Uint16(b)] <- batch{data: b[frameHeader : frameHeader+n], chunk: c, end: b[3] == 1}
			begin += frameHeader + n
		}
		if len(c.memory)-end < frameHeader+batchBytes { // what is left goes to the next piece of memory
			next := take()
			end = copy(next.memory, c.memory[begin:end])
			begin = 0
			c.release()
			c = next
		}
		n, err := m.c.Read(c.memory[end:])
		if err != nil {
			return // finish looks whether everything has come
		}
		end += n
	}
}

// batchSender collects records by partition.
type batchSender struct {
	put  func(to int, b batch) error
	open []collected
	size int
}

type collected struct {
	chunk *chunk
	n     int
}

func (s *batchSender) Send(to int, record []byte) error {
	o := &s.open[to]
	if o.chunk == nil || o.n+binary.MaxVarintLen32+len(record) > s.size {
		if o.chunk != nil {
			if err := s.put(to, batch{data: o.chunk.memory[:o.n], chunk: o.chunk}); err != nil {
				return err
			}
		}
		if o.chunk = takeBatch(); len(o.chunk.memory) < binary.MaxVarintLen32+len(record) {
			o.chunk = &chunk{memory: make([]byte, binary.MaxVarintLen32+len(record)), pool: &sync.Pool{}}
			o.chunk.users.Store(1)
		}
		o.n = 0
	}
	b := o.chunk.memory[o.n:]
	width := 1
	if len(record) < 0x80 {
		b[0] = byte(len(record))
	} else {
		width = binary.PutUvarint(b, uint64(len(record)))
	}
	o.n += width + copy(b[width:], record)
	return nil
}

func (s *batchSender) Close() error {
	for to := range s.open {
		o := &s.open[to]
		b := batch{end: true}
		if o.chunk != nil {
			b.data, b.chunk = o.chunk.memory[:o.n], o.chunk
		}
		if err := s.put(to, b); err != nil {
			return err
		}
	}
	return nil
}

func (s *baselineB) sender(int) sender {
	return &batchSender{open: make([]collected, s.l.partitions()), size: batchBytes, put: func(to int, b batch) error {
		rank, thread := to/s.l.Threads, to%s.l.Threads
		if rank == s.rank {
			s.inbox[thread] <- b
			return nil
		}
		return s.conns[rank].put(thread, b)
	}}
}

func (s *baselineB) receive(thread int, f func([]byte)) error {
	return receiveBatches(s.inbox[thread], s.l.partitions(), f)
}

// receiveBatches calls f with the records of batches until so many ends have come.
func receiveBatches(inbox <-chan batch, ends int, f func([]byte)) error {
	for ends > 0 {
		b := <-inbox
		for d := b.data; len(d) > 0; {
			n, width := int(d[0]), 1
			if n >= 0x80 {
				long, w := binary.Uvarint(d)
				n, width = int(long), w
			}
			if width <= 0 || n > len(d)-width {
				return errors.New("a batch is cut off")
			}
			f(d[width : width+n])
			d = d[width+n:]
		}
		if b.chunk != nil {
			b.chunk.release()
		}
		if b.end {
			ends--
		}
	}
	return nil
}

func (s *baselineB) finish() error {
	var errs []error
	for rank, m := range s.conns {
		if m == nil {
			continue
		}
		m.mu.Lock()
		m.closed = true
		if m.err != nil {
			errs = append(errs, fmt.Errorf("process %d: %w", rank, m.err))
		}
		m.wake.Signal()
		m.mu.Unlock()
		errs = append(errs, m.c.Close())
	}
	s.loops.Wait()
	return errors.Join(append(errs, s.ln.Close())...)
}

func (s *baselineB) describe(*result) {}
