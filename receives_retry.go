package verbena

import (
	"time"
)

// firstRetry is the pause before receives are posted again after none could be. It
// doubles up to lastRetry.
const firstRetry, lastRetry = 10 * time.Millisecond, time.Second

// low posts more receives: peers use them faster than they come back.
func (r *receives) low() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target.Store(min(2*r.target.Load(), int32(r.promised+baseReceives)))
	r.replenish()
}

// replenish posts receives up to the target. r.mu is held.
func (r *receives) replenish() { r.keepTrying(r.fill(nil)) }

// keepTrying takes the error of fill. If there are no receives at all it tries again
// later: nothing may ever come back while applications hold what there was. r.mu is
// held.
func (r *receives) keepTrying(err error) {
	if err != nil {
		r.tryLater(err)
		return
	}
	r.pause = 0
}

// tryLater posts receives after a pause if there are none then, or if peers want more
// of a queue that lends. r.mu is held.
func (r *receives) tryLater(err error) {
	if r.closed || r.retry != nil {
		return
	}
	r.pause = min(max(2*r.pause, firstRetry), lastRetry)
	r.log.Debug("too few receives are posted, trying again", "pause", r.pause, "error", err)
	r.retry = time.AfterFunc(r.pause, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.retry = nil; !r.closed && (r.posted.Load() == 0 || r.lender != nil) {
			r.replenish()
		}
	})
}
