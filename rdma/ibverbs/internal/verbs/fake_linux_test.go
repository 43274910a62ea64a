//go:build linux && (amd64 || arm64) && !noibverbs

package verbs

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/verbena-data/verbena/rdma/ibverbs/internal/foreign"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/quirks"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/stubs"
)

// A fake is an open device whose operations are stubs.
type fake struct {
	arena    *Arena
	ctx      *Context
	qp       *QP
	cq       *CQ
	srq      *SRQ
	onQP     *stubs.Script
	onCQ     *stubs.Script
	onSRQ    *stubs.Script
	waiting  []WC // what the completion queue is to give
	received *Completions
}

func newFake(t testing.TB, mode quirks.CallMode) *fake {
	t.Helper()
	if err := foreign.Init(); err != nil {
		t.Fatal(err)
	}
	location, err := purego.Dlsym(purego.RTLD_DEFAULT, "__errno_location")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{arena: NewArena()}
	t.Cleanup(func() {
		if err := f.arena.Close(); err != nil {
			t.Error(err)
		}
	})
	take := func(n int) unsafe.Pointer {
		p, err := f.arena.alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	device := uintptr(take(1024))
	copy(bytesAt(device+offDeviceName, sizeDeviceName), "fake0")
	context := uintptr(take(1024))
	*at[uintptr](context, offContextDevice) = device
	*at[uintptr](context, offContextPostSend) = stubs.PostSend()
	*at[uintptr](context, offContextPostRecv) = stubs.PostRecv()
	*at[uintptr](context, offContextPostSRQRecv) = stubs.PostRecv()
	*at[uintptr](context, offContextPollCQ) = stubs.PollCQ()
	*at[uintptr](context, offContextReqNotifyCQ) = stubs.ReqNotifyCQ()
	f.ctx = newContext(&Library{}, context)
	f.ctx.setMode(mode)
	object := func() (uintptr, *stubs.Script) {
		p := take(8192)
		*at[uintptr](uintptr(p), 0) = context // where the structures of all queues have it
		s := stubs.ScriptOf(p)
		s.Limit, s.ErrnoLocation = 1<<62, location
		return uintptr(p), s
	}
	f.qp, f.cq, f.srq = &QP{ctx: f.ctx}, &CQ{ctx: f.ctx}, &SRQ{ctx: f.ctx}
	f.qp.p, f.onQP = object()
	f.cq.p, f.onCQ = object()
	f.srq.p, f.onSRQ = object()
	f.waiting = unsafe.Slice((*WC)(take(100*48)), 100)
	for i := range f.waiting {
		f.waiting[i] = WC{ID: uint64(1000 + i), Status: StatusSuccess, Opcode: WCRecv, Length: uint32(i), QPNumber: 7, Flags: WCWithImmediate, immediate: [4]byte{1, 2, 3, byte(i)}}
	}
	f.onCQ.Source = uintptr(unsafe.Pointer(&f.waiting[0]))
	if f.received, err = f.arena.NewCompletions(16); err != nil {
		t.Fatal(err)
	}
	return f
}

func everyMode(t *testing.T, test func(t *testing.T, f *fake)) {
	for _, mode := range []quirks.CallMode{quirks.CallBlocking, quirks.CallNonBlocking, quirks.CallNonBlockingPoll} {
		t.Run(mode.String(), func(t *testing.T) { test(t, newFake(t, mode)) })
	}
}

func TestNameComesThroughTheContext(t *testing.T) {
	f := newFake(t, quirks.CallBlocking)
	if f.ctx.Name() != "fake0" || f.ctx.Transport() != TransportInfiniBand || f.ctx.Mode() != quirks.CallBlocking {
		t.Errorf("name %q, transport %v, mode %v", f.ctx.Name(), f.ctx.Transport(), f.ctx.Mode())
	}
}

// The driver sees the requests in order, the first n and no more, however often
// and in whatever lengths the list is used.
func TestPostsAreChained(t *testing.T) {
	everyMode(t, func(t *testing.T, f *fake) {
		l, err := f.arena.NewSendList(8, 3)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{8, 1, 3, 7, 8, 2} {
			f.onQP.Taken = 0
			if posted, err := f.qp.PostSend(l, n); posted != n || err != nil {
				t.Fatalf("posting %d: %d, %v", n, posted, err)
			}
			if f.onQP.Taken != uint64(n) {
				t.Errorf("posting %d: the driver saw %d", n, f.onQP.Taken)
			}
			for i := range n {
				if got, want := f.onQP.Log[i], uintptr(unsafe.Pointer(l.At(i))); got != want {
					t.Errorf("posting %d: request %d was %#x instead of %#x", n, i, got, want)
				}
				wr := f.onQP.Log[i]
				if got, want := *at[uintptr](wr, 16), uintptr(unsafe.Pointer(&l.SGEs(i)[0])); got != want {
					t.Errorf("posting %d: the entries of request %d were at %#x instead of %#x", n, i, got, want)
				}
			}
		}
	})
}

func TestReceivesAreChained(t *testing.T) {
	everyMode(t, func(t *testing.T, f *fake) {
		l, err := f.arena.NewRecvList(5, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, queue := range []struct {
			post   func(*RecvList, int) (int, error)
			script *stubs.Script
		}{{f.qp.PostRecv, f.onQP}, {f.srq.PostRecv, f.onSRQ}} {
			for _, n := range []int{5, 1, 4, 5} {
				queue.script.Taken = 0
				if posted, err := queue.post(l, n); posted != n || err != nil {
					t.Fatalf("posting %d: %d, %v", n, posted, err)
				}
				if queue.script.Taken != uint64(n) {
					t.Errorf("posting %d: the driver saw %d", n, queue.script.Taken)
				}
				for i := range n {
					if got, want := queue.script.Log[i], uintptr(unsafe.Pointer(l.At(i))); got != want {
						t.Errorf("posting %d: receive %d was %#x instead of %#x", n, i, got, want)
					}
					if got, want := *at[uintptr](queue.script.Log[i], 16), uintptr(unsafe.Pointer(&l.SGEs(i)[0])); got != want {
						t.Errorf("posting %d: the entries of receive %d were at %#x instead of %#x", n, i, got, want)
					}
				}
			}
		}
	})
}

// What C reads of a request is what was set.
func TestRequestFields(t *testing.T) {
	f := newFake(t, quirks.CallBlocking)
	l, err := f.arena.NewSendList(1, 2)
	if err != nil {
		t.Fatal(err)
	}
	w := l.At(0)
	p := uintptr(unsafe.Pointer(w))
	w.ID, w.NumSGE, w.Opcode, w.Flags = 0x1122334455667788, 2, WRWriteWithImmediate, SendSignaled|SendInline
	w.SetImmediate(0x01020304)
	w.SetRemote(0xa1a2a3a4a5a6a7a8, 0xb1b2b3b4)
	if *at[uint64](p, 0) != w.ID || *at[int32](p, 24) != 2 || *at[uint32](p, 28) != 1 || *at[uint32](p, 32) != 10 {
		t.Errorf("the head: %x", bytesAt(p, 128))
	}
	if got := fmt.Sprintf("%x", bytesAt(p+36, 4)); got != "01020304" {
		t.Errorf("immediate data: %s, not in the network's order", got)
	}
	if *at[uint64](p, 40) != 0xa1a2a3a4a5a6a7a8 || *at[uint32](p, 48) != 0xb1b2b3b4 {
		t.Errorf("remote: %x", bytesAt(p, 128))
	}
	w.SetAtomic(0xc1c2c3c4c5c6c7c8, 0xd1d2d3d4, 3, 4)
	if *at[uint64](p, 40) != 0xc1c2c3c4c5c6c7c8 || *at[uint64](p, 48) != 3 || *at[uint64](p, 56) != 4 || *at[uint32](p, 64) != 0xd1d2d3d4 {
		t.Errorf("atomic: %x", bytesAt(p, 128))
	}
	w.SetInvalidate(0x01020304)
	if *at[uint32](p, 36) != 0x01020304 {
		t.Errorf("invalidate: %x, not in the host's order", bytesAt(p+36, 4))
	}
}

// Drivers refuse in three ways; each gives the number of requests that were
// taken, and the error number.
func TestRefusedPosts(t *testing.T) {
	everyMode(t, func(t *testing.T, f *fake) {
		sends, err := f.arena.NewSendList(6, 1)
		if err != nil {
			t.Fatal(err)
		}
		receives, err := f.arena.NewRecvList(6, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			name   string
			result int64
			errno  syscall.Errno
			want   syscall.Errno
		}{
			{"positive", int64(syscall.ENOMEM), 0, syscall.ENOMEM},
			{"negative", -int64(syscall.EINVAL), 0, syscall.EINVAL},
			{"minus one", -1, syscall.ENOTCONN, syscall.ENOTCONN},
		} {
			for limit := range 6 {
				for _, script := range []*stubs.Script{f.onQP, f.onSRQ} {
					script.Limit, script.Taken, script.Result, script.Errno = uint64(limit), 0, c.result, uint64(c.errno)
				}
				if n, err := f.qp.PostSend(sends, 6); n != limit || !errors.Is(err, c.want) {
					t.Errorf("%s, sends: %d, %v; want %d, %v", c.name, n, err, limit, c.want)
				}
				if n, err := f.srq.PostRecv(receives, 6); n != limit || !errors.Is(err, c.want) {
					t.Errorf("%s, receives: %d, %v; want %d, %v", c.name, n, err, limit, c.want)
				}
				// The refused rest goes through once there is room.
				f.onQP.Limit, f.onQP.Taken = 100, 0
				if n, err := f.qp.PostSend(sends, 6); n != 6 || err != nil || f.onQP.Taken != 6 {
					t.Errorf("%s: after a refusal: %d, %v, the driver saw %d", c.name, n, err, f.onQP.Taken)
				}
			}
		}
	})
}

func TestRefusedCounts(t *testing.T) {
	const base, size = 0x1000, 128
	for _, c := range []struct {
		bad  uintptr
		want int
	}{{base, 0}, {base + size, 1}, {base + 3*size, 3}, {base + 4*size, 0}, {base + 1, 0}, {0, 0}, {base - size, 0}, {^uintptr(0), 0}} {
		if got := refused(base, c.bad, size, 4); got != c.want {
			t.Errorf("bad request at %#x: %d taken, want %d", c.bad, got, c.want)
		}
	}
}

func TestPostsOutOfRange(t *testing.T) {
	f := newFake(t, quirks.CallBlocking)
	sends, err := f.arena.NewSendList(2, 1)
	if err != nil {
		t.Fatal(err)
	}
	receives, err := f.arena.NewRecvList(2, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{-1, 0, 3} {
		if posted, err := f.qp.PostSend(sends, n); posted != 0 || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("posting %d sends: %d, %v", n, posted, err)
		}
		if posted, err := f.qp.PostRecv(receives, n); posted != 0 || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("posting %d receives: %d, %v", n, posted, err)
		}
	}
	if f.onQP.Taken != 0 {
		t.Errorf("the driver saw %d requests", f.onQP.Taken)
	}
	for _, shape := range [][2]int{{0, 1}, {-1, 1}, {1, -1}, {1 << 21, 1}, {1, 1 << 11}} {
		if _, err := f.arena.NewSendList(shape[0], shape[1]); err == nil {
			t.Errorf("a list of %v was made", shape)
		}
		if _, err := f.arena.NewRecvList(shape[0], shape[1]); err == nil {
			t.Errorf("a list of %v was made", shape)
		}
	}
	if _, err := f.arena.NewCompletions(0); err == nil {
		t.Error("room for no completions was made")
	}
}

func TestPollTakesBatches(t *testing.T) {
	everyMode(t, func(t *testing.T, f *fake) {
		f.onCQ.Available = 35
		seen := 0
		for _, want := range []int{16, 16, 3, 0} {
			n, err := f.cq.Poll(f.received)
			if n != want || err != nil {
				t.Fatalf("%d, %v; want %d", n, err, want)
			}
			for i := range n {
				c := f.received.At(i)
				if c.ID != uint64(1000+seen) || c.Opcode != WCRecv || c.Length != uint32(seen) || c.QPNumber != 7 || c.Flags != WCWithImmediate || c.Immediate() != 0x01020300+uint32(seen) {
					t.Errorf("completion %d: %+v", seen, c)
				}
				seen++
			}
		}
	})
}

func TestPollFails(t *testing.T) {
	everyMode(t, func(t *testing.T, f *fake) {
		for _, result := range []int64{-1, -2, -int64(syscall.EIO), 17, 1 << 20} {
			f.onCQ.Result = result
			if n, err := f.cq.Poll(f.received); n != 0 || err == nil {
				t.Errorf("result %d: %d, %v", result, n, err)
			}
		}
	})
}

func TestRequestNotify(t *testing.T) {
	f := newFake(t, quirks.CallBlocking)
	if err := f.cq.RequestNotify(false); err != nil || f.onCQ.Armed != 1 {
		t.Errorf("any: %v, armed %d", err, f.onCQ.Armed)
	}
	if err := f.cq.RequestNotify(true); err != nil || f.onCQ.Armed != 2 {
		t.Errorf("solicited: %v, armed %d", err, f.onCQ.Armed)
	}
	f.onCQ.Result = int64(syscall.EIO)
	if err := f.cq.RequestNotify(false); !errors.Is(err, syscall.EIO) {
		t.Errorf("refused: %v", err)
	}
}

func TestDataPathDoesNotAllocate(t *testing.T) {
	if foreign.Route != "linkname" {
		t.Skipf("the route %s allocates", foreign.Route)
	}
	everyMode(t, func(t *testing.T, f *fake) {
		sends, err := f.arena.NewSendList(4, 2)
		if err != nil {
			t.Fatal(err)
		}
		receives, err := f.arena.NewRecvList(4, 2)
		if err != nil {
			t.Fatal(err)
		}
		f.onCQ.Available, f.onCQ.Refill = 4, 1
		failed := 0
		check := func(n int, err error) {
			if n != 4 || err != nil {
				failed++
			}
		}
		if n := testing.AllocsPerRun(1000, func() {
			check(f.qp.PostSend(sends, 4))
			check(f.qp.PostRecv(receives, 4))
			check(f.srq.PostRecv(receives, 4))
			check(f.cq.Poll(f.received))
			check(4, f.cq.RequestNotify(true))
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
		if failed > 0 {
			t.Errorf("%d operations failed", failed)
		}
	})
}

// Many goroutines inside of foreign calls, while the collector runs, stacks grow
// and are preempted.
func TestConcurrentCallsUnderCollection(t *testing.T) {
	everyMode(t, func(t *testing.T, shared *fake) {
		var wg sync.WaitGroup
		stop := make(chan struct{})
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					runtime.GC()
				}
			}
		})
		var work sync.WaitGroup
		for range 8 {
			f := newFake(t, shared.ctx.Mode())
			l, err := f.arena.NewSendList(3, 1)
			if err != nil {
				t.Fatal(err)
			}
			f.onCQ.Available, f.onCQ.Refill = 2, 1
			work.Go(func() {
				for i := range 3000 {
					grow(i%50, func() {
						if n, err := f.qp.PostSend(l, 1+i%3); n != 1+i%3 || err != nil {
							t.Errorf("post: %d, %v", n, err)
						}
						if n, err := f.cq.Poll(f.received); n != 2 || err != nil {
							t.Errorf("poll: %d, %v", n, err)
						}
					})
				}
			})
		}
		work.Wait()
		close(stop)
		wg.Wait()
	})
}

// grow calls f with deep more frames on the stack.
//
//go:noinline
func grow(deep int, f func()) {
	var room [256]byte
	if deep > 0 {
		grow(deep-1, f)
	} else {
		f()
	}
	runtime.KeepAlive(&room)
}

func TestArena(t *testing.T) {
	a := NewArena()
	seen := map[uintptr]bool{}
	for _, size := range []int{1, 63, 64, 65, 4096, arenaChunk - 64, arenaChunk + 1, 3 * arenaChunk, 0} {
		b, err := a.Bytes(size)
		if err != nil {
			t.Fatal(err)
		}
		for i := range b {
			if b[i] != 0 {
				t.Fatalf("byte %d of %d is not zero", i, size)
			}
			b[i] = 0xff
		}
		p := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
		if p%64 != 0 || seen[p] {
			t.Errorf("%d bytes at %#x", size, p)
		}
		seen[p] = true
	}
	if a.Size() < 5*arenaChunk {
		t.Errorf("%d bytes are mapped", a.Size())
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if _, err := a.Bytes(1); err == nil {
		t.Error("a closed arena gave memory")
	}
	if a.Size() != 0 {
		t.Errorf("%d bytes are mapped after Close", a.Size())
	}
}
