package fscmd

import (
	"context"
	"errors"
	"sync"

	"github.com/spf13/cobra"
)

// threads copies files, several at a time if that is asked for.
type threads struct {
	most, queue int

	s      *session
	turns  chan struct{}
	wg     sync.WaitGroup
	mu     sync.Mutex
	failed []error
}

func (t *threads) flags(cmd *cobra.Command) {
	cmd.Flags().IntVarP(&t.most, "threads", "t", 1, "files that are copied at a time")
	cmd.Flags().IntVarP(&t.queue, "queue", "q", 0, "files that wait for one of them: any number, whatever is said here")
}

// begin is called before the first file.
func (t *threads) begin(s *session) {
	if t.s = s; t.most > 1 {
		t.turns = make(chan struct{}, t.most)
	}
}

// alone tells whether one file is copied at a time.
func (t *threads) alone() bool { return t.turns == nil }

// copy copies a file by f, or has that begun. What fails later is told, and wait returns it.
func (t *threads) copy(ctx context.Context, f func() error) error {
	if t.alone() {
		return f()
	}
	select {
	case t.turns <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	t.wg.Go(func() {
		defer func() { <-t.turns }()
		if err := f(); err != nil {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.failed = append(t.failed, t.s.say(err))
		}
	})
	return nil
}

// wait waits for what has been begun.
func (t *threads) wait() error {
	t.wg.Wait()
	err := errors.Join(t.failed...)
	t.failed = nil
	return err
}
