package verbena

import (
	"testing"

	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// newLongMemory makes the account of an endpoint whose group has 64 MiB.
func newLongMemory(t *testing.T) *longMemory {
	t.Helper()
	domain := &stuckDomain{stuck: make(chan struct{})}
	close(domain.stuck)
	pool := slab.New(domain, rdma.AccessLocalWrite, 64<<20)
	a := &longMemory{share: newShares(pool, 1).join("peer")}
	t.Cleanup(func() {
		if a.bytes != 0 || a.ahead != 0 || pool.Used() != 0 {
			t.Errorf("%d bytes are counted, %d ahead, %d used", a.bytes, a.ahead, pool.Used())
		}
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// give moves a message into memory of a size.
func (a *longMemory) give(t *testing.T, l *longMessage, size, have int) {
	t.Helper()
	s, ok, err := a.share.tryGrowing(size, a.share.of.long.TryGet)
	if err != nil || !ok {
		t.Fatalf("%d bytes: %v, %v", size, ok, err)
	}
	a.move(l, s, growingMemory, have)
}

// What a message needs is counted once while it grows, what is there moves with it, and
// it stays counted until it is freed, not only until it is received.
func TestLongMemoryCounts(t *testing.T) {
	a := newLongMemory(t)
	l := a.begin(nil)
	a.give(t, l, 64<<10, 0)
	copy(l.slab.Bytes(), "begun")
	a.give(t, l, 256<<10, 5)
	if string(l.slab.Bytes()[:5]) != "begun" || a.bytes != l.slab.Size() || a.ahead != a.bytes || a.share.of.long.Used() != int64(a.bytes) {
		t.Errorf("%q; %d bytes are counted, %d ahead, %d used", l.slab.Bytes()[:5], a.bytes, a.ahead, a.share.of.long.Used())
	}
	if a.received(l); a.ahead != 0 || a.bytes == 0 {
		t.Errorf("%d bytes ahead and %d counted of a message that the application has", a.ahead, a.bytes)
	}
	a.free(l, false)
	if !l.slab.None() {
		t.Error("it keeps its memory")
	}
}

// An announced message gets memory at once while the endpoint has little: the first
// always, what exceeds the endpoint's share not, nor any once the application has left
// readAhead bytes unreceived, nor one that has some already.
func TestLongMemoryAtOnce(t *testing.T) {
	a := newLongMemory(t)
	most := a.share.of.endpointShare()
	want := func(size int) link.Want { return link.Want{Size: size, Need: size / 4, Total: size} }
	if n := a.atOnce(want(most)); n != most {
		t.Errorf("the first message gets %d of %d", n, most)
	}
	if n := a.atOnce(want(4 * most)); n != most {
		t.Errorf("the first of four shares gets %d, want what it needs, %d", n, most)
	}
	if n := a.atOnce(link.Want{Size: 100, Need: 100, Have: 50}); n != 0 {
		t.Errorf("one that has memory gets %d", n)
	}
	var all []*longMessage
	for a.ahead < readAhead {
		l := a.begin(nil)
		a.give(t, l, 1<<20, 0)
		all = append(all, l)
	}
	if n := a.atOnce(want(100)); n != 0 {
		t.Errorf("%d bytes are given when %d are unreceived", n, a.ahead)
	}
	for _, l := range all {
		a.received(l)
	}
	if n := a.atOnce(want(100)); n != 100 {
		t.Errorf("%d bytes are given when all has been received", n)
	}
	if n := a.atOnce(want(most)); n != 0 {
		t.Errorf("%d bytes are given beside %d of a share of %d", n, a.bytes, most)
	}
	for _, l := range all {
		a.free(l, false)
	}
}

// Memory that a device may still use goes back when its region is closed, with what the
// peer has of its share.
func TestLongMemoryIsSpoilt(t *testing.T) {
	a := newLongMemory(t)
	l := a.begin(nil)
	a.give(t, l, 64<<10, 0)
	a.received(l)
	a.free(l, true)
	a.share.of.long.Settle()
	if a.share.growing != 0 {
		t.Errorf("the peer's share still has %d bytes", a.share.growing)
	}
}

// A stock never hands out the same value twice.
func TestStock(t *testing.T) {
	var k stock[slab.Slab]
	seen := map[*slab.Slab]bool{}
	for range 3*stockBatch + 1 {
		v := k.take()
		if seen[v] {
			t.Fatal("handed out twice")
		}
		seen[v] = true
	}
}
