package fscmd

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/hdfs"
)

// threads copies files, several at a time if that is asked for.
type threads struct {
	most, queue int

	s      *session
	ctx    context.Context
	end    context.CancelCauseFunc // of ctx
	turns  chan struct{}
	wg     sync.WaitGroup
	mu     sync.Mutex
	failed failures
	ended  bool // for a reason that is told
}

func (t *threads) flags(cmd *cobra.Command) {
	cmd.Flags().IntVarP(&t.most, "threads", "t", 1, "files that are copied at a time; below 1 is 1, as for Hadoop")
	cmd.Flags().IntVarP(&t.queue, "queue", "q", 0, "files that wait for one of them: any number, whatever is said here")
}

// begin is called before the first file. The context is that of all files, and ends with the
// copy.
func (t *threads) begin(ctx context.Context, s *session) context.Context {
	t.ctx, t.end = context.WithCancelCause(ctx)
	if t.s, t.ended = s, false; t.most > 1 {
		t.turns = make(chan struct{}, t.most)
	}
	return t.ctx
}

// each copies each of the sources by f, until the copy ends, and returns what has failed.
func (t *threads) each(ctx context.Context, sources []string, f func(name string) error) error {
	defer t.end(nil)
	for _, name := range sources {
		if ctx.Err() != nil {
			t.fail(context.Cause(ctx))
			break
		}
		t.fail(f(name))
	}
	return t.wait()
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

// fail tells of an error, which wait returns. The copy goes on with what is left, unless that
// would fail as well: then it ends, and what fails for the same reason is not told.
func (t *threads) fail(err error) {
	if err == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	ends := ofAllFiles(err) || t.ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(t.ctx)))
	if ends && t.ended {
		return
	}
	t.failed.add(t.s, err)
	if ends {
		t.ended = true
		t.end(err)
	}
}

// ofAllFiles tells whether other files would fail as one has: no NameNode answers, or the local
// file system takes nothing more.
func ofAllFiles(err error) bool {
	if errors.Is(err, hdfs.ErrNoNameNode) {
		return true
	}
	full := errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS)
	return full && !ofOnePath(err)
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
