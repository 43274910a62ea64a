package verbena

import (
	"testing"
	"time"
)

func TestSpinnerBacksOff(t *testing.T) {
	const limit = 32 * time.Microsecond
	s := newSpinner(limit)
	var spent, waits int
	for s.budget > 0 {
		b := s.next()
		spent += int(b)
		s.vain(b)
		if waits++; waits > 10 {
			t.Fatalf("polls on with %v after %d waits in vain", s.budget, waits)
		}
	}
	if spent > int(2*limit) {
		t.Errorf("polled %v before it stopped", time.Duration(spent))
	}
	// From here on it polls seldom, and ever less.
	tries, since, longest := 0, 0, 0
	for range 10_000 {
		b := s.next()
		if since++; b > 0 {
			if b != limit {
				t.Fatalf("a try of %v", b)
			}
			if since < longest {
				t.Errorf("tries after %d waits, then after %d", longest, since)
			}
			longest, since = since, 0
			tries++
		}
		s.vain(b)
	}
	if tries < 30 || tries > 60 || longest != maxSpinPause+1 {
		t.Errorf("%d tries in 10,000 waits, the last after %d", tries, longest)
	}
	// One that helps is enough to poll again.
	for s.next() == 0 {
		s.vain(0)
	}
	s.helped(time.Microsecond)
	for range 2 {
		if s.next() != limit {
			t.Error("does not poll although it helps")
		}
	}
	s.vain(limit)
	if got := s.next(); got != limit/2 {
		t.Errorf("polls %v after one wait in vain", got)
	}
	// An answer that came late is no reason to poll longer, nor to poll less.
	s.helped(limit * 3 / 4)
	if got := s.next(); got != limit/2 {
		t.Errorf("polls %v after a late answer", got)
	}
}

func TestSpinnerThatNeverPolls(t *testing.T) {
	s := newSpinner(0)
	for range 1000 {
		if b := s.next(); b != 0 {
			t.Fatalf("polls %v", b)
		}
		s.vain(0)
	}
}

func TestCrowd(t *testing.T) {
	var c crowd
	now := time.Second
	if c.denseAt(now) {
		t.Fatal("dense at first")
	}
	// Pushed again as soon as polling begins: each pause is longer, to a limit.
	var last time.Duration
	for range 20 {
		c.pushed(now)
		c.pushed(now + 1) // another thread's
		if !c.denseAt(now) {
			t.Fatal("polls on")
		}
		var pause time.Duration
		for pause = 0; c.denseAt(now + pause); pause += time.Millisecond {
		}
		want := passingPause
		if last > 0 {
			want = min(max(2*last, crowdPause), maxCrowdPause)
		}
		if pause != want {
			t.Fatalf("pauses of %v, then %v", last, pause)
		}
		last = pause
		now += pause + time.Millisecond
	}
	if last != maxCrowdPause {
		t.Errorf("pauses for %v in the end", last)
	}
	// A rare push costs little.
	now += 10 * maxCrowdPause
	for range 5 {
		c.pushed(now)
		if c.denseAt(now + passingPause) {
			t.Error("pauses for long after a long time in peace")
		}
		now += passingPause + 5*crowdPause
	}
}
