package verbena

import (
	"time"

	"github.com/verbena-data/verbena/internal/link"
)

// On a strict device, and where an endpoint has receives of its own, each credit is a
// posted receive. There a peer begins with one credit, and one receive is posted for
// answers to what this side sends. The other promised receives sleep until they are
// needed. A peer whose message has not been released yet is lent another credit at once,
// which goes with the release. A peer that borrows often, or has to wait, keeps what it
// was lent.

const (
	// lendAgain is the pause before memory is asked for again, to lend a credit.
	lendAgain = 100 * time.Millisecond
	// A peer to which credits were lent 64 times within 1 s keeps 4 of them: then credits
	// go back in answers, and need no messages of their own.
	lendOften, lendOftenIn, lendKept = 64, time.Second, 4
)

// A receiveWindow is the account of the receives behind what a peer may send: how many
// are promised to it, and which of them are not posted yet. The machine counts the
// credits; what changes their number here, the caller tells it. The shell's mu guards
// all of it.
type receiveWindow struct {
	recv   *receives
	share  *share // of the peer
	own    bool   // recv is this endpoint's alone
	strict bool   // a receive has to be posted for each message that may come

	first    int // credits that the peer has at first
	most     int // and at most
	promised int // receives of recv
	base     int // of them, those for the peer's first credits
	asleep   int // of those, not posted yet
	unasked  int // for answers, not posted yet
	held     int // with messages that the application has
	taken    int // of recv, which still counts them as posted

	lent    int  // credits that go again with messages that are released
	lends   int  // times since since
	lendDue bool // the shell lends again in a while
	since   time.Time
}

// grant notes that n receives are promised. They stand behind the first window, which
// is smaller when they are scarce, and rest of them behind what costs no credit.
func (w *receiveWindow) grant(n, rest int, limits *link.Limits) {
	w.promised, w.base = n, n-rest
	w.first, w.most = w.base, limits.MaxWindow
	if rest > 0 {
		w.first = min(w.base, 1)
		w.asleep = w.base - w.first
		w.unasked = limits.AllAnswers() - limits.Answers
	}
	limits.Window = w.first
}

// arrived returns the buffer of a receive that has completed, or nil if no such receive is
// posted. The caller counts what it has taken.
func (w *receiveWindow) arrived(id uint64) *buffer {
	b := w.recv.look(id)
	if b != nil {
		w.took(b)
	}
	return b
}

// took takes a receive that look has found. Where receives are lent, nobody asks how many
// are left before the batch is through: count subtracts all of them at once, but for those
// that are posted again meanwhile.
func (w *receiveWindow) took(b *buffer) {
	if !w.recv.lends {
		w.recv.took(b)
		return
	}
	b.posted = false
	w.taken++
}

// count subtracts what the batch has taken from the posted receives.
func (w *receiveWindow) count() {
	if w.taken > 0 {
		w.recv.posted.Add(int32(-w.taken))
		w.taken = 0
	}
}

// replaced tells how many of n receives that are posted again now take the place of others
// that have not been subtracted, and subtracts the rest of those.
func (w *receiveWindow) replaced(n int) int {
	n = min(n, w.taken)
	w.taken -= n
	w.count()
	return n
}

// standing is how many of the promised receives neither sleep nor have a message that
// the application holds.
func (w *receiveWindow) standing() int { return w.promised - w.asleep - w.unasked - w.held }

// widen promises a peer that had to wait up to twice as many receives as its window,
// and tells how many credits it gets for them.
func (w *receiveWindow) widen(window int) (n int) {
	w.lent = 0
	want := min(window, w.most-window)
	if w.asleep > 0 && !w.recv.pool.Squeezed() {
		n = w.awaken(want)
	}
	if want > n {
		more := w.recv.more(w.share, want-n)
		w.promised += more
		n += more
	}
	return n
}

// awaken posts at most n receives of the first window that sleep, and tells how many.
func (w *receiveWindow) awaken(n int) int {
	n = min(n, w.asleep)
	if w.recv.wake(n) != nil {
		return 0
	}
	w.asleep -= n
	return n
}

// lend gives a peer that has used all its credits others, up to the first window, and
// tells how many. If there is no memory it is none.
func (w *receiveWindow) lend(window int) int {
	want, keep := window, false
	if w.lends++; w.lends == lendOften {
		now := time.Now()
		if keep = now.Sub(w.since) < lendOftenIn; keep {
			want = max(want, lendKept-want)
		}
		w.lends, w.since = 0, now
	}
	n := w.awaken(want)
	if n == 0 {
		w.lends--
		return 0
	}
	if w.lent += n; keep {
		w.lent = 0
	}
	return n
}

// narrow takes back a receive by which the window has grown, instead of the credit for
// a message that is released. It reports false if there is no reason. stopped tells
// that the peer has no credit.
func (w *receiveWindow) narrow(window int, stopped bool) bool {
	lent := w.lent > 0 && !stopped
	if window <= w.first || !lent && !w.recv.scarce(w.share) {
		return false
	}
	w.lent = max(w.lent-1, 0)
	if window <= w.base {
		w.asleep++
		w.recv.sleep(1)
	} else {
		w.promised--
		w.recv.withdraw(w.share, 1, 1)
	}
	return true
}

// expect posts up to n receives more for answers to what this side is about to send,
// and tells how many.
func (w *receiveWindow) expect(n int) (int, error) {
	n = min(n, w.unasked)
	err := w.recv.wake(n)
	if err == nil {
		w.unasked -= n
	}
	return n, err
}
