package verbena

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-data/verbena/internal/slab"
)

// errNoPlaces says that a queue is too short for more promises.
var errNoPlaces = errors.New("verbena: the receive queue is full")

// promise lets a peer use from least to most receives more, and tells how many. Of a
// strict queue all but awake of them sleep until wake. errNoPlaces says that the queue
// has fewer than least places left.
func (r *receives) promise(sh *share, least, most, awake int) (int, error) {
	return r.promiseWith(sh, least, most, awake, nil)
}

// promiseWith is promise for a caller who has fetched memory. What it does not use stays
// in fetched, and is the caller's.
func (r *receives) promiseWith(sh *share, least, most, awake int, fetched *[]slab.Slab) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.strict {
		if most = min(most, r.depth-r.kept-r.promised); most < least {
			return 0, errNoPlaces
		}
	}
	n, err := sh.promise(least, most)
	if err != nil {
		return 0, err
	}
	r.promised += n
	awake = min(awake, n)
	if r.strict {
		r.target.Add(int32(awake + r.spareForMore()))
	} else {
		r.target.Store(max(r.target.Load(), r.least()))
	}
	if err := r.fill(fetched); err != nil {
		r.takeBack(sh, n, awake)
		return 0, err
	}
	return n, nil
}

// spareForMore is by how many receives more a strict queue exceeds its promises: one for
// each endpoint beside the first, 8 at most. The queue pair of an endpoint that has gone
// may hold one until its last completion has been polled. r.mu is held.
func (r *receives) spareForMore() (n int) {
	n = max(min(int(r.users.Load())-1, r.kept)-r.base, 0)
	r.base += n
	return n
}

// mostRefusals is how many slabs an endpoint that is being set up fetches beyond those
// that it posts. Other endpoints that share the queue may post those first.
const mostRefusals = 4

// admit is promise for an endpoint that is being set up. It holds no lock, so it can wait
// for memory while others register or close regions.
func (r *receives) admit(sh *share, least, most, awake int) (int, error) {
	var fetched []slab.Slab
	defer func() {
		for _, s := range fetched {
			r.pool.Put(s)
		}
	}()
	for refused := 0; ; refused++ {
		n, err := r.promiseWith(sh, least, most, awake, &fetched)
		if !errors.Is(err, errNoReceive) || refused == r.kept+awake+mostRefusals {
			return n, err
		}
		memory, err := r.pool.GetNow(context.Background(), r.size)
		if err != nil {
			return 0, fmt.Errorf("memory of a receive: %w", err)
		}
		fetched = append(fetched, memory)
	}
}

// wake posts n promised receives that sleep. If it fails, all of them sleep on.
func (r *receives) wake(n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target.Add(int32(n))
	err := r.fill(nil)
	if err != nil {
		r.target.Add(int32(-n))
	}
	return err
}

// sleep lowers the target by n receives that stay promised. As many that are posted go
// when they are used next.
func (r *receives) sleep(n int) { r.target.Add(int32(-n)) }

// more is promise for a peer that had to wait for credits, as long as memory is
// plentiful. As many receives more are posted, unless the device asks for them itself: a
// peer that sends so fast would wait for those next.
func (r *receives) more(sh *share, most int) int {
	if most <= 0 || !sh.plenty() || r.pool.Squeezed() {
		return 0
	}
	n, err := r.promise(sh, 0, most, most)
	if err != nil {
		return 0 // it waits on
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.strict && !r.lends {
		r.target.Store(min(r.target.Load()+int32(n), int32(r.promised+baseReceives)))
		_ = r.fill(nil) // some are posted; what comes back is posted, too
		r.recallSurplus()
	}
	return n
}

// scarce tells that endpoints of a peer should give back what they have grown by, because
// promises or memory run short.
func (r *receives) scarce(sh *share) bool { return sh.scarce() || r.pool.Squeezed() }

// withdraw takes n promises back. awake is for how many of them a receive is in the target:
// neither those that sleep nor those whose message an application holds.
func (r *receives) withdraw(sh *share, n, awake int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.takeBack(sh, n, awake)
}

// takeBack needs mu.
func (r *receives) takeBack(sh *share, n, awake int) {
	sh.withdraw(n)
	r.promised -= n
	if r.strict {
		r.target.Add(int32(-awake))
	} else {
		most := r.promised + baseReceives
		if r.lends {
			most = r.most()
		}
		r.target.Store(min(r.target.Load(), int32(most)))
		r.recallSurplus()
	}
}
