package store

import "sync"

// An opLock is a lock that is held for long: until a writer has stopped. Who waits for it waits
// at a channel, so that in a bubble of testing/synctest time passes meanwhile, as it does not for
// who waits for a sync.Mutex. Those who wait get it in the order in which they came.
type opLock struct {
	mu    sync.Mutex
	held  bool
	queue *[]chan struct{} // nil: nobody waits; a pointer, since there are millions of replicas
}

// Lock waits for the lock.
func (l *opLock) Lock() {
	l.mu.Lock()
	if !l.held {
		l.held = true
		l.mu.Unlock()
		return
	}
	turn := make(chan struct{})
	if l.queue == nil {
		l.queue = new([]chan struct{})
	}
	*l.queue = append(*l.queue, turn)
	l.mu.Unlock()
	<-turn
}

// Unlock hands the lock to who has waited longest.
func (l *opLock) Unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue == nil {
		if !l.held {
			panic("store: unlock of an opLock that is not locked")
		}
		l.held = false
		return
	}
	waiting := *l.queue
	close(waiting[0])
	if len(waiting) == 1 {
		l.queue = nil
		return
	}
	*l.queue = waiting[1:]
}
