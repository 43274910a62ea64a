package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// A Link is what one connection does. Both ends are given the same.
type Link struct {
	Seed   uint64
	Rounds int // at most
	// Died, if set, tells whether the peer's process may have been killed by now. Run
	// then checks how the link has ended, and returns [ErrLost].
	Died func() bool
}

// ErrLost says that a link ended because its peer did.
var ErrLost = errors.New("history: the peer is gone")

// errFailed says that the queue pair has failed; end.finish judges that.
var errFailed = errors.New("the queue pair has failed")

const (
	deepest  = 64
	deepData = 1 << 62 // of the IDs of receives
)

// remoteKey is a region as the peer names it.
type remoteKey struct {
	Address uint64
	Key     uint32
}

// greeting is the first message in each direction.
type greeting struct {
	Seed                           uint64
	Rounds, Area                   uint32
	Class, Shallow, LaxReads       uint8
	OneWayReads, Unfenced          uint8
	Capabilities                   uint32
	SendSGE, ReadSGE, Inline, Slot uint32
	Depth                          uint32
	Exposed                        [exposedParts]remoteKey
	Foreign                        remoteKey
	Stale                          remoteKey
}

const (
	markDone  = 0x646f6e65
	markReady = 0x72656479
)

// An end is one end of a link while it runs.
type end struct {
	side   *Side
	role   Role
	link   Link
	ctx    context.Context
	random *rand.Rand // of choices that the peer does not know
	qp     rdma.QueuePair
	gone   context.Context // ends with the queue pair
	closed atomic.Bool     // leave has closed the queue pair
	what   string

	sends, recvs *completions
	commons      *commons
	srq          *sharedReceives
	sleeps       bool // waits by events instead of polling

	t       *terms
	out, in *direction

	exposed  [exposedParts]memory
	local    [localParts]memory
	slots    memory
	control  memory
	slot     int
	slotSGEs int
	stale    remoteKey
	theirs   greeting
	// revocable is the region whose key the peer's next Send with invalidate revokes.
	// revoked is the one before it: still open, and out of the peer's reach.
	revocable, revoked memory
	theirRevocable     remoteKey

	mu       sync.Mutex // guards what follows, against other posters
	round    int
	posted   [maxPosters][]sent
	done     [maxPosters]int // how many of posted are known to be done
	failedAt [maxPosters]int // the first of posted that did not succeed; -1
	failure  rdma.Status     // neither success nor flushed; one request at most has such a status
	polled   []rdma.Completion
	batches  [maxPosters][]rdma.SendRequest // of each poster, to be reused
	sges     [maxPosters][]rdma.SGE
	receives [1]rdma.RecvRequest
	entries  []rdma.SGE

	recvPosted, recvDone uint64
	recvFailed           bool
	recvFailure          rdma.Status
	unposted             int               // receives that are still to be posted
	pending              []rdma.Completion // receives that are not looked at yet

	expected matcher
	controls int // how many of the round's two control messages have come
	lastMark []byte
	released bool // the peer may have begun the next round
	draining bool // the link has ended, so that no later round will come
}

// Run runs one end of a link. It calls connect with a queue pair whose receives are
// posted, and returns when the link has ended and everything is compared and closed.
// It returns [ErrLost] if the peer has died as [Link.Died] allows. Any other error
// is a difference from the model, or one of connect.
func (s *Side) Run(ctx context.Context, role Role, link Link, connect func(ctx context.Context, qp rdma.QueuePair) error) (err error) {
	n := s.links.Add(1)
	e := &end{
		side: s, role: role, link: link, ctx: ctx,
		random: rand.New(rand.NewPCG(s.options.Seed^link.Seed, uint64(role))),
		what:   fmt.Sprintf("history: %s of the link with seed %d (%d of this side)", role, link.Seed, n),
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", e.what, err)
		}
	}()
	for p := range e.failedAt {
		e.failedAt[p] = -1
	}
	defer func() {
		if closing := e.close(); closing != nil && (err == nil || errors.Is(err, ErrLost)) {
			err = closing
		}
	}()
	if err := e.open(); err != nil {
		return err
	}
	bound, cancel := context.WithTimeout(ctx, s.options.Bound)
	defer cancel()
	if err := connect(bound, e.qp); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	s.Stats.Links.Add(1)
	gone, cancelGone := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-e.qp.Done():
			cancelGone()
		case <-gone.Done():
		}
	})
	defer watch.Wait()
	defer cancelGone()
	e.gone = gone
	err = e.greet()
	for round := 0; err == nil && round < e.t.rounds; round++ {
		e.round = round
		err = e.runRound()
	}
	return e.finish(err)
}

// open makes the queue pair, its queues and its memory.
func (e *end) open() (err error) {
	s, a := e.side, e.side.attributes
	shared := e.random.IntN(3) == 0
	depth := 4 + e.random.IntN(min(deepest, a.MaxQueueDepth)-3)
	config := rdma.QueuePairConfig{
		SendDepth: depth, RecvDepth: commonPosted,
		MaxSGE:    min(1+e.random.IntN(4), a.MaxSendSGE, a.MaxRecvSGE),
		MaxInline: min(e.random.IntN(80), a.MaxInline),
	}
	if a.Has(rdma.CapReceiverNotReady) {
		config.ReceiverNotReadyRetry = -1
	}
	e.sleeps = e.random.IntN(2) == 0
	e.slot, e.slotSGEs = 512<<(2*e.random.IntN(2)), config.MaxSGE
	if shared {
		if e.commons, err = s.acquireCommons(e.random); err != nil {
			return err
		}
		e.sends, e.recvs = e.commons.queue, e.commons.queue
		if e.commons.receives != nil {
			e.srq, e.slot, e.slotSGEs = e.commons.receives, e.commons.receives.slot, 1
			config.SharedReceive = e.srq.queue
		}
	} else {
		if e.sends, err = s.newCompletions(2*depth+2*commonPosted+64, false, e.random); err != nil {
			return err
		}
		e.recvs = e.sends
		if e.random.IntN(2) == 0 {
			if e.recvs, err = s.newCompletions(4*commonPosted, false, e.random); err != nil {
				return err
			}
		}
	}
	config.SendCompletions, config.RecvCompletions = e.sends.queue, e.recvs.queue
	area := s.options.Area
	if area == 0 {
		if area = 32 << 10; rand.New(rand.NewPCG(e.link.Seed, 2)).IntN(16) == 0 {
			area = 1 << 20
		}
	}
	e.t = &terms{seed: e.link.Seed, area: area}
	for part := range e.exposed {
		place := exposedPart(part, area)
		if e.exposed[part], err = s.allocate(place.length(), s.rights(part)); err != nil {
			return err
		}
	}
	for part := range e.local {
		if e.local[part], err = s.allocate(localPart(part, area).length(), rdma.AccessLocalWrite); err != nil {
			return err
		}
	}
	if e.control, err = s.allocate(4<<10, rdma.AccessLocalWrite); err != nil {
		return err
	}
	if e.srq == nil {
		if e.slots, err = s.allocate(commonPosted*e.slot, rdma.AccessLocalWrite); err != nil {
			return err
		}
		for i := range commonPosted {
			if err := e.slots.write(i*e.slot, canary[:e.slot]); err != nil {
				return err
			}
		}
	}
	// A region that is closed at once: the peer will try to reach it.
	old, err := s.allocate(area/2, s.rights(partAll))
	if err != nil {
		return err
	}
	e.stale = remoteKey{old.region.Address(), old.region.Key()}
	if err := old.region.Close(); err != nil {
		return fmt.Errorf("close region: %w", err)
	}
	if e.qp, err = s.domain.NewQueuePair(config); err != nil {
		return fmt.Errorf("new queue pair: %w", err)
	}
	e.sends.add(e.qp.Number())
	if e.recvs != e.sends {
		e.recvs.add(e.qp.Number())
	}
	e.t.depth[e.role], e.t.sendSGE[e.role], e.t.inline[e.role] = depth, config.MaxSGE, config.MaxInline
	e.t.readSGE[e.role] = min(config.MaxSGE, a.MaxReadSGE)
	e.unposted = commonPosted
	return e.postReceives(commonPosted)
}

// close closes what is open.
func (e *end) close() error {
	var errs []error
	note := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("close %s: %w", what, err))
		}
	}
	if e.qp != nil {
		number := e.qp.Number()
		if !e.closed.Load() {
			note("queue pair", e.qp.Close())
		}
		note("queue pair", e.sends.drop(number))
		if e.recvs != e.sends {
			note("queue pair", e.recvs.drop(number))
		}
		e.side.forget(number)
	}
	if e.commons != nil {
		note("shared queues", e.side.releaseCommons(e.commons))
	} else {
		if e.sends != nil {
			note("completion queue", e.sends.queue.Close())
		}
		if e.recvs != nil && e.recvs != e.sends {
			note("completion queue", e.recvs.queue.Close())
		}
	}
	for _, m := range append(append(e.exposed[:], e.local[:]...), e.slots, e.control, e.revocable, e.revoked) {
		if m.region != nil {
			note("region", m.region.Close())
		}
	}
	return errors.Join(errs...)
}

// pump takes completions, checks them and posts some of the free receives. It tells
// whether it made progress.
func (e *end) pump() (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	number := e.qp.Number()
	var err error
	if e.polled, err = e.sends.take(number, e.polled[:0]); err == nil && e.recvs != e.sends {
		e.polled, err = e.recvs.take(number, e.polled)
	}
	if err != nil {
		return false, err
	}
	for _, c := range e.polled {
		if c.ID&deepData != 0 {
			e.pending = append(e.pending, c)
		} else if err := e.completed(c); err != nil {
			return false, err
		}
	}
	progress := len(e.polled) > 0
	seen := 0
	for ; seen < len(e.pending); seen++ {
		more, err := e.received(e.pending[seen])
		if err != nil {
			return false, err
		}
		if !more {
			break
		}
	}
	e.pending = e.pending[:copy(e.pending, e.pending[seen:])]
	if e.unposted > 0 && !e.recvFailed && e.random.IntN(4) == 0 {
		switch err := e.postReceives(1 + e.random.IntN(4)); {
		case err == nil:
			progress = true
		case !errors.Is(err, errFailed): // await finds out about a failure by itself
			return false, err
		}
	}
	return progress, nil
}

// await pumps until is returns true. It returns errFailed if the queue pair fails
// before that.
func (e *end) await(what string, is func() bool) error {
	end := time.Now().Add(e.side.options.Bound)
	for idle := 0; ; {
		progress, err := e.pump()
		if err != nil {
			return err
		}
		if e.failed() {
			return errFailed
		}
		if is() {
			return nil
		}
		if progress {
			idle = 0
			continue
		}
		if idle++; idle%64 == 0 {
			if time.Now().After(end) {
				return e.late(what)
			}
			select {
			case <-e.gone.Done():
				if e.ctx.Err() != nil {
					return e.ctx.Err()
				}
				// The queue pair has ended. What completed before that can be polled by now.
				if _, err := e.pump(); err != nil {
					return err
				}
				if !e.failed() && is() {
					return nil
				}
				return errFailed
			default:
			}
		}
		if idle < 256 || !e.sleeps {
			yield(idle)
			continue
		}
		if err := e.sleep(end); err != nil {
			return err
		}
		idle = 0
	}
}

func (e *end) late(what string) error {
	outstanding := 0
	for p := range e.posted {
		outstanding += len(e.posted[p]) - e.done[p]
	}
	cause := "no error"
	if err := e.qp.Err(); err != nil {
		cause = err.Error()
	}
	return fmt.Errorf("round %d: %s: not within %v: %d requests not known to be done, %d of %d messages and %d marks have come, %d receives outstanding (shared: %v) and %d to be posted, queue pair %s, %s",
		e.round, what, e.side.options.Bound, outstanding, e.expected.got, e.expected.total, e.controls, e.recvPosted-e.recvDone, e.srq != nil, e.unposted, e.qp.State(), cause)
}

// sleep waits for the event of the one queue in which a completion must come next: a
// signalled request is outstanding, or else a message is due.
func (e *end) sleep(until time.Time) error {
	e.mu.Lock()
	busy, unposted := false, e.unposted
	for p := range e.posted {
		for _, s := range e.posted[p][e.done[p]:] {
			busy = busy || s.signaled
		}
	}
	e.mu.Unlock()
	if unposted > 0 {
		runtime.Gosched() // pump posts them
		return nil
	}
	queue, solicited := e.recvs, !busy && e.controls < 2 && e.recvs != e.sends
	if busy {
		queue = e.sends
	}
	ctx, cancel := context.WithDeadline(e.gone, until)
	defer cancel()
	err := queue.wait(ctx, e.qp.Number(), solicited)
	if err == nil || e.gone.Err() != nil || errors.Is(err, context.Canceled) {
		return nil
	}
	if errors.Is(err, context.DeadlineExceeded) {
		// A completion that is there now did not wake Wait.
		if progress, perr := e.pump(); perr == nil && progress {
			return fmt.Errorf("round %d: a completion was there and Wait did not return: a lost wake-up", e.round)
		}
		return e.late("an event")
	}
	return fmt.Errorf("waiting for a completion: %w", err)
}

func (e *end) failed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, at := range e.failedAt {
		if at >= 0 {
			return true
		}
	}
	return e.recvFailed
}
