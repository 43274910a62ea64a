package shm

import (
	"bytes"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"
	"weak"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma"
)

func address(memory []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(memory))) }

// countMappings counts mappings of memfds.
func countMappings(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(maps, []byte("/memfd:verbena"))
}

// memfdBytes is what is allocated of the memfds that this process holds.
func memfdBytes(t *testing.T) (total int64) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		target, _ := os.Readlink("/proc/self/fd/" + e.Name())
		var stat unix.Stat_t
		if strings.HasPrefix(target, "/memfd:verbena") && unix.Fstat(fd, &stat) == nil {
			total += stat.Blocks * 512
		}
	}
	return total
}

// held is what a process has of the system for its connections.
type held struct {
	Descriptors, Mappings, Goroutines int
	SharedBytes                       int64
}

func countHeld(t *testing.T) held {
	t.Helper()
	return held{countDescriptors(t), countMappings(t), runtime.NumGoroutine(), memfdBytes(t)}
}

func (h held) exceeds(o held) bool {
	return h.Descriptors > o.Descriptors || h.Mappings > o.Mappings || h.Goroutines > o.Goroutines || h.SharedBytes > o.SharedBytes
}

// awaitHeld waits until the process has no more than before. A goroutine that has
// said its last word is counted until the scheduler has taken it away.
func awaitHeld(t *testing.T, before held) {
	t.Helper()
	now := countHeld(t)
	for deadline := time.Now().Add(30 * time.Second); now.exceeds(before) && time.Now().Before(deadline); now = countHeld(t) {
		runtime.Gosched()
	}
	if now.exceeds(before) {
		var stacks bytes.Buffer
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		t.Errorf("%+v, before %+v\n%s", now, before, stacks.Bytes())
	}
}

// What is left after so many connections is what was there before them.
func TestConnectionsLeaveNothing(t *testing.T) {
	count := 2000
	if testing.Short() {
		count = 200
	}
	device := openDevice(t, Config{})
	a, b := newSide(t, device, 1<<16), newSide(t, device, 1<<16)
	srq, err := b.domain.NewSharedReceiveQueue(rdma.SharedReceiveConfig{Depth: 16})
	if err != nil {
		t.Fatal(err)
	}
	exchange := func(shared bool) {
		t.Helper()
		var change func(*rdma.QueuePairConfig)
		if shared {
			change = func(c *rdma.QueuePairConfig) { c.SharedReceive = srq }
		}
		a.qp, b.qp = a.pair(nil), b.pair(change)
		connect(t, device, a.qp, b.qp)
		receive := []rdma.RecvRequest{{ID: 1, SGEs: b.sge(0, 4096)}}
		if shared {
			_, err = srq.PostRecv(receive)
		} else {
			_, err = b.qp.PostRecv(receive)
		}
		if err != nil {
			t.Fatal(err)
		}
		a.send(rdma.SendRequest{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, 4096)})
		a.expect(2, rdma.StatusSuccess)
		b.expect(1, rdma.StatusSuccess)
		a.send(rdma.SendRequest{ID: 3, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: a.sge(0, 4096), Remote: b.remote(4096)})
		a.expect(3, rdma.StatusSuccess)
		for _, s := range []*side{a, b} {
			if err := s.qp.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The first ones make what the domains keep.
	for i := range 4 {
		exchange(i%2 == 0)
	}
	before := countHeld(t)
	for i := range count {
		exchange(i%2 == 0)
	}
	awaitHeld(t, before)
	for _, s := range []*side{a, b} {
		d := s.domain.(*domain)
		d.members.Lock()
		pairs, retries := d.members.Pairs.Len(), 0
		for _, list := range d.retryPairs {
			retries += len(list)
		}
		d.members.Unlock()
		if pairs != 0 || retries != 0 {
			t.Errorf("the domain keeps %d queue pairs, and %d to retry", pairs, retries)
		}
	}
}

// The slots of a completion queue are filled again only after as many completions as it is
// deep. Until then none of them keeps a closed queue pair, neither one whose completion was
// polled nor one that was dropped.
func TestClosedQueuePairsAreCollected(t *testing.T) {
	device := openDevice(t, Config{})
	a, b := newSide(t, device, 1<<16), newSide(t, device, 1<<16)
	var closed []weak.Pointer[queuePair]
	for range 4 {
		a.qp, b.qp = a.pair(nil), b.pair(nil)
		connect(t, device, a.qp, b.qp)
		for id := range uint64(3) {
			b.recv(id, b.sge(0, 4096)...)
		}
		a.send(rdma.SendRequest{ID: 7, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, 4096)})
		a.expect(7, rdma.StatusSuccess)
		b.expect(0, rdma.StatusSuccess)
		a.send(rdma.SendRequest{ID: 8, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: a.sge(0, 4096), Remote: b.remote(4096)})
		for _, s := range []*side{a, b} { // with a write, and with two receives, of which nobody has polled
			closed = append(closed, weak.Make(s.qp.(*queuePair)))
			if err := s.qp.Close(); err != nil {
				t.Fatal(err)
			}
			s.qp = nil
		}
	}
	for _, s := range []*side{a, b} {
		for len(s.events) > 0 {
			<-s.events // they name queue pairs
		}
	}
	left := func() (n int) {
		runtime.GC()
		for _, p := range closed {
			if p.Value() != nil {
				n++
			}
		}
		return n
	}
	n := left()
	for deadline := time.Now().Add(10 * time.Second); n > 0 && time.Now().Before(deadline); n = left() {
		runtime.Gosched() // to goroutines that are about to end
	}
	if n > 0 {
		t.Errorf("%d of %d closed queue pairs are still referred to", n, len(closed))
	}
}
