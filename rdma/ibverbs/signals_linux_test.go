//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"context"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLabSignals connects while signals keep coming to all threads, as those do
// by which the scheduler preempts goroutines: they interrupt what a driver waits
// for inside of a system call.
func TestLabSignals(t *testing.T) {
	initiator, target := lab(t)
	a, b := openDevice(t, initiator), openDevice(t, target)
	ctx, cancel := context.WithCancel(t.Context())
	var storm sync.WaitGroup
	storm.Go(func() {
		for ctx.Err() == nil {
			threads, err := os.ReadDir("/proc/self/task")
			if err != nil {
				t.Error(err)
				return
			}
			for _, thread := range threads {
				id, _ := strconv.Atoi(thread.Name())
				_ = unix.Tgkill(os.Getpid(), id, unix.SIGURG) // it may be gone
			}
			time.Sleep(15 * time.Millisecond)
		}
	})
	defer storm.Wait()
	defer cancel()
	for i := range 20 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			x, y := newEnd(t, a), newEnd(t, b)
			joinEnds(t, x, y)
			if n := x.write(y, 4); n != 4 {
				t.Fatalf("%d of 4 Writes are taken: %v", n, x.qp.Err())
			}
			for _, c := range x.completions(4) {
				if c.Status != 0 {
					t.Fatal(c.Status)
				}
			}
		})
	}
}
