package liveness

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/internal/testneed"
)

func TestMain(m *testing.M) {
	testneed.AtOnce(8) // they wait for those who are silent
	goleak.VerifyTestMain(m)
}

// Looks one second apart at connections of all kinds: for how long has the peer
// been silent at the last of them, and how often was it asked?
func TestVerdict(t *testing.T) {
	at := func(heard, sent uint32, probes uint8) counts {
		return counts{inFlight: true, heard: heard, asked: asked{segments: sent, probes: probes}}
	}
	for _, c := range []struct {
		name   string
		looks  []counts
		silent time.Duration
		asked  int
	}{
		{"first look", []counts{at(7, 9, 0)}, 0, 0},
		{"answers", []counts{at(1, 1, 0), at(2, 2, 0), at(3, 3, 0)}, 0, 0},
		{"partitioned", []counts{at(1, 1, 0), at(2, 2, 0), at(2, 3, 0), at(2, 4, 0), at(2, 4, 0), at(2, 5, 0)}, 4 * time.Second, 3},
		{"no route: nothing is transmitted", []counts{at(1, 1, 0), at(1, 1, 1), at(1, 1, 2)}, 2 * time.Second, 2},
		{"between two probes of a closed window", []counts{at(5, 5, 0), at(5, 5, 0), at(5, 5, 0), at(5, 5, 0)}, 3 * time.Second, 0},
		{"a probe is answered after a long time", []counts{at(5, 5, 0), at(5, 5, 0), at(5, 6, 1), at(6, 6, 0)}, 0, 0},
		{"one probe without an answer", []counts{at(5, 5, 0), at(5, 6, 1), at(5, 6, 1)}, 2 * time.Second, 1},
	} {
		var v verdict
		var silent time.Duration
		now := time.Unix(0, 0)
		for _, look := range c.looks {
			now = now.Add(time.Second)
			silent = v.judge(now, look)
		}
		if silent != c.silent || v.asked != c.asked {
			t.Errorf("%s: silent for %s and asked %d times, want %s and %d", c.name, silent, v.asked, c.silent, c.asked)
		}
	}
}

// Looks one second apart at a window that closes and opens: until when may the kernel
// leave the peer alone, counted from the first of them? The moment is always ahead of the
// next look, and never further than two looks and a lease.
func TestLease(t *testing.T) {
	const never = time.Duration(-1)
	at := func(backoff uint8, acked uint64) counts {
		return counts{inFlight: backoff > 0, acked: acked, asked: asked{backoff: backoff}}
	}
	for _, c := range []struct {
		name  string
		looks []counts
		want  []time.Duration // seconds; never: the kernel is told to leave it, 0: it is told nothing
	}{
		{"open", []counts{at(0, 1), at(0, 2)}, []time.Duration{0, 0}},
		{"closed", []counts{at(0, 1), at(1, 1), at(4, 1), at(5, 1)}, []time.Duration{0, 11, 12, 13}},
		{"closed at once", []counts{at(1, 1), at(2, 1)}, []time.Duration{10, 11}},
		{"open again", []counts{at(0, 1), at(3, 1), at(0, 9), at(0, 9)}, []time.Duration{0, 11, never, 0}},
		{"open for a moment", []counts{at(0, 1), at(3, 1), at(4, 1), at(1, 9), at(2, 9)}, []time.Duration{0, 11, 12, 11, 12}},
	} {
		start := time.Unix(100, 0)
		l := lease{length: 10 * time.Second, since: start, acked: 1}
		for i, look := range c.looks {
			got, change := l.renew(start.Add(time.Duration(i)*time.Second), look)
			switch {
			case !change:
			case got == 0:
				got = never
			default:
				got /= time.Second
			}
			if got != c.want[i] {
				t.Errorf("%s: look %d: %d, want %d", c.name, i, got, c.want[i])
			}
		}
	}
	var bounded lease
	if _, change := bounded.renew(time.Unix(100, 0), at(5, 1)); change {
		t.Error("a kernel that bounds its back-off is told to end the connection")
	}
}

func TestSilentError(t *testing.T) {
	var err error = &SilentError{Peer: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7}, For: time.Minute}
	if !errors.Is(err, ErrSilent) || !errors.Is(err, syscall.ETIMEDOUT) || !os.IsTimeout(err) {
		t.Error(err)
	}
}

// A connection that nobody can watch has a watcher that does nothing.
func TestNotTCP(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	w := Watch(a, time.Minute, func(error) {})
	if w != nil {
		t.Fatal("a pipe has a watcher")
	}
	w.Sent()
	w.Stop()
}
