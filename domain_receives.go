package verbena

import (
	"errors"
	"fmt"
	"slices"

	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// own tells whether an endpoint gets receives of its own, as long as fewer than so
// many have them.
func (n *domain) own(most int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	own := n.owners < most || !n.attributes.Has(rdma.CapSharedReceive)
	if own {
		n.owners++
	}
	return own
}

// share promises from least to most shared receives to an endpoint of a peer, awake of
// which are needed at once. The caller calls unshare.
//
// A queue of a strict device takes endpoints until half of it is promised; the rest
// is for their windows to grow. One that lends takes one for every four places. Then
// a further queue is opened. When the device has no more of them, endpoints share
// what is left.
func (n *domain) share(sh *share, least, most, awake int) (r *receives, granted int, err error) {
	for i := 0; ; i++ {
		r, err := n.queue(i)
		if err != nil {
			return n.squeeze(sh, least, most, awake, err)
		}
		full := min(most, r.depth-baseReceives)
		switch {
		case r.strict && full < least:
			err = fmt.Errorf("shared receive queue on %s: it has %d places at most and an endpoint needs %d: lower the chunks", n.attributes.Name, r.depth, least+baseReceives)
		case r.strict && r.places(max(r.depth/2, full+baseReceives)) < full:
			err = errNoPlaces
		case r.lends && int(r.users.Load()) > r.depth/lentPlaces:
			err = errNoPlaces
		default:
			granted, err = r.admit(sh, least, most, awake)
		}
		if err == nil {
			return r, granted, nil
		}
		n.unshare(r)
		if !errors.Is(err, errNoPlaces) {
			return nil, 0, err
		}
	}
}

// squeeze is share without a further queue.
func (n *domain) squeeze(sh *share, least, most, awake int, openErr error) (chosen *receives, granted int, err error) {
	n.mu.Lock()
	queues := slices.Clone(n.queues)
	for _, r := range queues {
		r.users.Add(1)
	}
	n.mu.Unlock()
	err = openErr
	for _, r := range queues {
		if chosen == nil {
			var refusal error
			if granted, refusal = r.admit(sh, least, most, awake); refusal == nil {
				chosen = r
				continue
			} else if !errors.Is(refusal, errNoPlaces) {
				err = refusal
			}
		}
		n.unshare(r)
	}
	switch {
	case chosen != nil:
		return chosen, granted, nil
	case len(queues) > 0 && err == openErr:
		err = fmt.Errorf("%w: no room in %d shared receive queues, and no further one: %w", slab.ErrExhausted, len(queues), openErr)
	}
	return nil, 0, err
}

// queue returns a shared queue by its place, or opens a further one. Its user calls
// unshare.
func (n *domain) queue(i int) (*receives, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i < len(n.queues) {
		n.queues[i].users.Add(1)
		return n.queues[i], nil
	}
	a := &n.attributes
	depth := sharedDepth
	if a.MaxQueueDepth > 0 {
		depth = min(depth, a.MaxQueueDepth)
	}
	if a.MaxCompletions > 0 {
		depth = min(depth, a.MaxCompletions/2)
	}
	if err := n.shares.reserve(baseReceives); err != nil {
		return nil, err
	}
	n.number = n.number%maxQueueNumber + 1
	r := newReceives(nil, n.receivePool, n.log, n.number, n.receiveSize(), depth, !n.waits)
	q, err := n.domain.NewSharedReceiveQueue(rdma.SharedReceiveConfig{Depth: depth, MaxSGE: 1, OnScarce: r.onScarce()})
	if err != nil {
		_ = n.shares.reserve(-baseReceives) // cannot fail
		return nil, fmt.Errorf("shared receive queue of %d places on %s: %w", depth, a.Name, err)
	}
	r.attach(q, n.attributes.Has(rdma.CapLendsReceives))
	r.tidy = n.tidy
	l := link.Limits{Chunks: n.cfg.tuning.Chunks}
	r.unpaid = l.Receives(0, l.AllAnswers())
	r.users.Store(1)
	n.queues = append(n.queues[:len(n.queues):len(n.queues)], r)
	return r, nil
}

// unshare takes an endpoint off its shared receives. The last one takes the queue
// with it.
func (n *domain) unshare(r *receives) {
	n.mu.Lock()
	last, workers := r.users.Add(-1) == 0, n.workers
	n.mu.Unlock()
	if !last {
		return
	}
	for _, w := range workers {
		w.drain() // completions of receives that queue pairs left behind
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	at := slices.Index(n.queues, r)
	if r.users.Load() > 0 || at < 0 {
		return
	}
	if err := r.close(); err != nil {
		n.log.Error("receives not closed", "error", err)
		return
	}
	n.queues = slices.Delete(slices.Clone(n.queues), at, at+1)
	_ = n.shares.reserve(-baseReceives) // cannot fail
}

// tidy posts the receives of what was released on endpoints on which nobody has waited
// since. It takes the latches of all endpoints.
func (n *domain) tidy() {
	n.mu.Lock()
	workers := n.workers
	n.mu.Unlock()
	for _, w := range workers {
		for _, c := range w.all() {
			c.tidy()
		}
	}
}

// orphan takes back the receive of a completion whose queue pair has gone.
func (n *domain) orphan(c *rdma.Completion) {
	if c.ID&idKind != idReceive {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	number := uint32(c.ID &^ idKind >> idQueue)
	for _, r := range n.queues {
		if r.number != number {
			continue
		}
		if b := r.arrived(c.ID); b != nil {
			r.putLate(b, false)
		}
	}
}
