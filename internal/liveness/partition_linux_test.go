package liveness

import (
	"errors"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/testnet"
)

// short is the timeout of these tests: 30 s would tell nothing more.
const short = 1500 * time.Millisecond

// joined returns the two ends of a connection over the cable.
func joined(t *testing.T, cable *testnet.Cable) (a, b *net.TCPConn) {
	var l net.Listener
	var err error
	cable.B.Do(func() { l, err = net.Listen("tcp", cable.B.Address+":0") })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var c net.Conn
	cable.A.Do(func() { c, err = net.Dial("tcp", l.Addr().String()) })
	if err != nil {
		t.Fatal(err)
	}
	a = c.(*net.TCPConn)
	t.Cleanup(func() { a.SetLinger(0); a.Close() })
	if c, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	b = c.(*net.TCPConn)
	t.Cleanup(func() { b.SetLinger(0); b.Close() })
	return a, b
}

// fill writes to a until its peer's window and its own buffer are full: until not a
// byte goes for a while.
func fill(t *testing.T, a *net.TCPConn, w *Watcher) {
	chunk := make([]byte, 64<<10)
	for vain := 0; vain < 3; {
		a.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		n, err := a.Write(chunk)
		w.Sent()
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		if vain++; n > 0 {
			vain = 0
		}
	}
}

func TestPartition(t *testing.T) {
	for _, c := range []struct {
		name string
		full bool // the peer has not read before
	}{{"in the middle of traffic", false}, {"of a peer that does not read", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cable := testnet.New(t)
			a, _ := joined(t, cable)
			dead := make(chan error, 1)
			w := Watch(a, short, func(err error) { dead <- err })
			defer w.Stop()
			if c.full {
				fill(t, a, w)
			}
			cable.Cut()
			if !c.full {
				if _, err := a.Write([]byte("hello?")); err != nil {
					t.Fatal(err)
				}
				w.Sent()
			}
			if err := <-dead; !errors.Is(err, ErrSilent) {
				t.Error(err)
			}
		})
	}
}

// A peer that does not read for many timeouts survives.
func TestSlowReaderSurvives(t *testing.T) {
	t.Parallel()
	a, b := joined(t, testnet.New(t))
	dead := make(chan error, 1)
	w := Watch(a, short, func(err error) { dead <- err })
	defer w.Stop()
	fill(t, a, w)
	select {
	case err := <-dead:
		t.Fatal(err)
	case <-time.After(5 * short):
	}
	w.mu.Lock()
	looking := w.verdict.last.inFlight && w.armed.Load()
	w.mu.Unlock()
	if !looking {
		t.Error("nothing was in flight: the test shows nothing")
	}
	if _, err := b.Read(make([]byte, 10)); err != nil {
		t.Error(err)
	}
}

// On a kernel that does not bound its back-off a peer that has not read for long is
// asked often all the same: it survives as long as it answers, although the kernel would
// have ended the connection many times over, and a partition is noticed long before one
// is that nobody makes the kernel ask for.
func TestPartitionOnOlderKernels(t *testing.T) {
	t.Parallel()
	const (
		timeout  = 3 * time.Second
		interval = 5 // doublings of some 200 ms until the next probe
	)
	unbounded := func(syscall.RawConn, time.Duration) bool { return false }
	cable := testnet.New(t)
	noticed := make(chan string, 2)
	watched := func(name string, length time.Duration) *Watcher {
		a, _ := joined(t, cable)
		w := watch(a, timeout, func(err error) {
			if !errors.Is(err, ErrSilent) {
				t.Error(err)
			}
			noticed <- name
		}, unbounded)
		w.lease.length = length
		t.Cleanup(w.Stop)
		fill(t, a, w)
		return w
	}
	asked := watched("asked", timeout/2)
	left := watched("left alone", 0)
	for {
		select {
		case name := <-noticed:
			t.Fatalf("the peer that does not read is taken for dead: %s", name)
		case <-time.After(asked.every):
		}
		c, ok := look(left.raw)
		if !ok {
			t.Fatal("the kernel has ended the connection")
		}
		if c.asked.backoff >= interval {
			break
		}
	}
	if c, ok := look(asked.raw); !ok || !c.inFlight {
		t.Fatal("the kernel has ended the connection by the lease")
	}
	cable.Cut()
	if first := <-noticed; first != "asked" {
		t.Errorf("noticed first is the connection that is %s", first)
	}
	select {
	case <-noticed:
		t.Error("both are noticed: the lease is of no use")
	default:
	}
}

// A peer that could not be reached for less than the timeout, and was asked as often
// as for a verdict, survives.
func TestShortPartitionIsSurvived(t *testing.T) {
	t.Parallel()
	cable := testnet.New(t)
	a, b := joined(t, cable)
	dead := make(chan error, 1)
	w := Watch(a, DefaultTimeout, func(err error) { dead <- err })
	defer w.Stop()
	w.every = short / looksPerTimeout
	asked := func(enough func(times int) bool) {
		t.Helper()
		for tick := time.NewTicker(w.every); ; {
			select {
			case err := <-dead:
				t.Fatal(err)
			case <-tick.C:
			}
			w.mu.Lock()
			times := w.verdict.asked
			w.mu.Unlock()
			if enough(times) {
				tick.Stop()
				return
			}
		}
	}
	fill(t, a, w)
	cable.Cut()
	asked(func(times int) bool { return times >= leastAsked })
	cable.Heal()
	asked(func(times int) bool { return times == 0 }) // it has been heard
	if _, err := b.Read(make([]byte, 10)); err != nil {
		t.Error(err)
	}
}

// With nothing on its way the watcher has no timer.
func TestIdleHasNoTimer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	w := Watch(a, 100*time.Millisecond, func(err error) { t.Error(err) })
	if w == nil {
		t.Fatal("no watcher")
	}
	defer w.Stop()
	for range 3 {
		if w.armed.Load() {
			t.Error("it looks although nothing was sent")
		}
		if _, err := a.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		w.Sent()
		if _, err := b.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		for w.armed.Load() {
			runtime.Gosched()
		}
	}
}

func BenchmarkSent(b *testing.B) {
	var w Watcher
	w.armed.Store(true)
	for b.Loop() {
		w.Sent()
	}
}
