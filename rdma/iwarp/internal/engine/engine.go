package engine

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/cq"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/mem"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

// MaxMessage is the length of the longest message, in bytes.
const MaxMessage = 1 << 30

// Config is what an engine stands on.
type Config struct {
	Number          uint32
	Owner           mem.Owner
	Regions         *mem.Table
	SendCompletions *cq.Queue
	RecvCompletions *cq.Queue
	Receives        *RecvQueue
	// SharedReceives says that Receives belongs to others, too, and is neither
	// closed nor flushed.
	SharedReceives bool

	SendDepth, MaxSGE, MaxInline int
	// Extensions tells about the operations of RFC 7306.
	Extensions Extensions
	// SinkTag is the tag of the first Read's destination; the following ones
	// count on. It opens nothing: responses are matched to their requests.
	SinkTag uint32

	// OnFail is called once, with the engine locked, when the queue pair leaves
	// the connected state or fails before it. farewell says that a Terminate
	// is to be written.
	OnFail func(farewell bool)
	// OnReceive is called, without locks, by whoever posts the receive that a
	// message has waited for. [Engine.Resume] is to follow. It may be called while
	// the reader is still about to wait.
	OnReceive func()
}

// Engine is the state of one queue pair. PostSend, Fail, State and Err may be
// called concurrently with everything. Direct, Placed, Feed, Waiting, Resume, End
// and Flush belong to the reader; Fill, Written and WriteFailed to the writer.
type Engine struct {
	cfg  Config
	used atomic.Int32 // places of the send queue, until completions are polled

	mu     sync.Mutex
	state  rdma.State
	err    error
	params Params

	// The send queue. Indexes only grow; a request's place is its index modulo
	// the depth. head <= written <= next <= tail.
	requests   []request
	head       uint64 // oldest request without a completion (or its equivalent)
	written    uint64 // requests before it are in the byte stream
	next       uint64 // next to start
	tail       uint64
	unreleased int32 // requests done without a completion since the last one
	failed     uint64
	failure    rdma.Status // of the request failed, if not StatusSuccess

	// Reads that wait for their response, oldest first.
	reads             []read
	readHead, readEnd uint64

	// Reads of the peer that wait for their turn.
	responses         []response
	respHead, respEnd uint64

	current      message
	extended     knowledge // whether the peer has RFC 7306
	probing      bool      // a Read is under way that will tell
	announce     bool      // to be sent
	announced    bool
	ready        Ready // still to be sent
	hold         bool  // nothing may be sent before the peer's first FPDU
	respondFirst bool  // whose turn it is
	sendMSN      uint32
	readMSN      uint32
	atomicMSN    uint32
	terminate    *wire.Terminate

	markers *markerWriter // the writer's; nil without markers
	writing bool          // somebody has the writer's role
	txDead  bool          // the stream takes nothing more
	txErr   error
	stopped chan struct{}
	ended   bool // stopped is closed

	rx receiver
}

type request struct {
	id               uint64
	op               rdma.Opcode
	flags            rdma.Flags
	done             bool
	length           uint32
	remote           rdma.Remote
	immediate        uint32
	compareAdd, swap uint64
	pieces           []piece // capacity MaxSGE
	inline           []byte  // capacity MaxInline
}

// answered tells whether the peer answers the request.
func (r *request) answered() bool {
	return r.op == rdma.OpRead || r.op == rdma.OpCompareSwap || r.op == rdma.OpFetchAdd
}

// read is a Read of this side that has been started, or an atomic operation.
type read struct {
	request  uint64
	atomic   bool // tag is the identifier of its request
	internal bool // the ready-to-receive message or a probe: belongs to no request
	probe    bool // what comes before its response tells what the peer has
	tag      uint32
	to       piece
	length   uint32
	got      uint32
}

// response is a Read of the peer or an atomic operation.
type response struct {
	request wire.ReadRequest
	atomic  bool
	change  wire.AtomicRequest // carried out when its turn comes
	segment wire.Segment       // of the request, for a Terminate
	region  *mem.Region
	offset  int
}

type messageKind uint8

const (
	messageSend messageKind = iota // Send or Write: done once it is written
	messageRead
	messageResponse
	messageReady
	messageTerminate
)

// message is what is being cut into segments.
type message struct {
	active  bool
	kind    messageKind
	index   uint64 // of the request or the response
	segment wire.Segment
	body    []byte // the rest of a body that is to be copied
	pieces  []piece
	piece   int // the next byte is in pieces[piece]
	at      int // at this offset
	left    int // bytes still to be sent
	buffer  [wire.MaxTerminateSize]byte
}

// New makes the engine of a queue pair that is not connected yet.
func New(cfg Config) *Engine {
	e := &Engine{
		cfg: cfg, stopped: make(chan struct{}),
		requests: make([]request, cfg.SendDepth),
		sendMSN:  wire.FirstMSN, readMSN: wire.FirstMSN, atomicMSN: wire.FirstMSN,
	}
	pieces := make([]piece, cfg.SendDepth*cfg.MaxSGE)
	inline := make([]byte, cfg.SendDepth*cfg.MaxInline)
	for i := range e.requests {
		r := &e.requests[i]
		r.pieces = pieces[i*cfg.MaxSGE : i*cfg.MaxSGE : (i+1)*cfg.MaxSGE]
		r.inline = inline[i*cfg.MaxInline : i*cfg.MaxInline : (i+1)*cfg.MaxInline]
	}
	e.rx.init(cfg.Receives.MaxSGE(), cfg.OnReceive)
	return e
}

// Start connects the queue pair. It fails if it was closed meanwhile or used
// before. A kick asks the caller to take the writer's role.
func (e *Engine) Start(p Params) (kick bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != rdma.StateInit {
		return false, fmt.Errorf("%w: it is %s", rdma.ErrState, e.state)
	}
	e.state = rdma.StateConnected
	e.params = p
	e.reads = make([]read, max(p.ORD, 1))
	e.responses = make([]response, max(p.IRD, 1))
	e.hold = !p.Initiator && !p.SpeakFirst
	if p.Initiator {
		e.ready = p.Ready
	}
	e.startExtensions(p.Initiator)
	if p.SendMarkers {
		e.markers = &markerWriter{}
		e.params.MaxULPDU = min(p.MaxULPDU, markedULPDU)
	}
	e.rx.start(p)
	return e.claim(), nil
}

// State is where the queue pair stands.
func (e *Engine) State() rdma.State {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state
}

// Err tells why the queue pair failed.
func (e *Engine) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// PostSend is [rdma.QueuePair.PostSend]. A kick asks the caller to take the
// writer's role.
func (e *Engine) PostSend(requests []rdma.SendRequest) (n int, kick bool, err error) {
	e.mu.Lock()
	for n = range requests {
		if err = e.post(&requests[n]); err != nil {
			kick = n > 0 && e.claim()
			e.mu.Unlock()
			return n, kick, err
		}
	}
	kick = e.claim()
	e.mu.Unlock()
	return len(requests), kick, nil
}

func (e *Engine) post(r *rdma.SendRequest) error {
	if e.state != rdma.StateConnected {
		return rdma.ErrState
	}
	switch r.Op {
	case rdma.OpSend, rdma.OpSendInvalidate, rdma.OpWrite:
	case rdma.OpRead:
		if r.Flags&rdma.Inline != 0 {
			return fmt.Errorf("%w: a Read cannot be inline", rdma.ErrInvalid)
		}
		if len(r.SGEs) > 1 {
			return fmt.Errorf("%w: a Read has %d entries, iWARP allows one", rdma.ErrInvalid, len(r.SGEs))
		}
		if e.params.ORD == 0 {
			return fmt.Errorf("%w: the peer serves no Reads", rdma.ErrUnsupported)
		}
	case rdma.OpWriteImmediate:
		if err := e.unextended(r.Op); err != nil {
			return err
		}
	case rdma.OpCompareSwap, rdma.OpFetchAdd:
		if err := e.unextended(r.Op); err != nil {
			return err
		}
		if r.Flags&rdma.Inline != 0 || len(r.SGEs) != 1 || r.SGEs[0].Length != 8 || r.Remote.Address%8 != 0 {
			return fmt.Errorf("%w: %s needs one entry of 8 bytes, not inline, and an address that is a multiple of 8", rdma.ErrInvalid, r.Op)
		}
		if e.params.ORD == 0 {
			return fmt.Errorf("%w: the peer serves no atomics", rdma.ErrUnsupported)
		}
	case rdma.OpSendImmediate:
		return fmt.Errorf("%w: %s", rdma.ErrUnsupported, r.Op)
	default:
		return fmt.Errorf("%w: operation %d is none of the send queue", rdma.ErrInvalid, r.Op)
	}
	if len(r.SGEs) > e.cfg.MaxSGE {
		return fmt.Errorf("%w: a request of %d entries, at most %d", rdma.ErrInvalid, len(r.SGEs), e.cfg.MaxSGE)
	}
	if int(e.used.Load()) >= e.cfg.SendDepth {
		return rdma.ErrQueueFull
	}
	slot := &e.requests[e.tail%uint64(len(e.requests))]
	var need rdma.Access
	if r.Op == rdma.OpRead || r.Op == rdma.OpCompareSwap || r.Op == rdma.OpFetchAdd {
		need = rdma.AccessLocalWrite
	}
	pieces, length, err := resolve(slot.pieces[:0], e.cfg.Owner, r.SGEs, need)
	if err != nil {
		return err
	}
	if length > MaxMessage {
		return fmt.Errorf("%w: a message of %d bytes, at most %d", rdma.ErrInvalid, length, MaxMessage)
	}
	slot.inline = slot.inline[:0]
	if r.Flags&rdma.Inline != 0 {
		if length > int64(e.cfg.MaxInline) {
			return fmt.Errorf("%w: %d bytes inline, at most %d", rdma.ErrInvalid, length, e.cfg.MaxInline)
		}
		for _, p := range pieces {
			if !p.region.Pin() {
				return fmt.Errorf("%w: the region is closed", rdma.ErrInvalid)
			}
			slot.inline = append(slot.inline, p.region.Bytes()[p.offset:p.offset+p.length]...)
			p.region.Unpin()
		}
		pieces = pieces[:0]
	}
	slot.id, slot.op, slot.flags, slot.done = r.ID, r.Op, r.Flags, false
	slot.length, slot.remote, slot.pieces = uint32(length), r.Remote, pieces
	slot.immediate, slot.compareAdd, slot.swap = r.Immediate, r.CompareAdd, r.Swap
	e.tail++
	e.used.Add(1)
	return nil
}

func (e *Engine) slot(index uint64) *request { return &e.requests[index%uint64(len(e.requests))] }

// claim takes the writer's role if nobody has it and there is something to do.
func (e *Engine) claim() bool {
	if e.writing || e.txDead || !e.work() {
		return false
	}
	e.writing = true
	return true
}

// Kick is claim for the reader, after Feed.
func (e *Engine) Kick() bool {
	if !e.rx.kick {
		return false
	}
	e.rx.kick = false
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.claim()
}

func (e *Engine) work() bool {
	if e.terminate != nil {
		return true
	}
	if e.state != rdma.StateConnected {
		return false
	}
	return e.current.active || e.ready != ReadyNone || e.announce ||
		!e.hold && (e.respHead != e.respEnd || e.startable())
}

// startable tells whether the next request of the send queue may begin.
func (e *Engine) startable() bool {
	if e.next == e.tail {
		return false
	}
	r := e.slot(e.next)
	pending := e.readEnd - e.readHead
	if extension(r.op) && e.extended != known {
		return e.decidable(pending)
	}
	if r.flags&rdma.Fence != 0 && pending > 0 {
		return false
	}
	return !r.answered() || pending < uint64(e.params.ORD)
}

// pick chooses the next message.
func (e *Engine) pick() bool {
	m := &e.current
	// Reads that were admitted before the error are still answered.
	if e.terminate != nil && e.respHead == e.respEnd {
		m.active, m.kind, m.pieces = true, messageTerminate, m.pieces[:0]
		m.segment = wire.Segment{Opcode: wire.OpTerminate, Queue: wire.QueueTerminate, MSN: wire.FirstMSN}
		m.body = e.terminate.Append(m.buffer[:0])
		m.left = len(m.body)
		e.terminate = nil
		return true
	}
	if !e.work() {
		return false
	}
	if e.ready != ReadyNone {
		e.pickReady()
		return true
	}
	if e.announce {
		e.pickAnnouncement()
		return true
	}
	respond := e.respHead != e.respEnd
	if respond && (e.respondFirst || e.terminate != nil || !e.startable()) {
		e.respondFirst = false
		r := &e.responses[e.respHead%uint64(len(e.responses))]
		m.active, m.kind, m.index = true, messageResponse, e.respHead
		if r.atomic {
			e.pickAtomicResponse(r)
			return true
		}
		m.segment = wire.Segment{Tagged: true, Opcode: wire.OpReadResponse,
			STag: r.request.SinkSTag, Offset: r.request.SinkOffset}
		m.body, m.piece, m.at, m.left = nil, 0, 0, int(r.request.Length)
		m.pieces = m.pieces[:0]
		if m.left > 0 {
			m.pieces = append(m.pieces, piece{r.region, r.offset, m.left})
		}
		return true
	}
	e.respondFirst = true
	e.pickRequest()
	return true
}

func (e *Engine) pickRequest() {
	m, r := &e.current, e.slot(e.next)
	if extension(r.op) && e.extended != known {
		e.decide(r)
		return
	}
	m.active, m.kind, m.index = true, messageSend, e.next
	m.piece, m.at, m.left = 0, 0, int(r.length)
	m.body = r.inline
	m.pieces = append(m.pieces[:0], r.pieces...)
	switch r.op {
	case rdma.OpSend, rdma.OpSendInvalidate:
		m.segment = wire.Segment{Opcode: wire.OpSend, Queue: wire.QueueSend, MSN: e.sendMSN}
		solicited := r.flags&rdma.Solicited != 0
		switch {
		case r.op == rdma.OpSendInvalidate && solicited:
			m.segment.Opcode, m.segment.STag = wire.OpSendSolicitedInvalidate, r.remote.Key
		case r.op == rdma.OpSendInvalidate:
			m.segment.Opcode, m.segment.STag = wire.OpSendInvalidate, r.remote.Key
		case solicited:
			m.segment.Opcode = wire.OpSendSolicited
		}
		e.sendMSN++
	case rdma.OpWrite, rdma.OpWriteImmediate:
		m.segment = wire.Segment{Tagged: true, Opcode: wire.OpWrite, STag: r.remote.Key, Offset: r.remote.Address}
	case rdma.OpRead:
		to := piece{}
		if len(r.pieces) > 0 {
			to = r.pieces[0]
		}
		e.startRead(read{request: e.next, to: to, length: r.length}, r.remote)
	case rdma.OpCompareSwap, rdma.OpFetchAdd:
		e.startAtomic(r)
	}
	e.next++
}

// startAtomic makes the current message the Atomic Request of r.
func (e *Engine) startAtomic(r *request) {
	rd := read{request: e.next, atomic: true, tag: uint32(e.readEnd), to: r.pieces[0], length: r.length}
	e.reads[e.readEnd%uint64(len(e.reads))] = rd
	e.readEnd++
	change := wire.AtomicRequest{Op: wire.AtomicFetchAdd, ID: rd.tag, STag: r.remote.Key, Offset: r.remote.Address, AddSwap: r.compareAdd}
	if r.op == rdma.OpCompareSwap {
		change.Op, change.AddSwap, change.Compare = wire.AtomicCompareSwap, r.swap, r.compareAdd
		change.AddSwapMask, change.CompareMask = ^uint64(0), ^uint64(0)
	}
	m := &e.current
	m.kind = messageRead
	m.segment = wire.Segment{Opcode: wire.OpAtomicRequest, Queue: wire.QueueReadRequest, MSN: e.readMSN}
	e.readMSN++
	m.body = change.Append(m.buffer[:0])
	m.left = len(m.body)
	m.pieces = m.pieces[:0]
}

// pickAtomicResponse carries the operation out and makes the current message
// its response.
func (e *Engine) pickAtomicResponse(r *response) {
	m := &e.current
	m.segment = wire.Segment{Opcode: wire.OpAtomicResponse, Queue: wire.QueueAtomicResponse, MSN: e.atomicMSN}
	m.body, m.left, m.pieces = nil, 0, m.pieces[:0]
	if !pinForPeer(r.region) {
		e.revoked(m)
		return
	}
	word := (*uint64)(unsafe.Pointer(&r.region.Bytes()[r.offset]))
	old := atomic.LoadUint64(word)
	for !atomic.CompareAndSwapUint64(word, old, r.change.Apply(old)) {
		old = atomic.LoadUint64(word)
	}
	r.region.Unpin()
	e.atomicMSN++
	answer := wire.AtomicResponse{ID: r.change.ID, Value: old}
	m.body = answer.Append(m.buffer[:0])
	m.left = len(m.body)
}

// follow turns a Write that is through into the Immediate Data behind it.
func (e *Engine) follow(m *message) bool {
	if m.kind != messageSend || m.segment.Opcode != wire.OpWrite {
		return false
	}
	r := e.slot(m.index)
	if r.op != rdma.OpWriteImmediate {
		return false
	}
	m.segment = wire.Segment{Opcode: wire.OpImmediate, Queue: wire.QueueSend, MSN: e.sendMSN}
	if r.flags&rdma.Solicited != 0 {
		m.segment.Opcode = wire.OpImmediateSolicited
	}
	e.sendMSN++
	m.body = binary.BigEndian.AppendUint64(m.buffer[:0], uint64(r.immediate))
	m.left = len(m.body)
	return true
}

// startRead makes the current message the request of rd.
func (e *Engine) startRead(rd read, from rdma.Remote) {
	rd.tag = e.cfg.SinkTag + uint32(e.readEnd)
	e.reads[e.readEnd%uint64(len(e.reads))] = rd
	e.readEnd++
	m := &e.current
	m.active, m.kind = true, messageRead
	m.segment = wire.Segment{Opcode: wire.OpReadRequest, Queue: wire.QueueReadRequest, MSN: e.readMSN}
	e.readMSN++
	request := wire.ReadRequest{SinkSTag: rd.tag, Length: rd.length,
		SourceSTag: from.Key, SourceOffset: from.Address}
	m.body = request.Append(m.buffer[:0])
	m.left = len(m.body)
	m.pieces = m.pieces[:0]
}

func (e *Engine) pickReady() {
	m := &e.current
	m.active, m.kind, m.body, m.pieces, m.left = true, messageReady, nil, m.pieces[:0], 0
	switch e.ready {
	case ReadyWrite:
		m.segment = wire.Segment{Tagged: true, Opcode: wire.OpWrite}
		if e.announce {
			e.pickAnnouncement()
		}
	case ReadySend:
		m.segment = wire.Segment{Opcode: wire.OpSend, Queue: wire.QueueSend, MSN: e.sendMSN}
		e.sendMSN++
	case ReadyRead:
		e.startRead(read{internal: true}, rdma.Remote{})
		m.kind = messageReady
	}
	e.ready = ReadyNone
}

// retire completes what is done, in order.
func (e *Engine) retire() {
	for e.head != e.next {
		r := e.slot(e.head)
		if !r.done {
			return
		}
		e.head++
		e.unreleased++
		if r.flags&rdma.Signaled != 0 {
			e.complete(r, rdma.StatusSuccess)
		}
	}
}

func (e *Engine) complete(r *request, status rdma.Status) {
	c := rdma.Completion{ID: r.id, QueuePair: e.cfg.Number, Op: r.op, Status: status}
	if r.answered() && status == rdma.StatusSuccess {
		c.Length = r.length
	}
	release := e.unreleased
	e.unreleased = 0
	e.cfg.SendCompletions.Push(c, false, &e.used, release)
}

// Fail ends the connection for a reason that needs no Terminate. The first
// reason counts.
func (e *Engine) Fail(err error) {
	e.mu.Lock()
	e.fail(err, nil)
	e.mu.Unlock()
}

// Abort ends the connection for a failure of this side, of which a Terminate
// tells the peer. A kick asks the caller to take the writer's role.
func (e *Engine) Abort(err error) (kick bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fail(err, &wire.Terminate{Cause: wire.RDMAPCatastrophic})
	return e.claim()
}

// fail moves to the error state. A Terminate is left for the writer.
func (e *Engine) fail(err error, t *wire.Terminate) {
	if e.state == rdma.StateError || e.state == rdma.StateClosed {
		return
	}
	connected := e.state == rdma.StateConnected
	e.state, e.err = rdma.StateError, err
	if connected && !e.txDead {
		e.terminate = t
	}
	if e.terminate == nil || e.current.kind != messageResponse {
		e.current.active = false
	}
	if !e.cfg.SharedReceives {
		e.cfg.Receives.Close()
	}
	if e.cfg.OnFail != nil {
		e.cfg.OnFail(e.terminate != nil)
	}
	e.stop()
}

// stop tells that the writer is through for ever.
func (e *Engine) stop() {
	if e.state == rdma.StateError && !e.writing && (e.terminate == nil || e.txDead) && !e.ended {
		e.ended = true
		close(e.stopped)
	}
}

// Stopped is closed when the queue pair has failed and its writer, the Terminate
// included, is through.
func (e *Engine) Stopped() <-chan struct{} { return e.stopped }

// Close ends the use of the engine: nothing is completed any more.
func (e *Engine) Close() {
	e.mu.Lock()
	e.state = rdma.StateClosed
	e.mu.Unlock()
}

// Flush completes all that is outstanding. The queue pair has failed, its
// writer has stopped and its reader calls. After Close it does nothing.
func (e *Engine) Flush() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == rdma.StateClosed {
		return
	}
	for ; e.head != e.tail; e.head++ {
		r := e.slot(e.head)
		status := rdma.StatusFlushed
		if e.failure != rdma.StatusSuccess && e.head == e.failed {
			status = e.failure
		}
		e.unreleased++
		e.complete(r, status)
	}
	e.next, e.written = e.tail, e.tail
	e.readHead, e.respHead = e.readEnd, e.respEnd
	e.rx.flush(&e.cfg)
}

// TerminateFrame is a whole FPDU with a Terminate, for a connection that fails
// before an engine has it.
func TerminateFrame(cause wire.Cause, crc, markers bool) []byte {
	t := wire.Terminate{Cause: cause}
	s := wire.Segment{Last: true, Opcode: wire.OpTerminate, Queue: wire.QueueTerminate, MSN: wire.FirstMSN}
	body := t.Append(s.Append(nil))
	frame := []byte{byte(len(body) >> 8), byte(len(body))}
	frame = append(frame, body...)
	frame = append(frame, make([]byte, wire.Padding(len(body)))...)
	if markers {
		return new(markerWriter).frame(nil, crc, frame)
	}
	var sum [wire.CRCSize]byte
	if crc {
		wire.PutCRC(sum[:], wire.UpdateCRC(0, frame))
	}
	return append(frame, sum[:]...)
}
