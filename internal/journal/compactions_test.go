package journal

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// backlog is a database with compactions to run, as its scheduler sees it.
type backlog struct {
	t         *testing.T
	scheduler *oneAtATime

	mu      sync.Mutex
	left    int
	waiting bool // a request was refused since
	running int
	asked   func() // runs in GetWaitingCompaction
	wg      sync.WaitGroup
}

func newBacklog(t *testing.T, n int) *backlog {
	b := &backlog{t: t, scheduler: newOneAtATime(), left: n}
	b.scheduler.Register(1, b)
	return b
}

func (b *backlog) GetAllowedWithoutPermission() int { return 1 }

func (b *backlog) GetWaitingCompaction() (bool, pebble.WaitingCompaction) {
	b.mu.Lock()
	waiting, asked := b.waiting && b.left > 0, b.asked
	b.waiting, b.asked = waiting, nil
	b.mu.Unlock()
	if asked != nil {
		asked()
	}
	return waiting, pebble.WaitingCompaction{}
}

func (b *backlog) Schedule(h pebble.CompactionGrantHandle) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.waiting || b.left == 0 {
		b.waiting = false
		return false
	}
	b.run(h)
	return true
}

// run needs mu.
func (b *backlog) run(h pebble.CompactionGrantHandle) {
	b.left--
	if b.running++; b.running > 1 {
		b.t.Errorf("%d compactions run at once", b.running)
	}
	b.wg.Go(func() {
		b.mu.Lock()
		b.running--
		b.mu.Unlock()
		h.Done()
		b.maybeSchedule()
	})
}

// maybeSchedule is what a database does after a flush, and after a compaction.
func (b *backlog) maybeSchedule() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.waiting && b.left > 0 {
		ok, h := b.scheduler.TrySchedule()
		if !ok {
			b.waiting = true
			return
		}
		b.run(h)
	}
}

func TestCompactionsRunOneAtATime(t *testing.T) {
	b := newBacklog(t, 1000)
	var flushes sync.WaitGroup
	for range 4 {
		flushes.Go(func() {
			for range 100 {
				b.maybeSchedule()
			}
		})
	}
	flushes.Wait()
	b.wg.Wait()
	if b.left > 0 {
		t.Errorf("%d compactions are left and nothing runs", b.left)
	}
	b.scheduler.Unregister()
	if ok, _ := b.scheduler.TrySchedule(); ok {
		t.Error("a compaction was allowed after Unregister")
	}
}

// The database asks for a compaction just after it has said that none waits.
func TestRefusedCompactionIsNotForgotten(t *testing.T) {
	b := newBacklog(t, 0)
	_, h := b.scheduler.TrySchedule()
	b.asked = func() {
		b.mu.Lock()
		b.left = 1
		b.mu.Unlock()
		b.maybeSchedule()
	}
	h.Done()
	b.wg.Wait()
	if b.left > 0 {
		t.Error("the compaction never ran")
	}
}

func TestUnregisterWaitsForCallsOfTheDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBacklog(t, 0)
		_, h := b.scheduler.TrySchedule()
		hold := make(chan struct{})
		b.asked = func() { <-hold }
		go h.Done()
		synctest.Wait()
		closed := make(chan struct{})
		go func() {
			b.scheduler.Unregister()
			close(closed)
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("Unregister returned while the database was being called")
		default:
		}
		close(hold)
		<-closed
	})
}

// A log that is written and cut for long is compacted: pebble asks this
// scheduler and gets what it needs.
func TestLogIsCompacted(t *testing.T) {
	j := mustOpen(t, vfs.NewMem(), "/j", &list{})
	entry := make([]byte, 64<<10)
	source := rand.NewChaCha8([32]byte{1})
	for j.store.db.Metrics().Compact.Count == 0 {
		for range 200 {
			_, _ = source.Read(entry) // never fails
			if _, err := j.Append(t.Context(), entry); err != nil {
				t.Fatal(err)
			}
		}
		if err := j.Snapshot(); err != nil {
			t.Fatal(err)
		}
		if last := j.LastIndex(); last > 20_000 {
			t.Fatal(fmt.Sprint("no compaction after ", last, " entries"))
		}
	}
}
