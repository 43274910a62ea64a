//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
	"github.com/verbena-data/verbena/rdma/internal/domains"
)

// pollBatch is how many completions one call of the driver takes.
const pollBatch = 16

// completionQueue implements [rdma.CompletionQueue]. Beside the device's queue it has
// a list of its own, for completions that do not fit into the slice of a Poll and for
// those that this side makes for failed queue pairs.
type completionQueue struct {
	usage
	// probes are under way, mostProbes of them at most: see queuePair.probeIfIdle.
	probes     atomic.Int32
	mostProbes int32

	mu      sync.Mutex
	hw      *verbs.CQ // nil once it is destroyed
	arena   *verbs.Arena
	batch   *verbs.Completions
	into    []rdma.Completion // the slice of the Poll under way
	n       int               // completions in it
	pending []rdma.Completion
	first   int   // the oldest of pending
	err     error // what Poll and Arm return once nothing is pending
	overrun bool
	unacked int // completion events that the driver wants acknowledged
	channel *verbs.CompChannel

	event atomic.Bool // what was armed for has happened, without the device

	waiting   sync.Mutex                // held by Wait
	destroyed bool                      // guarded by waiting
	sleeper   atomic.Pointer[sleeper]   // of the goroutine that waits, if it has one
	poller    atomic.Pointer[pollerBed] // nil until it is needed
}

func (m *domain) NewCompletionQueue(depth int) (rdma.CompletionQueue, error) {
	a := &m.device.attributes
	fail := func(err error) (rdma.CompletionQueue, error) {
		return nil, fmt.Errorf("ibverbs: completion queue of %d on %s: %w", depth, a.Name, err)
	}
	if err := domains.CompletionQueue(depth, a); err != nil {
		return fail(err)
	}
	m.members.Lock()
	defer m.members.Unlock()
	if err := m.members.Usable(); err != nil {
		return fail(err)
	}
	q := &completionQueue{arena: verbs.NewArena()}
	q.usage = usage{domain: m, cookie: m.newCookie(), destroy: q.destroyQueue}
	entries := depth
	if a.Class == rdma.ClassIWARP {
		// There every Read completes, whether the application wants to hear of it or
		// not: see queuePair.prepare.
		entries = 2 * depth
		if m.device.quirks.Garbles.Length > 0 {
			entries = 3 * depth // both parts of a Read in two are flushed
		}
		entries = min(entries, a.MaxCompletions)
	}
	if m.device.probes() {
		entries = min(depth+probesAtOnce, a.MaxCompletions)
		q.mostProbes = int32(entries - depth)
	}
	if err := q.create(entries, int(m.vector.Add(1))%max(m.ctx.Vectors(), 1)); err != nil {
		q.destroy()
		return fail(err)
	}
	m.members.Completions.Add(q)
	m.cookies[q.cookie] = q
	return q, nil
}

func (q *completionQueue) create(entries, vector int) (err error) {
	if q.batch, err = q.arena.NewCompletions(pollBatch); err != nil {
		return err
	}
	if q.channel, err = q.domain.ctx.CreateCompChannel(); err != nil {
		return err
	}
	if q.hw, err = q.domain.ctx.CreateCQ(entries, q.cookie, q.channel, vector); err != nil {
		return err
	}
	q.pending = make([]rdma.Completion, 0, pollBatch)
	return nil
}

// destroyQueue frees what the driver has. Nothing may use it any more but Wait,
// which is woken.
func (q *completionQueue) destroyQueue() {
	q.mu.Lock()
	if q.err == nil {
		q.err = rdma.ErrClosed
	}
	q.mu.Unlock()
	q.notify()
	q.waiting.Lock()
	defer q.waiting.Unlock()
	q.destroyed = true
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.hw != nil {
		q.hw.AckEvents(q.unacked)
		q.unacked = 0
		q.complain(q.hw.Destroy())
		q.hw = nil
	}
	if p := q.poller.Load(); p != nil {
		_ = p.file.Close()
	}
	if q.channel != nil {
		q.complain(q.channel.Destroy())
		q.channel = nil
	}
	q.complain(q.arena.Close())
}

func (q *completionQueue) complain(err error) {
	if err != nil {
		q.domain.device.provider.config.Logger.Warn("ibverbs cannot free a completion queue", "device", q.domain.device.attributes.Name, "error", err)
	}
}

// Poll implements [rdma.CompletionQueue].
func (q *completionQueue) Poll(into []rdma.Completion) (int, error) {
	q.mu.Lock()
	n, err := q.poll(into)
	q.mu.Unlock()
	return n, err
}

func (q *completionQueue) poll(into []rdma.Completion) (int, error) {
	n := 0
	if q.first < len(q.pending) {
		n = copy(into, q.pending[q.first:])
		q.first += n
		if q.first == len(q.pending) {
			q.pending, q.first = q.pending[:0], 0
		}
		if n == len(into) {
			return n, q.trouble()
		}
	}
	if q.err != nil || len(into) == 0 {
		return n, q.trouble()
	}
	q.into, q.n = into, n
	q.pollDevice()
	n = q.n
	q.into = nil
	return n, q.trouble()
}

// trouble is what Poll returns beside completions. A closed queue has none.
func (q *completionQueue) trouble() error {
	if q.err != nil && (q.first == len(q.pending) || errors.Is(q.err, rdma.ErrClosed)) {
		return q.err
	}
	if q.overrun {
		return rdma.ErrOverrun
	}
	return nil
}

// pollDevice takes what the device has, until that is all or the slice of the
// Poll is full.
func (q *completionQueue) pollDevice() {
	for q.hw != nil && (q.into == nil || q.n < len(q.into)) {
		got, err := q.hw.Poll(q.batch)
		for i := range got {
			q.domain.completed(q, q.batch.At(i))
		}
		if err != nil {
			q.broken(err)
			return
		}
		if got < pollBatch {
			return
		}
	}
}

// broken notes that the device's queue is of no use. The lock is held.
func (q *completionQueue) broken(err error) {
	if q.err == nil {
		q.err = fmt.Errorf("ibverbs: poll on %s: %w", q.domain.device.attributes.Name, err)
		q.domain.queueFailed(q, q.err)
	}
}

// emit gives a completion to the Poll under way, or keeps it for the next. The
// lock is held.
func (q *completionQueue) emit(c rdma.Completion) {
	if q.n < len(q.into) {
		q.into[q.n] = c
		q.n++
		return
	}
	if q.first > 0 && len(q.pending) == cap(q.pending) {
		q.pending = q.pending[:copy(q.pending, q.pending[q.first:])]
		q.first = 0
	}
	q.pending = append(q.pending, c)
}

// drain takes everything the device has, for the next Poll.
func (q *completionQueue) drain() {
	q.mu.Lock()
	defer q.mu.Unlock()
	before := len(q.pending) - q.first
	if q.err == nil {
		q.pollDevice()
	}
	if len(q.pending)-q.first > before {
		q.notify()
	}
}

// notify ends a Wait for completions that this side has made.
func (q *completionQueue) notify() {
	q.event.Store(true)
	q.wake()
}

// Arm implements [rdma.CompletionQueue].
func (q *completionQueue) Arm(solicitedOnly bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return q.err
	}
	failed := func(err error) error {
		return fmt.Errorf("ibverbs: arm a completion queue on %s: %w", q.domain.device.attributes.Name, err)
	}
	// Events of earlier armings are dropped: Wait takes one event only. An event that
	// comes just after this ends the next Wait once too early, which does no harm.
	for taken := true; taken; {
		var err error
		if taken, err = q.takeEvent(); err != nil {
			return failed(err)
		}
	}
	q.event.Store(false)
	if err := q.hw.RequestNotify(solicitedOnly && !q.domain.device.quirks.ArmsForAll); err != nil {
		return failed(err)
	}
	return nil
}

// takeEvent takes an event out of the channel, if there is one. The lock is held.
func (q *completionQueue) takeEvent() (bool, error) {
	if q.channel == nil {
		return false, nil
	}
	_, ok, err := q.channel.Event()
	if ok {
		if q.unacked++; q.unacked == 1<<10 {
			q.hw.AckEvents(q.unacked)
			q.unacked = 0
		}
	}
	return ok, err
}

// awaited is takeEvent for Wait's goroutine.
func (q *completionQueue) awaited() (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.takeEvent()
}

// Close implements [rdma.CompletionQueue].
func (q *completionQueue) Close() error {
	return q.close("completion queue", func() (bool, error) { return q.domain.members.Completions.Remove(q) }, func() {
		q.mu.Lock()
		q.err = rdma.ErrClosed
		q.mu.Unlock()
		q.notify()
	})
}
