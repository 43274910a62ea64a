package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"
)

// Of the signals that end a server only SIGTERM says that it will be back.
func TestTerminated(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
		if terminated(ctx) {
			t.Error("terminated without a signal")
		}
		if err := syscall.Kill(os.Getpid(), s); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		below, cancel := context.WithCancel(ctx) // as cobra may have it
		if terminated(below) != (s == syscall.SIGTERM) {
			t.Errorf("%v: %v", s, context.Cause(below))
		}
		cancel()
		stop()
	}
}
