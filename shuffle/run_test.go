package shuffle_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/verbena-data/verbena/shuffle"
)

// runAll calls Run in each of several processes, and returns what that returns. send and receive get the rank, too.
func runAll(t *testing.T, ctx func(rank int) context.Context, size int, send func(rank int, s *shuffle.Sender) error, receive func(rank int, r *shuffle.Receiver) error) []error {
	configs := worlds[1].configs(t, size, shuffle.Config{Threads: 2}, func(_, _ int, address string) string { return address })
	errs := make([]error, size)
	var all sync.WaitGroup
	for rank := range size {
		all.Go(func() {
			errs[rank] = shuffle.Run(ctx(rank), configs[rank],
				func(s *shuffle.Sender) error { return send(rank, s) }, func(r *shuffle.Receiver) error { return receive(rank, r) })
		})
	}
	all.Wait()
	return errs
}

// sendTo sends as many records to each partition.
func sendTo(s *shuffle.Sender, partitions, records int) error {
	for n := range partitions * records {
		if err := s.Send(n%partitions, []byte("record")); err != nil {
			return err
		}
	}
	return nil
}

// Run ends in all processes when all has been received, also by receivers that leave some of it.
func TestRun(t *testing.T) {
	var got atomic.Int64
	enough := errors.New("enough")
	errs := runAll(t, func(int) context.Context { return testContext(t) }, 3, func(_ int, s *shuffle.Sender) error { return sendTo(s, 6, 50_000) },
		func(rank int, r *shuffle.Receiver) error {
			err := r.Each(testContext(t), func([]byte) error {
				if got.Add(1); rank == 1 {
					return enough
				}
				return nil
			})
			if err == enough {
				return nil
			}
			return err
		})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	if n, want := got.Load(), int64(4*6*50_000+2); n != want {
		t.Errorf("%d records, want %d", n, want)
	}
}

// What fails in one process fails in all, with its reason, whatever the others are waiting for.
func TestRunFails(t *testing.T) {
	reason := errors.New("no disk")
	wait := func(r *shuffle.Receiver) error {
		return r.Each(context.Background(), func([]byte) error { return nil })
	}
	for name, c := range map[string]struct {
		send    func(rank int, s *shuffle.Sender) error
		receive func(rank int, r *shuffle.Receiver) error
	}{
		"send": {func(rank int, s *shuffle.Sender) error {
			if rank == 1 {
				return reason
			}
			return sendTo(s, 6, 10)
		}, func(_ int, r *shuffle.Receiver) error { return wait(r) }},
		"receive": {func(_ int, s *shuffle.Sender) error { return sendTo(s, 6, 1_000_000) }, func(rank int, r *shuffle.Receiver) error {
			if rank == 1 {
				return reason
			}
			return wait(r)
		}},
	} {
		for rank, err := range runAll(t, func(int) context.Context { return testContext(t) }, 3, c.send, c.receive) {
			var process *shuffle.ProcessError
			if !errors.As(err, &process) || process.Rank != 1 || rank == 1 && !errors.Is(err, reason) {
				t.Errorf("%s: process %d: %v", name, rank, err)
			}
		}
	}
}

// A context that ends in one process ends the exchange in all, although nobody there waits with it.
func TestRunEndsWithItsContext(t *testing.T) {
	reason := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	errs := runAll(t, func(rank int) context.Context {
		if rank == 1 {
			return ctx
		}
		return testContext(t)
	}, 3, func(_ int, s *shuffle.Sender) error { return sendTo(s, 6, 1_000_000_000) }, func(rank int, r *shuffle.Receiver) error {
		if rank == 1 {
			cancel(reason)
		}
		return r.Each(context.Background(), func([]byte) error { return nil })
	})
	if slices.Contains(errs, nil) || !errors.Is(errs[1], reason) || !errors.Is(errs[0], shuffle.ErrAborted) {
		t.Error(errs)
	}
}
