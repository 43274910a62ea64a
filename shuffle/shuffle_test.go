package shuffle_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/shuffle"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		playRole(role)
		return
	}
	goleak.VerifyTestMain(m)
}

// A world is a way for processes to be connected.
type world struct {
	name      string
	transport string
	mode      shuffle.Mode
}

var worlds = []world{
	{"tcp", verbena.TransportTCP, shuffle.Auto},
	{"shm", "shm", shuffle.Auto},
	{"shm two-sided", "shm", shuffle.TwoSided},
	{"iwarp", "iwarp", shuffle.Auto},
	{"iwarp two-sided", "iwarp", shuffle.TwoSided},
	{"tcp one-sided", verbena.TransportTCP, shuffle.OneSided},
}

func eachWorld(t *testing.T, f func(t *testing.T, w world)) {
	for _, w := range worlds {
		t.Run(w.name, func(t *testing.T) { f(t, w) })
	}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// join makes the exchanges of several processes, all of them in this one, each with a
// runtime of its own.
func (w world) join(t testing.TB, size int, c shuffle.Config) []*shuffle.Exchange {
	t.Helper()
	return w.joinBy(t, size, c, func(_, _ int, address string) string { return address })
}

// joinBy is join where by says at which address a process is for another one that dials it.
func (w world) joinBy(t testing.TB, size int, c shuffle.Config, by func(from, to int, address string) string) []*shuffle.Exchange {
	t.Helper()
	ctx := testContext(t)
	configs := w.configs(t, size, c, by)
	exchanges := make([]*shuffle.Exchange, size)
	errs := make([]error, size)
	var all sync.WaitGroup
	for rank := range size {
		all.Go(func() { exchanges[rank], errs[rank] = shuffle.Join(ctx, configs[rank]) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, x := range exchanges {
			all.Go(func() { _ = x.Close() })
		}
		all.Wait()
	})
	return exchanges
}

// configs are those of several processes, each with a runtime of its own.
func (w world) configs(t testing.TB, size int, c shuffle.Config, by func(from, to int, address string) string) []shuffle.Config {
	t.Helper()
	ctx := testContext(t)
	configs := make([]shuffle.Config, size)
	addresses := make([]string, size)
	for rank := range size {
		h := hostOf(rank)
		all, err := providers.New(providers.Config{Settings: h.settings})
		if err != nil {
			t.Fatal(err)
		}
		r, err := verbena.New(verbena.Config{Providers: all})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		ln, err := r.Listen(ctx, h.address+":0", verbena.ListenConfig{Services: []string{}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ln.Close() })
		addresses[rank] = ln.Addr().String()
		configs[rank] = c
		configs[rank].Runtime, configs[rank].Listener, configs[rank].Rank, configs[rank].Size = r, ln, rank, size
		configs[rank].Transport, configs[rank].Mode = w.transport, w.mode
	}
	for rank := range size {
		for to, address := range addresses {
			configs[rank].Addresses = append(configs[rank].Addresses, by(rank, to, address))
		}
	}
	return configs
}

// Every record arrives once, in its partition, in the order of its sender.
func TestEveryRecordArrivesOnce(t *testing.T) {
	for _, c := range []struct {
		name                   string
		size, threads, records int
		memory                 int64
		longest                int
	}{
		{"one process", 1, 3, 20000, 0, 300},
		{"two threads", 2, 1, 20000, 0, 300},
		{"small blocks", 2, 2, 5000, 40 << 10, 200},
		{"longer than blocks", 2, 2, 300, 40 << 10, 20000},
		{"many", 4, 3, 3000, 0, 300},
		{"shared lanes", 2, 10, 100, 0, 300},
		{"shared lanes, long records", 2, 6, 10, 200 << 10, 20000},
		{"long, by reference", 2, 2, 60, 0, 120000},
		{"shared lanes, long, by reference", 2, 6, 6, 0, 120000},
	} {
		if race.Enabled && c.records > 100 {
			c.records /= 4 // still many times what a sender's memory holds, where that is small
		}
		t.Run(c.name, func(t *testing.T) {
			eachWorld(t, func(t *testing.T, w world) {
				if c.size == 1 && w.name != "tcp" {
					t.Skip("nothing travels")
				}
				exchanges := w.join(t, c.size, shuffle.Config{Threads: c.threads, Memory: c.memory})
				exchangeAll(t, exchanges, c.records, c.longest)
			})
		})
	}
}

// record is the number n of those from one thread to another.
func record(from, to, n, longest int) []byte {
	random := rand.New(rand.NewPCG(uint64(from)<<32|uint64(to), uint64(n)))
	b := make([]byte, 12+random.IntN(longest))
	binary.BigEndian.PutUint32(b, uint32(from))
	binary.BigEndian.PutUint32(b[4:], uint32(to))
	binary.BigEndian.PutUint32(b[8:], uint32(n))
	for i := 12; i < len(b); i += 1 + i/8 {
		b[i] = byte(random.Uint32())
	}
	return b
}

// exchangeAll sends and checks so many records from each thread to each partition.
func exchangeAll(t testing.TB, exchanges []*shuffle.Exchange, records, longest int) {
	t.Helper()
	ctx := testContext(t)
	var all sync.WaitGroup
	for _, x := range exchanges {
		for thread := range x.Threads() {
			from := x.Rank()*x.Threads() + thread
			all.Go(func() {
				s := x.Sender(thread)
				for n := range records {
					for to := range x.Partitions() {
						if err := s.Send(to, record(from, to, n, longest)); err != nil {
							t.Errorf("send: %v", err)
							return
						}
					}
				}
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			all.Go(func() { checkAll(ctx, t, x, thread, records, longest) })
		}
	}
	all.Wait()
	for _, x := range exchanges {
		if err := x.Wait(ctx); err != nil {
			t.Error(err)
		}
	}
}

func checkAll(ctx context.Context, t testing.TB, x *shuffle.Exchange, thread, records, longest int) {
	defer func() {
		if t.Failed() {
			x.Abort(errors.New("the test has failed"))
		}
	}()
	to := x.Rank()*x.Threads() + thread
	next := make([]int, x.Partitions())
	r := x.Receiver(thread)
	check := func(b []byte) bool {
		if len(b) < 12 {
			t.Errorf("a record of %d bytes", len(b))
			return false
		}
		from := int(binary.BigEndian.Uint32(b))
		if from >= len(next) || !bytes.Equal(b, record(from, to, next[from], longest)) {
			t.Errorf("partition %d: record %d of thread %d is wrong", to, next[min(from, len(next)-1)], from)
			return false
		}
		next[from]++
		return true
	}
	for {
		if thread%2 == 1 { // by batches
			b, err := r.NextBatch(ctx)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Errorf("receive: %v", err)
				return
			}
			for record, ok := b.Next(); ok; record, ok = b.Next() {
				if !check(record) {
					return
				}
			}
			b.Release()
			continue
		}
		b, err := r.Next(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Errorf("receive: %v", err)
			return
		}
		if !check(b) {
			return
		}
	}
	for from, n := range next {
		if n != records {
			t.Errorf("partition %d: %d records of thread %d, want %d", to, n, from, records)
		}
	}
	if _, err := r.Next(ctx); err != io.EOF {
		t.Errorf("behind the end: %v", err)
	}
}
