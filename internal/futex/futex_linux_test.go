package futex

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"unsafe"
)

func sharedWords(t *testing.T) (a, b *uint32) {
	t.Helper()
	fd, err := unix.MemfdCreate("futex-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 4096); err != nil {
		t.Fatal(err)
	}
	words := make([]*uint32, 2)
	for i := range words {
		memory, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Munmap(memory) })
		words[i] = (*uint32)(unsafe.Pointer(&memory[0]))
	}
	return words[0], words[1]
}

// The waiter and the waker see the word through different mappings, as two
// processes do. A private futex would never find the waiter.
func TestWakeAcrossMappings(t *testing.T) {
	for _, w := range waits {
		t.Run(w.name, func(t *testing.T) { wakeAcrossMappings(t, w.wait) })
	}
}

var waits = []struct {
	name string
	wait func(*uint32, uint32, time.Duration) error
}{{"Wait", Wait}, {"WaitIdle", WaitIdle}}

func wakeAcrossMappings(t *testing.T, wait func(*uint32, uint32, time.Duration) error) {
	a, b := sharedWords(t)
	woken := make(chan error, 1)
	go func() {
		for atomic.LoadUint32(a) == 0 {
			if err := wait(a, 0, 0); err != nil {
				woken <- err
				return
			}
		}
		woken <- nil
	}()
	for {
		n, err := Wake(b, 1)
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			break
		}
	}
	atomic.StoreUint32(b, 1)
	if _, err := Wake(b, 1); err != nil {
		t.Fatal(err)
	}
	if err := <-woken; err != nil {
		t.Fatal(err)
	}
}

func TestWaitReturns(t *testing.T) {
	a, _ := sharedWords(t)
	for _, w := range waits {
		if err := w.wait(a, 1, 0); err != nil {
			t.Fatalf("%s, a word that differs: %v", w.name, err)
		}
		if err := w.wait(a, 0, time.Millisecond); err != nil {
			t.Fatalf("%s, a time that passes: %v", w.name, err)
		}
		misaligned := (*uint32)(unsafe.Add(unsafe.Pointer(a), 1))
		if err := w.wait(misaligned, 0, time.Millisecond); err == nil {
			t.Fatalf("%s took a misaligned word", w.name)
		}
	}
	misaligned := (*uint32)(unsafe.Add(unsafe.Pointer(a), 1))
	if _, err := Wake(misaligned, 1); err == nil {
		t.Fatal("a misaligned word was accepted")
	}
}

// Many waiters share one of Go's processors, on stacks that grow and are collected
// meanwhile; whoever is woken goes on with what it had.
func TestWaitersShareAProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const waiters, rounds = 16, 50
	var group sync.WaitGroup
	for i := range waiters {
		a, b := sharedWords(t)
		group.Go(func() {
			for round := uint32(1); round <= rounds; round++ {
				if got := deep(100, func() {
					for atomic.LoadUint32(a) < round {
						if err := waits[i%2].wait(a, round-1, time.Second); err != nil {
							t.Error(err)
							return
						}
					}
				}); got != 100 {
					t.Errorf("what lay on the stack became %d", got)
				}
			}
		})
		group.Go(func() {
			for range rounds {
				atomic.AddUint32(b, 1)
				if _, err := Wake(b, 1); err != nil {
					t.Error(err)
				}
				runtime.Gosched()
			}
		})
	}
	group.Go(func() {
		for range 10 {
			runtime.GC()
		}
	})
	group.Wait()
}

// deep calls f on a stack of n frames, and counts them on the way back.
func deep(n int, f func()) int {
	if n == 0 {
		f()
		return 0
	}
	return deep(n-1, f) + 1
}
