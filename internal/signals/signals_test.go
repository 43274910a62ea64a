package signals

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"syscall"
	"testing"
)

func TestOf(t *testing.T) {
	if s := Of(t.Context()); s != nil {
		t.Error(s)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if s := Of(ended); s != nil {
		t.Error(s)
	}
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		ctx, stop := signal.NotifyContext(t.Context(), s)
		defer stop()
		below, cancel := context.WithCancel(ctx)
		defer cancel()
		if err := syscall.Kill(syscall.Getpid(), s); err != nil {
			t.Fatal(err)
		}
		<-below.Done()
		if got := Of(below); got != s {
			t.Errorf("%v, want %v", got, s)
		}
		cause, full := context.Cause(below), errors.New("the disk is full")
		for err, want := range map[error]bool{
			fmt.Errorf("waiting: %w", cause): true, fmt.Errorf("waiting: %w", below.Err()): true, full: false,
			errors.Join(cause, below.Err()): true, fmt.Errorf("%w: %w", full, cause): true, errors.Join(cause, full): false,
			fmt.Errorf("at the end: %w", errors.Join(cause, full)): false,
		} {
			if Ends(below, err) != want {
				t.Errorf("%v: %v", err, !want)
			}
		}
	}
}
