package iwarp

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/patience"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/engine"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

// hush makes a side keep quiet as if it had polled all the time.
func (s *side) hush() *socketStream {
	s.t.Helper()
	stream, quiet := s.tryHush()
	if !quiet {
		s.t.Fatal("the stream does not keep quiet")
	}
	return stream
}

// tryHush is hush for a side one of whose queues may be armed, which forbids it.
func (s *side) tryHush() (stream *socketStream, quiet bool) {
	s.t.Helper()
	stream = s.qp.(*queuePair).connected.Load().stream.(*socketStream)
	stream.reading.Lock()
	defer stream.reading.Unlock()
	if !stream.quiet.Load() {
		if err := stream.raw.Control(stream.hush); err != nil {
			s.t.Fatal(err)
		}
	}
	return stream, stream.quiet.Load()
}

// poll polls until a completion comes.
func poll(t testing.TB, q rdma.CompletionQueue) rdma.Completion {
	t.Helper()
	var c [1]rdma.Completion
	for begin := time.Now(); time.Since(begin) < within; runtime.Gosched() {
		if n, err := q.Poll(c[:]); err != nil {
			t.Fatal(err)
		} else if n == 1 {
			return c[0]
		}
	}
	t.Fatal("no completion")
	return c[0]
}

// pollsCountFor has polls count together that are slow, as with the race detector.
func pollsCountFor(t *testing.T, d time.Duration) {
	before := quietWithin
	quietWithin = d
	t.Cleanup(func() { quietWithin = before })
}

// untilQuiet takes steps, and a polls in vain behind each, until its stream keeps quiet. It tells
// whether that happens.
func untilQuiet(t *testing.T, a *side, step func()) bool {
	t.Helper()
	stream := a.qp.(*queuePair).connected.Load().stream.(*socketStream)
	for begin := time.Now(); !stream.quiet.Load(); {
		step()
		var c [1]rdma.Completion
		for polls := 0; polls < 2*quietAfter && !stream.quiet.Load(); polls++ {
			if n, err := a.recvs.Poll(c[:]); n != 0 || err != nil {
				t.Fatal(n, err)
			}
		}
		if time.Since(begin) > within {
			return false
		}
	}
	return true
}

// write has a write some bytes to b.
func write(t *testing.T, a, b *side) {
	t.Helper()
	a.send(rdma.SendRequest{Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: a.sge(0, 8), Remote: b.at(0)})
	poll(t, a.sends)
}

// exchangeUntilQuiet is untilQuiet with writes to b, which sends to a.
func exchangeUntilQuiet(t *testing.T, a, b *side) bool {
	t.Helper()
	return untilQuiet(t, a, func() {
		a.recv(0, 0, 64)
		write(t, a, b)
		b.send(rdma.SendRequest{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: b.sge(0, 8)})
		poll(t, b.sends)
		poll(t, a.recvs)
	})
}

// TestQuietByPolling exchanges messages until the stream keeps quiet by itself.
func TestQuietByPolling(t *testing.T) {
	pollsCountFor(t, within)
	a, b := newPair(t, 4096, joinListener)
	if !exchangeUntilQuiet(t, a, b) {
		t.Fatal("the stream does not keep quiet")
	}
	if err := a.recvs.Arm(false); err != nil {
		t.Fatal(err)
	}
	if a.qp.(*queuePair).connected.Load().stream.(*socketStream).quiet.Load() {
		t.Fatal("the stream keeps quiet beside an armed queue")
	}
}

// TestQuietAmongMany has four of five connections with the same queues keep quiet, one after the
// other: more than may at a time. Those before have nothing to bring any more, and give way.
func TestQuietAmongMany(t *testing.T) {
	pollsCountFor(t, within)
	d := testDevice(t, Config{})
	first := newSide(t, d, 4096, nil)
	var as, bs []*side
	for i := range 5 {
		a := *first
		if i > 0 {
			qp, err := first.domain.NewQueuePair(rdma.QueuePairConfig{SendCompletions: first.sends, RecvCompletions: first.recvs,
				SendDepth: 64, RecvDepth: 64, MaxSGE: 4})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = qp.Close() })
			a.qp = qp
		}
		b := newSide(t, d, 4096, nil)
		joinListener(t, &a, b)
		as, bs = append(as, &a), append(bs, b)
	}
	for _, i := range []int{2, 4, 0, 1} {
		if !exchangeUntilQuiet(t, as[i], bs[i]) {
			t.Fatalf("connection %d does not keep quiet", i)
		}
	}
}

// TestQuietInVain has a side poll all the time, to which nothing comes: it does not begin to keep
// quiet.
func TestQuietInVain(t *testing.T) {
	pollsCountFor(t, within)
	a, b := newPair(t, 4096, joinListener)
	for _, way := range [][2]*side{{a, b}, {b, a}} { // behind it nothing of the set-up is left to come
		way[1].recv(0, 0, 64)
		way[0].send(rdma.SendRequest{Op: rdma.OpSend, SGEs: way[0].sge(0, 8)})
		poll(t, way[1].recvs)
	}
	stream := a.qp.(*queuePair).connected.Load().stream.(*socketStream)
	stream.fruitful.Store(false)
	var c [1]rdma.Completion
	for range 8 * quietAfter {
		if n, err := a.recvs.Poll(c[:]); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		if stream.quiet.Load() {
			t.Fatal("the stream keeps quiet, to which nothing has come")
		}
	}
}

// TestQuietWatched has the watchdog look at a quiet stream: it keeps quiet as long as polls come,
// and bytes come or go.
func TestQuietWatched(t *testing.T) {
	for _, c := range []struct {
		name     string
		polls    uint32
		fruitful bool
		want     bool
	}{
		{"polls and bytes", quietAfter, true, true},
		{"no bytes", quietAfter, false, false},
		{"few polls", quietAfter - 1, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, _ := newPair(t, 4096, joinListener)
			var stream *socketStream
			for early := false; !early; { // until the test looks before the watchdog
				stream = a.hush()
				stream.reading.Lock()
				early = stream.watchdog.Stop()
				stream.polls.Store(stream.fast + c.polls)
				stream.fruitful.Store(c.fruitful)
				stream.reading.Unlock()
			}
			stream.watch()
			if got := stream.quiet.Load(); got != c.want {
				t.Errorf("the stream keeps quiet: %v, want %v", got, c.want)
			}
		})
	}
}

// TestQuietByWrites has a side write and poll for nothing but that: what goes counts as well.
func TestQuietByWrites(t *testing.T) {
	pollsCountFor(t, within)
	a, b := newPair(t, 4096, joinListener)
	if !untilQuiet(t, a, func() { write(t, a, b) }) {
		t.Fatal("the stream does not keep quiet")
	}
}

// TestQuietExchange sends to and fro, each time by polls or by waiting.
func TestQuietExchange(t *testing.T) {
	a, b := newPair(t, 4096, joinListener)
	a.recv(0, 0, 1024)
	b.recv(0, 0, 1024)
	take := func(s *side, q rdma.CompletionQueue, i int) rdma.Completion {
		if i%3 == 0 {
			return next(t, q)
		}
		return poll(t, q)
	}
	hushed := 0
	hush := func(s *side) {
		// What came just before a wait was to begin leaves the queue armed.
		if _, quiet := s.tryHush(); quiet {
			hushed++
		}
	}
	for i := range 3000 {
		if i%2 == 0 {
			hush(a)
		}
		if i%5 == 0 {
			hush(b)
		}
		from, to := a, b
		if i%2 == 1 {
			from, to = b, a
		}
		from.send(rdma.SendRequest{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: from.sge(2048, 1024)})
		if c := take(to, to.recvs, i); c.Status != rdma.StatusSuccess || c.Length != 1024 {
			t.Fatalf("%+v", c)
		}
		to.recv(0, 0, 1024)
		if c := take(from, from.sends, i+1); c.Status != rdma.StatusSuccess {
			t.Fatalf("%+v", c)
		}
	}
	if hushed < 1000 {
		t.Errorf("of 2,100 times a stream has kept quiet in %d", hushed)
	}
}

// TestQuietServes has a peer Read and Write at a side that was polled and is
// left alone, which nobody arms.
func TestQuietServes(t *testing.T) {
	const size = 8 << 20
	a, b := newPair(t, size, joinListener)
	fill(b.memory.Bytes(), 1)
	b.hush()
	a.send(rdma.SendRequest{Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: a.sge(0, size), Remote: b.at(0)})
	if c := next(t, a.sends); c.Status != rdma.StatusSuccess || !bytes.Equal(a.memory.Bytes(), b.memory.Bytes()) {
		t.Fatalf("%+v", c)
	}
	fill(a.memory.Bytes(), 2)
	b.hush()
	a.send(rdma.SendRequest{Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: a.sge(0, size), Remote: b.at(0)})
	b.recv(0, 0, 0)
	a.send(rdma.SendRequest{Op: rdma.OpSend})
	next(t, b.recvs)
	if !bytes.Equal(a.memory.Bytes(), b.memory.Bytes()) {
		t.Fatal("what was written is not there")
	}
}

// TestQuietWrites leaves more in the hands of those who poll than the socket
// takes, and does not poll.
func TestQuietWrites(t *testing.T) {
	const size = 32 << 20
	for name, take := range map[string]func(testing.TB, rdma.CompletionQueue) rdma.Completion{
		"polling": poll, "waiting": next, "leaving it alone": nil,
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newPair(t, size, joinListener)
			fill(a.memory.Bytes(), 1)
			b.recv(0, 0, 0)
			a.hush()
			a.send(rdma.SendRequest{Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: a.sge(0, size), Remote: b.at(0)})
			a.send(rdma.SendRequest{Op: rdma.OpSend})
			if take != nil {
				if c := take(t, a.sends); c.Status != rdma.StatusSuccess {
					t.Fatalf("%+v", c)
				}
			}
			next(t, b.recvs)
			if !bytes.Equal(a.memory.Bytes(), b.memory.Bytes()) {
				t.Fatal("what was written is not there")
			}
		})
	}
}

// TestQuietEnds ends connections in which somebody polls, or has polled: by
// either side, with bytes that the peer does not take.
func TestQuietEnds(t *testing.T) {
	const size = 32 << 20
	for name, end := range map[string]func(a, b *side) error{
		"peer disconnects": func(a, b *side) error { return b.qp.Disconnect() },
		"disconnect":       func(a, b *side) error { return a.qp.Disconnect() },
		"close":            func(a, b *side) error { return a.qp.Close() },
		"close the region": func(a, b *side) error { return a.memory.Close() },
		"fail": func(a, b *side) error {
			b.send(rdma.SendRequest{Op: rdma.OpWrite, SGEs: b.sge(0, 8), Remote: rdma.Remote{Key: 1}})
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newPair(t, size, joinListener)
			// The peer's reader is kept from reading, so that bytes pile up.
			stalled := b.qp.(*queuePair).connected.Load().stream.(*socketStream)
			stalled.reading.Lock()
			a.hush()
			a.send(rdma.SendRequest{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: a.sge(0, size), Remote: b.at(0)})
			var polls sync.WaitGroup
			ctx, stop := context.WithCancel(t.Context())
			polls.Go(func() {
				var c [4]rdma.Completion
				for ctx.Err() == nil {
					_, _ = a.recvs.Poll(c[:])
					runtime.Gosched()
				}
			})
			if name == "peer disconnects" || name == "fail" {
				stalled.reading.Unlock()
			} else {
				defer stalled.reading.Unlock()
			}
			if err := end(a, b); err != nil {
				t.Fatal(err)
			}
			if a.ended() == nil {
				t.Error("it has ended without an error")
			}
			stop()
			polls.Wait()
		})
	}
}

// TestNoPacing tells that connections within a host are not paced.
func TestNoPacing(t *testing.T) {
	a, _ := newPair(t, 4096, joinListener)
	stream := a.qp.(*queuePair).connected.Load().stream.(*socketStream)
	var name string
	if err := stream.raw.Control(func(fd uintptr) {
		name, _ = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	}); err != nil {
		t.Fatal(err)
	}
	if name == "bbr" {
		t.Error("congestion control is bbr, which paces")
	}
}

// TestWakesInTheMiddle has a peer stop at any byte of a segment, and messages
// follow that are shorter than what the kernel was asked to wait for, read by the
// reader's goroutine or by polls.
func TestWakesInTheMiddle(t *testing.T) {
	const size = 60_000
	s := rawSide(t, size)
	p := dialRaw(t, s, enhanced())
	payload := make([]byte, size)
	fill(payload, 3)
	large := fpdu(wire.Segment{Tagged: true, Last: true, Opcode: wire.OpWrite, STag: s.memory.Key(), Offset: s.memory.Address()}, payload)
	stream := s.qp.(*queuePair).connected.Load().stream.(*socketStream)
	random := rand.New(rand.NewPCG(4, 5))
	awaited := 0
	var c [1]rdma.Completion
	for msn := range uint32(300) {
		s.recv(uint64(msn), 0, 0)
		cut := 1 + random.IntN(len(large)-1)
		p.write(large[:cut])
		for range random.IntN(2000) {
			runtime.Gosched()
		}
		stream.reading.Lock()
		if stream.lowat > 1 && stream.lowat < quietBytes {
			awaited++
		}
		stream.reading.Unlock()
		p.write(large[cut:])
		for range random.IntN(3) {
			if n, err := s.recvs.Poll(c[:]); n != 0 || err != nil {
				t.Fatal(n, err)
			}
		}
		p.write(fpdu(wire.Segment{Last: true, Opcode: wire.OpSend, MSN: msn + 1}, nil))
		if c := next(t, s.recvs); c.ID != uint64(msn) || c.Status != rdma.StatusSuccess {
			t.Fatalf("%+v", c)
		}
		if !bytes.Equal(s.memory.Bytes(), payload) {
			t.Fatal("what was written is not there")
		}
	}
	t.Logf("in %d of 300 segments the kernel was asked to wait for more", awaited)
}

// TestLooksAgainAfterReads has a peer read once: the reader expects another Read, and looks
// for it before it sleeps. Looks in vain halve for how long it looks the next time.
func TestLooksAgainAfterReads(t *testing.T) {
	const size = 4096
	s := rawSide(t, size)
	p := dialRaw(t, s, enhanced())
	stream := s.qp.(*queuePair).connected.Load().stream.(*socketStream)
	lingers := func() time.Duration {
		stream.reading.Lock()
		defer stream.reading.Unlock()
		spinner := stream.linger
		return spinner.Next()
	}
	stream.reading.Lock()
	stream.crowd = patience.NewCrowd(patience.Processors.Now, func() (time.Duration, bool) { return 0, false })
	stream.reading.Unlock()
	most := longestLinger()
	if d := lingers(); d != most {
		t.Fatalf("looks for %v before anything has come, want %v", d, most)
	}
	r := wire.ReadRequest{SinkSTag: 1, Length: size, SourceSTag: s.memory.Key(), SourceOffset: s.memory.Address()}
	p.write(fpdu(wire.Segment{Last: true, Opcode: wire.OpReadRequest, Queue: 1, MSN: 1}, r.Append(nil)))
	if segment, data := p.next(); segment.Opcode != wire.OpReadResponse || len(data) != size {
		t.Fatalf("%+v with %d bytes answers a Read", segment, len(data))
	}
	for begin := time.Now(); lingers() == most; runtime.Gosched() {
		if time.Since(begin) > within {
			t.Fatal("the reader does not look for another Read")
		}
	}
	if d := lingers(); d != most/2 {
		t.Errorf("looks for %v after vain looks, want %v", d, most/2)
	}
}

// TestLingers has a reader look that expects more: until its time is over, until it was not run
// or threads wait for processors, and not at all while nobody should poll.
func TestLingers(t *testing.T) {
	const most = 100 * time.Microsecond
	now, contended := time.Second, false
	s := socketStream{linger: patience.NewCostlySpinner(most)}
	s.crowd = patience.NewCrowd(func() time.Duration { return now }, func() (time.Duration, bool) {
		if contended {
			return now, true // all the time
		}
		return 0, true
	})
	var l lingering
	if s.lingers(&l) {
		t.Error("lingers although it expects nothing")
	}
	looks := func(step time.Duration) (n int) {
		s.expects = true
		for s.lingers(&l) {
			n++
			now += step
		}
		if s.expects || l != (lingering{}) {
			t.Errorf("expects more behind looks in vain: %v, %+v", s.expects, l)
		}
		return n
	}
	if n := looks(10 * time.Microsecond); n != 10 {
		t.Errorf("%d looks of 10us", n)
	}
	if n := looks(10 * time.Microsecond); n != 5 {
		t.Errorf("%d looks of 10us behind some in vain", n)
	}
	s.expects = true
	for range 3 {
		if !s.lingers(&l) {
			t.Fatal("does not linger")
		}
		now += time.Microsecond
	}
	s.worthIt(&l) // so all its time again
	if n := looks(10 * time.Microsecond); n != 10 {
		t.Errorf("%d looks behind some that were worth it", n)
	}
	s.linger = patience.NewCostlySpinner(most)
	if n := looks(patience.Preempted + 1); n != 1 {
		t.Errorf("%d looks of one that is not run", n)
	}
	if n := looks(10 * time.Microsecond); n != 0 {
		t.Errorf("%d looks while nobody should poll", n)
	}
	now += 10 * time.Second
	s.linger = patience.NewCostlySpinner(5 * time.Millisecond)
	if n := looks(100 * time.Microsecond); n != 50 {
		t.Errorf("%d looks of 100us when the crowd has gone", n)
	}
	s.linger = patience.NewCostlySpinner(5 * time.Millisecond)
	contended = true
	if n := looks(100 * time.Microsecond); n < 1 || n > 20 { // the account is looked at each millisecond
		t.Errorf("%d looks of 100us while threads wait for processors", n)
	}
}

// TestSchedulerHears reads the socket in vain: the scheduler does not hear of each read, so
// that its watch can rest, but does of every 256th, behind which the reader gives its turn
// away.
func TestSchedulerHears(t *testing.T) {
	s := rawSide(t, 4096)
	_ = dialRaw(t, s, enhanced())
	stream := s.qp.(*queuePair).connected.Load().stream.(*socketStream)
	stream.reading.Lock()
	defer stream.reading.Unlock()
	stream.unheard = 0
	for n := 1; n <= 3*heardAfter; n++ {
		stream.owes = false
		if got, want := stream.unseen(), n%heardAfter != 0; got != want || stream.owes == want {
			t.Fatalf("read %d goes past the scheduler: %v, and a turn is owed: %v", n, got, stream.owes)
		}
	}
}

// TestGivesItsTurn has a peer read, which nobody is told of, and send, which somebody is:
// only behind that the reader owes others a turn. It looks for more behind Reads while that pays.
func TestGivesItsTurn(t *testing.T) {
	s := socketStream{crowd: patience.Processors}
	var counts engine.Counts
	for _, c := range []struct {
		what  string
		now   engine.Counts
		pays  bool
		owes  bool
		looks bool
	}{
		{"Reads", engine.Counts{Messages: 2, Asked: 2}, true, false, true},
		{"Reads where looking is in vain", engine.Counts{Messages: 2, Asked: 2}, false, false, false},
		{"a Read and a Send", engine.Counts{Messages: 2, Asked: 1}, true, true, true},
		{"a Send", engine.Counts{Messages: 1}, true, true, false},
		{"a part of a message", engine.Counts{}, true, false, false},
	} {
		s.owes, s.expects, s.nextRead = false, false, trial{turn: trialTurns, reads: trialEvery, pays: c.pays}
		s.classify(counts, c.now)
		if s.owes != c.owes || s.expects != c.looks {
			t.Errorf("%s: owes a turn: %v, expects more: %v", c.what, s.owes, s.expects)
		}
	}
}

// awaits returns when a side's stream waits for a receive, and nobody reads.
func (s *side) awaits() *socketStream {
	s.t.Helper()
	stream := s.qp.(*queuePair).connected.Load().stream.(*socketStream)
	for began := time.Now(); time.Since(began) < within; runtime.Gosched() {
		stream.reading.Lock()
		waits := stream.engine != nil && stream.engine.Waiting()
		stream.reading.Unlock()
		if waits {
			return stream
		}
	}
	s.t.Fatal("the stream does not wait for a receive")
	return nil
}

// A PostRecv for which a stream has waited comes back though the peer writes without end.
func TestPostRecvOfAnEndlessPeer(t *testing.T) {
	for name, pair := range map[string]func(testing.TB) (a, b net.Conn){"tcp": tcpPair, "unix": unixPair} {
		t.Run(name, func(t *testing.T) {
			a, b := newSide(t, testDevice(t, Config{}), 4096, nil), newSide(t, testDevice(t, Config{}), 4096, nil)
			ca, cb := pair(t)
			joinStreams(t, a, b, ca, cb)
			a.send(rdma.SendRequest{Op: rdma.OpSend, SGEs: a.sge(0, 8)})
			stream := b.awaits()
			more := fpdu(wire.Segment{Tagged: true, Last: true, Opcode: wire.OpWrite, STag: b.memory.Key(), Offset: b.memory.Address()}, make([]byte, 1024))
			const endless = 10_000
			var returned atomic.Bool
			rounds := 0
			stream.reading.Lock()
			after := stream.after
			stream.after = func() {
				after()
				if !returned.Load() && rounds < endless {
					rounds++
					if _, err := ca.Write(more); err != nil {
						t.Error(err)
					}
				}
			}
			stream.reading.Unlock()
			b.recv(7, 0, 8)
			returned.Store(true)
			stream.reading.Lock()
			defer stream.reading.Unlock()
			if rounds == endless {
				t.Errorf("it has read %d times", rounds)
			}
		})
	}
}

// What a PostRecv leaves in the socket is read, though nothing more comes.
func TestPostRecvLeavesNothing(t *testing.T) {
	defer func(n int) { postRounds = n }(postRounds)
	postRounds = 1
	for name, pair := range map[string]func(testing.TB) (a, b net.Conn){"tcp": tcpPair, "unix": unixPair} {
		t.Run(name, func(t *testing.T) {
			const size = 64 << 10
			a, b := newSide(t, testDevice(t, Config{}), size, nil), newSide(t, testDevice(t, Config{}), size, nil)
			ca, cb := pair(t)
			if c, ok := ca.(*net.UnixConn); ok {
				_ = c.SetWriteBuffer(1 << 20)
			}
			joinStreams(t, a, b, ca, cb)
			a.send(rdma.SendRequest{Op: rdma.OpSend, SGEs: a.sge(0, 8)})
			b.awaits()
			for range 3 { // more than one read takes
				a.send(rdma.SendRequest{Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: a.sge(0, size), Remote: b.at(0)})
				next(t, a.sends)
			}
			a.send(rdma.SendRequest{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, 8)})
			next(t, a.sends)
			if _, err := b.qp.PostRecv([]rdma.RecvRequest{{ID: 1, SGEs: b.sge(0, 8)}, {ID: 2, SGEs: b.sge(0, 8)}}); err != nil {
				t.Fatal(err)
			}
			for id := range uint64(2) {
				if c := next(t, b.recvs); c.ID != id+1 || c.Status != rdma.StatusSuccess {
					t.Errorf("%+v", c)
				}
			}
		})
	}
}
