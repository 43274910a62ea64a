package fscmd

import (
	"context"
	"os"
	"slices"
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
	failed failures
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

// copy copies a file by f, or has that begun. What fails later is as if fail were called.
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
		t.fail(f())
	})
	return nil
}

// fail tells of an error, which wait returns: the copy goes on with what is left.
func (t *threads) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed.add(t.s, err)
}

// wait waits for what has been begun, and returns what has failed since it was called before.
func (t *threads) wait() error {
	t.wg.Wait()
	err := t.failed.err()
	t.failed = failures{}
	return err
}

// afterwards is what is done with directories when they have been filled, in the order in
// which they were made: their times change before, and some are not to be written then.
type afterwards []func() error

// finish waits for what has been begun and does what is to be done afterwards, what is below
// first. It returns what has failed.
func (t *threads) finish(later afterwards) error {
	t.wg.Wait()
	for _, do := range slices.Backward(later) {
		t.fail(do())
	}
	return t.wait()
}

// fillable is the mode to make a directory with that is to have another one in the end: the
// owner, who fills it, may have more rights before, nobody else.
func fillable(mode os.FileMode) os.FileMode { return mode | 0o700 }
