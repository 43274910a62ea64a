package liveness

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
