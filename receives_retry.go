package verbena

import (
	"time"
)

// After receives could not be posted for lack of memory they are posted again after 10 ms,
// doubling up to 1 s.
const firstRetry, lastRetry = 10 * time.Millisecond, time.Second

// low doubles the target, because peers use receives faster than they come back.
func (r *receives) low() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.vain = 0
	r.target.Store(min(2*r.target.Load(), int32(r.promised+baseReceives)))
	r.replenish()
	r.recallSurplus()
}

// replenish posts receives up to the target. r.mu is held.
func (r *receives) replenish() { r.keepTrying(r.fill(nil)) }

// keepTrying takes the error of fill for a queue that is not strict, where it means that
// nothing is posted. Nothing may ever come back then while applications hold all messages
// there were. So it is tried again later. r.mu is held.
func (r *receives) keepTrying(err error) {
	if err != nil {
		r.tryLater(err)
		return
	}
	r.pause = 0
}

// tryLater posts receives after a pause, if there are none by then or the queue lends.
// r.mu is held.
func (r *receives) tryLater(err error) {
	if r.closed || r.retry != nil {
		return
	}
	r.pause = min(max(2*r.pause, firstRetry), lastRetry)
	r.log.Debug("too few receives are posted, trying again", "pause", r.pause, "error", err)
	r.retry = time.AfterFunc(r.pause, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.retry = nil; !r.closed && (r.posted.Load() == 0 || r.lends) {
			r.replenish()
		}
	})
}
