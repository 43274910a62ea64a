package history

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
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
	// Died, if set, tells whether the peer's process may have been killed by now.
	// What happens then is checked, too, and Run returns [ErrLost].
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

// ready ends a round: the sender's memory may be used again.
type ready struct {
	Mark, Round uint32
	Exposed     [exposedParts]remoteKey
	Stale       remoteKey
	Revocable   remoteKey // what the peer may revoke, where it can
}

const (
	markDone  = 0x646f6e65
	markReady = 0x72656479
)

// A sent is a request that the queue pair has taken.
type sent struct {
	id       uint64
	op       rdma.Opcode
	signaled bool
	length   int
	broken   bool
}

// An end is one end of a link while it runs.
type end struct {
	side   *Side
	role   Role
	link   Link
	ctx    context.Context
	random *rand.Rand // of choices that the peer does not know
	qp     rdma.QueuePair
	gone   context.Context // ends with the queue pair
	closed atomic.Bool     // by leave
	what   string

	sends, recvs *completions
	commons      *commons
	srq          *sharedReceives
	sleeps       bool // waits by events

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
	// revocable has a key that the peer's Sends with invalidate revoke; revoked is
	// the one before, still open and out of reach.
	revocable, revoked memory
	theirRevocable     remoteKey

	mu       sync.Mutex // guards what follows, against other posters
	round    int
	posted   [maxPosters][]sent
	done     [maxPosters]int // how many of posted are known to be done
	failedAt [maxPosters]int // the first of posted that did not succeed; -1
	failure  rdma.Status     // the one status that is neither success nor flushed
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
	controls int // of expected control messages that have come in this round
	lastMark []byte
	released bool // the peer may have begun the next round
	draining bool // the link has ended: what comes belongs to no later round
}

// matcher follows the messages of the peer's posters, each of which come in
// order.
type matcher struct {
	d      *direction
	states map[[maxPosters]int]struct{}
	spare  map[[maxPosters]int]struct{}
	total  int
	got    int
}

func (m *matcher) begin(d *direction) {
	m.d, m.got, m.total = d, 0, 0
	if m.states == nil {
		m.states, m.spare = map[[maxPosters]int]struct{}{}, map[[maxPosters]int]struct{}{}
	}
	clear(m.states)
	m.states[[maxPosters]int{}] = struct{}{}
	for p := range d.count {
		m.total += len(d.posters[p].messages)
	}
}

// match finds whose message this is. Equal messages of different posters leave
// more than one possibility.
func (m *matcher) match(c rdma.Completion, payload []byte) error {
	if m.d.count == 1 {
		want := &m.d.posters[0].messages[m.got]
		if !want.is(&c, payload, m.d) {
			return m.mismatch(&c, want)
		}
		m.got++
		return nil
	}
	clear(m.spare)
	var want *message
	for state := range m.states {
		for p := range m.d.count {
			if state[p] == len(m.d.posters[p].messages) {
				continue
			}
			if want = &m.d.posters[p].messages[state[p]]; !want.is(&c, payload, m.d) {
				continue
			}
			next := state
			next[p]++
			m.spare[next] = struct{}{}
		}
	}
	if len(m.spare) == 0 {
		return m.mismatch(&c, want)
	}
	m.states, m.spare = m.spare, m.states
	m.got++
	return nil
}

func (m *message) is(c *rdma.Completion, payload []byte, d *direction) bool {
	return c.Op == m.op && int(c.Length) == m.length && c.HasImmediate == m.immediate && (!m.immediate || c.Immediate == m.value) &&
		bytes.Equal(payload[:m.to-m.from], d.data[m.from:m.to])
}

func (m *matcher) mismatch(c *rdma.Completion, want *message) error {
	what := "nothing"
	if want != nil {
		what = fmt.Sprintf("a %s of %d bytes, immediate %v %#x, of certain content", want.op, want.length, want.immediate, want.value)
	}
	return fmt.Errorf("message %d of %d is a %s of %d bytes, immediate %v %#x; want %s", m.got, m.total, c.Op, c.Length, c.HasImmediate, c.Immediate, what)
}

// Run runs one end of a link. The function connects the queue pair, or accepts
// with it; receives have been posted. Run returns when the link has ended and
// all has been compared and closed. [ErrLost] is what a link whose peer may die
// may return; any other error is a difference from the model, or of connecting.
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
	// A region that was there, for requests that come too late.
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

// postReceives posts up to n of the receives that are due.
func (e *end) postReceives(n int) error {
	for n = min(n, e.unposted); n > 0; n-- {
		id := e.recvPosted
		at := int(id%commonPosted) * e.slot
		request := &e.receives[0]
		*request = rdma.RecvRequest{ID: deepData | id, SGEs: e.entries[:0]}
		slots := e.slots
		if e.srq != nil {
			e.srq.mu.Lock()
			if len(e.srq.free) == 0 {
				e.srq.mu.Unlock()
				return errors.New("more receives are outstanding on the shared queue than were posted")
			}
			slot := e.srq.free[len(e.srq.free)-1]
			e.srq.free = e.srq.free[:len(e.srq.free)-1]
			e.srq.mu.Unlock()
			request.ID, at, slots = deepData|uint64(slot), slot*e.slot, e.srq.slots
		}
		left := e.slot
		for i := range e.slotSGEs {
			piece := left
			if i < e.slotSGEs-1 {
				piece = e.random.IntN(left + 1)
			}
			request.SGEs = append(request.SGEs, rdma.SGE{Region: slots.region, Offset: at, Length: piece})
			at, left = at+piece, left-piece
		}
		e.entries = request.SGEs
		var taken int
		var err error
		if e.srq != nil {
			taken, err = e.srq.queue.PostRecv(e.receives[:])
		} else {
			taken, err = e.qp.PostRecv(e.receives[:])
		}
		if taken != 1 {
			if errors.Is(err, rdma.ErrState) && e.srq == nil {
				return errFailed
			}
			return fmt.Errorf("PostRecv of number %d: %d, %w", id, taken, err)
		}
		e.unposted--
		e.recvPosted++
	}
	return nil
}

// pump takes completions and looks at them. It tells whether there were any.
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
		case !errors.Is(err, errFailed): // that is seen by what waits
			return false, err
		}
	}
	return progress, nil
}

// completed checks the completion of a request.
func (e *end) completed(c rdma.Completion) error {
	p, list := int(c.ID>>32&0xff), []sent(nil)
	if p < maxPosters {
		list = e.posted[p]
	}
	index := e.done[min(p, maxPosters-1)]
	// What is not signalled completes with what comes after it, or by failing.
	for index < len(list) && list[index].id != c.ID {
		if list[index].signaled || e.failedAt[p] >= 0 {
			return fmt.Errorf("round %d: completion of request %#x (%s); %#x (%s) must come first", e.round, c.ID, c.Status, list[index].id, list[index].op)
		}
		index++
	}
	if index >= len(list) {
		return fmt.Errorf("round %d: completion of request %#x (%s), which is not outstanding", e.round, c.ID, c.Status)
	}
	s := list[index]
	switch {
	case c.QueuePair != e.qp.Number():
		return fmt.Errorf("completion of request %#x is of queue pair %d, not %d", c.ID, c.QueuePair, e.qp.Number())
	case c.Status == rdma.StatusSuccess && e.failedAt[p] >= 0:
		return fmt.Errorf("round %d: request %#x (%s) succeeds behind one that failed", e.round, c.ID, s.op)
	case c.Status == rdma.StatusSuccess && !s.signaled:
		return fmt.Errorf("round %d: request %#x (%s) completes, and nobody asked for that", e.round, c.ID, s.op)
	case c.Status == rdma.StatusSuccess && c.Op != s.op:
		return fmt.Errorf("round %d: request %#x completes as %s, it is a %s", e.round, c.ID, c.Op, s.op)
	case c.Status == rdma.StatusSuccess && fetches(s.op) && int(c.Length) != s.length:
		return fmt.Errorf("round %d: %s %#x of %d bytes completes with %d", e.round, s.op, c.ID, s.length, c.Length)
	case c.Status == rdma.StatusSuccess && s.broken && (fetches(s.op) || e.t.class[e.role] == rdma.ClassInfiniBand):
		return fmt.Errorf("round %d: request %#x (%s), which the peer must refuse, succeeds", e.round, c.ID, s.op)
	case c.Status != rdma.StatusSuccess:
		if e.failedAt[p] < 0 {
			e.failedAt[p] = index
		}
		if c.Status != rdma.StatusFlushed {
			if e.failure != rdma.StatusSuccess {
				return fmt.Errorf("round %d: request %#x completes as %s, after another as %s", e.round, c.ID, c.Status, e.failure)
			}
			if e.failedAt[p] != index {
				return fmt.Errorf("round %d: request %#x completes as %s behind one that failed; it must be flushed", e.round, c.ID, c.Status)
			}
			e.failure = c.Status
		}
		if c.Status == rdma.StatusReceiverNotReady || c.Status == rdma.StatusLocalLength || c.Status == rdma.StatusLocalProtection {
			return fmt.Errorf("round %d: request %#x (%s) completes as %s", e.round, c.ID, s.op, c.Status)
		}
	}
	e.done[p] = index + 1
	return nil
}

// received checks the completion of a receive. It reports false for one that
// belongs to a round that has not begun here.
func (e *end) received(c rdma.Completion) (bool, error) {
	number := c.ID &^ deepData
	slots, at := e.slots, int(number%commonPosted)*e.slot
	if e.expected.got == e.expected.total && e.controls == 2 && !e.draining {
		return false, nil
	}
	if e.srq == nil {
		if number != e.recvDone {
			return false, fmt.Errorf("round %d: completion of receive %d (%s), want that of %d", e.round, number, c.Status, e.recvDone)
		}
		if number >= e.recvPosted {
			return false, fmt.Errorf("completion of receive %d (%s), which is not posted", number, c.Status)
		}
	} else {
		slots, at = e.srq.slots, int(number)*e.slot
		if at+e.slot > slots.size {
			return false, fmt.Errorf("completion of receive %d of the shared queue, which was never posted", number)
		}
	}
	e.recvDone++
	if c.Status != rdma.StatusSuccess {
		if c.Status != rdma.StatusFlushed {
			if e.recvFailed {
				return false, fmt.Errorf("round %d: receive %d completes as %s behind one that failed", e.round, number, c.Status)
			}
			e.recvFailure = c.Status
		}
		e.recvFailed = true
		if e.srq != nil {
			return true, e.release(number, e.slot)
		}
		return true, nil
	}
	if e.recvFailed {
		return false, fmt.Errorf("round %d: receive %d succeeds behind one that failed", e.round, number)
	}
	if c.Op != rdma.OpRecv && c.Op != rdma.OpRecvWriteImmediate {
		return false, fmt.Errorf("round %d: receive %d completes as %s", e.round, number, c.Op)
	}
	if c.QueuePair != e.qp.Number() {
		return false, fmt.Errorf("completion of receive %d is of queue pair %d, not %d", number, c.QueuePair, e.qp.Number())
	}
	filled := 0
	if c.Op == rdma.OpRecv {
		if filled = int(c.Length); filled > e.slot {
			return false, fmt.Errorf("round %d: receive %d of %d bytes gets %d", e.round, number, e.slot, filled)
		}
	}
	memory, err := slots.read(at, e.slot)
	if err != nil {
		return false, err
	}
	if !bytes.Equal(memory[filled:], canary[:e.slot-filled]) {
		return false, fmt.Errorf("round %d: receive %d of %d bytes got %d, and memory behind them has changed", e.round, number, e.slot, filled)
	}
	switch {
	case e.expected.got == e.expected.total && e.controls == 2:
		// Of the last round, which has not begun here.
		if e.t.rounds == 0 || e.round >= e.t.rounds-1 {
			return false, fmt.Errorf("receive %d gets a message after the end", number)
		}
	case e.expected.got < e.expected.total:
		if err := e.expected.match(c, memory); err != nil {
			return false, fmt.Errorf("round %d: receive %d: %w", e.round, number, err)
		}
		e.side.Stats.Messages.Add(1)
	default:
		if c.Op != rdma.OpRecv || c.HasImmediate {
			return false, fmt.Errorf("round %d: receive %d: %s instead of the end of the round", e.round, number, c.Op)
		}
		revokes := e.controls == 0 && planRevocation(e.t, 1-e.role, e.round)
		if c.Invalidated != revokes || revokes && c.Immediate != e.revocable.region.Key() {
			return false, fmt.Errorf("round %d: receive %d: a key is revoked: %v (%#x), want %v", e.round, number, c.Invalidated, c.Immediate, revokes)
		}
		e.lastMark = append(e.lastMark[:0], memory[:filled]...)
		if err := e.controlled(); err != nil {
			return false, err
		}
		e.controls++
	}
	e.unposted++
	return true, e.release(number, filled)
}

// release makes the memory of a receive as new: so many bytes of it were written.
func (e *end) release(number uint64, written int) error {
	if e.srq == nil {
		return e.slots.write(int(number%commonPosted)*e.slot, canary[:written])
	}
	if err := e.srq.slots.write(int(number)*e.slot, canary[:written]); err != nil {
		return err
	}
	e.srq.mu.Lock()
	e.srq.free = append(e.srq.free, int(number))
	e.srq.mu.Unlock()
	return nil
}

// controlled looks at a message that is not random: the greeting, the end of the
// requests of a round, and what ends the round.
func (e *end) controlled() error {
	if e.t.rounds == 0 { // not known yet
		if len(e.lastMark) != binary.Size(e.theirs) {
			return fmt.Errorf("a greeting of %d bytes", len(e.lastMark))
		}
		_, err := binary.Decode(e.lastMark, binary.LittleEndian, &e.theirs)
		return err
	}
	var r ready
	if len(e.lastMark) != binary.Size(r) {
		return fmt.Errorf("round %d: %d bytes instead of the end of the round", e.round, len(e.lastMark))
	}
	if _, err := binary.Decode(e.lastMark, binary.LittleEndian, &r); err != nil {
		return err
	}
	if want := [...]uint32{markDone, markReady}[e.controls]; r.Mark != want || r.Round != uint32(e.round) {
		return fmt.Errorf("mark %#x of round %d, want %#x of round %d", r.Mark, r.Round, want, e.round)
	}
	if r.Mark == markReady {
		e.theirs.Exposed, e.theirs.Stale, e.theirRevocable = r.Exposed, r.Stale, r.Revocable
	}
	return nil
}

// await pumps until is comes true. It fails with errFailed if the queue pair has
// failed first.
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
				// What came before the end is there.
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

// sleep waits for an event, if one completion queue will have it for sure.
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
		// It must not be there: then the wake-up was lost.
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

// note records a request that the queue pair has taken. It needs mu.
func (e *end) note(p int, s sent) { e.posted[p] = append(e.posted[p], s) }

// post posts requests of a poster, which wait for room in the queue.
func (e *end) post(p int, requests []rdma.SendRequest, broken int) error {
	for len(requests) > 0 {
		// With the lock, so that a completion finds its request.
		e.mu.Lock()
		outstanding := 0
		for i := range e.posted {
			outstanding += len(e.posted[i]) - e.done[i]
		}
		n, err := e.qp.PostSend(requests)
		for i := range n {
			r := &requests[i]
			length := 0
			for _, sge := range r.SGEs {
				length += sge.Length
			}
			e.note(p, sent{r.ID, r.Op, r.Flags&rdma.Signaled != 0, length, i == broken})
			e.side.Stats.Ops[r.Op].Add(1)
			e.side.Stats.Bytes.Add(uint64(length))
		}
		room := e.out != nil && e.out.count == 1 && outstanding+n < e.t.depth[e.role]
		e.mu.Unlock()
		requests, broken = requests[n:], broken-n
		if len(requests) == 0 {
			return nil
		}
		switch {
		case errors.Is(err, rdma.ErrQueueFull) && room:
			return fmt.Errorf("round %d: PostSend: %w with %d requests outstanding, of %d", e.round, err, outstanding+n, e.t.depth[e.role])
		case errors.Is(err, rdma.ErrQueueFull):
			before := outstanding + n
			if err := e.await("room in the send queue", func() bool {
				e.mu.Lock()
				defer e.mu.Unlock()
				now := 0
				for i := range e.posted {
					now += len(e.posted[i]) - e.done[i]
				}
				return now < before || e.out.count > 1
			}); err != nil {
				return err
			}
			runtime.Gosched()
		case errors.Is(err, rdma.ErrState), errors.Is(err, rdma.ErrClosed) && e.closed.Load():
			return errFailed
		case errors.Is(err, rdma.ErrInvalid) && broken == 0 && e.brokenRefusal() == refuseUnaligned:
			return errUnaligned
		case err == nil:
			return fmt.Errorf("round %d: PostSend takes %d requests fewer and says nothing", e.round, len(requests))
		default:
			return fmt.Errorf("round %d: PostSend of a %s: %w", e.round, requests[0].Op, err)
		}
	}
	return nil
}

var errUnaligned = errors.New("the device finds the request wrong by itself")

func (e *end) brokenRefusal() refusal {
	if e.out == nil || e.out.brokenAt < 0 {
		return refuseNothing
	}
	return e.out.posters[0].steps[e.out.brokenAt].refusal
}

// tell sends a message that is not random, and revokes the peer's key if there
// is one.
func (e *end) tell(index int, m any, revoke ...uint32) error {
	at := index * 1024
	b, err := binary.Append(nil, binary.LittleEndian, m)
	if err != nil {
		return err
	}
	if err := e.control.write(at, b); err != nil {
		return err
	}
	r := rdma.SendRequest{
		ID: uint64(e.round+1)<<40 | uint64(1<<30+index), Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Solicited | rdma.Fence,
		SGEs: []rdma.SGE{{Region: e.control.region, Offset: at, Length: len(b)}},
	}
	for _, key := range revoke {
		r.Op, r.Remote.Key = rdma.OpSendInvalidate, key
	}
	return e.post(0, []rdma.SendRequest{r}, -1)
}

// greet exchanges what the ends must know of each other. The initiator begins,
// since on some transports only it may.
func (e *end) greet() error {
	e.round = -1
	e.controls = 1 // one message comes
	if e.role == Target {
		if err := e.await("the greeting", func() bool { return e.controls == 2 }); err != nil {
			return err
		}
	}
	a := e.side.attributes
	g := greeting{
		Seed: e.link.Seed, Rounds: uint32(e.link.Rounds), Area: uint32(e.t.area), Class: uint8(a.Class), Capabilities: uint32(a.Capabilities &^ e.side.options.Without),
		SendSGE: uint32(e.t.sendSGE[e.role]), ReadSGE: uint32(e.t.readSGE[e.role]), Inline: uint32(e.t.inline[e.role]),
		Slot: uint32(e.slot), Depth: uint32(e.t.depth[e.role]), Stale: e.stale,
		Foreign: remoteKey{e.side.forbidden.region.Address(), e.side.forbidden.region.Key()},
	}
	if e.side.options.Shallow {
		g.Shallow = 1
	}
	if e.side.options.OneWayReads {
		g.OneWayReads = 1
	}
	if e.side.options.Unfenced {
		g.Unfenced = 1
	}
	if e.side.options.LaxReads {
		g.LaxReads = 1
	}
	for part, m := range e.exposed {
		g.Exposed[part] = remoteKey{m.region.Address(), m.region.Key()}
	}
	if err := e.tell(0, &g); err != nil {
		return err
	}
	if err := e.await("the answer to the greeting", func() bool { return e.controls == 2 && e.allDone() }); err != nil {
		return err
	}
	if e.theirs.Seed != e.link.Seed || int(e.theirs.Area) != e.t.area || e.theirs.Rounds != uint32(e.link.Rounds) {
		return fmt.Errorf("the ends were given different links: %+v and %+v", g, e.theirs)
	}
	for _, each := range []struct {
		role Role
		g    *greeting
	}{{e.role, &g}, {1 - e.role, &e.theirs}} {
		t, r, g := e.t, each.role, each.g
		t.class[r], t.caps[r] = rdma.Class(g.Class), rdma.Capabilities(g.Capabilities)
		t.sendSGE[r], t.readSGE[r], t.inline[r] = int(g.SendSGE), int(g.ReadSGE), int(g.Inline)
		t.slot[r], t.depth[r] = int(g.Slot), int(g.Depth)
	}
	e.t.mayTell = g.Shallow == 0 && e.theirs.Shallow == 0
	e.t.oneWayReads = g.OneWayReads != 0 || e.theirs.OneWayReads != 0
	e.t.unfenced = g.Unfenced != 0 || e.theirs.Unfenced != 0
	e.t.laxReads = g.LaxReads != 0 || e.theirs.LaxReads != 0
	// Rounds over much memory take long.
	e.t.rounds = 1 + rand.New(rand.NewPCG(e.t.seed, 3)).IntN(max(1, e.link.Rounds/max(1, e.t.area/(32<<10))))
	e.t.endingBy = planEnding(e.t)
	e.out, e.in = newDirection(e.t, e.role), newDirection(e.t, 1-e.role)
	for part := range e.exposed {
		if err := e.writeArea(true, part, e.in.exposed, exposedPart(part, e.t.area)); err != nil {
			return err
		}
	}
	for part := range e.local {
		if err := e.writeArea(false, part, e.out.local, localPart(part, e.t.area)); err != nil {
			return err
		}
	}
	return e.barrier(change{-1, -1})
}

func (e *end) part(exposed bool, part int) memory {
	if exposed {
		return e.exposed[part]
	}
	return e.local[part]
}

func (e *end) writeArea(exposed bool, part int, model []byte, place span) error {
	return e.part(exposed, part).write(0, model[place.from:place.to])
}

func (e *end) allDone() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for p := range e.posted {
		if e.done[p] < len(e.posted[p]) {
			return false
		}
	}
	return true
}

// barrier ends a round: it does the changes, posts receives for the next one and
// exchanges the news.
func (e *end) barrier(c change) error {
	r := ready{Mark: markReady, Round: uint32(e.round)}
	if c.exposed >= 0 {
		old := e.exposed[c.exposed]
		r.Stale = remoteKey{old.region.Address(), old.region.Key()}
		place := exposedPart(c.exposed, e.t.area)
		if err := e.replace(&e.exposed[c.exposed], e.side.rights(c.exposed), e.in.exposed[place.from:place.to]); err != nil {
			return err
		}
		e.stale = r.Stale
	}
	if c.local >= 0 {
		place := localPart(c.local, e.t.area)
		if err := e.replace(&e.local[c.local], rdma.AccessLocalWrite, e.out.local[place.from:place.to]); err != nil {
			return err
		}
	}
	if err := e.renewRevocable(); err != nil {
		return err
	}
	if e.revocable.region != nil {
		r.Revocable = remoteKey{e.revocable.region.Address(), e.revocable.region.Key()}
	}
	r.Stale = e.stale
	for part, m := range e.exposed {
		r.Exposed[part] = remoteKey{m.region.Address(), m.region.Key()}
	}
	e.mu.Lock()
	// Where a Send without a receive waits, some are posted while messages come.
	// Not on a shared queue: a link that ends in the middle may not have taken
	// more than it gave, or others would wait for ever.
	n := e.unposted
	if e.srq == nil && e.t.can(rdma.CapReceiverNotReady) && e.random.IntN(2) == 0 {
		n = e.random.IntN(n + 1)
	}
	err := e.postReceives(n)
	if e.round < 0 {
		e.controls = min(e.controls, 1) // the greeting takes the place of the mark before
	}
	e.mu.Unlock()
	if err != nil {
		return err
	}
	e.released = true
	if err := e.tell(1, &r); err != nil {
		return err
	}
	return e.await("the end of the round", func() bool { return e.controls == 2 && e.allDone() })
}

// renewRevocable makes a region whose key the peer may revoke, if there is none
// or it has been revoked. The one before keeps its memory, which nobody may reach
// by the key any more: it is what stale requests name.
func (e *end) renewRevocable() error {
	if !e.t.can(rdma.CapSendInvalidate) || e.round >= 0 && !planRevocation(e.t, 1-e.role, e.round) {
		return nil
	}
	if e.revoked.region != nil {
		got, err := e.revoked.read(0, e.revoked.size)
		if err == nil {
			err = same(got, make([]byte, len(got)), "a region whose key has been revoked")
		}
		if err != nil {
			return err
		}
		if err := e.revoked.region.Close(); err != nil {
			return fmt.Errorf("close revoked region: %w", err)
		}
	}
	if e.revoked = e.revocable; e.revoked.region != nil {
		e.stale = remoteKey{e.revoked.region.Address(), e.revoked.region.Key()}
	}
	var err error
	e.revocable, err = e.side.allocate(e.t.area/2, e.side.rights(partAll)|rdma.AccessRemoteInvalidate)
	return err
}

// replace closes a region and makes a new one, which must be zeroed.
func (e *end) replace(m *memory, access rdma.Access, content []byte) error {
	size := m.size
	err := m.region.Close()
	m.region = nil
	if err != nil {
		return fmt.Errorf("close region: %w", err)
	}
	if *m, err = e.side.allocate(size, access); err != nil {
		return err
	}
	got, err := m.read(0, size)
	if err != nil {
		return err
	}
	for i, b := range got {
		if b != 0 {
			return fmt.Errorf("a new region of %d bytes holds %#x at %d", size, b, i)
		}
	}
	return m.write(0, content)
}

func (e *end) runRound() error {
	e.out.plan(e.round)
	e.in.plan(e.round)
	e.mu.Lock()
	for p := range e.posted {
		e.posted[p], e.done[p] = e.posted[p][:0], 0
	}
	e.expected.begin(e.in)
	e.controls = 0
	e.released = false
	e.mu.Unlock()
	if err := e.postRound(); err != nil {
		return err
	}
	var revoke []uint32
	if planRevocation(e.t, e.role, e.round) {
		revoke = append(revoke, e.theirRevocable.Key)
	}
	if err := e.tell(0, &ready{Mark: markDone, Round: uint32(e.round)}, revoke...); err != nil {
		return err
	}
	if err := e.await("the requests of the round", func() bool { return e.controls >= 1 && e.allDone() }); err != nil {
		return err
	}
	if err := e.compare(); err != nil {
		return fmt.Errorf("round %d: %w", e.round, err)
	}
	e.side.Stats.Rounds.Add(1)
	e.side.Stats.Answered.Add(uint64(e.in.requests()))
	planChange(e.t, 1-e.role, e.round, e.in, e.out)
	return e.barrier(planChange(e.t, e.role, e.round, e.out, e.in))
}

// compare compares all memory with the model.
func (e *end) compare() error {
	for part := range e.exposed {
		place := exposedPart(part, e.t.area)
		got, err := e.exposed[part].read(0, place.length())
		if err != nil {
			return err
		}
		if err := same(got, e.in.exposed[place.from:place.to], fmt.Sprintf("region %d that the peer works on", part)); err != nil {
			return err
		}
	}
	for part := range e.local {
		place := localPart(part, e.t.area)
		got, err := e.local[part].read(0, place.length())
		if err != nil {
			return err
		}
		if err := same(got, e.out.local[place.from:place.to], fmt.Sprintf("local region %d", part)); err != nil {
			return err
		}
	}
	return nil
}

// postRound posts what is planned, with a goroutine for each poster.
func (e *end) postRound() error {
	leaves := -1
	end := e.t.endingBy
	if e.round == e.t.rounds-1 && end.kind == endsAbruptly && end.by == e.role {
		leaves = e.random.IntN(len(e.out.posters[0].steps) + 1)
	}
	if e.out.count == 1 {
		return e.runPoster(0, leaves)
	}
	errs := make([]error, e.out.count)
	var posters sync.WaitGroup
	for p := range e.out.count {
		posters.Go(func() {
			at := -1
			if p == 0 {
				at = leaves
			}
			errs[p] = e.runPoster(p, at)
		})
	}
	posters.Wait()
	var failed error
	for _, err := range errs {
		if err != nil && (failed == nil || !errors.Is(err, errFailed)) {
			failed = err
		}
	}
	return failed
}

// errLeft says that this end has left, as planned.
var errLeft = errors.New("this end has left")

// runPoster carries out the steps of a poster; before the step leaves it ends
// the connection.
func (e *end) runPoster(p, leaves int) error {
	steps := e.out.posters[p].steps
	random := rand.New(rand.NewPCG(e.t.seed, uint64(e.round)<<8|uint64(p)))
	batch, sges := e.batches[p][:0], e.sges[p][:0]
	flush := func(broken int) error {
		err := e.post(p, batch, broken)
		e.batches[p], e.sges[p] = batch, sges
		batch, sges = batch[:0], sges[:0]
		return err
	}
	for i := range steps {
		if i == leaves {
			if err := flush(-1); err != nil {
				return err
			}
			return e.leave()
		}
		s := &steps[i]
		if s.kind == stepPost {
			var r rdma.SendRequest
			r, sges = e.request(p, i, s, sges)
			batch = append(batch, r)
			if s.refusal != refuseNothing {
				e.side.Stats.Refused[s.refusal].Add(1)
				if err := flush(len(batch) - 1); err != nil {
					return err
				}
			}
			if len(batch) < 8 && random.IntN(3) != 0 {
				continue
			}
			if err := flush(-1); err != nil {
				return err
			}
			if random.IntN(8) == 0 {
				if _, err := e.pump(); err != nil {
					return err
				}
			}
			continue
		}
		if err := flush(-1); err != nil {
			return err
		}
		switch s.kind {
		case stepFill:
			if err := e.writeLocal(e.out.spans[s.firstSpan], e.out.data[s.dataFrom:s.dataTo]); err != nil {
				return err
			}
		case stepWrong:
			if err := e.postWrong(s.wrong); err != nil {
				return err
			}
		case stepSettle:
			if err := e.settle(p, i); err != nil {
				return err
			}
		}
	}
	if err := flush(-1); err != nil {
		return err
	}
	if leaves == len(steps) {
		return e.leave()
	}
	if p == 0 && e.out.brokenAt >= 0 {
		// The queue pair must fail now.
		return e.await("the failure of the queue pair", func() bool { return false })
	}
	return nil
}

func (e *end) leave() error {
	if e.t.endingBy.close {
		e.closed.Store(true)
		if err := e.qp.Close(); err != nil {
			return fmt.Errorf("close queue pair: %w", err)
		}
	} else if err := e.qp.Disconnect(); err != nil && e.qp.State() == rdma.StateConnected {
		return fmt.Errorf("disconnect: %w", err)
	}
	return errLeft
}

// settle waits until a poster's requests are done, and looks at what they
// fetched.
func (e *end) settle(p, until int) error {
	if err := e.await("settling", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.done[p] == len(e.posted[p])
	}); err != nil {
		return err
	}
	steps := e.out.posters[p].steps
	for i := until - 1; i >= 0 && steps[i].kind != stepSettle; i-- {
		s := &steps[i]
		if !s.fetching {
			continue
		}
		// A later fill may have changed it; the last to write decides.
		want := e.out.data[s.dataFrom:s.dataTo]
		for _, piece := range e.out.spans[s.firstSpan:][:s.spanCount] {
			if e.filledAfter(steps[i+1:until], piece) {
				want = want[piece.length():]
				continue
			}
			got, err := e.readLocal(piece)
			if err != nil {
				return err
			}
			if err := same(got, want[:piece.length()], fmt.Sprintf("round %d: what %s %d has brought when it is complete", e.round, s.op, i)); err != nil {
				return err
			}
			want = want[piece.length():]
		}
	}
	return nil
}

func (e *end) filledAfter(steps []step, place span) bool {
	for i := range steps {
		if steps[i].kind == stepFill && overlaps(e.out.spans[steps[i].firstSpan:][:1], place) {
			return true
		}
	}
	return false
}

func (e *end) localPlace(s span) (memory, int) {
	part := s.from * localParts / e.t.area
	if part == localParts || s.to > localPart(part, e.t.area).to {
		part-- // an empty one at the end
	}
	return e.local[part], s.from - localPart(part, e.t.area).from
}

func (e *end) writeLocal(s span, b []byte) error {
	m, at := e.localPlace(s)
	return m.write(at, b)
}

func (e *end) readLocal(s span) ([]byte, error) {
	m, at := e.localPlace(s)
	return m.read(at, s.length())
}

// request makes the work request of a step.
func (e *end) request(p, index int, s *step, sges []rdma.SGE) (rdma.SendRequest, []rdma.SGE) {
	r := rdma.SendRequest{
		ID: uint64(e.round+1)<<40 | uint64(p)<<32 | uint64(index), Op: s.op, Flags: s.flags, Immediate: s.immediate,
		CompareAdd: s.compareAdd, Swap: s.swap,
	}
	for _, piece := range e.out.spans[s.firstSpan:][:s.spanCount] {
		m, at := e.localPlace(piece)
		sges = append(sges, rdma.SGE{Region: m.region, Offset: at, Length: piece.length()})
	}
	r.SGEs = sges[len(sges)-s.spanCount:]
	if s.op < rdma.OpWrite {
		return r, sges
	}
	key := e.theirs.Exposed[s.part]
	r.Remote = rdma.Remote{Address: key.Address + uint64(s.at-exposedPart(s.part, e.t.area).from), Key: key.Key}
	switch s.refusal {
	case refuseKey:
		r.Remote.Key ^= 1 << (e.t.seed % 32)
	case refuseStale:
		r.Remote = rdma.Remote{Address: e.theirs.Stale.Address, Key: e.theirs.Stale.Key}
	case refuseForeign:
		r.Remote = rdma.Remote{Address: e.theirs.Foreign.Address, Key: e.theirs.Foreign.Key}
	case refuseWrap:
		r.Remote.Address = math.MaxUint64 - 7
	}
	return r, sges
}

const wrongPosts = 9

// postWrong posts what must not be taken, and does no harm.
func (e *end) postWrong(which int) error {
	a, m := e.side.attributes, e.local[0]
	r := rdma.SendRequest{ID: 666, Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: rdma.Remote{Address: e.theirs.Exposed[0].Address, Key: e.theirs.Exposed[0].Key}}
	one := rdma.SGE{Region: m.region, Offset: 0, Length: 8}
	r.SGEs = []rdma.SGE{one}
	switch which {
	case 0:
		r.SGEs[0].Offset = m.size - 7
	case 1:
		r.SGEs[0].Offset = -1
	case 2:
		r.SGEs[0].Length = math.MaxInt
	case 3:
		r.Op, r.Flags = rdma.OpRead, r.Flags|rdma.Inline
	case 4:
		for range max(a.MaxSendSGE, a.MaxReadSGE) {
			r.SGEs = append(r.SGEs, one)
		}
	case 5:
		r.SGEs[0].Region = e.side.forbidden.region
	case 6:
		r.Op = 200
	case 7:
		if r.Flags |= rdma.Inline; a.MaxInline >= m.size {
			return nil
		}
		r.SGEs[0].Length = a.MaxInline + 1
	case 8:
		r.Op, r.SGEs[0].Length = rdma.OpFetchAdd, 4
	}
	e.mu.Lock()
	n, err := e.qp.PostSend([]rdma.SendRequest{r})
	e.mu.Unlock()
	e.side.Stats.WrongPosts.Add(1)
	switch {
	case n != 0:
		return fmt.Errorf("round %d: wrong post %d is taken", e.round, which)
	case errors.Is(err, rdma.ErrState), errors.Is(err, rdma.ErrClosed) && e.closed.Load():
		return errFailed
	case !errors.Is(err, rdma.ErrInvalid) && !errors.Is(err, rdma.ErrUnsupported) && !errors.Is(err, rdma.ErrQueueFull):
		return fmt.Errorf("round %d: wrong post %d: error %w, want one that wraps ErrInvalid", e.round, which, err)
	}
	return nil
}
