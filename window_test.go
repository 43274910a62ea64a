package verbena

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// newWindow makes the account of an endpoint with receives of its own, of size bytes
// out of a pool of limit, and all that a window of first credits needs promised.
func newWindow(t *testing.T, limit int64, size, first int) (*receiveWindow, *countingPoster) {
	t.Helper()
	domain := &stuckDomain{stuck: make(chan struct{})}
	close(domain.stuck)
	pool := slab.New(domain, rdma.AccessLocalWrite, limit)
	limits := link.Limits{Window: first, MaxWindow: 4 * first, Chunks: 4, Answers: 1}
	rest := limits.Receives(0, limits.AllAnswers())
	poster := &countingPoster{}
	w := &receiveWindow{
		own: true, strict: true, share: newShares(pool, pool.Holds(size)).join("peer"),
		recv: newReceives(poster, pool, slog.New(slog.DiscardHandler), 0, size, limits.Receives(limits.MaxWindow, limits.AllAnswers()), true),
	}
	t.Cleanup(func() {
		w.recv.reclaim(false)
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	n, err := w.recv.admit(w.share, 1+rest, first+rest, limits.Receives(1, limits.Answers))
	if err != nil {
		t.Fatal(err)
	}
	if w.grant(n, rest, &limits); limits.Window != 1 {
		t.Fatalf("the peer begins with %d credits, want 1", limits.Window)
	}
	return w, poster
}

// check compares what is posted with what the account says that must be.
func (w *receiveWindow) check(t *testing.T, window int) {
	t.Helper()
	if posted, standing := int(w.recv.posted.Load()), w.standing(); posted < standing {
		t.Errorf("%d receives are posted, %d stand behind what the peer may send", posted, standing)
	}
	if w.promised-w.asleep-(w.promised-w.base) != window-max(window-w.base, 0) {
		t.Errorf("%d of %d receives of the first window sleep, and the peer has a window of %d", w.asleep, w.base, window)
	}
}

// A peer that sends message after message while the application holds them is lent its
// first window, and gives it back as they are released.
func TestWindowIsLentAndTakenBack(t *testing.T) {
	const first = 16
	w, _ := newWindow(t, 16<<20, 4<<10, first)
	window := 1
	for window < first {
		w.check(t, window)
		n := w.lend(window)
		if n == 0 || n > window {
			t.Fatalf("%d credits are lent to a window of %d", n, window)
		}
		window += n
	}
	if n := w.awaken(1); n != 0 {
		t.Errorf("%d receives were asleep behind a whole window", n)
	}
	for window > 1 {
		w.check(t, window)
		if w.narrow(window, true) {
			t.Fatal("taken back from a peer that has no credit left")
		}
		if !w.narrow(window, false) {
			t.Fatalf("a window of %d keeps what was lent", window)
		}
		window--
	}
	if w.check(t, window); w.narrow(window, false) {
		t.Error("the peer loses its last credit")
	}
}

// One that is lent to again and again keeps some credits.
func TestWindowKeepsWhatIsLentOften(t *testing.T) {
	w, _ := newWindow(t, 16<<20, 4<<10, 16)
	window := 1
	for range 2*lendOften - 1 { // the first so many tell nothing of how long they took
		if n := w.lend(window); n != 1 {
			t.Fatalf("%d credits are lent", n)
		}
		if window++; !w.narrow(window, false) {
			t.Fatal("a credit that was lent stays")
		}
		window--
	}
	window += w.lend(window)
	if window != lendKept || w.narrow(window, false) {
		t.Errorf("a busy peer has a window of %d, want it to keep %d", window, lendKept)
	}
}

// One that has to wait gets up to twice its window, at most the greatest, and gives it
// back when receives are scarce.
func TestWindowGrows(t *testing.T) {
	const first = 16
	w, _ := newWindow(t, 16<<20, 4<<10, first)
	window := 1
	for _, want := range []int{2, 4, 8, 16, 32, 64, 64} {
		if window += w.widen(window); window != want {
			t.Fatalf("the window grows to %d, want %d", window, want)
		}
		w.check(t, window)
	}
	if w.narrow(window, false) {
		t.Error("taken back although there is plenty")
	}
	all := w.share.of
	if err := all.reserve(all.receives - int(all.promised.Load())); err != nil {
		t.Fatal(err)
	}
	for w.narrow(window, false) {
		window--
		w.check(t, window)
	}
	if window != 1 {
		t.Errorf("a window of %d stays while receives are scarce", window)
	}
}

// Without memory nothing is lent, and the account is as before.
func TestWindowWithoutMemory(t *testing.T) {
	const size = 512 << 10
	w, poster := newWindow(t, 16<<20, size, 16)
	var taken []slab.Slab
	for {
		s, ok, err := w.recv.pool.TryGet(size)
		if err != nil || !ok {
			break
		}
		taken = append(taken, s)
	}
	before, posted := *w, poster.posted.Load()
	if n := w.lend(1); n != 0 {
		t.Fatalf("%d credits are lent", n)
	}
	if n, err := w.expect(3); !errors.Is(err, slab.ErrExhausted) {
		t.Fatalf("%d receives for answers: %v", n, err)
	}
	if before.lends != w.lends || before.asleep != w.asleep || before.unasked != w.unasked || poster.posted.Load() != posted {
		t.Errorf("the account has changed from %+v to %+v", before, *w)
	}
	for _, s := range taken {
		w.recv.pool.Put(s)
	}
	if n := w.lend(1); n != 1 {
		t.Errorf("%d credits are lent when there is memory again", n)
	}
	unasked := w.unasked
	if n, err := w.expect(unasked + 3); err != nil || n != unasked || w.unasked != 0 {
		t.Errorf("%d receives for %d answers, %d are left: %v", n, unasked, w.unasked, err)
	}
}
