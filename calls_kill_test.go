//go:build unix

package verbena

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/race"
)

const methodResources = 25 // answers with how many goroutines and descriptors the process has

// openDescriptors counts what this process has open, but for what it keeps.
func openDescriptors() (open int, err error) {
	descriptors, err := os.ReadDir("/proc/self/fd")
	for _, d := range descriptors {
		// Opened once, by the first who asks whether processors are short.
		if to, _ := os.Readlink("/proc/self/fd/" + d.Name()); to != "/proc/pressure/cpu" {
			open++
		}
	}
	return open, err
}

// serveResources answers to methodResources.
func serveResources(q Request) {
	open, err := openDescriptors()
	if err != nil {
		_ = q.Fail(CodeApplication, err.Error()) // the caller notices
		return
	}
	_ = q.Reply(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(runtime.NumGoroutine())), uint64(open)))
}

// serveCalls is the peer process's end of an endpoint for calls.
func serveCalls(e *Endpoint) {
	mux := NewMux(MuxConfig{})
	mux.Short(methodEcho, func(q Request) { _ = q.Reply(q.Payload()) })
	mux.Long(methodBlock, func(q Request) { <-q.Context().Done() })
	mux.Short(methodResources, serveResources)
	if book := os.Getenv(bookVariable); book != "" {
		mux.Long(methodBook, func(q Request) { keepBook(book, q) })
	}
	mux.Stream(streamBack, func(q Request, s *Stream) {
		for {
			b, err := s.Recv(q.Context())
			if err == nil {
				err = s.SendBuffer(q.Context(), b)
			}
			if err != nil {
				_ = q.Fail(CodeApplication, err.Error())
				return
			}
		}
	})
	_ = mux.Serve(e)
}

// A server is stopped, or killed, in the middle of thousands of calls: each caller gets
// its own answer or one clear error by its deadline.
func TestCallsOfAPeerThatEnds(t *testing.T) {
	for _, w := range worlds {
		if strings.HasPrefix(w.name, "fake") {
			continue // a network within one process
		}
		for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
			t.Run(w.name+"/"+signal.String(), func(t *testing.T) {
				t.Parallel() // they wait for whoever is silent
				callsWhen(t, w, signal)
			})
		}
	}
}

func callsWhen(t *testing.T, w world, signal syscall.Signal) {
	cmd, addr := startPeer(t, w)
	defer cmd.Process.Kill() // before the runtime is closed, which may wait for it
	providers, _ := w.providers(t)
	r := newRuntime(t, Config{Linger: 100 * time.Millisecond}, providers)
	ctx := testContext(t)
	e, err := r.Dial(ctx, addr, "calls/1", DialConfig{Transport: w.transport})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCaller(e, nil)
	if err != nil {
		t.Fatal(err)
	}
	var answered atomic.Int64
	busy := make(chan struct{})
	enough := int64(2000)
	switch {
	case w.address != "":
		enough = 100 // an emulated machine
	case race.Enabled:
		enough = 300
	}
	var all, blocked sync.WaitGroup
	callsThatBlock(ctx, t, c, &blocked, signal == syscall.SIGSTOP)
	stop, end := context.WithCancel(ctx)
	defer end()
	// Streams in both directions.
	flowing := make(chan struct{}, 2)
	for i := range cap(flowing) {
		s, err := c.Stream(stop, streamBack, nil)
		if err != nil {
			t.Fatal(err)
		}
		flowsUntilTheEnd(ctx, t, s, &all, i, flowing)
	}
	for i := range 16 {
		all.Go(func() {
			payload := make([]byte, 1<<10)
			for n := uint64(0); ; n++ {
				binary.BigEndian.PutUint64(payload, uint64(i)<<32|n)
				m, err := c.Call(stop, methodEcho, payload)
				if err != nil {
					if !errors.Is(err, ErrOutcomeUnknown) && !errors.Is(err, ErrNotSent) {
						t.Errorf("a call that was under way: %v", err)
					}
					return
				}
				if binary.BigEndian.Uint64(m.Bytes()) != uint64(i)<<32|n {
					t.Error("the answer to another call")
				}
				m.Release()
				if answered.Add(1) == enough {
					close(busy)
				}
			}
		})
	}
	select {
	case <-busy:
	case <-ctx.Done():
		t.Fatalf("%d calls were answered, want %d", answered.Load(), enough)
	}
	for range cap(flowing) {
		select {
		case <-flowing:
		case <-ctx.Done():
			t.Fatal("the streams stand still")
		}
	}
	if err := cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	if signal == syscall.SIGSTOP {
		blocked.Wait() // each by its deadline
		end()          // the others wait as long as their contexts allow
	}
	all.Wait()
	blocked.Wait()
	if signal == syscall.SIGKILL && !errors.Is(e.Err(), ErrPeerDied) {
		t.Errorf("the endpoint ended with %v, want ErrPeerDied", e.Err())
	}
	_ = c.Close() // the peer takes nothing any more
	if s, ok := e.carrier.(*shell); ok {
		s.mu.Lock()
		held := s.held
		s.mu.Unlock()
		if held != 0 {
			t.Errorf("%d messages are held", held)
		}
	}
}

// callsThatBlock has 32 callers that get no answer before the peer ends, each with a deadline if that is asked for.
func callsThatBlock(ctx context.Context, t *testing.T, c *Caller, blocked *sync.WaitGroup, deadlines bool) {
	for i := range 32 {
		blocked.Go(func() {
			ctx := ctx
			if deadlines {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Duration(i+1)*10*time.Millisecond)
				defer cancel()
			}
			_, err := c.Call(ctx, methodBlock, nil)
			if !errors.Is(err, ErrOutcomeUnknown) && !errors.Is(err, ErrNotSent) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a call that was under way: %v", err)
			}
		})
	}
}

// flowsUntilTheEnd sends and receives on a stream until its peer ends, and tells flowing when
// half a MiB has come back.
func flowsUntilTheEnd(ctx context.Context, t *testing.T, s *Stream, all *sync.WaitGroup, i int, flowing chan<- struct{}) {
	ends := func(what string, err error) {
		if !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("%s on a stream that was under way: %v", what, err)
		}
	}
	all.Go(func() {
		payload := pattern(100<<10, i)
		var err error
		for err == nil {
			err = s.Send(ctx, payload)
		}
		ends("Send", err)
		_, err = s.Answer(ctx)
		ends("Answer", err)
	})
	all.Go(func() {
		defer s.Close()
		got := 0
		for {
			b, err := s.Recv(ctx)
			if err != nil {
				ends("Recv", err)
				return
			}
			for rest := b.Bytes(); len(rest) > 0; {
				want := pattern(100<<10, i)[got%(100<<10):]
				n := min(len(rest), len(want))
				if !bytes.Equal(rest[:n], want[:n]) {
					t.Error("a stream has other bytes")
				}
				rest, got = rest[n:], got+n
			}
			b.Release()
			if got > 512<<10 {
				select {
				case flowing <- struct{}{}:
				default:
				}
			}
		}
	})
}
