package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
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

func TestThreadsOfANameNode(t *testing.T) {
	was := runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(was)
	t.Setenv("GOMAXPROCS", "1")
	moreThreads()
	if n := runtime.GOMAXPROCS(0); n != 1 {
		t.Errorf("%d threads, 1 was set", n)
	}
	t.Setenv("GOMAXPROCS", "")
	moreThreads()
	if n := runtime.GOMAXPROCS(0); n != leastThreads {
		t.Errorf("%d threads on one processor", n)
	}
	runtime.GOMAXPROCS(leastThreads + 1)
	moreThreads()
	if n := runtime.GOMAXPROCS(0); n != leastThreads+1 {
		t.Errorf("%d threads on %d processors", n, leastThreads+1)
	}
}
