package verbena

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// An inPlacePair sends messages of viewSize over shared memory to a server that uses them
// in place.
type inPlacePair struct {
	*pair
	client, server *Endpoint
}

const viewSize = 256 << 10

func connectInPlace(t *testing.T, chunks int) inPlacePair {
	w := worldOf(t, "shm")
	p := w.pair(t, Config{Tuning: TuningTable{w.transport: {Chunks: chunks}}}, ListenConfig{InPlace: true})
	a, b := p.connect(t, w.transport)
	c := inPlacePair{p, a, b}
	// The device gets to know the memory: the first message of each region is read.
	var sent [4]*Buffer
	for i := range sent {
		sent[i] = c.send(t, i)
		c.receive(t, i).Release()
	}
	c.settle(t, sent[:]...)
	return c
}

// settle waits until the peer does not need buffers any more, and releases them. The next one
// lies where one of them does then, and not in a region that the device has yet to get to know.
func (c *inPlacePair) settle(t *testing.T, sent ...*Buffer) {
	t.Helper()
	for _, b := range sent {
		if err := c.client.Settled(c.ctx, b); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range sent {
		b.Release()
	}
}

// send sends a message, and returns its buffer, to which the caller has a reference.
func (c *inPlacePair) send(t *testing.T, seed int) *Buffer {
	t.Helper()
	b, err := c.client.Buffer(c.ctx, viewSize)
	if err != nil {
		t.Fatal(err)
	}
	copy(b.Bytes(), pattern(viewSize, seed))
	b.Retain()
	if err := c.client.SendBuffer(c.ctx, uint32(seed), nil, b); err != nil {
		t.Fatal(err)
	}
	return b
}

func (c *inPlacePair) receive(t *testing.T, seed int) *Message {
	t.Helper()
	m, err := c.server.Receive(c.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if m.Tag != uint32(seed) || !bytes.Equal(m.Bytes(), pattern(viewSize, seed)) || !m.Intact() {
		t.Fatalf("message %d of %d bytes came for %d, or another one", m.Tag, len(m.Bytes()), seed)
	}
	return m
}

// lies tells whether a message lies in the peer's memory.
func lies(m *Message) bool { return m.owner.location() == (location{}) }

// A message in place is its sender's memory until it is released.
func TestInPlace(t *testing.T) {
	c := connectInPlace(t, 8)
	b := c.send(t, 1)
	m := c.receive(t, 1)
	if !lies(m) {
		t.Fatal("the message was copied")
	}
	copy(b.Bytes(), pattern(viewSize, 2))
	if !bytes.Equal(m.Bytes(), pattern(viewSize, 2)) {
		t.Error("the message does not lie in its sender's memory")
	}
	ctx, cancel := context.WithTimeout(c.ctx, 50*time.Millisecond)
	defer cancel()
	if err := c.client.Settled(ctx, b); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the sender has its memory back while the receiver reads it: %v", err)
	}
	c.server.closing.Store(true) // as when it says goodbye
	if m.Intact() {
		t.Error("the message is intact while this side says goodbye")
	}
	c.server.closing.Store(false)
	m.Retain()
	m.Release()
	if !bytes.Equal(m.Bytes(), pattern(viewSize, 2)) {
		t.Error("the message has gone with a reference left")
	}
	m.Release()
	if err := c.client.Settled(c.ctx, b); err != nil {
		t.Error(err)
	}
	b.Release()
}

// Who holds messages in place does not stop the sender: half of its offers are left for
// messages that are read.
func TestInPlaceLeavesOffers(t *testing.T) {
	const chunks, messages = 8, 20
	c := connectInPlace(t, chunks)
	var held []*Message
	var sent []*Buffer
	inPlace := 0
	for i := range messages {
		sent = append(sent, c.send(t, i))
		m := c.receive(t, i)
		if held = append(held, m); lies(m) {
			inPlace++
		}
	}
	if inPlace != chunks/2 {
		t.Errorf("%d of %d messages lie in the sender's memory, who has %d offers", inPlace, messages, chunks)
	}
	for i, m := range held {
		if !bytes.Equal(m.Bytes(), pattern(viewSize, i)) {
			t.Fatalf("message %d changed while it was held", i)
		}
		m.Release()
	}
	c.settle(t, sent...)
	c.send(t, 99).Release()
	m := c.receive(t, 99)
	if !lies(m) {
		t.Error("after all was released, messages are copied")
	}
	m.Release()
}

// What is sent on lies in memory of this side by then.
func TestInPlaceIsSentOn(t *testing.T) {
	c := connectInPlace(t, 8)
	c.send(t, 3).Release()
	m := c.receive(t, 3)
	if err := c.server.SendBuffer(c.ctx, 4, []byte("head"), &m.Buffer); err != nil {
		t.Fatal(err)
	}
	back, err := c.client.Receive(c.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(back.Bytes(), append([]byte("head"), pattern(viewSize, 3)...)) {
		t.Error("another message came back")
	}
	back.Release()
}

// The sender's Close waits for who reads its memory. Then the endpoint ends in order.
func TestInPlaceDelaysClose(t *testing.T) {
	c := connectInPlace(t, 8)
	c.send(t, 5).Release()
	c.send(t, 6).Release()
	m, last := c.receive(t, 5), c.receive(t, 6)
	closed := make(chan error, 1)
	go func() { closed <- c.client.Close() }()
	last.Release()
	select {
	case err := <-closed:
		t.Fatalf("the sender has closed while its memory was read: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if !bytes.Equal(m.Bytes(), pattern(viewSize, 5)) || !m.Intact() {
		t.Error("the message changed")
	}
	m.Release()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if _, err := c.server.Receive(c.ctx); err != io.EOF {
		t.Errorf("after the last message: %v", err)
	}
}

// A sender that does not wait may use its memory for something else. What is held is not
// intact any more, and what was not received never is, nor what came behind it.
func TestInPlaceOfAPeerThatIsGone(t *testing.T) {
	c := connectInPlace(t, 8)
	for i := range 2 {
		c.send(t, i).Release()
	}
	if err := c.client.Send(c.ctx, 2, nil); err != nil {
		t.Fatal(err)
	}
	m := c.receive(t, 0)
	c.await(t)
	gone, cancel := context.WithCancel(c.ctx)
	cancel()
	if err := c.client.closeWithin(gone); !errors.Is(err, ErrNotDelivered) {
		t.Fatalf("Close without time: %v", err)
	}
	if m.Intact() {
		t.Error("a message is intact whose sender is gone")
	}
	_ = bytes.Count(m.Bytes(), []byte{0}) // it can be read all the same
	<-c.server.Done()
	for range 3 {
		if m, err := c.server.Receive(c.ctx); err == nil || err == io.EOF {
			t.Fatalf("after the end a message came: %t, %v", m != nil, err)
		}
	}
	if err := c.server.Close(); err != nil {
		t.Error(err)
	}
	if m.Intact() {
		t.Error("a message is intact after Close")
	}
	_ = bytes.Count(m.Bytes(), []byte{0})
	m.Release()
}

// A message in place that is released after its runtime has been closed harms nobody.
func TestInPlaceIsHeldForLong(t *testing.T) {
	c := connectInPlace(t, 8)
	c.send(t, 7).Release()
	m := c.receive(t, 7)
	if err := c.pair.server.Close(); err != nil {
		t.Error(err)
	}
	if err := c.pair.client.Close(); err != nil {
		t.Error(err)
	}
	_ = bytes.Count(m.Bytes(), []byte{0})
	m.Release()
}

// await waits until the server has taken all that was sent to its inbox.
func (c *inPlacePair) await(t *testing.T) {
	t.Helper()
	s := c.server.carrier.(*shell)
	for {
		s.w.drain()
		s.mu.Lock()
		ready := s.m.FirstIsViewed()
		s.mu.Unlock()
		if ready {
			return
		}
		if c.ctx.Err() != nil {
			t.Fatal("no message is in the inbox")
		}
		runtime.Gosched()
	}
}

// Requests in place reach their handlers, and answers that are made of them the callers.
func TestInPlaceRequests(t *testing.T) {
	w := worldOf(t, "shm")
	p := w.pair(t, Config{}, ListenConfig{InPlace: true})
	c := p.callers(t, MuxConfig{})
	defer c.close(t)
	var inPlace atomic.Int64
	c.mux.Long(methodEchoKept, func(q Request) {
		m := q.Keep()
		if m.owner.location() == (location{}) {
			inPlace.Add(1)
		}
		if err := q.ReplyBuffer(&m.Buffer); err != nil {
			t.Error(err)
		}
	})
	var callers sync.WaitGroup
	for n := range 4 {
		callers.Go(func() {
			for i := range 40 {
				want := pattern(100<<10+n, n+i)
				b, err := c.a.Buffer(p.ctx, len(want))
				if err != nil {
					t.Error(err)
					return
				}
				copy(b.Bytes(), want)
				m, err := c.a.CallBuffer(p.ctx, []uint32{methodEcho, methodEchoKept}[i%2], b)
				if err != nil {
					t.Error(err)
					return
				}
				if !bytes.Equal(m.Bytes(), want) {
					t.Error("another answer came")
				}
				m.Release()
			}
		})
	}
	callers.Wait()
	if inPlace.Load() == 0 && !checksBuffers { // a checked buffer has no room for a header
		t.Error("no request was used in place")
	}
}
