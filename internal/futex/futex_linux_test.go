package futex

import (
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
	a, b := sharedWords(t)
	woken := make(chan error, 1)
	go func() {
		for atomic.LoadUint32(a) == 0 {
			if err := Wait(a, 0, 0); err != nil {
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
	if err := Wait(a, 1, 0); err != nil {
		t.Fatalf("a word that differs: %v", err)
	}
	if err := Wait(a, 0, time.Millisecond); err != nil {
		t.Fatalf("a time that passes: %v", err)
	}
	misaligned := (*uint32)(unsafe.Add(unsafe.Pointer(a), 1))
	if _, err := Wake(misaligned, 1); err == nil {
		t.Fatal("a misaligned word was accepted")
	}
}
