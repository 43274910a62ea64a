// Package waking measures how long it takes two threads that sleep to wake each other, and so
// how long polling pays.
//
// It is 50 to 70 us on a virtual machine within another one, whose host has to be asked to wake
// a processor that rests. Who polls for less than that while his peer has to be woken polls in
// vain, sleeps, and has to be woken for the next message himself.
package waking

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	rounds = 16
	// unmeasured are rounds in which the other thread begins.
	unmeasured = 2
	// longest is how long all may take: on a busy machine they end with what they have.
	longest = 20 * time.Millisecond
)

// most is the longest that Outlasting tells to poll.
const most = 150 * time.Microsecond

// BySocket is how many round trips of threads one by sockets takes: the kernel's network and Go's
// poller take as long again as a processor that has to wake.
const BySocket = 2

// Outlasting is how long to poll where a peer may have to be woken first: so many RoundTrips, at
// least for as long as least, and at most 150 us. Who polls for less sleeps before the next
// request of a peer that had to be woken for the last answer, and then both sleep every time
// (decisions 0106 and 0108).
func Outlasting(least time.Duration, trips int) time.Duration {
	return outlasting(least, trips, RoundTrip)
}

func outlasting(least time.Duration, trips int, roundTrip func() (time.Duration, bool)) time.Duration {
	d, ok := roundTrip()
	if !ok {
		return least
	}
	return max(least, min((time.Duration(trips)*d).Round(time.Microsecond), most))
}

// RoundTrip is the time in which a thread on one processor wakes another one, on the last that
// the process may have, sleeps, and is woken by it: the lower quartile of some rounds, which are
// made when it is asked for first and take some milliseconds. It reports false if it is not
// known: the process has one processor, or so has Go, or the system has no futexes.
func RoundTrip() (time.Duration, bool) { return once() }

var once = sync.OnceValues(func() (time.Duration, bool) {
	if runtime.GOMAXPROCS(0) < 2 || !several() {
		return 0, false
	}
	return usual(measure())
})

// usual is the lower quartile: whatever else wants the processors makes rounds longer, none
// shorter. It tells nothing of fewer than half of the rounds.
func usual(took []time.Duration) (time.Duration, bool) {
	if len(took) < rounds/2 {
		return 0, false
	}
	slices.Sort(took)
	return took[len(took)/4], true
}

// A word is what one thread changes and the other one sleeps at, alone in its cache line.
type word struct {
	atomic.Uint32
	_ [60]byte
}

// Which of the processors that the process may have.
const (
	first = iota
	last
)

// measure tells how long each round took. Its threads are bound to their processors: the
// scheduler would put both on one, where each waits for the other's sleep and for no processor.
func measure() (took []time.Duration) {
	words := new([2]word)
	began := time.Now()
	var threads sync.WaitGroup
	threads.Go(func() {
		defer bind(first)()
		for n := uint32(1); n <= unmeasured+rounds && time.Since(began) < longest; n++ {
			start := time.Now()
			tell(&words[0], n)
			if !await(&words[1], n, began) {
				return
			}
			if n > unmeasured {
				took = append(took, time.Since(start))
			}
		}
	})
	threads.Go(func() {
		defer bind(last)()
		for n := uint32(1); n <= unmeasured+rounds && await(&words[0], n, began); n++ {
			tell(&words[1], n)
		}
	})
	threads.Wait()
	return took
}

// await sleeps until a word is n. It reports false when all has taken too long.
func await(w *word, n uint32, began time.Time) bool {
	for w.Load() != n {
		left := longest - time.Since(began)
		if left <= 0 || !sleep(w, n-1, left) {
			return false
		}
	}
	return true
}
