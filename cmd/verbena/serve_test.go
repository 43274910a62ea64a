package main

import (
	"runtime"
	"testing"
)

func TestThreadsOfANameNode(t *testing.T) {
	was := runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(was)
	look := func(heap uint64, wantDone bool, want int) {
		t.Helper()
		done := moreThreads(heap)
		if n := runtime.GOMAXPROCS(0); done != wantDone || n != want {
			t.Errorf("%d B of heap: %d threads, done %t; want %d, %t", heap, n, done, want, wantDone)
		}
	}
	t.Setenv("GOMAXPROCS", "1")
	look(largeHeap, true, 1)
	t.Setenv("GOMAXPROCS", "")
	look(largeHeap-1, false, 1)
	look(largeHeap, true, leastThreads)
	runtime.GOMAXPROCS(leastThreads + 1)
	look(largeHeap, true, leastThreads+1)
	runtime.GOMAXPROCS(1)
	followHeap()()
	look(0, false, 1)
}

// A DataNode on two processors has one of Go's to spare, unless somebody has set how many there are.
func TestThreadsOfADataNode(t *testing.T) {
	was := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(was)
	for _, test := range []struct {
		set        string
		had, wants int
	}{{"", 1, 1}, {"", 2, 3}, {"", 3, 3}, {"", 4, 4}, {"2", 2, 2}} {
		t.Setenv("GOMAXPROCS", test.set)
		runtime.GOMAXPROCS(test.had)
		// A command that fails has got so far.
		if _, err := run(t, "", "datanode", "--dir", t.TempDir(), "--native-memory", "-1"); err == nil {
			t.Fatal("it serves with less than no memory")
		}
		if n := runtime.GOMAXPROCS(0); n != test.wants {
			t.Errorf("%d threads of %d, GOMAXPROCS %q; want %d", n, test.had, test.set, test.wants)
		}
	}
}
