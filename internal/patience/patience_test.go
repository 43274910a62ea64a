package patience

import (
	"testing"
	"time"
)

func TestSpinnerBacksOff(t *testing.T) {
	t.Run("cheap", func(t *testing.T) { backsOff(t, NewSpinner, maxSpinPause) })
	t.Run("costly", func(t *testing.T) { backsOff(t, NewCostlySpinner, maxCostlyPause) })
}

func backsOff(t *testing.T, build func(time.Duration) Spinner, pause int) {
	const limit = 32 * time.Microsecond
	s := build(limit)
	var spent, waits int
	for s.budget > 0 {
		b := s.Next()
		spent += int(b)
		s.Vain(b)
		if waits++; waits > 10 {
			t.Fatalf("polls on with %v after %d waits in vain", s.budget, waits)
		}
	}
	if spent > int(2*limit) {
		t.Errorf("polled %v before it stopped", time.Duration(spent))
	}
	// From here on it polls seldom, and ever less until the pauses are as long as they get.
	tries, since, longest := 0, 0, 0
	for range 10_000 {
		b := s.Next()
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
		s.Vain(b)
	}
	if least := 10_000 / (pause + 1); tries < least-10 || tries > least+10 || longest != pause+1 {
		t.Errorf("%d tries in 10,000 waits, the last after %d", tries, longest)
	}
	// One that helps is enough to poll again.
	for s.Next() == 0 {
		s.Vain(0)
	}
	s.Helped(time.Microsecond)
	for range 2 {
		if s.Next() != limit {
			t.Error("does not poll although it helps")
		}
	}
	s.Vain(limit)
	if got := s.Next(); got != limit/2 {
		t.Errorf("polls %v after one wait in vain", got)
	}
	// An answer that came late is no reason to poll longer, nor to poll less.
	s.Helped(limit * 3 / 4)
	if got := s.Next(); got != limit/2 {
		t.Errorf("polls %v after a late answer", got)
	}
}

func TestSpinnerThatNeverPolls(t *testing.T) {
	s := NewSpinner(0)
	for range 1000 {
		if b := s.Next(); b != 0 {
			t.Fatalf("polls %v", b)
		}
		s.Vain(0)
	}
}

func TestCrowd(t *testing.T) {
	var c Crowd
	now := time.Second
	if c.denseAt(now) {
		t.Fatal("dense at first")
	}
	// Pushed again as soon as polling begins: each pause is longer, to a limit.
	var last time.Duration
	for range 20 {
		c.Pushed(now)
		c.Pushed(now + 1) // another thread's
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
		c.Pushed(now)
		if c.denseAt(now + passingPause) {
			t.Error("pauses for long after a long time in peace")
		}
		now += passingPause + 5*crowdPause
	}
}

// A pause ends when no thread has waited for a processor for a while, and not before.
func TestCrowdGone(t *testing.T) {
	var (
		total time.Duration
		known = true
	)
	c := Crowd{account: func() (time.Duration, bool) { return total, known }}
	now := time.Second
	for range 10 {
		c.Pushed(now)
		now = time.Duration(c.until.Load())
	}
	c.Pushed(now)
	if !c.denseAt(now + maxCrowdPause - 1) {
		t.Fatal("no long pause")
	}
	began := now
	for _, step := range []struct {
		after, waited time.Duration
		known, gone   bool
	}{
		{0, 0, true, false},                                     // the look before is old
		{crowdLook - 1, 0, true, false},                         // too early for another one
		{1, crowdLook / 2, true, false},                         // half of the time
		{crowdLook, crowdLook/quietShare + 1, true, false},      // a little too much
		{staleLook + 1, 0, true, false},                         // that says nothing about now
		{crowdLook, 0, false, false},                            // not known
		{5 * crowdLook, 5 * crowdLook / quietShare, true, true}, // little enough
	} {
		now += step.after
		total += step.waited
		known = step.known
		if got := c.gone(now); got != step.gone {
			t.Fatalf("after %v, of which threads have waited %v: gone is %v", now-began, step.waited, got)
		}
		if c.denseAt(now) == step.gone {
			t.Fatalf("after %v: dense is %v, gone %v", now-began, !step.gone, step.gone)
		}
	}
	if now-began >= maxCrowdPause {
		t.Fatal("the pause was over by itself")
	}
	// It has not been forgotten: another push makes a long pause.
	c.Pushed(now + 1)
	if !c.denseAt(now + maxCrowdPause/2) {
		t.Error("a short pause although the crowd is back")
	}
}
