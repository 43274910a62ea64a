package iwarp

import (
	"testing"
	"time"
)

// TestTrial has a peer read on and on, whose next Read comes sooner or not if the reader looks for
// it: it looks where that saves a fifth of the time, and finds out when that changes.
func TestTrial(t *testing.T) {
	const us = time.Microsecond
	now := time.Second
	clock := func() time.Duration { return now }
	var tr trial
	looks := tr.read(1, clock)
	if !looks {
		t.Error("does not look behind the first Read")
	}
	// reads has the peer read n times, and tells how often the reader has looked. pause is added to the
	// time of the Reads that it names.
	reads := func(n int, looked, slept time.Duration, pause map[int]time.Duration) (count int) {
		for i := range n {
			if looks {
				count++
				now += looked
			} else {
				now += slept
			}
			now += pause[i]
			looks = tr.read(1, clock)
		}
		return count
	}
	const all = trialTurns * trialReads
	for _, c := range []struct {
		what          string
		looked, slept time.Duration
		pause         map[int]time.Duration
		pays          bool
	}{
		{"a sleep is dear", 20 * us, 60 * us, nil, true},
		{"a sleep is cheap", 45 * us, 46 * us, nil, false},
		{"little is saved", 41 * us, 50 * us, nil, false},
		{"a fifth is saved", 40 * us, 50 * us, nil, true},
		{"looking is in the way", 50 * us, 45 * us, nil, false},
		{"a sleep is dear, and the peer pauses while the reader looks", 20 * us, 60 * us, map[int]time.Duration{3: time.Second, 35: time.Second}, true},
		{"a sleep is cheap, and the peer pauses while the reader sleeps", 45 * us, 45 * us, map[int]time.Duration{17: time.Second, 50: time.Second}, false},
	} {
		if n := reads(all, c.looked, c.slept, c.pause); n < all/2-1 || n > all/2+1 {
			t.Errorf("%s: looked %d times of %d in a trial", c.what, n, all)
		}
		want := 0
		if c.pays {
			want = trialEvery
		}
		if n := reads(trialEvery, c.looked, c.slept, nil); n < want-1 || n > want+1 { // the last one begins a trial
			t.Errorf("%s: looked %d times of %d behind the trial, want %d", c.what, n, trialEvery, want)
		}
	}
}

// TestTrialOfManyAtOnce has a peer whose Reads come together: a turn ends with those that fill it.
func TestTrialOfManyAtOnce(t *testing.T) {
	now := time.Second
	clock := func() time.Duration { now += time.Millisecond; return now }
	var tr trial
	for n := range trialTurns + 1 {
		if tr.turn != max(0, n-1) {
			t.Fatalf("turn %d behind %d times", tr.turn, n)
		}
		tr.read(3*trialReads, clock)
	}
	if tr.turn != trialTurns || tr.pays {
		t.Errorf("%+v behind all turns, which took as long", tr)
	}
	if d := tr.took[1]; d != time.Millisecond/(3*trialReads) {
		t.Errorf("a Read of a turn took %v", d)
	}
	tr.read(1<<31, clock) // ends the wait for the next trial
	if tr.turn != 0 {
		t.Errorf("%+v long after a trial", tr)
	}
}
