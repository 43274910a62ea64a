package shuffle_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/biased"
	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/internal/testneed"
	"github.com/verbena-data/verbena/shuffle"
)

func alone(t testing.TB, c shuffle.Config) *shuffle.Exchange {
	t.Helper()
	x, err := shuffle.Join(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	return x
}

// drain returns what a receiver has until the end.
func drain(t testing.TB, r *shuffle.Receiver) (records [][]byte) {
	t.Helper()
	for {
		b, err := r.Next(t.Context())
		if err == io.EOF {
			return records
		}
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, bytes.Clone(b))
	}
}

// All ways to send a record, of lengths around all borders.
func TestWaysToSend(t *testing.T) {
	x := alone(t, shuffle.Config{Memory: 4 << 10, MaxRecord: 5000})
	block := x.Stats().Part + 12
	var want [][]byte
	go func() {
		s := x.Sender(0)
		for _, n := range []int{0, 1, 126, 127, 128, 129, 200, block - 28, block - 27, block - 26, block - 25, block - 24, block - 23, block, 3 * block, 5000} {
			for way := range 5 {
				b := bytes.Repeat([]byte{byte(n), byte(way)}, (n+1)/2)[:n]
				var err error
				switch way {
				case 0:
					err = s.Send(0, b)
				case 1:
					err = s.SendGather(0, b[:n/3], nil, b[n/3:])
				case 2, 3: // more reserved than is used
					var into []byte
					if into, err = s.Reserve(0, min(5000, n+(way-2)*100)); err == nil {
						err = s.Commit(copy(into, b))
					}
				case 4:
					err = errors.Join(s.Flush(), s.SendKey(shuffle.Hash(1), b, b))
				}
				if err != nil {
					t.Errorf("%d bytes, way %d: %v", n, way, err)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, n := range []int{0, 1, 126, 127, 128, 129, 200, block - 28, block - 27, block - 26, block - 25, block - 24, block - 23, block, 3 * block, 5000} {
		for way := range 5 {
			want = append(want, bytes.Repeat([]byte{byte(n), byte(way)}, (n+1)/2)[:n])
		}
	}
	got := drain(t, x.Receiver(0))
	for i := range want {
		if i >= len(got) || !bytes.Equal(got[i], want[i]) {
			t.Fatalf("record %d of %d is wrong; it should have %d bytes", i, len(got), len(want[i]))
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d records, want %d", len(got), len(want))
	}
}

// A receiver uncovers a long part by steps. Records that end before, at and behind the end of a step come as they were sent, by
// Next, by batches, and by both in turns.
func TestLongPartsByNextAndByBatches(t *testing.T) {
	x := alone(t, shuffle.Config{})
	if part := x.Stats().Part; part < 8000 {
		t.Fatalf("parts of %d bytes are too short for several steps", part)
	}
	record := func(i int) []byte {
		lengths := []int{i % 40, 2040 + i%16, 100, 1 + i%3, 4080 + i%32, i % 200}
		return bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 2100)[:lengths[i%len(lengths)]]
	}
	const records = 6000
	go func() {
		s := x.Sender(0)
		for i := range records {
			if err := s.Send(0, record(i)); err != nil {
				t.Error(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	got := 0
	take := func(b []byte) {
		if got < records && !bytes.Equal(b, record(got)) {
			t.Fatalf("record %d has %d bytes, want %d, or others", got, len(b), len(record(got)))
		}
		got++
	}
	r := x.Receiver(0)
	for turn := 1; ; turn++ {
		if turn%50 > 40 {
			batch, err := r.NextBatch(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			for b, ok := batch.Next(); ok; b, ok = batch.Next() {
				take(b)
			}
			batch.Release()
			continue
		}
		b, err := r.Next(t.Context())
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		take(b)
	}
	if got != records {
		t.Errorf("%d records, want %d", got, records)
	}
}

// All of a part is asked for once, in order, before it is shown, whatever its length is and where its records end.
func TestPartsAreAskedForWithoutGaps(t *testing.T) {
	longest := make([]byte, 3*shuffle.AskedAtFirst)
	for length := range longest {
		for _, record := range []int{101, 128, 999, 2048, 2049, 3000, 5000} {
			part := longest[:length:length]
			rest := part[:min(length, shuffle.ShownAtFirst)]
			asked := min(length, shuffle.AskedAtFirst)
			for at := 0; at+record <= length; at += record {
				if record > len(rest) {
					shown, ask := shuffle.Uncover(rest, record+shuffle.ShownAtOnce)
					if len(ask) > 0 && &ask[0] != &part[min(asked, length-1)] {
						t.Fatalf("part of %d bytes, records of %d: at %d, %d bytes from elsewhere than %d are asked for", length, record, at, len(ask), asked)
					}
					if len(shown) != min(record+shuffle.ShownAtOnce, length-at) || cap(shown) != length-at {
						t.Fatalf("part of %d bytes, records of %d: at %d, %d bytes are shown, up to %d", length, record, at, len(shown), cap(shown))
					}
					asked += len(ask)
					rest = shown
				}
				rest = rest[record:]
				if want := min(at+record+len(rest)+shuffle.ShownAtOnce, length); asked != want {
					t.Fatalf("part of %d bytes, records of %d: at %d, %d bytes have been asked for, want %d", length, record, at, asked, want)
				}
			}
		}
	}
}

// What cannot be sent is refused, and the exchange goes on.
func TestRefused(t *testing.T) {
	x := alone(t, shuffle.Config{MaxRecord: 1000})
	s := x.Sender(0)
	if err := s.Send(0, make([]byte, 1001)); !errors.Is(err, shuffle.ErrTooLong) {
		t.Error(err)
	}
	for _, to := range []int{-1, 1} {
		if err := s.Send(to, nil); err == nil {
			t.Errorf("there is no partition %d", to)
		}
	}
	if err := s.Commit(0); err == nil {
		t.Error("nothing was reserved")
	}
	if _, err := s.Reserve(0, 10); err != nil {
		t.Error(err)
	}
	if _, err := s.Reserve(0, 10); err == nil {
		t.Error("reserved twice")
	}
	if err := s.Close(); err == nil {
		t.Error("closed before the commit")
	}
	if err := s.Commit(11); err == nil {
		t.Error("more than was reserved")
	}
	if err := errors.Join(s.Commit(3), s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if err := s.Send(0, nil); !errors.Is(err, shuffle.ErrClosed) {
		t.Error(err)
	}
	if got := drain(t, x.Receiver(0)); len(got) != 1 || len(got[0]) != 3 {
		t.Errorf("%q", got)
	}
	if err := x.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// Also a short record can be too long, and a sender that has closed refuses it, whether its thread has a lane
// of its own or not.
func TestShortRecordsAreRefused(t *testing.T) {
	for _, threads := range []int{1, 64} {
		x := alone(t, shuffle.Config{MaxRecord: 10, Threads: threads})
		s := x.Sender(threads - 1)
		if err := s.Send(0, make([]byte, 10)); err != nil {
			t.Error(err)
		}
		if err := s.Send(0, make([]byte, 11)); !errors.Is(err, shuffle.ErrTooLong) {
			t.Errorf("%d threads: %v", threads, err)
		}
		if err := errors.Join(s.Close(), s.Close()); err != nil {
			t.Error(err)
		}
		if err := s.Send(0, make([]byte, 1)); !errors.Is(err, shuffle.ErrClosed) {
			t.Errorf("%d threads: %v", threads, err)
		}
	}
}

// What threads that share a lane keep back goes out by Flush, and in the order in which it was sent, also around
// longer records.
func TestFlushOfSharedLanes(t *testing.T) {
	x := alone(t, shuffle.Config{Threads: 64})
	s, r := x.Sender(63), x.Receiver(5)
	want := []string{"a", string(make([]byte, 1000)), "b", string(make([]byte, 20_000)), "c", string(make([]byte, 127)), string(make([]byte, 128)), ""}
	for _, record := range want {
		if err := s.Send(5, []byte(record)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	for i, record := range want {
		got, err := r.Next(testContext(t))
		if err != nil || string(got) != record {
			t.Fatalf("record %d has %d bytes, %d were due: %v", i, len(got), len(record), err)
		}
	}
}

// sendNumbered sends a record of at least 8 bytes that tells its thread and its number.
func sendNumbered(t *testing.T, x *shuffle.Exchange, thread, to, number, length int) {
	t.Helper()
	record := make([]byte, max(8, length))
	binary.BigEndian.PutUint32(record, uint32(thread))
	binary.BigEndian.PutUint32(record[4:], uint32(number))
	if err := x.Sender(thread).Send(to, record); err != nil {
		t.Error(err)
	}
}

// receiveNumbered takes such records until the end, each thread's by number. It returns how many came from each.
func receiveNumbered(t *testing.T, r *shuffle.Receiver) map[int]int {
	next := map[int]int{}
	for {
		record, err := r.Next(t.Context())
		if err != nil {
			if err != io.EOF {
				t.Error(err)
			}
			return next
		}
		thread, number := int(binary.BigEndian.Uint32(record)), int(binary.BigEndian.Uint32(record[4:]))
		if number != next[thread] {
			t.Errorf("record %d of thread %d came where %d was due", number, thread, next[thread])
		}
		next[thread] = number + 1
	}
}

// One of the threads that share a lane is the favourite, whose records go straight to it, until another one has given
// it some. Each one's records arrive in its order, whether it was the favourite or not.
func TestFavouritesOfSharedLanes(t *testing.T) {
	const to, turns = 5, 400
	threads := max(64, 2*runtime.GOMAXPROCS(0)) // so that two share a lane
	if !biased.Pays() {
		testneed.Missing(t, "this process may not call membarrier", "run on Linux 4.14 or later, without a filter that forbids it")
	}
	x := alone(t, shuffle.Config{Threads: threads})
	two := [2]int{0, 1}
	for !x.ShareALane(two[0], two[1]) {
		two[1]++
	}
	received := make(chan map[int]int)
	go func() { received <- receiveNumbered(t, x.Receiver(to)) }()

	// One after the other: who sends alone becomes the favourite, and ceases to be when the other one has.
	sent := [2]int{}
	for turn := range 6 {
		i := turn % 2
		for !x.Favoured(two[i]) {
			sendNumbered(t, x, two[i], to, sent[i], 8+sent[i]%100)
			if sent[i]++; sent[i] > 100_000 {
				t.Fatal("a thread that sends alone is never favoured")
			}
		}
		if x.Favoured(two[1-i]) {
			t.Fatal("two threads are favoured")
		}
		sendNumbered(t, x, two[i], to, sent[i], 5000) // in its place among the short ones
		sent[i]++
	}

	// And side by side, by turns whose lengths differ, short records and longer ones.
	var all sync.WaitGroup
	for i, thread := range two {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 77))
			for range turns {
				for range random.IntN(300) {
					length := 8 + random.IntN(100)
					if random.IntN(20) == 0 {
						length = random.IntN(3000)
					}
					sendNumbered(t, x, thread, to, sent[i], length)
					sent[i]++
				}
				runtime.Gosched()
			}
		})
	}
	all.Wait()
	for thread := range threads {
		if thread != to {
			all.Go(func() { receiveNumbered(t, x.Receiver(thread)) })
		}
	}
	for thread := range threads {
		if err := x.Sender(thread).Close(); err != nil {
			t.Error(err)
		}
		if x.Favoured(thread) {
			t.Errorf("thread %d has closed, and is favoured", thread)
		}
	}
	all.Wait()
	if got := <-received; got[two[0]] != sent[0] || got[two[1]] != sent[1] {
		t.Errorf("%v records came by threads, of %v that %v have sent", got, sent, two)
	}
	if err := x.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// A long record to a thread of the same process lies where it was put together, or copied once, and its memory is used
// again; whether the sender's thread has a lane of its own or not.
func TestLongRecordsGoByReference(t *testing.T) {
	for _, threads := range []int{2, 16} {
		x := alone(t, shuffle.Config{Threads: threads})
		s, r := x.Sender(0), x.Receiver(1)
		const n = 64 << 10
		var places []*byte
		for i := range 100 {
			into, err := s.Reserve(1, n)
			if err != nil {
				t.Fatal(err)
			}
			used := n - i*100 // of lengths that take as many bytes
			into[0], into[used-1] = byte(i), byte(i)
			if err := errors.Join(s.Commit(used), s.Flush()); err != nil {
				t.Fatal(err)
			}
			got, err := r.Next(testContext(t))
			if err != nil || len(got) != used || got[0] != byte(i) || got[used-1] != byte(i) || &got[0] != &into[0] {
				t.Fatalf("%d threads: record %d lies elsewhere, or is another one: %d bytes, %v", threads, i, len(got), err)
			}
			if !slices.Contains(places, &got[0]) {
				places = append(places, &got[0])
			}
		}
		if len(places) > 2 { // one is in the receiver's hands while the next is put together
			t.Errorf("%d threads: memory for %d records, of which there are two at a time", threads, len(places))
		}
		record := make([]byte, n)
		if allocations := testing.AllocsPerRun(100, func() {
			if err := s.Send(1, record); err != nil {
				t.Fatal(err)
			}
			if got, err := r.Next(t.Context()); err != nil || len(got) != n {
				t.Fatal(len(got), err)
			}
		}); allocations > 0 && !race.Enabled {
			t.Errorf("%d threads: %v allocations for a long record", threads, allocations)
		}
	}
}

// A thread that has sent nothing can close, whatever others of its lane wait for, and also if it is the last one: it may
// be the one that receives.
func TestCloseWithoutRecordsWaitsForNobody(t *testing.T) {
	const busy = 5
	threads := max(64, 2*runtime.GOMAXPROCS(0)) // so that lanes are shared
	for _, done := range []bool{false, true} {
		x := alone(t, shuffle.Config{Threads: threads})
		s := x.Sender(0)
		sent := make(chan error, 1)
		go func() {
			for n := 0; !done || n < shuffle.Depth; n++ { // as many parts as wait for a receiver
				if err := errors.Join(s.Send(busy, make([]byte, 100)), s.Flush()); err != nil {
					sent <- err
					return
				}
			}
			sent <- s.Close()
		}()
		for x.Stats().Sent.Parts < shuffle.Depth {
			runtime.Gosched()
		}
		if done {
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
		}
		closed := make(chan error)
		go func() {
			var errs []error
			for thread := 1; thread < threads; thread++ {
				errs = append(errs, x.Sender(thread).Close())
			}
			closed <- errors.Join(errs...)
		}()
		select {
		case err := <-closed:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Error("a thread that has sent nothing waits for a receiver")
			x.Abort(errors.New("the test has failed"))
			<-closed
		}
		if !done {
			continue
		}
		for thread := range threads {
			if got := drain(t, x.Receiver(thread)); (len(got) == shuffle.Depth) != (thread == busy) {
				t.Errorf("thread %d has received %d records", thread, len(got))
			}
		}
		if err := x.Wait(testContext(t)); err != nil {
			t.Error(err)
		}
	}
}

// Long records of many lengths to a receiver that takes one only when the sender waits take no more memory than is allowed, as the
// exchange counts it and as the collector does. So do those that are written to disk while the receiver takes nothing. All of them arrive.
func TestLongRecordsWithBoundedMemory(t *testing.T) {
	const memory, records = 1 << 20, 200
	for _, spill := range []string{"", t.TempDir()} {
		before := heap()
		x := alone(t, shuffle.Config{Threads: 2, Memory: memory, Spill: spill})
		length := func(i int) int { return i * 7919 % 90_000 }
		var sending atomic.Int32
		sending.Store(1)
		sent := make(chan struct{})
		go func() {
			s := x.Sender(0)
			for i := range records {
				if err := s.Send(1, bytes.Repeat([]byte{byte(i)}, length(i))); err != nil {
					t.Error(err)
				}
			}
			if err := errors.Join(s.Close(), x.Sender(1).Close()); err != nil {
				t.Error(err)
			}
			sending.Add(-1)
			close(sent)
		}()
		if spill != "" {
			<-sent
		}
		stepped, n := 0, 0
		for ; ; n++ {
			untilFull(x, &sending, 2)
			if sending.Load() == 1 {
				stepped++
			}
			if got := x.Stats().Memory; got > memory {
				t.Errorf("%d bytes of memory, %d are allowed", got, memory)
			}
			if n%50 == 0 {
				if got := heap() - before; got > memory+1<<20 {
					t.Errorf("the heap has %d bytes more, %d of memory are allowed", got, memory)
				}
			}
			b, err := x.Receiver(1).Next(testContext(t))
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(b, bytes.Repeat([]byte{byte(n)}, length(n))) {
				t.Fatalf("record %d is wrong", n)
			}
		}
		if n != records {
			t.Errorf("%d records, %d were sent", n, records)
		}
		if spill == "" && stepped < records/2 {
			t.Errorf("the sender has waited at %d of %d records", stepped, records)
		}
		if spilt := x.Stats().Spilt; spill != "" && spilt == 0 {
			t.Error("nothing was spilt")
		}
	}
}

// heap is how many bytes are in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A full part arrives although its block is not full, nothing more is sent, and nobody flushes.
func TestFullPartsGoOutByThemselves(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		exchanges := w.join(t, 2, shuffle.Config{})
		for exchanges[0].Stats().Sent.Parts == 0 {
			if err := exchanges[0].Sender(0).Send(1, make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := exchanges[1].Receiver(0).Next(ctx); err != nil || len(got) != 100 {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
}

// Configurations that cannot work say why.
func TestConfigurations(t *testing.T) {
	for _, c := range []shuffle.Config{
		{Rank: 1}, {Size: -1}, {Threads: -1}, {Size: 2}, {Threads: 1 << 20}, {MaxRecord: -1}, {Mode: 9}, {Memory: 700}, {Spill: "/nowhere/at/all"},
		{Name: string(make([]byte, 41))},
	} {
		if x, err := shuffle.Join(t.Context(), c); err == nil {
			_ = x.Close()
			t.Errorf("%+v was taken", c)
		}
	}
}

// Once buffers are there, neither sending nor receiving allocates.
func TestHotPathAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	for _, w := range worlds[1:2] { // over TCP messages are allocated
		exchanges := w.join(t, 2, shuffle.Config{})
		for to := range 2 {
			s, r := exchanges[0].Sender(0), exchanges[to].Receiver(0)
			record := make([]byte, 100)
			round := func() {
				for range 300 {
					if err := s.Send(to, record); err != nil {
						t.Fatal(err)
					}
				}
				if err := s.Flush(); err != nil {
					t.Fatal(err)
				}
				for range 300 {
					if _, err := r.Next(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			for range 20 {
				round()
			}
			// Some hundred blocks and messages; the runtime's own goroutines may allocate now and then.
			if n := testing.AllocsPerRun(50, round); n > 3 {
				t.Errorf("%s to %d: %v allocations for 300 records", w.name, to, n)
			}
		}
	}
}

func TestHash(t *testing.T) {
	// It stays so: data that was partitioned by one release is read by another.
	for key, want := range map[string]int{"": 93, "a": 82} {
		if got := shuffle.Hash(100).Partition([]byte(key)); got != want {
			t.Errorf("%q: %d, want %d", key, got, want)
		}
	}
	counts := make([]int, 7)
	for i := range 70000 {
		counts[shuffle.Hash(7).Partition(fmt.Append(nil, "key ", i))]++
	}
	for p, n := range counts {
		if n < 9000 || n > 11000 {
			t.Errorf("partition %d has %d of 70,000 keys", p, n)
		}
	}
}

func TestRange(t *testing.T) {
	r := shuffle.Range([][]byte{[]byte("b"), []byte("d"), []byte("d"), []byte("f")})
	for key, want := range map[string]int{"": 0, "a": 0, "b": 1, "c": 1, "d": 3, "e": 3, "f": 4, "g": 4} {
		if got := r.Partition([]byte(key)); got != want {
			t.Errorf("%q: %d, want %d", key, got, want)
		}
	}
	var samples [][]byte
	for i := range 1000 {
		samples = append(samples, fmt.Appendf(nil, "%03d", (i*7919)%1000))
	}
	bounds := shuffle.Bounds(samples, 4)
	if got := fmt.Sprintf("%s", bounds); got != "[250 500 750]" {
		t.Error(got)
	}
	if got := shuffle.Bounds(nil, 3); len(got) != 2 || shuffle.Range(got).Partition([]byte("x")) != 2 {
		t.Errorf("%q", got)
	}
	if got := shuffle.Bounds(samples, 1); len(got) != 0 {
		t.Errorf("%q", got)
	}
}
