package waking

import (
	"runtime"
	"testing"
	"time"
)

func TestRoundTrip(t *testing.T) {
	d, ok := RoundTrip()
	if again, same := RoundTrip(); again != d || same != ok {
		t.Errorf("%v, %v, and asked again %v, %v", d, ok, again, same)
	}
	// On a busy machine nothing may be known.
	if ok != (d > 0) {
		t.Errorf("a round trip of %v, known %v", d, ok)
	}
}

// Each round wakes and is woken, and the threads have all processors again behind them.
func TestMeasure(t *testing.T) {
	if !several() {
		t.Log("the process has one processor, or the system no futexes: nothing is measured there")
		return
	}
	before := allowed(t)
	for _, took := range measure() {
		if took <= 0 {
			t.Errorf("a round took %v", took)
		}
	}
	done := make(chan string)
	for range 4 * runtime.GOMAXPROCS(0) { // on the threads that there are
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			done <- allowed(t)
		}()
	}
	for range 4 * runtime.GOMAXPROCS(0) {
		if after := <-done; after != before {
			t.Errorf("a thread may have processors %s, it was %s before", after, before)
		}
	}
}

func TestUsual(t *testing.T) {
	var few, enough []time.Duration
	for n := range rounds {
		d := time.Duration(rounds - n)
		if enough = append(enough, d); n < rounds/2-1 {
			few = append(few, d)
		}
	}
	if d, ok := usual(few); ok {
		t.Errorf("%v of fewer than half of the rounds", d)
	}
	if d, ok := usual(enough); !ok || d != rounds/4+1 {
		t.Errorf("%v, %v of 1 to %d", d, ok, rounds)
	}
}

func TestOutlasting(t *testing.T) {
	for _, c := range []struct {
		what      string
		trips     int
		roundTrip time.Duration
		known     bool
		want      time.Duration
	}{
		{"fast", 1, 6 * time.Microsecond, true, 30 * time.Microsecond},
		{"slow", 1, 71500 * time.Nanosecond, true, 72 * time.Microsecond},
		{"slow sockets", 2, 41400 * time.Nanosecond, true, 83 * time.Microsecond},
		{"busy", 1, 3 * time.Millisecond, true, 150 * time.Microsecond},
		{"not known", 1, 0, false, 30 * time.Microsecond},
	} {
		got := outlasting(30*time.Microsecond, c.trips, func() (time.Duration, bool) { return c.roundTrip, c.known })
		if got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}
