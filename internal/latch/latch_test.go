package latch

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// One holds the latch at a time, and what it did is seen by the next.
func TestLatch(t *testing.T) {
	const goroutines, turns = 8, 5000
	var l Latch
	var holders atomic.Int32
	var group sync.WaitGroup
	counter := 0
	for range goroutines {
		group.Go(func() {
			for i := range turns {
				if i%3 != 0 || !l.TryLock() {
					l.Lock()
				}
				if holders.Add(1) != 1 {
					t.Error("two hold the latch")
				}
				counter++
				holders.Add(-1)
				l.Unlock()
			}
		})
	}
	group.Wait()
	if counter != goroutines*turns {
		t.Fatalf("%d turns left %d", goroutines*turns, counter)
	}
	if l.Lock(); l.TryLock() {
		t.Error("a latch was taken twice")
	}
}

// A thousand that wait leave the holder its processor: one of them tries, the others
// sleep. If all try, a holder that gives its processor away gets it back after the tries of
// all the others, and this takes minutes in place of milliseconds.
func TestWaitersLeaveTheProcessorToTheHolder(t *testing.T) {
	const waiters, pauses = 1000, 20
	var l Latch
	var group sync.WaitGroup
	for range waiters {
		group.Go(func() {
			l.Lock()
			defer l.Unlock()
			for range pauses {
				runtime.Gosched()
			}
		})
	}
	group.Wait()
}
