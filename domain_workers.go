package verbena

import (
	"errors"
	"fmt"
)

// claim deals a worker to an endpoint that can have so many requests outstanding.
// shared are the receives that it shares, if it does: a worker has room for all of
// them to complete at once.
func (n *domain) claim(entries int, shared *receives) (*worker, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.workers) >= n.cfg.workers {
		for _, serving := range []bool{true, false} { // those that serve the receives already cost less
			for range n.workers {
				w := n.workers[n.next%len(n.workers)]
				n.next++
				if serves(w, shared) == serving && !w.broken.Load() && dealTo(w, entries, shared) {
					return w, nil
				}
			}
		}
	}
	depth := workerQueue
	if m := n.attributes.MaxCompletions; m > 0 {
		depth = min(depth, m)
	}
	w, err := newWorker(n.domain, depth, n.orphan)
	if err != nil {
		return nil, err
	}
	if !dealTo(w, entries, shared) {
		return nil, errors.Join(fmt.Errorf("an endpoint needs %d completions, the device's queues have %d: lower the window", entries, w.size), w.close())
	}
	n.workers = append(n.workers[:len(n.workers):len(n.workers)], w)
	return w, nil
}

// dealTo takes an endpoint's entries of a worker if it has room. It needs mu.
func dealTo(w *worker, entries int, shared *receives) bool {
	if shared != nil && !serves(w, shared) {
		entries += reservedFor(w, shared)
	}
	if w.room < entries {
		return false
	}
	w.room -= entries
	w.endpoints++
	if shared != nil {
		w.serves[shared.number]++
	}
	return true
}

func serves(w *worker, shared *receives) bool { return shared != nil && w.serves[shared.number] > 0 }

// reservedFor is how many entries are for the completions of shared receives.
func reservedFor(w *worker, shared *receives) int { return min(shared.depth, w.size/2) }

// unclaim takes an endpoint's worker back. Its queue pair has been closed. A worker
// that the load has brought goes with its last endpoint.
func (n *domain) unclaim(w *worker, entries int, shared *receives) {
	n.mu.Lock()
	w.room += entries
	w.endpoints--
	if shared != nil {
		if w.serves[shared.number]--; !serves(w, shared) {
			delete(w.serves, shared.number)
			w.room += reservedFor(w, shared)
		}
	}
	surplus := len(n.workers) > n.cfg.workers && w.endpoints == 0 && !w.broken.Load()
	if surplus {
		n.workers = without(n.workers, w)
	}
	n.mu.Unlock()
	if !surplus {
		return
	}
	w.drain() // completions of receives that queue pairs left behind
	if err := w.close(); err != nil {
		n.log.Error("worker not closed", "error", err)
		w.broken.Store(true)
		n.mu.Lock()
		n.workers = append(n.workers[:len(n.workers):len(n.workers)], w) // it ends with the domain
		n.mu.Unlock()
	}
}

func without(workers []*worker, w *worker) []*worker {
	rest := make([]*worker, 0, len(workers)-1)
	for _, each := range workers {
		if each != w {
			rest = append(rest, each)
		}
	}
	return rest
}
