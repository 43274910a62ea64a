package shm

import (
	"context"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma"
)

func countDescriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// awaitDescriptors waits until no more are open than before.
func awaitDescriptors(t testing.TB, before int) {
	t.Helper()
	left := countDescriptors(t) - before
	for deadline := time.Now().Add(30 * time.Second); left > 0 && time.Now().Before(deadline); left = countDescriptors(t) - before {
		runtime.Gosched()
	}
	if left > 0 {
		t.Errorf("%d descriptors are left open", left)
	}
}

// connectMany connects n queue pairs of a to as many of b, each with a receive.
func connectMany(t testing.TB, device rdma.Device, n int, a, b func() rdma.QueuePair) (froms, tos []rdma.QueuePair) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	l, err := device.Listen(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range n {
		from, to := a(), b()
		done := make(chan error, 1)
		go func() {
			r, err := l.Accept(ctx)
			if err == nil {
				err = r.Accept(ctx, to, nil)
			}
			done <- err
		}()
		if _, err := from.Connect(ctx, l.Address(), nil); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		froms, tos = append(froms, from), append(tos, to)
	}
	return froms, tos
}

// Many connections on one completion queue, and many queues with a waiter each:
// every message finds its waiter, and the waiters have few threads.
func TestManyConnections(t *testing.T) {
	n := 1000
	if testing.Short() {
		n = 60
	}
	before := countDescriptors(t)
	threads := pprof.Lookup("threadcreate").Count()
	device := openDevice(t, Config{})
	a, b := newSide(t, device, 4096), newSide(t, device, 4096)
	small := func(c *rdma.QueuePairConfig) { c.SendDepth, c.RecvDepth, c.MaxSGE = 4, 4, 1 }
	queues := make(map[uint32]rdma.CompletionQueue)
	froms, tos := connectMany(t, device, n, func() rdma.QueuePair { return a.pair(small) }, func() rdma.QueuePair {
		cq, err := b.domain.NewCompletionQueue(16)
		if err != nil {
			t.Fatal(err)
		}
		qp := b.pair(func(c *rdma.QueuePairConfig) {
			small(c)
			c.RecvCompletions = cq
		})
		queues[qp.Number()] = cq
		return qp
	})
	if open := countDescriptors(t) - before; open > 2*n+32 {
		t.Errorf("%d connections hold %d descriptors, with both ends here", n, open)
	}
	var waiters, asleep sync.WaitGroup
	for i, qp := range tos {
		if _, err := qp.PostRecv([]rdma.RecvRequest{{ID: uint64(i)}}); err != nil {
			t.Fatal(err)
		}
		asleep.Add(1)
		waiters.Go(func() {
			cq := queues[qp.Number()]
			if err := cq.Arm(false); err != nil {
				t.Error(err)
			}
			asleep.Done()
			var c [1]rdma.Completion
			for {
				if got, err := cq.Poll(c[:]); err != nil || got == 1 {
					if err != nil || c[0].ID != uint64(i) || c[0].QueuePair != qp.Number() {
						t.Errorf("%+v, %v", c[0], err)
					}
					return
				}
				if err := cq.Wait(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	asleep.Wait()
	if idle := os.Getenv("VERBENA_SHM_IDLE"); idle != "" {
		measureIdle(t, idle)
	}
	for i, qp := range froms {
		if _, err := qp.PostSend([]rdma.SendRequest{{ID: uint64(i), Op: rdma.OpSend}}); err != nil {
			t.Fatal(err)
		}
	}
	waiters.Wait()
	// One for each waiter would be as many as there are connections.
	if more := pprof.Lookup("threadcreate").Count() - threads; more > 50 {
		t.Errorf("%d more threads", more)
	}
	for _, s := range []*side{a, b} {
		if err := s.domain.Close(); err != nil {
			t.Error(err)
		}
	}
	awaitDescriptors(t, before)
}

// measureIdle logs what the waiting connections cost for as long as the
// environment says.
func measureIdle(t *testing.T, idle string) {
	period, err := time.ParseDuration(idle)
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	var before, after unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &before); err != nil {
		t.Fatal(err)
	}
	<-time.After(period)
	if err := unix.Getrusage(unix.RUSAGE_SELF, &after); err != nil {
		t.Fatal(err)
	}
	cost := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	t.Logf("idle for %v: %v of processor time, %.4f %% of a core; %d threads, %d MiB resident", period, cost,
		100*cost.Seconds()/period.Seconds(), pprof.Lookup("threadcreate").Count(), after.Maxrss>>10)
}

// What fails while connecting leaves no descriptor behind.
func TestDescriptorsAfterFailures(t *testing.T) {
	device := openDevice(t, Config{})
	s := newSide(t, device, 4096)
	l, err := device.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	before := countDescriptors(t)
	for i := range 20 {
		qp := s.pair(nil)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		failed := make(chan error, 1)
		go func() {
			_, err := qp.Connect(ctx, l.Address(), nil)
			failed <- err
		}()
		r, err := l.Accept(ctx)
		if err != nil {
			t.Fatal(err)
		}
		switch i % 3 {
		case 0:
			err = r.Reject(nil)
		case 1:
			cancel() // the peer gives up
		case 2:
			used := s.pair(nil)
			if err := used.Close(); err != nil {
				t.Fatal(err)
			}
			if r.Accept(ctx, used, nil) == nil {
				t.Fatal("a closed queue pair was accepted")
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := <-failed; err == nil {
			t.Fatal("connected")
		}
		if i%3 == 1 {
			other := s.pair(nil)
			if r.Accept(t.Context(), other, nil) == nil {
				t.Fatal("a peer that gave up was accepted")
			}
			if err := other.Close(); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		if err := qp.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// The listener's own socket is gone, too.
	awaitDescriptors(t, before)
}
