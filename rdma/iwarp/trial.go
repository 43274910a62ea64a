package iwarp

import (
	"slices"
	"time"
)

// A trial finds out by turns whether a reader that looks for the next Read, in place of sleeping
// at once, gets it sooner. What it costs to sleep and be woken depends on the machine and changes
// with its load, on a virtual machine by a factor of three within seconds. Where both take as long,
// looking takes a processor for nothing (decision 0112).
type trial struct {
	turn  int           // of the trial; trialTurns: it is over
	reads int           // of this turn; behind the trial: until the next one
	began time.Duration // this turn
	took  [trialTurns]time.Duration
	pays  bool // of the trial that is over
}

const (
	// In every second turn of trialReads Reads the reader looks. The medians of the turns count, so
	// that a peer may pause in a few of them.
	trialTurns, trialReads = 10, 16
	// trialEvery is after how many Reads the next trial begins.
	trialEvery = 4096
)

// read notes that n more Reads were answered. It tells whether to look for the next one.
func (t *trial) read(n uint32, now func() time.Duration) bool {
	if t.turn == trialTurns {
		if t.reads -= int(n); t.reads > 0 {
			return t.pays
		}
		*t = trial{}
	}
	if t.began == 0 {
		t.began = now()
		return true // what came before the first Read is no part of the turn
	}
	if t.reads += int(n); t.reads >= trialReads {
		at := now()
		t.took[t.turn] = (at - t.began) / time.Duration(t.reads)
		t.began, t.reads = at, 0
		if t.turn++; t.turn == trialTurns {
			t.decide()
			return t.pays
		}
	}
	return t.turn%2 == 0
}

// decide ends the trial: looking pays if it saves a fifth of the time.
func (t *trial) decide() {
	var looked, slept [trialTurns / 2]time.Duration
	for i := range looked {
		looked[i], slept[i] = t.took[2*i], t.took[2*i+1]
	}
	slices.Sort(looked[:])
	slices.Sort(slept[:])
	t.pays = looked[len(looked)/2]*5 <= slept[len(slept)/2]*4
	t.reads = trialEvery
}
