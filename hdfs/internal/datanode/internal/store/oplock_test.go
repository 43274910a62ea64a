package store

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

// Time passes for those who wait, they take turns, and nobody is alone with it beside another.
func TestOpLock(t *testing.T) {
	if n := unsafe.Sizeof(opLock{}); n > 24 {
		t.Errorf("a lock of %d bytes for each replica", n)
	}
	synctest.Test(t, func(t *testing.T) {
		var l opLock
		var order []int
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				l.Lock()
				defer l.Unlock()
				order = append(order, i)
				time.Sleep(time.Second) // all others wait
			})
		}
		wg.Wait()
		for i, who := range order {
			if who != i {
				t.Fatalf("in the order %v", order)
			}
		}
		if l.held || l.queue != nil {
			t.Fatalf("%+v is left", &l)
		}
	})
	var l opLock
	var wg sync.WaitGroup
	count := 0
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				l.Lock()
				count++
				l.Unlock()
			}
		})
	}
	wg.Wait()
	if count != 8000 {
		t.Errorf("%d, want 8000", count)
	}
	defer func() {
		if recover() == nil {
			t.Error("unlocked twice")
		}
	}()
	l.Unlock()
}
