//go:build linux && (amd64 || arm64) && !noibverbs

package foreign

import (
	"runtime"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/verbena-data/verbena/rdma/ibverbs/internal/stubs"
)

func symbol(t testing.TB, name string) uintptr {
	t.Helper()
	if err := Init(); err != nil {
		t.Fatal(err)
	}
	p, err := purego.Dlsym(purego.RTLD_DEFAULT, name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestErrnoComesBackFromTheSameCall(t *testing.T) {
	closeFD := symbol(t, "close")
	if r, errno := Call(closeFD, ^uintptr(0), 0, 0, 0, 0, 0); int32(r) != -1 || errno != syscall.EBADF {
		t.Errorf("Call: close(-1) = %d, %v", int32(r), errno)
	}
	for _, mode := range []Mode{Blocking, NonBlocking} {
		if r, errno := mode.Call3(closeFD, ^uintptr(0), 0, 0); r != -1 || errno != syscall.EBADF {
			t.Errorf("%v: close(-1) = %d, %v", mode, r, errno)
		}
	}
}

func TestSixArguments(t *testing.T) {
	symbol(t, "close") // initializes
	r, _ := Call(stubs.Sum6(), 1, 10, 100, 1000, 10000, 100000)
	if want := uintptr(1 + 2*10 + 3*100 + 4*1000 + 5*10000 + 6*100000); r != want {
		t.Errorf("the arguments add up to %d instead of %d", r, want)
	}
	for _, mode := range []Mode{Blocking, NonBlocking} {
		if r, errno := mode.Call3(symbol(t, "abs"), ^uintptr(6), 0, 0); r != 7 || errno != 0 {
			t.Errorf("%v: abs(-7) is %d, %v", mode, r, errno)
		}
	}
}

// errno is the calling thread's, however the scheduler moves the callers about.
func TestErrnoIsOnesOwn(t *testing.T) {
	closeFD, kill := symbol(t, "close"), symbol(t, "kill")
	var wg sync.WaitGroup
	for i := range 8 {
		mode := Mode(i % 2)
		wg.Go(func() {
			for range 2000 {
				if r, errno := mode.Call3(closeFD, ^uintptr(0), 0, 0); r != -1 || errno != syscall.EBADF {
					t.Errorf("close: %d, %v", r, errno)
					return
				}
				if r, errno := mode.Call3(kill, ^uintptr(0)>>34, 0, 0); r != -1 || errno != syscall.ESRCH {
					t.Errorf("kill: %d, %v", r, errno)
					return
				}
				runtime.Gosched()
			}
		})
	}
	wg.Wait()
}

// A call that blocks leaves the processor to others: with as many of them as
// there are processors, the one that ends them still runs.
func TestBlockingCallsHandTheirProcessorOn(t *testing.T) {
	read := symbol(t, "read")
	var fds [2]int
	if err := syscall.Pipe(fds[:]); err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fds[0])
	page, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(page)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) + 1 {
		wg.Go(func() {
			if r, errno := Blocking.Call3(read, uintptr(fds[0]), uintptr(unsafe.Pointer(&page[0])), 1); r != 0 {
				t.Errorf("read: %d, %v", r, errno)
			}
		})
	}
	runtime.GC() // would wait for a call that the scheduler did not know of
	if err := syscall.Close(fds[1]); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

func TestCallsDoNotAllocate(t *testing.T) {
	if Route != "linkname" {
		t.Skipf("the route %s allocates", Route)
	}
	closeFD := symbol(t, "close")
	if n := testing.AllocsPerRun(1000, func() {
		_, _ = Call(closeFD, ^uintptr(0), 0, 0, 0, 0, 0)
		_, _ = Blocking.Call3(closeFD, ^uintptr(0), 0, 0)
		_, _ = NonBlocking.Call3(closeFD, ^uintptr(0), 0, 0)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkCall3(b *testing.B) {
	abs := symbol(b, "abs")
	for _, mode := range []Mode{Blocking, NonBlocking} {
		b.Run(mode.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if r, _ := mode.Call3(abs, 1, 0, 0); r != 1 {
					b.Fatal(r)
				}
			}
		})
	}
}
