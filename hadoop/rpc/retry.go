package rpc

import (
	"sync"
	"time"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
)

// retryKeep is how long an answer is kept, as Hadoop keeps it by default.
const retryKeep = 10 * time.Minute

// retryOverhead is what an entry takes in bytes beside its answer, roughly.
const retryOverhead = 200

// retryKey names a call. It holds the user, so that nobody gets an answer by
// guessing another's client id.
type retryKey struct {
	client ClientID
	call   int32
	user   string
	method *served
}

// retryCache keeps the answers of methods that must run once.
type retryCache struct {
	most int64 // bytes

	mu      sync.Mutex
	entries map[retryKey]*retryEntry
	order   []*retryEntry // of the answered ones, the oldest first
	bytes   int64
}

type retryEntry struct {
	key     retryKey
	done    bool
	body    []byte // of the answer
	expires time.Time
	waiting []*call // repetitions while the first one runs
}

func newRetryCache(most int64) *retryCache {
	return &retryCache{most: most, entries: map[retryKey]*retryEntry{}}
}

// begin tells what to do with a call: to run it, to send the answer that it had
// before (body is not nil), or nothing, because it is answered together with
// the one that runs.
func (r *retryCache) begin(c *call) (run bool, body []byte) {
	key := retryKey{c.ClientID, c.CallID, c.User, c.method}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(time.Now())
	e := r.entries[key]
	switch {
	case e == nil:
		c.entry = &retryEntry{key: key}
		r.entries[key] = c.entry
		return true, nil
	case e.done:
		return false, e.body
	}
	e.waiting = append(e.waiting, c)
	return false, nil
}

// finish keeps the answer of a call that ran and sends it to those who wait. If
// the call failed, the first of them runs it anew.
func (r *retryCache) finish(s *Server, e *retryEntry, body []byte, err error) {
	r.mu.Lock()
	if err == nil {
		if body == nil {
			body = []byte{}
		}
		waiting := e.waiting
		e.done, e.body, e.waiting, e.expires = true, body, nil, time.Now().Add(retryKeep)
		r.order = append(r.order, e)
		r.bytes += int64(len(body)) + retryOverhead
		r.expire(time.Now())
		r.mu.Unlock()
		for _, c := range waiting {
			s.metrics.repeated.Inc()
			c.session.replyBytes(&c.to, body, c.session.urgency())
			c.done()
		}
		return
	}
	for len(e.waiting) > 0 {
		next := e.waiting[0]
		e.waiting = e.waiting[1:]
		next.entry = e
		r.mu.Unlock()
		if in, _ := s.queue.Push(next, next.User, next.method.urgent, next.size); in {
			return
		}
		next.entry = nil // the next turn of the loop takes it on
		next.refuseBusy(carrier.Now)
		r.mu.Lock()
	}
	delete(r.entries, e.key)
	r.mu.Unlock()
}

// expire forgets what is too old or too much. The caller holds mu.
func (r *retryCache) expire(now time.Time) {
	n := 0
	for n < len(r.order) && (r.bytes > r.most || now.After(r.order[n].expires)) {
		e := r.order[n]
		r.bytes -= int64(len(e.body)) + retryOverhead
		delete(r.entries, e.key)
		r.order[n] = nil
		n++
	}
	r.order = r.order[n:]
}
