//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

const (
	// chain is how many requests go to the driver in one call.
	chain = 32
	// briefBytes is how much such a call may have for the driver to be through soon.
	briefBytes = 4096
	// flushPatience is how long a failed queue pair waits for the driver's next
	// completion before this side flushes the rest: drivers forget some. So long it
	// waits, too, to be told that it has its last shared receive.
	flushPatience = 100 * time.Millisecond
	// suspicion is how long a queue pair that flushes without a reason waits for
	// one to be told.
	suspicion = 200 * time.Millisecond
	// settleTries is for how many milliseconds a queue pair whose peer has left
	// still takes in answers.
	settleTries = 20
	// lingering, and twice AckTimeout beside it, is how long an identifier waits for the
	// peer to hear of the disconnect, which may be lost twice: the kernel repeats it
	// every 4.1 seconds and twice the path's life time (drivers/infiniband/core/cm.c,
	// timeout_ms), which initiate sets. The queue pair is gone by then.
	lingering = 9400 * time.Millisecond
	// retryForEverRXE is the count that rxe takes for no bound, and watchPeriod how
	// often its queue pairs are looked at then: see domain.watch.
	retryForEverRXE = 7
	watchPeriod     = 500 * time.Millisecond
	// closePatience is how long Close waits for a driver that holds on to an
	// attempt to connect. The domain's Close waits longer.
	closePatience = 50 * time.Millisecond
)

// errHere is the end that this side chose.
var errHere = fmt.Errorf("%w by this side", rdma.ErrDisconnected)

// queuePair implements [rdma.QueuePair].
//
// Its end has two steps. fail, from wherever the reason is found, changes the
// state and closes done. The goroutine end then moves the device's object to the
// error state, disconnects, waits for what the device flushes and completes
// itself what the device has forgotten.
type queuePair struct {
	domain *domain
	config rdma.QueuePairConfig
	number uint32
	tag    uint64 // marks its completions
	cookie uint64
	hw     *verbs.QP
	arena  *verbs.Arena
	link   verbs.LinkLayer
	port   uint8

	sendCQ, recvCQ *completionQueue
	shared         *sharedReceives
	readSGE        int
	errFull        error // of PostSend, made once
	errRecvFull    error

	state atomic.Uint32 // rdma.State

	sendMu    sync.Mutex
	sendList  *verbs.SendList
	sends     sendRing // its head by sendCQ's lock
	owesFence bool     // see prepare

	recvMu   sync.Mutex
	recvList *verbs.RecvList
	recvs    recvRing // its head by recvCQ's lock

	suspected atomic.Bool
	silent    atomic.Bool // nobody is to hear of what is outstanding but shared receives

	lastReceive     chan struct{} // closed when the device says that no shared receive is left with it
	lastReceiveOnce sync.Once

	mu        sync.Mutex
	err       error
	peer      string
	conn      *connection
	joined    bool // conn carries the connection
	used      bool // a set-up has begun
	closed    bool
	done      chan struct{}
	ended     chan struct{} // closed when end is through; nil before fail
	settled   chan struct{} // closed when the set-up under way is over; nil before
	destroyed chan struct{} // closed when the driver has let go

	freeing sync.Once
}

func (m *domain) NewQueuePair(config rdma.QueuePairConfig) (rdma.QueuePair, error) {
	a := &m.device.attributes
	fail := func(err error) (rdma.QueuePair, error) {
		return nil, fmt.Errorf("ibverbs: queue pair on %s: %w", a.Name, err)
	}
	if config.MaxSGE == 0 {
		config.MaxSGE = 1
	}
	if config.MaxReads == 0 {
		config.MaxReads = min(16, a.MaxReads)
	}
	config.SendDepth, config.RecvDepth = orOne(config.SendDepth), orOne(config.RecvDepth)
	for _, limit := range []struct {
		name              string
		value, from, upTo int
	}{
		{"SendDepth", config.SendDepth, 1, a.MaxQueueDepth}, {"RecvDepth", config.RecvDepth, 1, a.MaxQueueDepth},
		{"MaxSGE", config.MaxSGE, 1, max(a.MaxSendSGE, a.MaxReadSGE, a.MaxRecvSGE)},
		{"MaxInline", config.MaxInline, 0, a.MaxInline}, {"MaxReads", config.MaxReads, 1, a.MaxReads},
	} {
		if limit.value < limit.from || limit.value > limit.upTo {
			return fail(fmt.Errorf("%w: %s is %d, must be %d to %d", rdma.ErrInvalid, limit.name, limit.value, limit.from, limit.upTo))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(); err != nil {
		return fail(err)
	}
	p := &queuePair{domain: m, config: config, done: make(chan struct{}), lastReceive: make(chan struct{}), arena: verbs.NewArena(), readSGE: min(config.MaxSGE, a.MaxReadSGE)}
	for _, each := range []struct {
		of rdma.CompletionQueue
		to **completionQueue
	}{{config.SendCompletions, &p.sendCQ}, {config.RecvCompletions, &p.recvCQ}} {
		q, ok := each.of.(*completionQueue)
		if ok {
			_, ok = m.queues[q]
		}
		if !ok {
			return fail(fmt.Errorf("%w: a completion queue is missing, closed or of another domain", rdma.ErrInvalid))
		}
		*each.to = q
	}
	if config.SharedReceive != nil {
		s, ok := config.SharedReceive.(*sharedReceives)
		if ok {
			_, ok = m.shared[s]
		}
		if !ok {
			return fail(fmt.Errorf("%w: the shared receive queue is closed or of another domain", rdma.ErrInvalid))
		}
		p.shared = s
	}
	if err := p.create(); err != nil {
		if p.hw != nil {
			_ = p.hw.Destroy()
		}
		_ = p.arena.Close()
		return fail(err)
	}
	p.number = p.hw.Number()
	if p.shared != nil {
		// Devices use numbers again, and a completion of a shared receive tells no more
		// of whose it is: what a queue pair of before has left goes first.
		p.recvCQ.drain()
	}
	p.errFull = fmt.Errorf("ibverbs: post to queue pair %d: %w", p.number, rdma.ErrQueueFull)
	p.errRecvFull = fmt.Errorf("ibverbs: post a receive to queue pair %d: %w", p.number, rdma.ErrQueueFull)
	m.addPair(p)
	return p, nil
}

func orOne(n int) int {
	if n == 0 {
		return 1
	}
	return n
}

// create makes the device's object and takes it to where receives can be posted.
// The domain's lock is held.
func (p *queuePair) create() (err error) {
	m, c := p.domain, &p.config
	a := &m.device.attributes
	depth, entries := c.SendDepth, c.MaxSGE
	if m.device.driver == driverSIW {
		// For what is cut in two, see cut, and for two nudges.
		depth, entries = 2*depth+len(siwNudges), max(2, entries)
	}
	if p.sendList, err = p.arena.NewSendList(min(chain, depth), entries); err != nil {
		return err
	}
	p.sends.init(c.SendDepth)
	hw := verbs.QPConfig{
		SendCQ: p.sendCQ.hw, RecvCQ: p.recvCQ.hw, Cookie: m.newCookie(),
		SendDepth: depth, SendSGEs: min(entries, max(a.MaxSendSGE, a.MaxReadSGE)), Inline: c.MaxInline,
	}
	p.cookie = hw.Cookie
	if p.shared != nil {
		hw.SRQ = p.shared.hw
	} else {
		hw.RecvDepth, hw.RecvSGEs = c.RecvDepth, min(c.MaxSGE, a.MaxRecvSGE)
		if p.recvList, err = p.arena.NewRecvList(min(chain, c.RecvDepth), c.MaxSGE); err != nil {
			return err
		}
		p.recvs.init(c.RecvDepth)
	}
	if p.hw, err = m.pd.CreateQP(hw); err != nil {
		var errno syscall.Errno
		if errors.As(err, &errno) && errno == syscall.EINVAL {
			err = fmt.Errorf("%w: the device refuses this mixture of depths, entries and inline bytes: %w", rdma.ErrUnsupported, err)
		}
		return err
	}
	p.port, p.link = m.device.firstPort()
	return p.hw.ToInit(p.port, verbs.AccessRemoteRead|verbs.AccessRemoteWrite|p.atomicAccess())
}

func (p *queuePair) atomicAccess() verbs.Access {
	if p.domain.device.attributes.Has(rdma.CapAtomics) {
		return verbs.AccessRemoteAtomic
	}
	return 0
}

func (p *queuePair) Number() uint32        { return p.number }
func (p *queuePair) State() rdma.State     { return rdma.State(p.state.Load()) }
func (p *queuePair) Done() <-chan struct{} { return p.done }

func (p *queuePair) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// stateError is why posts fail.
func (p *queuePair) stateError(what string) error {
	state := p.State()
	if state == rdma.StateClosed {
		return fmt.Errorf("ibverbs: %s queue pair %d: %w", what, p.number, rdma.ErrClosed)
	}
	if err := p.Err(); err != nil {
		return fmt.Errorf("ibverbs: %s queue pair %d: %w: it has failed: %w", what, p.number, rdma.ErrState, err)
	}
	return fmt.Errorf("ibverbs: %s queue pair %d: %w: it is in the state %s", what, p.number, rdma.ErrState, state)
}

// PostSend implements [rdma.QueuePair].
func (p *queuePair) PostSend(requests []rdma.SendRequest) (int, error) {
	p.sendMu.Lock()
	defer p.sendMu.Unlock()
	taken := 0
	for taken < len(requests) {
		if rdma.State(p.state.Load()) != rdma.StateConnected {
			return taken, p.stateError("post to")
		}
		owed := p.owesFence
		n, places, wrong := p.prepareSends(requests[taken:])
		if n > 0 {
			// A completion may be polled before the post has returned.
			tail := p.sends.tail.Load()
			p.sends.tail.Store(tail + uint32(n))
			posted, err := p.hw.PostSend(p.sendList, places)
			if places > n {
				posted = p.whole(posted, places)
			}
			taken += posted
			if err != nil {
				p.sends.tail.Store(tail + uint32(posted))
				p.owesFence = p.owesFence || owed // what had it may be what was refused
				return taken, p.refused("post to", err, p.errFull)
			}
		}
		if wrong != nil {
			return taken, wrong
		}
	}
	if taken == 0 && rdma.State(p.state.Load()) != rdma.StateConnected {
		return 0, p.stateError("post to")
	}
	return taken, nil
}

// prepareSends fills the list with requests, as many as there is room for. It
// returns how many, and how many places of the list they take; the error is about
// the next one.
func (p *queuePair) prepareSends(requests []rdma.SendRequest) (n, places int, err error) {
	room := p.sends.room()
	tail := p.sends.tail.Load()
	bytes := 0
	p.sendList.Brief = true
	for n < len(requests) && places < p.sendList.Len() {
		if room == 0 {
			return n, places, p.errFull
		}
		used, err := p.prepare(places, tail+uint32(n), &requests[n])
		if err != nil {
			return n, places, err
		}
		if used == 0 {
			break // it needs more places than are left
		}
		for _, e := range requests[n].SGEs {
			bytes += e.Length
		}
		p.sendList.Brief = bytes <= briefBytes
		places += used
		n++
		room--
	}
	return n, places, nil
}

// whole is how many requests the first posted of the list's places hold to the
// end. A Read in two parts that only the first was posted of has not been taken:
// the part completes in silence.
func (p *queuePair) whole(posted, places int) (n int) {
	for i := range posted {
		if i+1 == places || p.sendList.At(i+1).ID != p.sendList.At(i).ID {
			n++
		}
	}
	return n
}

// operations says how each operation goes to the device.
var operations = [...]struct {
	opcode  verbs.WROpcode
	needs   rdma.Capabilities
	fetches bool // it brings data
	atomic  bool
	known   bool
}{
	rdma.OpSend:           {opcode: verbs.WRSend, known: true},
	rdma.OpSendImmediate:  {opcode: verbs.WRSendWithImmediate, needs: rdma.CapSendImmediate, known: true},
	rdma.OpWrite:          {opcode: verbs.WRWrite, known: true},
	rdma.OpWriteImmediate: {opcode: verbs.WRWriteWithImmediate, needs: rdma.CapWriteImmediate, known: true},
	rdma.OpRead:           {opcode: verbs.WRRead, fetches: true, known: true},
	rdma.OpCompareSwap:    {opcode: verbs.WRCompareSwap, needs: rdma.CapAtomics, fetches: true, atomic: true, known: true},
	rdma.OpFetchAdd:       {opcode: verbs.WRFetchAdd, needs: rdma.CapAtomics, fetches: true, atomic: true, known: true},
	rdma.OpSendInvalidate: {opcode: verbs.WRSendWithInvalidate, needs: rdma.CapSendInvalidate, known: true},
}

// prepare fills the i-th place of the list, and where siw wants it the one behind
// it, and returns how many. It is 0 if there is no other place.
func (p *queuePair) prepare(i int, seq uint32, r *rdma.SendRequest) (places int, err error) {
	a := &p.domain.device.attributes
	if int(r.Op) >= len(operations) || !operations[r.Op].known {
		return 0, p.invalid(r.Op, "it is no operation of a send queue")
	}
	op := &operations[r.Op]
	if !a.Has(op.needs) {
		return 0, fmt.Errorf("ibverbs: post to queue pair %d: %w: %s on %s", p.number, rdma.ErrUnsupported, r.Op, a.Name)
	}
	most := p.config.MaxSGE
	if op.fetches {
		most = p.readSGE
	}
	if len(r.SGEs) > most {
		return 0, p.invalid(r.Op, "it has too many entries")
	}
	wr, entries := p.sendList.At(i), p.sendList.SGEs(i)
	total, used, wrong := p.entries(entries, r.SGEs, op.fetches)
	if wrong != "" {
		return 0, p.invalid(r.Op, wrong)
	}
	if int64(total) > a.MaxMessage {
		return 0, p.invalid(r.Op, "it is longer than the device's messages")
	}
	siw := p.domain.device.driver == driverSIW
	cut := 0
	if siw {
		if cut = p.cut(entries, used, r, op.fetches); cut > 0 && op.fetches && i+1 == p.sendList.Len() {
			return 0, nil
		}
	}
	wr.Flags = 0
	if r.Flags&rdma.Inline != 0 {
		if op.fetches {
			return 0, p.invalid(r.Op, "nothing of it can be inline")
		}
		if total > p.config.MaxInline {
			return 0, p.invalid(r.Op, "it is longer than MaxInline")
		}
		wr.Flags |= verbs.SendInline
	}
	switch {
	case op.atomic:
		if len(r.SGEs) != 1 || total != 8 {
			return 0, p.invalid(r.Op, "it needs one entry of 8 bytes")
		}
		if r.Remote.Address%8 != 0 {
			return 0, p.invalid(r.Op, "its target is not aligned to 8 bytes")
		}
		wr.SetAtomic(r.Remote.Address, r.Remote.Key, r.CompareAdd, r.Swap)
	default:
		wr.SetRemote(r.Remote.Address, r.Remote.Key)
		wr.SetImmediate(r.Immediate)
	}
	if op.fetches {
		used = p.domain.atLeastOne(entries, used)
	} else if cut > 0 {
		cutEntry(entries, uint32(cut))
		used = 2
	}
	wr.ID = kindSend | p.tag | uint64(seq)
	wr.NumSGE = int32(used)
	wr.Opcode = op.opcode
	if op.fetches && total == 0 && siw {
		// siw answers a Read of nothing with as many bytes as the one before it,
		// which ends the connection. A Write of nothing does as much.
		wr.Opcode, wr.NumSGE = verbs.WRWrite, 0
	}
	// The answers of Reads come in the order of the Reads on iWARP, so that a Read
	// needs no fence, and siw does not take one. But what is behind it may rely on
	// the Reads before it: the next other request has the fence instead.
	switch {
	case op.fetches && a.Class == rdma.ClassIWARP:
		p.owesFence = p.owesFence || r.Flags&rdma.Fence != 0
	case r.Flags&rdma.Fence != 0 || p.owesFence:
		wr.Flags |= verbs.SendFence
		p.owesFence = false
	}
	if r.Flags&rdma.Solicited != 0 {
		wr.Flags |= verbs.SendSolicited
	}
	s := &p.sends.slots[seq&p.sends.mask]
	s.id, s.op, s.length, s.done = r.ID, r.Op, 0, false
	if op.fetches {
		s.length = uint32(total)
	}
	s.signaled = r.Flags&rdma.Signaled != 0
	// iWARP devices complete a later Send before an earlier Read. A completion
	// promises that all before it are done, so each Read there has to be heard of.
	s.reports = s.signaled || op.fetches && a.Class == rdma.ClassIWARP
	if siw && total >= pageSize {
		// siw hands pages to TCP without copying, and would send them as they are by
		// then, unless the request is signalled.
		s.reports = true
	}
	if cut > 0 && op.fetches {
		p.readInParts(i, cut, &r.Remote)
		i, places = i+1, 1
		wr = p.sendList.At(i)
	}
	if s.reports {
		wr.Flags |= verbs.SendSignaled
	}
	return places + 1, nil
}

// What siw sends without the application's thread, it copies into the header's
// packet if it is one entry of up to siwShort bytes, and takes the wrong bytes if
// that crosses a page (siw_try_1seg: the lengths of the two parts are exchanged).
// It does so with the answers of all Reads, and with a Send or Write that had to
// wait for what is before it.
const (
	siwShort = 32 // MAX_HDR_INLINE
	siwPage  = 4096
)

// cut is where a request has to be cut in two for siw: at a page of the source,
// after so many bytes. 0 is nowhere. A Send or Write gets two entries, which siw
// handles otherwise. Of a Read, whose source is the peer's, there must be two.
func (p *queuePair) cut(entries []verbs.SGE, used int, r *rdma.SendRequest, fetches bool) int {
	if used != 1 || entries[0].Length > siwShort || r.Flags&rdma.Inline != 0 {
		return 0
	}
	source := entries[0].Address
	if fetches {
		source = r.Remote.Address
	}
	first := siwPage - int(source%siwPage)
	if first >= int(entries[0].Length) {
		return 0
	}
	return first
}

// cutEntry makes two entries of one.
func cutEntry(entries []verbs.SGE, first uint32) {
	entries[1] = verbs.SGE{Address: entries[0].Address + uint64(first), Length: entries[0].Length - first, LKey: entries[0].LKey}
	entries[0].Length = first
}

// readInParts makes two Reads of the one at the i-th place. They have the same
// number. The first is heard of only if it fails: siw completes Reads in order.
func (p *queuePair) readInParts(i, first int, from *rdma.Remote) {
	wr, entries, next, rest := p.sendList.At(i), p.sendList.SGEs(i), p.sendList.At(i+1), p.sendList.SGEs(i+1)
	e := entries[0]
	rest[0] = verbs.SGE{Address: e.Address + uint64(first), Length: e.Length - uint32(first), LKey: e.LKey}
	entries[0].Length = uint32(first)
	next.ID, next.NumSGE, next.Opcode, next.Flags = wr.ID, 1, wr.Opcode, wr.Flags
	next.SetRemote(from.Address+uint64(first), from.Key)
	next.SetImmediate(0)
}

func (p *queuePair) invalid(op rdma.Opcode, why string) error {
	return fmt.Errorf("ibverbs: post a %s to queue pair %d: %w: %s", op, p.number, rdma.ErrInvalid, why)
}

// entries translates a list of entries, without those that are empty: some
// devices take a length of 0 for 2 GiB. It returns the length of all and how
// many there are.
func (p *queuePair) entries(to []verbs.SGE, from []rdma.SGE, written bool) (total, used int, wrong string) {
	return translateEntries(p.domain, to, from, written)
}

func translateEntries(m *domain, to []verbs.SGE, from []rdma.SGE, written bool) (total, used int, wrong string) {
	for i := range from {
		e := &from[i]
		r, ok := e.Region.(*region)
		if !ok || r == nil || r.domain != m {
			return 0, 0, "an entry has no region, or one of another domain"
		}
		if e.Length < 0 || e.Offset < 0 || e.Offset > len(r.bytes) || e.Length > len(r.bytes)-e.Offset {
			return 0, 0, "an entry is outside of its region"
		}
		if written && r.access&rdma.AccessLocalWrite == 0 {
			return 0, 0, "an entry's region has no right of local write"
		}
		if total += e.Length; total < 0 || e.Length > 1<<31-1 {
			return 0, 0, "it is too long"
		}
		if e.Length == 0 {
			continue
		}
		to[used] = verbs.SGE{Address: r.address + uint64(e.Offset), Length: uint32(e.Length), LKey: r.lkey}
		used++
	}
	return total, used, ""
}

// atLeastOne adds an empty entry where there is none and drivers want one with
// a valid key: siw does for Reads and receives.
func (m *domain) atLeastOne(entries []verbs.SGE, used int) int {
	if used > 0 || m.empty == nil {
		return used
	}
	entries[0] = verbs.SGE{Address: m.empty.address, LKey: m.empty.lkey}
	return 1
}

// refused makes an error of what the driver said to a post.
func (p *queuePair) refused(what string, err, full error) error {
	if s := rdma.State(p.state.Load()); s >= rdma.StateError {
		return p.stateError(what)
	}
	var errno syscall.Errno
	if errors.As(err, &errno) && (errno == syscall.ENOMEM || errno == syscall.EAGAIN || errno == syscall.ENOSPC) {
		return full
	}
	if errors.As(err, &errno) && errno == syscall.ENOTCONN {
		p.suspect(errNoReason)
		return fmt.Errorf("ibverbs: %s queue pair %d: %w: %w", what, p.number, rdma.ErrState, err)
	}
	return fmt.Errorf("ibverbs: %s queue pair %d: %w: %w", what, p.number, rdma.ErrInvalid, err)
}

// PostRecv implements [rdma.QueuePair].
func (p *queuePair) PostRecv(requests []rdma.RecvRequest) (int, error) {
	if p.shared != nil {
		return 0, fmt.Errorf("ibverbs: post a receive to queue pair %d: %w: its receives come from the shared receive queue", p.number, rdma.ErrInvalid)
	}
	p.recvMu.Lock()
	defer p.recvMu.Unlock()
	taken := 0
	for taken < len(requests) {
		if rdma.State(p.state.Load()) > rdma.StateConnected {
			return taken, p.stateError("post a receive to")
		}
		n, wrong := p.prepareRecvs(requests[taken:])
		if n > 0 {
			tail := p.recvs.tail.Load()
			p.recvs.tail.Store(tail + uint32(n))
			posted, err := p.hw.PostRecv(p.recvList, n)
			taken += posted
			if err != nil {
				p.recvs.tail.Store(tail + uint32(posted))
				return taken, p.refused("post a receive to", err, p.errRecvFull)
			}
		}
		if wrong != nil {
			return taken, wrong
		}
	}
	if taken == 0 && rdma.State(p.state.Load()) > rdma.StateConnected {
		return 0, p.stateError("post a receive to")
	}
	return taken, nil
}

func (p *queuePair) prepareRecvs(requests []rdma.RecvRequest) (int, error) {
	room, tail := p.recvs.room(), p.recvs.tail.Load()
	n := min(len(requests), p.recvList.Len())
	for i := range n {
		if room == 0 {
			return i, p.errRecvFull
		}
		r := &requests[i]
		wr := p.recvList.At(i)
		if len(r.SGEs) > p.config.MaxSGE {
			return i, p.invalid(rdma.OpRecv, "it has too many entries")
		}
		entries := p.recvList.SGEs(i)
		_, used, wrong := p.entries(entries, r.SGEs, true)
		if wrong != "" {
			return i, p.invalid(rdma.OpRecv, wrong)
		}
		used = p.domain.atLeastOne(entries, used)
		seq := tail + uint32(i)
		wr.ID = kindRecv | p.tag | uint64(seq)
		wr.NumSGE = int32(used)
		p.recvs.ids[seq&p.recvs.mask] = r.ID
		room--
	}
	return n, nil
}

// sent takes a completion of the send queue. The completion queue's lock is held.
func (p *queuePair) sent(q *completionQueue, wc *verbs.WC) {
	status := p.outcome(wc)
	if !p.sends.report(uint32(wc.ID), status) {
		return
	}
	p.tellSends(q, false)
	if status != rdma.StatusSuccess {
		p.bad(wc, status)
	}
}

// outcome is the status of a completion. On iWARP a driver's own error of a
// request that was under way when the connection ended is what others flush.
func (p *queuePair) outcome(wc *verbs.WC) rdma.Status {
	status := translate(wc.Status)
	if status == rdma.StatusLocalOperation && p.domain.device.attributes.Class == rdma.ClassIWARP {
		return rdma.StatusFlushed
	}
	return status
}

// tellSends tells of requests that are done, or, with flush, of all. It returns
// how many the device has forgotten.
func (p *queuePair) tellSends(q *completionQueue, flush bool) (forgotten int) {
	for {
		s, tell, lost, ok := p.sends.next(flush)
		if !ok {
			return forgotten
		}
		if lost {
			forgotten++
		}
		if tell && !p.silent.Load() {
			q.emit(rdma.Completion{ID: s.id, QueuePair: p.number, Length: s.length, Op: s.op, Status: s.status})
		}
	}
}

// received takes a completion of the receive queue. The lock is held.
func (p *queuePair) received(q *completionQueue, wc *verbs.WC) {
	seq := uint32(wc.ID)
	if !p.recvs.has(seq) {
		return
	}
	for p.recvs.head.Load() != seq {
		// The device takes receives in order: this one is forgotten.
		id, _ := p.recvs.next()
		p.domain.device.provider.counters.lostCompletions.Add(1)
		p.tellRecv(q, id, nil, rdma.StatusFlushed)
	}
	id, _ := p.recvs.next()
	p.endRecv(q, id, wc)
}

// endRecv tells of a receive that the device has completed.
func (p *queuePair) endRecv(q *completionQueue, id uint64, wc *verbs.WC) {
	status := translate(wc.Status)
	switch status {
	case rdma.StatusSuccess:
		p.tellRecv(q, id, wc, status)
	case rdma.StatusRemoteAccess, rdma.StatusRemoteInvalid, rdma.StatusRemoteOperation:
		// rxe ends a receive so when a request of the peer that has nothing to do
		// with it is refused.
		p.tellRecv(q, id, wc, rdma.StatusFlushed)
		p.fail(fmt.Errorf("a request of the peer was refused: %s", status), rdma.EventQueuePairError, true)
	default:
		p.tellRecv(q, id, wc, status)
		p.bad(wc, status)
	}
}

func (p *queuePair) tellRecv(q *completionQueue, id uint64, wc *verbs.WC, status rdma.Status) {
	if p.silent.Load() && p.shared == nil {
		return
	}
	c := rdma.Completion{ID: id, QueuePair: p.number, Op: rdma.OpRecv, Status: status}
	if status == rdma.StatusSuccess {
		c.Length = wc.Length
		if wc.Opcode == verbs.WCRecvWriteWithImmediate {
			c.Op = rdma.OpRecvWriteImmediate
		}
		if wc.Flags&verbs.WCWithImmediate != 0 {
			c.HasImmediate, c.Immediate = true, wc.Immediate()
		}
	}
	q.emit(c)
}

// bad hears of a completion that is not a success.
func (p *queuePair) bad(wc *verbs.WC, status rdma.Status) {
	if status == rdma.StatusFlushed {
		p.suspect(errNoReason)
		return
	}
	kind := rdma.EventQueuePairError
	if status == rdma.StatusRetryExceeded {
		kind = rdma.EventDisconnected
	}
	err := reason(status)
	if wc.VendorError != 0 {
		err = fmt.Errorf("%w (the device's code is %#x)", err, wc.VendorError)
	}
	p.fail(err, kind, true)
}

// errNoReason is what there is to say when nothing else is heard.
var errNoReason = errors.New("the device has flushed it and gives no reason")

// suspect sees that the queue pair has come to its end, without the reason. That
// is usually on its way: an event of the connection manager or of the device. If
// it does not come, it is why.
func (p *queuePair) suspect(why error) {
	if rdma.State(p.state.Load()) >= rdma.StateError || p.suspected.Swap(true) {
		return
	}
	p.domain.background.Go(func() {
		timer := time.NewTimer(suspicion)
		defer timer.Stop()
		select {
		case <-p.done:
		case <-timer.C:
			p.fail(why, rdma.EventQueuePairError, true)
		}
	})
}

// look fails a connected queue pair that the device holds for failed.
func (p *queuePair) look() {
	p.mu.Lock()
	if p.State() != rdma.StateConnected {
		p.mu.Unlock()
		return
	}
	// The device's object is there as long as the state is that.
	a, err := p.hw.Query()
	p.mu.Unlock()
	if err != nil || a.State != verbs.QPError {
		return
	}
	// If a request has failed, its completion is there, and tells more.
	p.sendCQ.drain()
	p.recvCQ.drain()
	p.fail(errors.New("the device has refused a request of the peer"), rdma.EventQueuePairError, true)
}

// fail ends the queue pair, once. tell raises the event.
func (p *queuePair) fail(reason error, kind rdma.EventKind, tell bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failLocked(reason, kind, tell)
}

func (p *queuePair) failLocked(reason error, kind rdma.EventKind, tell bool) bool {
	if rdma.State(p.state.Load()) >= rdma.StateError {
		return false
	}
	towards := ""
	if p.peer != "" {
		towards = " to " + p.peer
	}
	p.err = fmt.Errorf("ibverbs: queue pair %d%s on %s: %w", p.number, towards, p.domain.device.attributes.Name, reason)
	p.state.Store(uint32(rdma.StateError))
	p.ended = make(chan struct{})
	close(p.done)
	if tell {
		c := &p.domain.device.provider.counters
		if kind == rdma.EventDisconnected {
			c.disconnects.Add(1)
		} else {
			c.queuePairErrors.Add(1)
		}
		p.domain.events.Add(rdma.Event{Kind: kind, QueuePair: p, Err: p.err})
	}
	p.domain.background.Go(p.end)
	return true
}

// end follows fail in a goroutine of its own.
func (p *queuePair) end() {
	defer close(p.ended)
	// Posts that saw the state before are through after this.
	p.sendMu.Lock()
	p.sendMu.Unlock() //nolint:staticcheck // the passing through is the point
	p.recvMu.Lock()
	p.recvMu.Unlock() //nolint:staticcheck // as above
	p.mu.Lock()
	c, joined := p.conn, p.joined
	p.mu.Unlock()
	if joined && c.heardDisconnect() {
		p.settle()
	}
	failed := p.hw.ToError()
	if c != nil && joined {
		// The peer of some devices hears nothing otherwise, and an answer to its
		// own disconnect is due.
		_ = c.id.Disconnect()
	}
	if !p.silent.Load() {
		p.awaitFlush(failed == nil)
	}
	if p.shared != nil && joined && failed == nil {
		p.awaitShared()
	}
	if !p.silent.Load() {
		p.flush()
	}
}

// awaitShared tells of the shared receives that the device took for the queue
// pair and has not filled. It flushes them in the error state, and forgets them
// when the queue pair is reset or destroyed. How many there are only the device
// knows; that it is through it tells by an event, "last work request reached"
// (InfiniBand volume 1, section 11.6.3), which siw, and rxe before Linux 6.10,
// lack: those are given a moment.
func (p *queuePair) awaitShared() {
	if p.shared.outstanding() > 0 {
		timer := time.NewTimer(flushPatience)
		defer timer.Stop()
		select {
		case <-p.lastReceive:
		case <-timer.C:
		}
	}
	p.recvCQ.drain()
}

// settle gives answers that the peer sent before it disconnected a moment to be
// taken in: they tell more than a flush.
func (p *queuePair) settle() {
	for range settleTries {
		if p.sends.outstanding() == 0 || p.silent.Load() {
			return
		}
		p.sendCQ.drain()
		time.Sleep(time.Millisecond)
	}
}

func (p *queuePair) outstanding() uint32 { return p.sends.outstanding() + p.recvs.outstanding() }

// awaitFlush takes what the device flushes until that is all or no more comes.
func (p *queuePair) awaitFlush(comes bool) {
	left, since, pause := p.outstanding(), time.Now(), 50*time.Microsecond
	for comes && left > 0 && !p.silent.Load() {
		p.sendCQ.drain()
		if p.recvCQ != p.sendCQ {
			p.recvCQ.drain()
		}
		now := p.outstanding()
		if now == 0 {
			return
		}
		if now != left {
			left, since, pause = now, time.Now(), 50*time.Microsecond
			continue
		}
		if time.Since(since) > flushPatience {
			break
		}
		time.Sleep(pause)
		pause = min(2*pause, 5*time.Millisecond)
	}
}

// flush completes what the device has forgotten.
func (p *queuePair) flush() {
	if p.outstanding() > 0 {
		// After this the device touches no memory of the requests. Drivers that
		// refuse it have closed the connection's socket by now.
		_ = p.hw.Reset()
	}
	lost := 0
	p.sendCQ.mu.Lock()
	p.sendCQ.pollDevice()
	before := p.sends.outstanding()
	lost += p.tellSends(p.sendCQ, true)
	if before > 0 {
		p.sendCQ.notify()
	}
	p.sendCQ.mu.Unlock()
	p.recvCQ.mu.Lock()
	p.recvCQ.pollDevice()
	for p.shared == nil {
		id, ok := p.recvs.next()
		if !ok {
			break
		}
		lost++
		p.tellRecv(p.recvCQ, id, nil, rdma.StatusFlushed)
		p.recvCQ.notify()
	}
	p.recvCQ.mu.Unlock()
	p.domain.device.provider.counters.lostCompletions.Add(uint64(lost))
}

// Disconnect implements [rdma.QueuePair].
func (p *queuePair) Disconnect() error {
	if p.State() == rdma.StateInit {
		return fmt.Errorf("ibverbs: disconnect queue pair %d: %w: it is not connected", p.number, rdma.ErrState)
	}
	p.fail(errHere, 0, false)
	return nil
}

// Close implements [rdma.QueuePair].
func (p *queuePair) Close() error {
	p.mu.Lock()
	if p.closed {
		destroyed := p.destroyed
		p.mu.Unlock()
		if destroyed != nil {
			p.awaitDestroyed(destroyed)
		}
		return nil
	}
	p.closed = true
	p.silent.Store(true)
	p.destroyed = make(chan struct{})
	p.failLocked(errHere, 0, false)
	ended, settled := p.ended, p.settled
	p.mu.Unlock()
	<-ended
	if settled != nil {
		<-settled
	}
	// From here on no completion of it is told of.
	p.domain.dropPair(p)
	p.mu.Lock()
	p.state.Store(uint32(rdma.StateClosed))
	c := p.conn
	p.mu.Unlock()
	p.domain.background.Go(func() {
		defer close(p.destroyed)
		p.letGo(c)
	})
	p.awaitDestroyed(p.destroyed)
	return nil
}

// letGo frees what the driver has, once. A second caller waits for the first.
func (p *queuePair) letGo(c *connection) {
	p.freeing.Do(func() {
		m := p.domain
		p.mu.Lock()
		joined := p.joined
		p.mu.Unlock()
		if joined && m.device.attributes.Class == rdma.ClassInfiniBand && m.removedError() == nil {
			// The identifier repeats the disconnect if that is lost.
			m.freePair(p)
			m.background.Go(func() {
				c.linger(lingering + 2*m.device.provider.config.AckTimeout)
				c.close()
				<-c.gone
			})
			return
		}
		if c != nil {
			c.close()
			<-c.gone
		}
		m.freePair(p)
	})
}

// abandon frees what the driver has of a queue pair that has failed. The
// application still has to close it.
func (p *queuePair) abandon() {
	p.mu.Lock()
	ended, settled := p.ended, p.settled
	p.mu.Unlock()
	<-ended
	if settled != nil {
		<-settled
	}
	p.mu.Lock()
	c := p.conn
	p.mu.Unlock()
	p.letGo(c)
}

// awaitDestroyed waits until the driver has let go. Some hold on to an attempt to
// connect that was given up until the peer answers: the queue pair has failed by
// then and touches nothing, so that the domain's Close can wait instead.
func (p *queuePair) awaitDestroyed(destroyed chan struct{}) {
	p.mu.Lock()
	patient := p.joined || p.conn == nil
	p.mu.Unlock()
	if patient {
		<-destroyed
		return
	}
	timer := time.NewTimer(closePatience)
	defer timer.Stop()
	select {
	case <-destroyed:
	case <-timer.C:
	}
}

// begin claims the queue pair for a set-up. The function that it returns ends
// that.
func (p *queuePair) begin(peer string) (settle func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("queue pair %d: %w", p.number, rdma.ErrClosed)
	}
	if p.used || p.State() != rdma.StateInit {
		return nil, fmt.Errorf("queue pair %d: %w: it is or was connected, make another", p.number, rdma.ErrState)
	}
	p.used, p.peer = true, peer
	p.settled = make(chan struct{})
	return func() { close(p.settled) }, nil
}

// join makes the queue pair connected by c.
func (p *queuePair) join(c *connection) error {
	p.mu.Lock()
	if p.State() != rdma.StateInit {
		err := p.err
		p.mu.Unlock()
		return err
	}
	p.joined = true
	p.state.Store(uint32(rdma.StateConnected))
	p.mu.Unlock()
	c.join(p)
	return nil
}

// Connect implements [rdma.QueuePair].
func (p *queuePair) Connect(ctx context.Context, address string, private []byte) ([]byte, error) {
	reply, err := p.connect(ctx, address, private)
	if err != nil {
		return nil, fmt.Errorf("ibverbs: connect to %s from %s: %w", address, p.domain.device.attributes.Name, err)
	}
	return reply, nil
}
