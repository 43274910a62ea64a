package verbena

import (
	"context"
	"errors"
	"time"

	"github.com/verbena-data/verbena/internal/slab"
)

// On a strict device, and where an endpoint has receives of its own, each credit is a
// posted receive. There a peer begins with one, and a receive stands behind one of the
// answers to what this side sends; the rest of what is promised sleeps until it is
// needed. A peer whose message has not been released yet gets another credit at once,
// and that goes again with the release. One that sends so often, or has to wait, keeps
// what it gets.

const (
	// lendAgain is the pause before memory is asked for again, to lend a credit.
	lendAgain = 100 * time.Millisecond
	// A peer to which credits were lent lendOften times in lendOftenIn keeps so many
	// that credits ride in answers, and need no messages of their own.
	lendOften, lendOftenIn, lendKept = 64, time.Second, 4
)

// granted notes how many receives stand behind the first window, which is smaller
// when they are scarce, and behind what costs no credit.
func (s *shell) granted(n, rest int) {
	if n == 0 {
		return
	}
	s.promised = n
	s.base = n - rest
	s.limits.Window = s.base
	if rest > 0 {
		s.limits.Window = min(s.base, 1)
		s.asleep = s.base - s.limits.Window
		s.unasked = s.limits.AllAnswers() - s.limits.Answers
	}
}

// standing is how many of the promised receives neither sleep nor have a message that
// the application holds.
func (s *shell) standing() int { return s.promised - s.asleep - s.unasked - s.heldEager }

// widen lets a peer that had to wait use up to twice as many receives. mu is held.
func (s *shell) widen() {
	s.lent = 0
	want := min(s.m.Window(), s.limits.MaxWindow-s.m.Window())
	n := 0
	if s.asleep > 0 && !s.recv.pool.Squeezed() {
		n = s.awaken(want)
	}
	if want > n {
		more := s.recv.more(s.share, want-n)
		s.promised += more
		n += more
	}
	if n > 0 {
		s.m.Grant(n)
	}
}

// awaken posts at most n receives of the first window that sleep, and tells how many.
// mu is held.
func (s *shell) awaken(n int) int {
	n = min(n, s.asleep)
	if s.recv.wake(n) != nil {
		return 0
	}
	s.asleep -= n
	return n
}

// lend gives a peer that has used all its credits others, up to the first window. The
// caller flushes. mu is held.
func (s *shell) lend() {
	if s.asleep == 0 || !s.m.Stopped() {
		return
	}
	want, keep := s.m.Window(), false
	if s.lends++; s.lends == lendOften {
		now := time.Now()
		if keep = now.Sub(s.lentSince) < lendOftenIn; keep {
			want = max(want, lendKept-want)
		}
		s.lends, s.lentSince = 0, now
	}
	n := s.awaken(want)
	if n == 0 {
		if s.lends--; !s.lendDue {
			s.lendDue = true
			time.AfterFunc(lendAgain, s.lendLate)
		}
		return
	}
	if s.lent += n; keep {
		s.lent = 0
	}
	s.m.Grant(n)
}

// lendLate is lend after there was no memory.
func (s *shell) lendLate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lendDue = false
	if !s.dead && !s.breach {
		s.lend()
		s.flush()
	}
}

// narrow takes back a receive by which the window has grown, instead of the credit for
// a message that is released. It reports false if there is no reason. mu is held.
func (s *shell) narrow() bool {
	lent := s.lent > 0 && !s.m.Stopped()
	if s.m.Window() <= s.limits.Window || !lent && !s.recv.scarce(s.share) {
		return false
	}
	s.lent = max(s.lent-1, 0)
	s.m.Withdraw()
	if s.m.Window() < s.base {
		s.asleep++
		s.recv.sleep(1)
	} else {
		s.promised--
		s.recv.withdraw(s.share, 1, 1)
	}
	return true
}

// expect posts n receives more for answers to what this side is about to send.
func (s *shell) expect(ctx context.Context, n int) error {
	for {
		s.mu.Lock()
		n = min(n, s.unasked)
		err := s.recv.wake(n)
		if err == nil {
			s.unasked -= n
			s.m.Expect(n)
		}
		s.mu.Unlock()
		if !errors.Is(err, slab.ErrExhausted) {
			return err
		}
		// What is promised has room in the pool, but for messages that applications
		// hold of endpoints that are closed.
		memory, err := s.take(ctx, s.recv.pool, s.recv.size)
		if err != nil {
			return err
		}
		s.recv.pool.Put(memory)
	}
}
