// Package rest decides when a process of an exchange looks at the boards on which the others of its host leave entries for it,
// when it rests, and when it wakes one that does. It is a machine without I/O: it knows no memory, no clock and no goroutines.
//
// A process that rests says so in a word in the memory of each other process, and is woken by a message. Both sides write to
// each other's memory, and a write may be seen late: a process may say that it rests while an entry is on its way to it, and
// who has left the entry may not have seen that it rests. No fence between the two is needed, because who has left something
// goes on looking, and does not rest, until it has seen that all was taken. Nor need a message come behind what was written
// before it: it ends the rest, and who has not seen the entry then says by another word that it rests, for which it is woken again.
// The model in the tests is searched for states from which an entry is never taken.
//
// A process is disarmed before it says that it rests. Otherwise a message that comes between the two ends no wait, and it is the only one for
// that word: what is left afterwards would lie there for ever.
package rest

// An Action is what a process does next, as its [Watch] tells.
type Action uint8

// The actions. A process that waits has been disarmed: who arms it ends the wait.
const (
	Wait   Action = iota // until somebody has something to leave, or a message has come
	Tell                 // the others the Word
	Pause                // for one of the times that a Watch is made of
	Turn                 // take what others have left, and leave what waits for them
	Look                 // let go out what has waited; something is found, too, where others have not taken all, who are woken if they rest
	Disarm               // who has something to leave arms from now on
	Arm
)

// A Watch decides when a process looks. It begins behind a Wait.
type Watch struct {
	// Looks is how many turns there are for each look, and Calm after how many turns on end that have found nothing, nor the looks
	// with them, it rests; both at least 1.
	Looks, Calm int

	last  Action
	rests bool // the turn and the look after it has said that it rests
	busy  bool // the turn, or the look with it, has found something
	turns int  // since the last look
	still int  // the last turns that have found nothing
	word  uint64
}

// Word is what a process tells the others: odd while it rests, and another number each time.
func (w *Watch) Word() uint64 { return w.word }

// Next tells what to do after the last action; found is whether that was a Turn or a Look that has found something.
func (w *Watch) Next(found bool) Action {
	w.last = w.next(found)
	return w.last
}

func (w *Watch) next(found bool) Action {
	w.busy = w.busy || found
	switch w.last {
	case Wait:
		w.rests, w.busy = false, false
		if w.word&1 == 1 {
			w.word++
			return Tell
		}
		return Pause
	case Tell:
		if w.word&1 == 1 {
			w.rests, w.busy = true, false
			return Turn
		}
		return Pause
	case Pause:
		return Turn
	case Turn:
		if w.turns++; w.rests || w.turns == w.Looks {
			w.turns = 0
			return Look
		}
		return w.again()
	case Look:
		if !w.rests {
			return w.again()
		}
		if w.busy { // left before the others knew that it rests
			return Arm
		}
	case Disarm:
		w.word++
		return Tell
	}
	return Wait
}

// again is what follows a turn, and the look with it.
func (w *Watch) again() Action {
	if w.still++; w.busy {
		w.still = 0
	}
	w.busy = false
	if w.still < w.Calm {
		return Pause
	}
	w.turns, w.still = 0, 0
	return Disarm // before others know that it rests
}

// A Bell decides whether another process has to be woken for what was left for it.
type Bell struct{ rung uint64 }

// Needed tells whether the process rests and has not been woken from that, by the word that it has told.
func (b *Bell) Needed(word uint64) bool { return word&1 == 1 && word != b.rung }

// Rung says that it is being woken.
func (b *Bell) Rung(word uint64) { b.rung = word }
