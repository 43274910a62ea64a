package rpc

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/patience"
)

// watched dials with a limit of polling and tells of each call that watches.
func watched(t *testing.T, address string, spin time.Duration) (c *Conn, watches *atomic.Int32) {
	t.Helper()
	nc, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = NewConn(t.Context(), nc, ada, ClientConfig{Spin: spin}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	watches = new(atomic.Int32)
	if watch := c.caller.watch; watch != nil {
		c.caller.watch = func(answered func() bool) {
			watches.Add(1)
			watch(answered)
		}
	}
	return c, watches
}

// Callers poll when they are alone again and again, and not among others.
func TestSoleCallersWatch(t *testing.T) {
	slow, arrived := make(chan struct{}), make(chan struct{})
	address, _ := startServer(t, Config{}, Methods{"slow": Handle(func(_ context.Context, req *ping) (*ping, error) {
		close(arrived)
		<-slow
		return req, nil
	})})
	call := func(c *Conn, method string) {
		t.Helper()
		want := method
		var got ping
		if err := c.Call(t.Context(), method, &ping{EffectiveUser: &want}, &got); err != nil || got.GetEffectiveUser() != want {
			t.Errorf("%q, %v", got.GetEffectiveUser(), err)
		}
	}
	c, watches := watched(t, address, 0)
	for range severalAlone + 3 {
		call(c, "echo")
	}
	if got := watches.Load(); got != 3 {
		t.Errorf("%d of %d calls watched, want 3", got, severalAlone+3)
	}
	beside := make(chan struct{})
	go func() {
		defer close(beside)
		call(c, "slow")
	}()
	select {
	case <-arrived:
	case <-beside:
		t.Fatal("a slow call has failed before it began")
	}
	call(c, "echo")
	close(slow)
	<-beside
	call(c, "echo")
	if got := watches.Load(); got != 4 {
		t.Errorf("%d calls watched among others", got-4)
	}
	c, watches = watched(t, address, -1)
	for range 2 * severalAlone {
		call(c, "echo")
	}
	if got := watches.Load(); got != 0 || c.caller.watch != nil {
		t.Errorf("%d calls watched, although none should", got)
	}
}

// Who watches takes the answer from the socket while the reader sleeps or is held up, and
// gives up behind the limit.
func TestWatch(t *testing.T) {
	address, _ := startServer(t, Config{}, nil)
	c, _ := watched(t, address, 100*time.Microsecond)
	now, looks := time.Second, 0
	c.crowd = patience.NewCrowd(func() time.Duration { now += time.Microsecond; return now }, func() (time.Duration, bool) { return 0, false })
	watch := func(after, want int) {
		t.Helper()
		looks = 0
		c.watch(func() bool { looks++; return looks == after })
		if looks != want {
			t.Errorf("%d looks, want %d", looks, want)
		}
	}
	watch(3, 3)    // answered
	watch(-1, 101) // until the limit
	watch(-1, 51)  // which that has halved
	watch(3, 3)
	watch(-1, 101)
	// Not run for long, and then nobody polls for a while.
	held := time.Millisecond
	c.watch(func() bool { now += held; held = 0; return false })
	watch(-1, 0)
	// One at a time.
	c.watching.Lock()
	c.watch(func() bool { t.Error("a second one watches"); return true })
	c.watching.Unlock()
}

// A connection that ends under who watches fails the call.
func TestWatchSeesTheEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, _ := watched(t, l.Addr().String(), time.Minute)
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	far.Close()
	for deadline := time.Now().Add(10 * time.Second); c.reason() == nil && time.Now().Before(deadline); {
		c.watch(func() bool { return c.reason() != nil })
	}
	if c.reason() == nil {
		t.Fatal("the end was not seen")
	}
	if err := c.Call(t.Context(), "echo", &ping{}, &ping{}); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call afterwards: %v", err)
	}
}
