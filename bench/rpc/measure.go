package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// latency is the median of the second half of so many calls one after the
// other, in nanoseconds, or of as many as fit into the limit.
func latency(ctx context.Context, call func(context.Context) error, iterations int, limit time.Duration) (float64, error) {
	times := make([]time.Duration, 0, iterations)
	end := time.Now().Add(limit)
	for last := time.Now(); len(times) < iterations && (last.Before(end) || len(times) < 20); {
		if err := call(ctx); err != nil {
			return 0, err
		}
		now := time.Now()
		times = append(times, now.Sub(last))
		last = now
	}
	times = times[len(times)/2:] // the first half warms up
	slices.Sort(times)
	return float64(times[len(times)/2].Nanoseconds()), nil
}

// throughput is what so many callers reach in a while.
type throughput struct {
	rate   float64 // calls per second
	perCPU float64 // calls per second of the server's processor time
}

func measureThroughput(ctx context.Context, s *server, c caller, callers, size int, warm, duration time.Duration) (throughput, error) {
	var (
		calls, phase atomic.Int64
		wg           sync.WaitGroup
		mu           sync.Mutex
		failed       error
	)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range callers {
		call := c.call(payload(size))
		wg.Go(func() {
			for phase.Load() == 0 {
				if err := call(ctx); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					cancel()
					return
				}
				calls.Add(1)
			}
		})
	}
	pause(ctx, warm)
	before, err := s.cpu()
	began, first := time.Now(), calls.Load()
	pause(ctx, duration)
	n, took := float64(calls.Load()-first), time.Since(began).Seconds()
	after, err2 := s.cpu()
	phase.Store(1)
	wg.Wait()
	for _, err := range []error{failed, err, err2} {
		if err != nil {
			return throughput{}, err
		}
	}
	return throughput{n / took, n / (after - before).Seconds()}, nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
