package stream

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
	"github.com/verbena-data/verbena/internal/liveness"
	"github.com/verbena-data/verbena/internal/race"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// text is a message's content, which tells its number and size.
func text(i, size int) []byte {
	b := bytes.Repeat([]byte{byte(i), byte(i >> 8), byte(size)}, size/3+1)[:size]
	if size >= 8 {
		binary.BigEndian.PutUint64(b, uint64(i))
	}
	return b
}

func send(t testing.TB, w *Writer, b []byte, urgency carrier.Urgency) {
	t.Helper()
	m := w.Alloc(len(b))
	m.Bytes = append(m.Bytes, b...)
	if err := w.SendWait(context.Background(), m, urgency); err != nil {
		t.Fatal(err)
	}
}

// counted counts what is written to it.
type counted struct {
	net.Conn
	mu     sync.Mutex
	writes int
	bytes.Buffer
}

func (c *counted) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes++
	return c.Buffer.Write(b)
}
func (c *counted) Close() error                     { return nil }
func (c *counted) SetWriteDeadline(time.Time) error { return nil }
func (c *counted) Read([]byte) (int, error)         { return 0, io.EOF }

// Messages that wait for a flush go out in one write; short ones together, a
// long one from its own memory between them.
func TestMessagesGoOutTogether(t *testing.T) {
	c := &counted{}
	w := NewWriter(c, time.Minute, time.Minute, nil)
	var want []byte
	for i, size := range []int{0, 1, 100, 1000, 5000, alone, 10, 20} {
		send(t, w, text(i, size), carrier.Later)
		want = append(binary.BigEndian.AppendUint32(want, uint32(size)), text(i, size)...)
	}
	if c.writes != 0 {
		t.Errorf("%d writes before the flush", c.writes)
	}
	w.Flush()
	w.Finish()
	w.Wait()
	w.Stop()
	if !bytes.Equal(c.Bytes(), want) {
		t.Errorf("%d bytes went out, or others than the %d that were sent", c.Len(), len(want))
	}
	if c.writes != 3 {
		t.Errorf("%d writes, want 3", c.writes)
	}
	if err := w.Send(w.Alloc(1), carrier.Now); err == nil {
		t.Error("a message was taken after the end")
	}
}

func pair(t testing.TB) (here, there *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// Whatever the sizes, and although the socket is full again and again, each
// sender's messages arrive whole and in order.
func TestManySendersOneSlowReader(t *testing.T) {
	here, there := pair(t)
	w := NewWriter(here, time.Minute, time.Minute, nil)
	const senders, each = 8, 60
	sizes := []int{8, 9, 100, 1000, 4000, alone - lengthSize - 1, alone, 400_000}
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for i := range each {
				size := sizes[(s+i)%len(sizes)]
				send(t, w, text(s<<16|i, size), carrier.Urgency(i%3))
			}
			w.Flush()
		})
	}
	r := NewReader(there, 1<<20)
	var next [senders]int
	for range senders * each {
		m, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		id := int(binary.BigEndian.Uint64(m.Bytes))
		s, i := id>>16, id&0xffff
		if s >= senders || i != next[s] || !bytes.Equal(m.Bytes, text(id, sizes[(s+i)%len(sizes)])) {
			t.Fatalf("message %d of sender %d, of %d bytes, is out of order or damaged; message %d is due", i, s, len(m.Bytes), next[min(s, senders-1)])
		}
		next[s]++
		m.Release()
	}
	wg.Wait()
	w.Finish()
	w.Wait()
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("after Finish: %v", err)
	}
	w.Stop()
}

// Who sends to a peer that does not read waits, as long as its context lives.
func TestBackPressure(t *testing.T) {
	here, _ := pair(t)
	w := NewWriter(here, time.Minute, time.Minute, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	waits := make(chan struct{})
	go func() {
		for {
			w.mu.Lock()
			waiting := w.room != nil
			w.mu.Unlock()
			if waiting {
				close(waits)
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	result := make(chan error, 1)
	go func() {
		for {
			m := w.Alloc(256 << 10)
			m.Bytes = m.Bytes[:256<<10]
			if err := w.SendWait(ctx, m, carrier.Now); err != nil {
				result <- err
				return
			}
		}
	}()
	<-waits
	cancel(why)
	if err := <-result; !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
	gone := errors.New("gone")
	w.Abort(gone)
	if err := w.Send(w.Alloc(0), carrier.Now); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
	w.Stop()
}

// Send does not wait for a peer that does not read; Room does, until it reads.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		w := NewWriter(here, time.Hour, time.Hour, NewBudget(1<<30))
		const size, messages = 1 << 20, 8
		sendAll := func() {
			for range messages {
				m := w.Alloc(size)
				m.Bytes = m.Bytes[:size]
				if err := w.Send(m, carrier.Now); err != nil {
					t.Fatal(err)
				}
			}
		}
		start := time.Now()
		sendAll()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Room(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("with %d bytes waiting: %v after %v", messages*size, err, time.Since(start))
		}
		room := make(chan error, 1)
		go func() { room <- w.Room(t.Context()) }()
		for range messages - mostWaiting/size {
			synctest.Wait()
			select {
			case err := <-room:
				t.Fatalf("room too early: %v", err)
			default:
			}
			if _, err := io.CopyN(io.Discard, there, size+lengthSize); err != nil {
				t.Fatal(err)
			}
		}
		// What is left is 4 MiB and the lengths: too much by them.
		if _, err := io.CopyN(io.Discard, there, size+lengthSize); err != nil {
			t.Fatal(err)
		}
		if err := <-room; err != nil {
			t.Error(err)
		}
		sendAll()
		go func() { room <- w.Room(t.Context()) }()
		synctest.Wait()
		w.Finish()
		if err := <-room; !errors.Is(err, carrier.ErrFinished) {
			t.Errorf("after Finish: %v", err)
		}
		gone := errors.New("gone")
		w.Abort(gone)
		if err := w.Room(t.Context()); !errors.Is(err, gone) {
			t.Errorf("after the end: %v", err)
		}
		w.Stop()
		there.Close()
	})
}

// The writer with the most that waits ends when all together have too much, and
// one that has half of the budget alone. Nothing stays counted.
func TestBudget(t *testing.T) {
	const size = 1 << 20
	budget := NewBudget(10 * size)
	var writers [4]*Writer
	for i := range writers {
		here, there := net.Pipe()
		defer there.Close()
		writers[i] = NewWriter(here, time.Hour, time.Hour, budget)
	}
	sendTo := func(i, beyond int) error {
		w := writers[i]
		for w.waiting < mostWaiting+beyond*size {
			m := w.Alloc(size - lengthSize)
			m.Bytes = m.Bytes[:size-lengthSize]
			if err := w.Send(m, carrier.Now); err != nil {
				return err
			}
		}
		return nil
	}
	for _, step := range []struct{ writer, beyond, ends int }{
		{0, 4, -1}, {1, 3, -1}, {2, 2, -1}, {3, 1, -1}, // all of it
		{3, 2, 0},
		{3, 5, -1}, {3, 6, 3}, // of itself
	} {
		err := sendTo(step.writer, step.beyond)
		if itself := step.ends == step.writer; itself != errors.Is(err, ErrUnread) || !itself && err != nil {
			t.Errorf("%+v: %v", step, err)
		}
		if step.ends >= 0 && !errors.Is(writers[step.ends].Err(), ErrUnread) {
			t.Errorf("%+v: that writer has not ended", step)
		}
	}
	for i := 1; i < 3; i++ {
		if err := writers[i].Err(); err != nil {
			t.Errorf("writer %d: %v", i, err)
		}
	}
	for _, w := range writers {
		w.Stop()
	}
	if budget.total != 0 || len(budget.held) != 0 {
		t.Errorf("%d bytes of %d writers are left in the budget", budget.total, len(budget.held))
	}
}

// A wrapper that gives raw access is written to as its socket is; one that does
// not, as tls.Conn, gets all that is written. Either is watched.
func TestWrappers(t *testing.T) {
	here, _ := pair(t)
	// Emulated processors do not show what the kernel counts.
	watcher := liveness.Watch(here, time.Minute, func(error) {})
	watches := watcher != nil
	watcher.Stop()
	for name, test := range map[string]struct {
		conn   net.Conn
		direct bool
	}{
		"socket":        {here, true},
		"transparent":   {transparent{wrapped{here}}, true},
		"twice":         {transparent{wrapped{transparent{wrapped{here}}}}, true},
		"not":           {wrapped{here}, false},
		"one of them":   {wrapped{transparent{wrapped{here}}}, false},
		"one below":     {transparent{wrapped{wrapped{here}}}, false},
		"of no sockets": {wrapped{&counted{}}, false},
	} {
		w := NewWriter(test.conn, time.Minute, time.Minute, nil)
		if w.direct.ready() != test.direct {
			t.Errorf("%s: written to as a socket is %v, want %v", name, w.direct.ready(), test.direct)
		}
		if watched, want := w.watch != nil, watches && name != "of no sockets"; watched != want {
			t.Errorf("%s: watched is %v, want %v", name, watched, want)
		}
		w.watch.Stop()
	}
}

// wrapped is a wrapper as tls.Conn is, transparent one that adds nothing.
type wrapped struct{ net.Conn }

func (c wrapped) NetConn() net.Conn { return c.Conn }

type transparent struct{ wrapped }

func (c transparent) SyscallConn() (syscall.RawConn, error) {
	if below, ok := c.Conn.(syscall.Conn); ok {
		return below.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// A long message to a slow peer takes longer than the time-out, but not for ever;
// a peer that takes too little of what waits at once is given up, however many
// buffers it stands in.
func TestSlowPeers(t *testing.T) {
	const timeout = time.Minute
	for name, test := range map[string]struct {
		size, read int // bytes
		before     int // messages of the same size, which go out with it
		every      time.Duration
		whole      bool
		after      time.Duration // the end, if it is not whole
	}{
		"slow":      {4 * piece, piece, 0, 50 * time.Second, true, 0},
		"too slow":  {4 * piece, piece / 4, 0, 40 * time.Second, false, timeout},
		"too long":  {30 * piece, piece, 0, 50 * time.Second, false, mostTimeouts * timeout},
		"takes not": {1, 0, 0, timeout / 2, false, timeout},
		"many":      {alone, lengthSize + alone, 2, 50 * time.Second, false, timeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				w := NewWriter(here, timeout, time.Hour, nil)
				start := time.Now()
				total := (test.before + 1) * (lengthSize + test.size)
				for range test.before {
					send(t, w, make([]byte, test.size), carrier.Later)
				}
				send(t, w, make([]byte, test.size), carrier.Now)
				got := 0
				for got < total {
					time.Sleep(test.every)
					n, err := io.ReadFull(there, make([]byte, min(test.read, total-got)))
					got += n
					if err != nil || w.Err() != nil {
						break
					}
				}
				if whole := got == total; whole != test.whole {
					t.Errorf("%d of %d bytes came within %v", got, total, time.Since(start))
				}
				if took := time.Since(start); !test.whole && (w.Err() == nil || took < test.after || took > test.after+test.every) {
					t.Errorf("%v after %v, want the end after %v", w.Err(), took, test.after)
				}
				w.Finish()
				w.Wait()
				w.Stop()
				there.Close()
			})
		})
	}
}

// A message that outgrows what was asked for goes out whole.
func TestMessageThatOutgrowsItsMemory(t *testing.T) {
	c := &counted{}
	w := NewWriter(c, time.Minute, time.Minute, nil)
	m := w.Alloc(10)
	m.Bytes = append(m.Bytes, text(1, 5000)...)
	if err := w.Send(m, carrier.Now); err != nil {
		t.Fatal(err)
	}
	w.Finish()
	w.Wait()
	w.Stop()
	if want := append([]byte{0, 0, 5000 >> 8, 5000 & 255}, text(1, 5000)...); !bytes.Equal(c.Bytes(), want) {
		t.Errorf("%d bytes", c.Len())
	}
}

func TestReaderBounds(t *testing.T) {
	frame := func(n uint32, b ...byte) []byte { return append(binary.BigEndian.AppendUint32(nil, n), b...) }
	if _, err := NewReader(bytes.NewReader(frame(11)), 10).Next(); !errors.Is(err, ErrFrameLength) {
		t.Errorf("a frame that is too long: %v", err)
	}
	for _, cut := range [][]byte{{0}, frame(5, 1, 2), frame(50_000, 1, 2), append(frame(60<<20), make([]byte, 100_000)...)} {
		if _, err := NewReader(bytes.NewReader(cut), 64<<20).Next(); err != io.ErrUnexpectedEOF {
			t.Errorf("a frame cut after %d bytes: %v", len(cut), err)
		}
	}
	if _, err := NewReader(bytes.NewReader(nil), 10).Next(); err != io.EOF {
		t.Errorf("the end between frames: %v", err)
	}
}

// What was read before is read first.
func TestUnread(t *testing.T) {
	stream := join(binary.BigEndian.AppendUint32(nil, 3), []byte("abc"), binary.BigEndian.AppendUint32(nil, 100_000), text(1, 100_000))
	for _, n := range []int{0, 1, 4, 7, 11, 5000, len(stream)} {
		r := NewReader(bytes.NewReader(stream[n:]), 1<<20)
		r.Unread(stream[:n])
		for _, want := range [][]byte{[]byte("abc"), text(1, 100_000)} {
			if m, err := r.Next(); err != nil || !bytes.Equal(m.Bytes, want) {
				t.Errorf("%d bytes read before: %d bytes, %v", n, len(m.Bytes), err)
			}
		}
		if _, err := r.Next(); err != io.EOF {
			t.Errorf("%d bytes read before: %v at the end", n, err)
		}
	}
}

// countedReader counts how often it is read.
type countedReader struct {
	io.Reader
	reads int
}

func (r *countedReader) Read(b []byte) (int, error) {
	r.reads++
	return r.Reader.Read(b)
}

// Of many messages each read takes many, though they do not end where the buffer does.
func TestReadsTakeManyMessages(t *testing.T) {
	const messages, size = 1000, 1001
	var stream []byte
	for i := range messages {
		stream = append(binary.BigEndian.AppendUint32(stream, size), text(i, size)...)
	}
	from := &countedReader{Reader: bytes.NewReader(stream)}
	r := NewReader(from, 1<<20)
	for i := range messages {
		if m, err := r.Next(); err != nil || !bytes.Equal(m.Bytes, text(i, size)) {
			t.Fatalf("message %d: %d bytes, %v", i, len(m.Bytes), err)
		}
	}
	if least := len(stream)/mostBuffer + 1; from.reads > least+6 { // those while the buffer grows
		t.Errorf("%d reads for %d messages, where %d buffers hold them", from.reads, messages, least)
	}
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// Ready means that Next does not read.
func TestReady(t *testing.T) {
	never := iotest.ErrReader(errors.New("read"))
	for _, n := range []int{0, 100, inPlace, inPlace + 1, 1 << 20} {
		for _, have := range []int{0, lengthSize - 1, lengthSize, lengthSize + n/2, lengthSize + n} {
			frame := append(binary.BigEndian.AppendUint32(nil, uint32(n)), make([]byte, n)...)
			r := NewReader(never, 1<<20-1)
			r.buf, r.end = append(make([]byte, 0, len(frame)+1), frame[:have]...), have
			ready := r.Ready()
			_, err := r.Next()
			if ready != (err == nil || errors.Is(err, ErrFrameLength)) {
				t.Errorf("with %d bytes of a frame of %d: ready is %v, Next returns %v", have, n, ready, err)
			}
		}
	}
}

// A long frame behind short ones is read whole, however much of it the buffer
// held when it began.
func TestLongFrameBehindShortOnes(t *testing.T) {
	for _, short := range []int{100, 1004, 4096, inPlace - 4, inPlace} {
		var stream []byte
		sizes := []int{}
		for range 400_000 / (short + 4) {
			sizes = append(sizes, short)
		}
		sizes = append(sizes, 400_000, short, 70_000, inPlace+1, 300_000, short)
		for i, size := range sizes {
			stream = append(binary.BigEndian.AppendUint32(stream, uint32(size)), text(i, size)...)
		}
		r := NewReader(bytes.NewReader(stream), 1<<20)
		for i, size := range sizes {
			m, err := r.Next()
			if err != nil || !bytes.Equal(m.Bytes, text(i, size)) {
				t.Fatalf("frames of %d: frame %d is damaged (%v)", short, i, err)
			}
			m.Release()
		}
		if len(r.buf) > mostBuffer {
			t.Errorf("the buffer grew to %d bytes", len(r.buf))
		}
	}
}

// A length is only a claim: memory grows with what has come.
func TestClaimsTakeNoMemory(t *testing.T) {
	claim := binary.BigEndian.AppendUint32(nil, 60<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		if _, err := NewReader(io.MultiReader(bytes.NewReader(claim), bytes.NewReader(make([]byte, 100))), 64<<20).Next(); err != io.ErrUnexpectedEOF {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 100*2*claimed {
		t.Errorf("%d bytes were taken for 100 claims", took)
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, 1, 2, 0, 0, 0, 0}, uint8(0))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, uint8(1))
	f.Add([]byte{0x00, 0x10, 0x00, 0x00, 1}, uint8(2))
	f.Add(append([]byte{0, 0, 0x50, 0}, make([]byte, 0x5000)...), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, how uint8) {
		var in io.Reader = bytes.NewReader(b)
		switch how % 3 {
		case 1:
			in = iotest.HalfReader(in)
		case 2:
			in = iotest.OneByteReader(in)
		}
		r := NewReader(in, 1<<20)
		var again []byte
		for {
			if r.Ready() && r.end-r.start < lengthSize {
				t.Fatal("ready without a length")
			}
			m, err := r.Next()
			if err != nil {
				break
			}
			again = append(binary.BigEndian.AppendUint32(again, uint32(len(m.Bytes))), m.Bytes...)
			m.Release()
			r.Shrink()
		}
		if !bytes.HasPrefix(b, again) {
			t.Errorf("%x was read as %x", b, again)
		}
		rest := b[len(again):]
		if len(rest) >= lengthSize && uint64(binary.BigEndian.Uint32(rest)) <= uint64(len(rest)-lengthSize) && binary.BigEndian.Uint32(rest) <= 1<<20 {
			t.Errorf("a whole frame was not read: %x", rest)
		}
	})
}

// In steady state neither end allocates for a message.
func TestMessagesAllocateNothing(t *testing.T) {
	for _, size := range []int{100, 1 << 10, 100 << 10} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			here, there := pair(t)
			w := NewWriter(here, time.Minute, time.Minute, nil)
			r := NewReader(there, 1<<20)
			b := make([]byte, size)
			if n := testing.AllocsPerRun(200, func() {
				send(t, w, b, carrier.Now)
				m, err := r.Next()
				if err != nil {
					t.Fatal(err)
				}
				m.Release()
			}); n != 0 && !race.Enabled {
				t.Errorf("%v allocations", n)
			}
			w.Finish()
			w.Wait()
			w.Stop()
		})
	}
}

// What reads a socket by itself ends as the socket's Read does, and allocates nothing.
func TestDirectReader(t *testing.T) {
	here, there := pair(t)
	r := direct(here)
	b := make([]byte, 128<<10)
	if n, err := r.Read(nil); n != 0 || err != nil {
		t.Errorf("no bytes: %d, %v", n, err)
	}
	want := text(1, 1000)
	go func() { _, _ = there.Write(want) }() // what goes wrong is seen below
	if n, err := io.ReadFull(r, b[:len(want)]); err != nil || !bytes.Equal(b[:n], want) {
		t.Errorf("%d bytes: %v", n, err)
	}
	if !race.Enabled {
		if n := testing.AllocsPerRun(100, func() {
			if _, err := there.Write(want); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(r, b[:len(want)]); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("%v allocations for a read", n)
		}
	}
	var timeout net.Error
	if err := here.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(b); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("behind the deadline: %v", err)
	}
	if err := here.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := there.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(b); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	here.Close()
	if _, err := r.Read(b); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
