package verbena

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/call"
)

// A relayed sends messages of viewSize over shared memory to a relay that receives in place
// and sends on to a sink.
type relayed struct {
	ctx              context.Context
	source, in       *Endpoint // the two ends of one endpoint
	out, sink        *Endpoint // and of another
	relays           *Runtime
	sourceRT, sinkRT *Runtime
}

const passChunks = 32 // of which half may be viewed

func connectRelayed(t *testing.T, trusted bool) *relayed {
	t.Helper()
	w := worldOf(t, "shm")
	config := Config{Tuning: TuningTable{w.transport: {Chunks: passChunks}}}
	providers, _ := w.providers(t)
	others, more := w.providers(t)
	r := &relayed{ctx: testContext(t)}
	r.sourceRT, r.relays, r.sinkRT = newRuntime(t, config, providers), newRuntime(t, config, others), newRuntime(t, config, more)
	group, err := r.relays.NewGroup(GroupConfig{Name: "relay", Relay: true})
	if err != nil {
		t.Fatal(err)
	}
	join := func(from, to *Runtime, dial DialConfig, listen ListenConfig) (a, b *Endpoint) {
		t.Helper()
		l, err := to.Listen(r.ctx, w.anyPort(), listen)
		if err != nil {
			t.Fatal(err)
		}
		dial.Transport = w.transport
		if a, err = from.Dial(r.ctx, l.Addr().String(), "test/1", dial); err != nil {
			t.Fatal(err)
		}
		if b, err = l.Accept(r.ctx); err != nil {
			t.Fatal(err)
		}
		return a, b
	}
	r.source, r.in = join(r.sourceRT, r.relays, DialConfig{}, ListenConfig{Group: group, InPlace: true})
	r.out, r.sink = join(r.relays, r.sinkRT, DialConfig{Group: group, Trusted: trusted}, ListenConfig{})
	return r
}

// send sends b, to which the caller keeps a reference.
func (r *relayed) send(t *testing.T, b *Buffer, seed int) {
	t.Helper()
	copy(b.Bytes(), pattern(viewSize, seed))
	b.Retain()
	if err := r.source.SendBuffer(r.ctx, uint32(seed), nil, b); err != nil {
		t.Fatal(err)
	}
}

// relay sends the next message on, and tells whether it is read in the source's memory.
func (r *relayed) relay(t *testing.T) (passed bool) {
	t.Helper()
	m, err := r.in.Receive(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	m.Retain() // so that it is still there to be looked at
	if err := r.out.SendBuffer(r.ctx, m.Tag, nil, &m.Buffer); err != nil {
		t.Fatal(err)
	}
	l := viewed(m.owner)
	passed = l != nil && l.view.use != nil
	m.Release()
	return passed
}

func (r *relayed) receive(t *testing.T, seed int) {
	t.Helper()
	m, err := r.sink.Receive(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	if m.Tag != uint32(seed) || !bytes.Equal(m.Bytes(), pattern(viewSize, seed)) {
		t.Fatalf("message %d of %d bytes came for %d, or another one", m.Tag, len(m.Bytes()), seed)
	}
}

// buffers returns n buffers of the source that the relay can pass on: it has to get to know
// each, and to ask for it. Chunks bound how many messages are read where they lie.
func (r *relayed) buffers(t *testing.T, n int) []*Buffer {
	t.Helper()
	all := make([]*Buffer, n)
	for i := range all {
		var err error
		if all[i], err = r.source.Buffer(r.ctx, viewSize); err != nil {
			t.Fatal(err)
		}
		for passed := false; !passed; {
			if r.ctx.Err() != nil {
				t.Fatal("messages are not passed on")
			}
			r.send(t, all[i], i)
			passed = r.relay(t)
			r.receive(t, i)
			if err := r.source.Settled(r.ctx, all[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return all
}

func releaseAll(all []*Buffer) {
	for _, b := range all {
		b.Release()
	}
}

// unread is how many messages the relay passes on before the sink reads no further, and
// some more.
const unread = readAhead/viewSize + 4

// fillUp sends so many messages on that the sink has not read the last ones.
func (r *relayed) fillUp(t *testing.T, all []*Buffer) {
	t.Helper()
	for i, b := range all {
		r.send(t, b, i)
		if !r.relay(t) {
			t.Fatalf("message %d was copied", i)
		}
	}
	s := r.in.carrier.(*shell)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.passesOn() {
		t.Fatal("the sink has read all")
	}
}

// What was received in place is sent on from where it lies, and its source has the memory
// back when the sink has read it.
func TestInPlaceIsPassedOn(t *testing.T) {
	r := connectRelayed(t, true)
	all := r.buffers(t, unread)
	r.fillUp(t, all)
	ctx, cancel := context.WithTimeout(r.ctx, 50*time.Millisecond)
	defer cancel()
	if err := r.source.Settled(ctx, all[unread-1]); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the source has its memory back before the sink has read it: %v", err)
	}
	for i := range all {
		r.receive(t, i)
	}
	for _, b := range all {
		if err := r.source.Settled(r.ctx, b); err != nil {
			t.Fatal(err)
		}
	}
	// A part, behind a header.
	r.send(t, all[0], 77)
	m, err := r.in.Receive(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.out.SendRange(r.ctx, 78, []byte("head"), &m.Buffer, 5, viewSize-5); err != nil {
		t.Fatal(err)
	}
	if m, err = r.sink.Receive(r.ctx); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(m.Bytes(), append([]byte("head"), pattern(viewSize, 77)[5:viewSize-5]...)) {
		t.Error("another part came")
	}
	m.Release()
	releaseAll(all)
}

// TrySendRange passes on, too.
func TestInPlaceIsPassedOnAtOnce(t *testing.T) {
	r := connectRelayed(t, true)
	all := r.buffers(t, 1)
	r.send(t, all[0], 5)
	m, err := r.in.Receive(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for !r.out.TrySendRange(m.Tag, &m.Buffer, 0, viewSize) {
		if r.ctx.Err() != nil {
			t.Fatal("the message is not sent")
		}
	}
	r.receive(t, 5)
	releaseAll(all)
}

// A peer that is not trusted has no key, and gets a copy.
func TestInPlaceIsCopiedForOthers(t *testing.T) {
	r := connectRelayed(t, false)
	b, err := r.source.Buffer(r.ctx, viewSize)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		r.send(t, b, i)
		if r.relay(t) {
			t.Fatal("a message is passed on to a peer that is not trusted")
		}
		r.receive(t, i)
		if err := r.source.Settled(r.ctx, b); err != nil {
			t.Fatal(err)
		}
	}
	b.Release()
}

// The relay's Close waits until the sink has read what came from that endpoint, since the
// source has its memory back with it.
func TestPassedOnDelaysClose(t *testing.T) {
	r := connectRelayed(t, true)
	all := r.buffers(t, unread)
	r.fillUp(t, all)
	closed := make(chan error, 1)
	go func() { closed <- r.in.Close() }()
	select {
	case err := <-closed:
		t.Fatalf("the relay has closed while the sink read the source's memory: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	for i := range all {
		r.receive(t, i)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	releaseAll(all)
	if err := r.out.Close(); err != nil {
		t.Error(err)
	}
}

// It does not wait for an endpoint that has failed, or fails meanwhile.
func TestPassedOnToOneThatFailed(t *testing.T) {
	for name, after := range map[string]time.Duration{"before": 0, "meanwhile": 100 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			r := connectRelayed(t, true)
			all := r.buffers(t, unread)
			r.fillUp(t, all)
			fail := func() { r.out.carrier.(*shell).fail(ErrPeerDied) } // it holds what it has offered until its Close
			began := time.Now()                                         // before the timer begins, or it fires too early for it
			if after == 0 {
				fail()
			} else {
				defer time.AfterFunc(after, fail).Stop()
			}
			if err := r.in.Close(); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took < after || took > r.in.env.linger/2 {
				t.Errorf("Close took %v", took)
			}
			releaseAll(all)
		})
	}
}

// A source that does not wait in its Close, and uses its memory again, costs the sink its
// endpoint, and never has it receive other bytes.
func TestPassedOnBySourceThatEnds(t *testing.T) {
	for range 10 {
		r := connectRelayed(t, true)
		all := r.buffers(t, unread)
		r.fillUp(t, all)
		if err := r.abandon(); !errors.Is(err, ErrNotDelivered) {
			t.Fatalf("Close without time: %v", err)
		}
		for _, b := range all {
			clear(b.Bytes())
		}
		releaseAll(all)
		received := 0
		for {
			m, err := r.sink.Receive(r.ctx)
			if err != nil {
				if !errors.Is(err, ErrPeerDied) {
					t.Errorf("the sink's endpoint ends with %v", err)
				}
				break
			}
			if !bytes.Equal(m.Bytes(), pattern(viewSize, received)) {
				t.Fatalf("message %d has other bytes", received)
			}
			received++
			m.Release()
		}
		if received == unread {
			t.Error("the sink has received all")
		}
		for _, rt := range []*Runtime{r.sourceRT, r.relays, r.sinkRT} {
			if err := rt.Close(); err != nil && !errors.Is(err, ErrNotDelivered) {
				t.Error(err)
			}
		}
	}
}

// What may have changed while it was copied to be sent on is not sent.
func TestInPlaceOfAPeerThatIsGoneIsNotSentOn(t *testing.T) {
	r := connectRelayed(t, false)
	all := r.buffersInPlace(t)
	m := r.gone(t, all, 4)
	all.Release()
	if err := r.out.SendBuffer(r.ctx, 4, nil, &m.Buffer); !errors.Is(err, errNotIntact) {
		t.Errorf("it is sent on: %v", err)
	}
	m.Release()
	if err := r.out.Send(r.ctx, 5, pattern(viewSize, 5)); err != nil {
		t.Error(err)
	}
	r.receive(t, 5)
}

// gone has the source end without waiting and use its memory again, behind a message that
// the relay holds where it lies.
func (r *relayed) gone(t *testing.T, b *Buffer, seed int) *Message {
	t.Helper()
	m := r.hold(t, b, seed)
	_ = r.abandon()
	clear(b.Bytes())
	return m
}

// hold has the relay receive b where it lies.
func (r *relayed) hold(t *testing.T, b *Buffer, seed int) *Message {
	t.Helper()
	r.send(t, b, seed)
	m, err := r.in.Receive(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if viewed(m.owner) == nil {
		t.Fatal("the message was copied")
	}
	return m
}

// abandon closes the source's endpoint without waiting for anything.
func (r *relayed) abandon() error {
	ended, cancel := context.WithCancel(r.ctx)
	cancel()
	return r.source.closeWithin(ended)
}

// What has not been offered when the source ends is refused, and the endpoint goes on.
func TestInPlaceIsLookedAtBeforeItIsPassedOn(t *testing.T) {
	r := connectRelayed(t, true)
	all := r.buffers(t, 1)
	m := r.gone(t, all[0], 4)
	if err := r.out.SendBuffer(r.ctx, 4, nil, &m.Buffer); !errors.Is(err, errNotIntact) {
		t.Errorf("it is sent on: %v", err)
	}
	if r.out.TrySendRange(4, &m.Buffer, 0, viewSize) {
		t.Error("it is sent on at once")
	}
	// A few bytes go with the header.
	if err := r.out.SendRange(r.ctx, 4, nil, &m.Buffer, 0, 16); !errors.Is(err, errNotIntact) {
		t.Errorf("its first bytes are sent on: %v", err)
	}
	if r.out.TrySendRange(4, &m.Buffer, 0, 16) {
		t.Error("its first bytes are sent on at once")
	}
	x, err := r.sink.Expose(r.ctx, ExposeConfig{Size: viewSize, Rights: MayWrite})
	if err != nil {
		t.Fatal(err)
	}
	batch := r.out.Batch()
	batch.PutBuffer(x.Token(), 0, &m.Buffer, 0, viewSize)
	if err := batch.Do(r.ctx); !errors.Is(err, errNotIntact) {
		t.Errorf("it is put: %v", err)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	m.Release()
	if err := r.out.Send(r.ctx, 5, pattern(viewSize, 5)); err != nil {
		t.Error(err)
	}
	r.receive(t, 5)
	releaseAll(all)
}

// A piece of a stream that is copied, since too many lie where they are, is looked at when it
// has been.
func TestCopiedPieceIsLookedAt(t *testing.T) {
	r := connectRelayed(t, false)
	b := r.buffersInPlace(t)
	m := r.hold(t, b, 4)
	const size = 16 << 10 // for which there is credit
	m.data = m.data[:size]
	mux := NewMux(MuxConfig{})
	defer mux.Close()
	mux.Stream(1, func(q Request, _ *Stream) {
		<-q.Context().Done()
		_ = q.Fail(CodeApplication, "nobody waits")
	})
	callee, err := NewCaller(r.sink, mux)
	if err != nil {
		t.Fatal(err)
	}
	defer callee.Close()
	c, err := NewCaller(r.out, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := c.Stream(r.ctx, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	h := s.head(call.Data)
	h.Flags &^= call.FromCaller // as one from the callee
	take := func() (kept bool, err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.longPieces = 1 << 30
		defer func() { c.longPieces = 0 }()
		v, err := c.streamed(h, m)
		return v.kept, err
	}
	if kept, err := take(); kept || err != nil {
		t.Fatalf("the piece is kept where it lies: %t, %v", kept, err)
	}
	piece, err := s.Recv(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if viewed(piece.owner) != nil || !bytes.Equal(piece.Bytes(), pattern(viewSize, 4)[:size]) {
		t.Error("another piece came, or it was not copied")
	}
	piece.Release()
	_ = r.abandon()
	clear(b.Bytes())
	if _, err := take(); !errors.Is(err, errNotIntact) {
		t.Errorf("bytes that may have changed came as a piece: %v", err)
	}
	m.Release()
	b.Release()
}

// Over TCP a message in place goes as it was when it was sent, however late the socket takes
// it, and is refused when the source has ended.
func TestInPlaceIsSentOnOverTCP(t *testing.T) {
	r := connectRelayed(t, true)
	l, err := r.sinkRT.Listen(r.ctx, "127.0.0.1:0", ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := r.relays.Dial(r.ctx, l.Addr().String(), "test/1", DialConfig{Transport: "tcp"})
	if err != nil {
		t.Fatal(err)
	}
	sink, err := l.Accept(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	b := r.buffersInPlace(t)
	m := r.hold(t, b, 4)
	sent := 0
	for m.Retain(); out.TrySendRange(4, &m.Buffer, 0, viewSize); m.Retain() {
		sent++ // until the socket is full
	}
	m.Release()
	_ = r.abandon()
	clear(b.Bytes())
	if err := out.SendBuffer(r.ctx, 4, nil, &m.Buffer); !errors.Is(err, errNotIntact) {
		t.Errorf("it is sent on: %v", err)
	}
	m.Release()
	for i := range sent {
		got, err := sink.Receive(r.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), pattern(viewSize, 4)) {
			t.Errorf("message %d of %d has other bytes", i, sent)
		}
		got.Release()
	}
	if sent == 0 {
		t.Error("nothing was sent")
	}
	b.Release()
}

// An application that keeps what it has sent on delays no Close, once the sink has read it.
func TestKeptMessagesDelayNoClose(t *testing.T) {
	r := connectRelayed(t, true)
	all := r.buffers(t, 1)
	r.send(t, all[0], 6)
	m, err := r.in.Receive(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	m.Retain()
	if err := r.out.SendBuffer(r.ctx, 6, nil, &m.Buffer); err != nil {
		t.Fatal(err)
	}
	r.receive(t, 6)
	began := time.Now()
	if err := r.in.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > r.in.env.linger/2 {
		t.Errorf("Close took %v", took)
	}
	m.Release()
	releaseAll(all)
}

// buffersInPlace returns a buffer of the source that the relay knows.
func (r *relayed) buffersInPlace(t *testing.T) *Buffer {
	t.Helper()
	b, err := r.source.Buffer(r.ctx, viewSize)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		r.send(t, b, i)
		r.relay(t)
		r.receive(t, i)
		if err := r.source.Settled(r.ctx, b); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// Messages that many goroutines send on to several sinks, while others come.
func TestPassedOnByMany(t *testing.T) {
	r := connectRelayed(t, true)
	all := r.buffers(t, 8)
	const messages = 400
	relaying := make(chan struct{})
	go func() {
		defer close(relaying)
		for range messages {
			m, err := r.in.Receive(r.ctx)
			if err != nil {
				t.Error(err)
				return
			}
			if err := r.out.SendBuffer(r.ctx, m.Tag, nil, &m.Buffer); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range messages {
			b := all[i%len(all)]
			if err := r.source.Settled(r.ctx, b); err != nil {
				t.Error(err)
				return
			}
			r.send(t, b, i)
		}
	}()
	for i := range messages {
		r.receive(t, i)
	}
	<-sent
	<-relaying
	if err := errors.Join(r.source.Close(), r.in.Close(), r.out.Close(), r.sink.Close()); err != nil {
		t.Error(err)
	}
	releaseAll(all)
}
