package release

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// Whoever sees the word sees what was stored before it.
func TestPublishes(t *testing.T) {
	const rounds = 200_000
	var data [8]atomic.Uint64
	var published, taken atomic.Uint64
	done := make(chan bool)
	go func() {
		ok := true
		for round := uint64(1); round <= rounds; round++ {
			for published.Load() != round {
				runtime.Gosched()
			}
			for i := range data {
				ok = ok && data[i].Load() == round+uint64(i)
			}
			Store(&taken, round)
		}
		done <- ok
	}()
	for round := uint64(1); round <= rounds; round++ {
		for i := range data {
			Store(&data[i], round+uint64(i))
		}
		Store(&published, round)
		for taken.Load() != round {
			runtime.Gosched()
		}
	}
	if !<-done {
		t.Fatal("a published word was seen before what it publishes")
	}
}
