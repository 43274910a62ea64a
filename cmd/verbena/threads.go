package main

import (
	"os"
	"runtime"
	"runtime/metrics"
	"time"
)

// leastHeap is what a NameNode's heap counts at least, in bytes, when Go decides when to collect the next
// time. With a namespace of some MiB it would collect ten times a second under load. It is never touched,
// and takes no memory of the system.
const leastHeap = 128 << 20

// leastThreads is how many goroutines of a NameNode with a large heap may run at once, at least. On two
// processors Go's collector takes both for 10 to 20 ms at a time, and whoever works through many blocks one
// for 10 ms, while a call that has all it needs waits for its turn. With more of them than processors the
// system divides these between threads, at once. It costs a call of a client up to 17 % more of the processors.
const leastThreads = 4

// largeHeap is the heap from which on that is worth it, in bytes: that of some 700,000 files.
const largeHeap = leastHeap + 192<<20

// moreThreads raises Go's limit to leastThreads for a large heap, unless whoever started the process has
// set it. It tells whether the limit is what it stays.
func moreThreads(heap uint64) (done bool) {
	if os.Getenv("GOMAXPROCS") != "" || runtime.GOMAXPROCS(0) >= leastThreads {
		return true
	}
	if heap < largeHeap {
		return false
	}
	runtime.GOMAXPROCS(leastThreads)
	return true
}

// followHeap has moreThreads look at what the last collection left of the heap, now and every 10 s, until it
// is done or the function that it returns is called.
func followHeap() (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(10 * time.Second)
		defer tick.Stop()
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		for {
			metrics.Read(live)
			if moreThreads(live[0].Value.Uint64()) {
				return
			}
			select {
			case <-tick.C:
			case <-end:
				return
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

// spareThread lets a DataNode on two processors run a goroutine more at once, unless whoever started the
// process has set how many. Otherwise Go's monitor takes the processor of each long write away, wakes a thread
// for it that finds nothing to do, and looks around every 20 us from then on: docs/decisions/0094 has the figures.
// Go does not follow a limit of the cgroup that changes any more then. It is called before the runtime is made.
func spareThread() {
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) == 2 {
		runtime.GOMAXPROCS(3)
	}
}
