package engine

import (
	"encoding/binary"
	"fmt"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/mem"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

// directLimit is the rest of a segment below which it is not worth a vector of
// its own: the bytes are read with what follows them and copied.
const directLimit = 2 << 10

// A segment of at least aheadLarge bytes makes us expect others like it, whose
// payload is better read to its place than copied; then only aheadBytes are read
// beyond the known, until aheadSmall segments have come that were shorter: a Send
// that tells of Writes stands between them.
const (
	aheadLarge = 8 << 10
	aheadBytes = 2 << 10
	aheadSmall = 4
)

// aheadShared is how much is read beyond the known where receives are shared. It
// bounds what an engine holds whose message waits for a receive.
const aheadShared = 32 << 10

// heldKept is how large a buffer for held bytes an engine keeps for the next time.
const heldKept = 16 << 10

type phase uint8

const (
	phaseHeader phase = iota
	phasePayload
	phaseTrailer
)

// receiver is the reading half. All of it belongs to the reader, except where
// the engine's lock is held.
type receiver struct {
	crcOn   bool
	markers *markerReader // nil without markers
	phase   phase

	header     [wire.LengthSize + wire.MaxSegmentHeaderSize]byte
	have, need int
	ulpdu      int
	large      int // segments, after which large ones are no longer expected
	segment    wire.Segment
	crc        uint32

	left    int    // payload still to come
	target  target // where it goes
	to      piece  // for targetPiece: what is left of it
	scratch [wire.MaxTerminateSize]byte
	filled  int
	fault   *fault // found in the header, told once the CRC has passed

	trailer      [3 + wire.CRCSize]byte
	tail, expect int

	message    receive // the receive that is being filled, if open
	open       bool
	kind       wire.Opcode // of the message that is open
	invalidate uint32      // the tag that it invalidates
	got        int64
	part       int // of message.pieces
	sendMSN    uint32
	readMSN    uint32
	atomicMSN  uint32
	wrote      int64       // of the Write that is arriving
	lastWrite  int64       // length of the last Write
	messages   uint32      // that have come to their end
	status     rdma.Status // what the open receive completes with, if not flushed
	readySend  bool        // the first Send is the ready-to-receive message

	heard bool // an FPDU has arrived
	first bool // it is the one that has just arrived
	over  bool // the peer's last word has been heard
	kick  bool // the writer may have work

	cached *mem.Region
	pinned *mem.Region // by Direct
	direct []byte

	// A message that finds no receive waits for one, and with it the stream.
	waits     func(*Engine) *fault // what follows once message has been given; nil: nothing waits
	waiter    waiter
	held      []byte // bytes of the stream that have been read behind it; in buffer
	heldFrame []byte // with markers: the rest of the FPDU, before held
	buffer    []byte
}

type target uint8

const (
	targetSink    target = iota
	targetPiece          // a region
	targetMessage        // the pieces of a receive
	targetScratch
)

func (x *receiver) init(maxSGE int, wake func()) {
	x.message.pieces = make([]piece, 0, maxSGE)
	x.waiter.into, x.waiter.wake = &x.message, wake
	x.need = wire.LengthSize + wire.ControlSize
	x.sendMSN, x.readMSN, x.atomicMSN = wire.FirstMSN, wire.FirstMSN, wire.FirstMSN
}

func (x *receiver) start(p Params) {
	x.crcOn = p.CRC
	if p.ReceiveMarkers {
		x.markers, x.crcOn = &markerReader{crc: p.CRC}, false
	}
	x.readySend = !p.Initiator && p.Ready == ReadySend
}

// operation is what the receiver does about an RDMAP opcode. begin looks at the
// header and says where the payload goes; end acts once the CRC has passed.
type operation struct {
	tagged bool
	queue  uint32
	begin  func(e *Engine) *fault
	end    func(e *Engine) *fault
	// extension is of RFC 7306, which both ends must have.
	extension bool
}

// operations has what is served; the rest is refused as unexpected.
var operations [16]operation

func init() {
	immediate := operation{queue: wire.QueueSend, extension: true, begin: (*Engine).beginImmediate, end: (*Engine).endImmediate}
	send := operation{queue: wire.QueueSend, begin: (*Engine).beginSend, end: (*Engine).endSend}
	operations = [16]operation{
		wire.OpWrite:        {tagged: true, begin: (*Engine).beginWrite, end: (*Engine).endWrite},
		wire.OpReadRequest:  {queue: wire.QueueReadRequest, begin: (*Engine).beginReadRequest, end: (*Engine).endReadRequest},
		wire.OpReadResponse: {tagged: true, begin: (*Engine).beginReadResponse, end: (*Engine).endReadResponse},
		wire.OpSend:         send, wire.OpSendSolicited: send, wire.OpSendInvalidate: send, wire.OpSendSolicitedInvalidate: send,
		wire.OpTerminate: {queue: wire.QueueTerminate, begin: (*Engine).beginTerminate, end: (*Engine).endTerminate},
		wire.OpImmediate: immediate, wire.OpImmediateSolicited: immediate,
		wire.OpAtomicRequest:  {queue: wire.QueueReadRequest, extension: true, begin: (*Engine).beginAtomicRequest, end: (*Engine).endAtomicRequest},
		wire.OpAtomicResponse: {queue: wire.QueueAtomicResponse, extension: true, begin: (*Engine).beginAtomicResponse, end: (*Engine).endAtomicResponse},
	}
}

// Ahead tells how much should be read beyond what Direct returned, at most most:
// little where large segments come, because what is read ahead is copied.
func (e *Engine) Ahead(most int) int {
	if x := &e.rx; x.large > 0 && (x.phase != phasePayload || x.left >= directLimit) {
		return min(aheadBytes, most)
	}
	if e.cfg.SharedReceives {
		return min(aheadShared, most)
	}
	return most
}

// Within tells whether the stream stands in the middle of a segment.
func (e *Engine) Within() bool {
	x := &e.rx
	return x.waits == nil && x.within()
}

func (x *receiver) within() bool {
	return x.phase != phaseHeader || x.have > 0 || x.markers != nil && x.markers.within()
}

// Due tells how many bytes of the stream are certain to follow, because the
// segment that has begun has them.
func (e *Engine) Due() int {
	x := &e.rx
	switch {
	case x.markers != nil, x.waits != nil:
		return 0 // markers are counted elsewhere
	case x.phase == phasePayload:
		return x.left + x.expect
	case x.phase == phaseTrailer:
		return x.expect - x.tail
	default:
		return 0
	}
}

// Direct tells where the next bytes of the stream belong in registered memory,
// or returns nil. The memory stays pinned until Placed, which must follow; the
// caller does not wait for the peer in between.
func (e *Engine) Direct() []byte {
	x := &e.rx
	if x.phase != phasePayload || x.left < directLimit {
		return nil
	}
	p := x.destination()
	if p == nil || !x.pin(p.region) {
		return nil // Feed finds out and refuses
	}
	n := min(x.left, p.length)
	x.pinned = p.region
	x.direct = p.region.Bytes()[p.offset : p.offset+n]
	return x.direct
}

// Placed says that the first n bytes of what Direct returned are there.
func (e *Engine) Placed(n int) {
	x := &e.rx
	x.crc = wire.UpdateCRC(x.crc, x.direct[:n])
	x.direct = nil
	x.pinned.Unpin()
	x.pinned = nil
	x.advance(n)
	x.consumed(n)
}

// destination is the region's part that the next byte belongs to, or nil.
func (x *receiver) destination() *piece {
	if x.target == targetPiece || x.target == targetMessage {
		return &x.to
	}
	return nil
}

// advance moves the destination by n bytes.
func (x *receiver) advance(n int) {
	x.to.offset += n
	x.to.length -= n
	if x.target == targetMessage && x.to.length == 0 {
		x.part++
		if x.part < len(x.message.pieces) {
			x.to = x.message.pieces[x.part]
		}
	}
}

func (x *receiver) consumed(n int) {
	if x.left -= n; x.left == 0 {
		x.phase = phaseTrailer
	}
}

// Feed takes the next bytes of the stream. An error is the end of it: the queue
// pair has failed. After Feed, with or without an error, follows Kick.
//
// If a message finds no receive, Feed keeps what is left of b, and Waiting is
// true. The caller then reads no more until Resume says so, and TCP holds the
// peer back.
func (e *Engine) Feed(b []byte) error {
	x := &e.rx
	if x.waits == nil {
		var err error
		if b, err = e.consume(b); err != nil {
			return err
		}
	}
	if len(b) > 0 {
		x.buffer = append(append(x.buffer[:0], x.held...), b...)
		x.held = x.buffer
	}
	return nil
}

// Counts are of what the peer has sent, modulo 1<<32.
type Counts struct {
	Messages uint32 // whole ones of all kinds, with Asked
	Asked    uint32 // Reads and atomic operations
}

// Counts tells what has come until now. It belongs to who calls Feed.
func (e *Engine) Counts() Counts { return Counts{e.rx.messages, e.rx.readMSN} }

// Waiting tells whether a message waits for a receive.
func (e *Engine) Waiting() bool { return e.rx.waits != nil }

// Resume goes on after a wait, if the message has been given its receive, with the
// bytes that were held, and tells whether it did. The next message may wait again:
// see Waiting. It is followed by Kick.
func (e *Engine) Resume() (went bool, err error) {
	x := &e.rx
	for ; x.waits != nil && x.waiter.given.Load(); went = true {
		then := x.waits
		x.waits = nil
		if x.fault = then(e); x.fault != nil {
			x.target = targetSink
		}
		frame, held := x.heldFrame, x.held
		x.heldFrame, x.held = nil, nil
		if len(frame) > 0 {
			if x.heldFrame, err = e.feed(frame); err != nil {
				return true, err
			}
		}
		if x.waits == nil {
			if held, err = e.consume(held); err != nil {
				return true, err
			}
		}
		x.held = held
	}
	if len(x.held) == 0 && cap(x.buffer) > heldKept {
		x.buffer = nil
	}
	return went, nil
}

// consume takes bytes of the stream and returns those that are left when a
// message waits for a receive.
func (e *Engine) consume(b []byte) ([]byte, error) {
	if e.rx.markers != nil {
		return e.feedMarked(b)
	}
	return e.feed(b)
}

func (e *Engine) feed(b []byte) ([]byte, error) {
	x := &e.rx
	for len(b) > 0 && x.waits == nil {
		var n int
		var f *fault
		switch x.phase {
		case phaseHeader:
			n = copy(x.header[x.have:x.need], b)
			if x.have += n; x.have == x.need {
				f = e.headerPart()
			}
		case phasePayload:
			n = min(len(b), x.left)
			x.crc = wire.UpdateCRC(x.crc, b[:n])
			x.place(b[:n])
			x.consumed(n)
		case phaseTrailer:
			n = copy(x.trailer[x.tail:x.expect], b)
			if x.tail += n; x.tail == x.expect {
				f = e.segmentEnd()
			}
		}
		if f != nil {
			e.refuse(f)
			return nil, e.Err()
		}
		b = b[n:]
		if x.over {
			return nil, e.Err()
		}
	}
	return b, nil
}

// End says that the stream has ended, with io.EOF or another error. It returns
// why the connection is over.
func (e *Engine) End(err error) error {
	e.mu.Lock()
	if e.txErr != nil {
		err = e.txErr // came first
	}
	e.mu.Unlock()
	if e.Within() {
		err = fmt.Errorf("%w: %w", ErrCutOff, err)
	}
	e.Fail(fmt.Errorf("%w: %w", rdma.ErrDisconnected, err))
	return e.Err()
}

// place copies payload to where it belongs.
func (x *receiver) place(b []byte) {
	for len(b) > 0 {
		switch x.target {
		case targetSink:
			return
		case targetScratch:
			x.filled += copy(x.scratch[x.filled:], b)
			return
		}
		p := x.destination()
		if !x.pin(p.region) {
			x.fault = x.closedUnder()
			x.target = targetSink
			return
		}
		n := copy(p.region.Bytes()[p.offset:p.offset+p.length], b)
		p.region.Unpin()
		b = b[n:]
		x.advance(n)
	}
}

// pin keeps a destination mapped, unless it was closed or, for a Write of the
// peer, its key revoked.
func (x *receiver) pin(r *mem.Region) bool {
	if x.segment.Opcode == wire.OpWrite {
		return pinForPeer(r)
	}
	return r.Pin()
}

// pinForPeer pins a region for an access that its key opens.
func pinForPeer(r *mem.Region) bool {
	if !r.Pin() {
		return false
	}
	if r.Revoked() {
		r.Unpin()
		return false
	}
	return true
}

// closedUnder is the fault of a destination that was closed while data came.
func (x *receiver) closedUnder() *fault {
	if x.segment.Opcode == wire.OpWrite {
		return faultf(wire.DDPTaggedInvalidSTag, "the region was closed, or its key revoked, while a Write arrived")
	}
	f := faultf(wire.DDPCatastrophic, "the region of a %s was closed while data arrived", x.segment.Opcode)
	f.status = rdma.StatusLocalProtection
	return f
}

// headerPart looks at what has come of a header: its first bytes, which tell the
// length of the rest, or all of it.
func (e *Engine) headerPart() *fault {
	x := &e.rx
	const first = wire.LengthSize + wire.ControlSize
	if x.have == first {
		x.ulpdu = int(binary.BigEndian.Uint16(x.header[:]))
		if x.ulpdu >= aheadLarge {
			x.large = aheadSmall
		} else if x.large > 0 {
			x.large--
		}
		size := wire.HeaderSize(x.header[wire.LengthSize])
		if x.ulpdu < size {
			return faultf(wire.MPALength, "a unit of %d bytes cannot hold a header of %d", x.ulpdu, size)
		}
		x.need = wire.LengthSize + size
		return nil
	}
	x.crc = wire.UpdateCRC(0, x.header[:x.have])
	var err error
	x.segment, err = wire.ParseSegment(x.header[wire.LengthSize:x.have])
	switch {
	case err == wire.ErrDDPVersion && x.segment.Tagged:
		return faultf(wire.DDPTaggedVersion, "")
	case err == wire.ErrDDPVersion:
		return faultf(wire.DDPUntaggedVersion, "")
	case err == wire.ErrRDMAPVersion:
		return faultf(wire.RDMAPBadVersion, "")
	case err != nil:
		return faultf(wire.MPALength, "%v", err)
	}
	x.left = x.ulpdu - x.segment.HeaderSize()
	x.expect = wire.Padding(x.ulpdu) + wire.CRCSize
	x.tail, x.filled = 0, 0
	x.target, x.fault = targetSink, nil
	x.phase = phasePayload
	if x.left == 0 {
		x.phase = phaseTrailer
	}
	x.fault = e.begin()
	if x.fault != nil {
		x.target = targetSink
	}
	return nil
}

func (e *Engine) begin() *fault {
	x := &e.rx
	op := &operations[x.segment.Opcode]
	if op.begin == nil || op.tagged != x.segment.Tagged || op.extension && e.cfg.Extensions == ExtensionsOff {
		return faultf(wire.RDMAPUnexpectedOpcode, "%s (%d)", x.segment.Opcode, uint8(x.segment.Opcode))
	}
	if !op.tagged && x.segment.Queue != op.queue {
		if x.segment.Queue > wire.QueueAtomicResponse {
			return faultf(wire.DDPUntaggedQueue, "queue %d", x.segment.Queue)
		}
		return faultf(wire.RDMAPUnexpectedOpcode, "%s on queue %d", x.segment.Opcode, x.segment.Queue)
	}
	return op.begin(e)
}

// segmentEnd checks the CRC and acts.
func (e *Engine) segmentEnd() *fault {
	x := &e.rx
	if x.crcOn {
		at := x.expect - wire.CRCSize
		x.crc = wire.UpdateCRC(x.crc, x.trailer[:at])
		if got := wire.CRC(x.trailer[at:]); got != x.crc && !e.earlyTerminate(got) {
			return faultf(wire.MPACRC, "a %s of %d bytes has CRC %08x, not %08x", x.segment.Opcode, x.ulpdu, got, x.crc)
		}
	}
	if x.fault != nil {
		return x.fault
	}
	x.phase, x.have, x.need = phaseHeader, 0, wire.LengthSize+wire.ControlSize
	if x.segment.Last {
		x.messages++
	}
	if x.first = !x.heard; x.first {
		x.heard, x.kick = true, true
		e.mu.Lock()
		e.hold = false
		e.mu.Unlock()
	}
	return operations[x.segment.Opcode].end(e)
}

// earlyTerminate accepts a Terminate without a CRC as the first that the peer
// says: Linux siw sends it so before it is ready.
func (e *Engine) earlyTerminate(crc uint32) bool {
	return crc == 0 && !e.rx.heard && e.rx.segment.Opcode == wire.OpTerminate
}

// refuse fails the queue pair for what the peer sent and leaves a Terminate to
// the writer.
func (e *Engine) refuse(f *fault) {
	x := &e.rx
	t := &wire.Terminate{Cause: f.cause}
	if f.cause.Layer < 2 { // found behind a whole header
		t.HasSegment, t.Segment, t.SegmentLength = true, x.segment, uint16(x.ulpdu)
		if x.segment.Opcode == wire.OpReadRequest && x.filled == wire.ReadRequestSize && f.cause.Layer == 0 {
			t.HasRequest = true
			t.Request, _ = wire.ParseReadRequest(x.scratch[:x.filled])
		}
	}
	x.kick = true
	e.mu.Lock()
	if f.status != rdma.StatusFlushed {
		if x.segment.Opcode == wire.OpReadResponse || x.segment.Opcode == wire.OpAtomicResponse {
			if r := &e.reads[e.readHead%uint64(len(e.reads))]; !r.internal {
				e.failed, e.failure = r.request, f.status
			}
		} else if x.open {
			x.status = f.status
		}
	}
	e.fail(f.error(), t)
	e.mu.Unlock()
}

// lookup finds a region that the peer names.
func (e *Engine) lookup(key uint32) *mem.Region {
	if r := e.rx.cached; r != nil && r.Key() == key && r.Reachable() {
		return r
	}
	r := e.cfg.Regions.Lookup(key)
	e.rx.cached = r
	return r
}

// causes is how a layer tells the ways in which an access can be wrong.
type causes struct{ stag, owner, bounds, wrap, rights wire.Cause }

var (
	writeCauses = causes{wire.DDPTaggedInvalidSTag, wire.DDPTaggedNotAssociated, wire.DDPTaggedBounds,
		wire.DDPTaggedWrap, wire.RDMAPAccessRights}
	readCauses = causes{wire.RDMAPInvalidSTag, wire.RDMAPNotAssociated, wire.RDMAPBounds,
		wire.RDMAPWrap, wire.RDMAPAccessRights}
)

// admit checks an access of the peer and finds the memory.
func (e *Engine) admit(c *causes, key uint32, address, length uint64, need rdma.Access) (piece, *fault) {
	region := e.lookup(key)
	if region == nil {
		return piece{}, faultf(c.stag, "key %#x names no region", key)
	}
	if region.Owner() != e.cfg.Owner {
		return piece{}, faultf(c.owner, "key %#x belongs to another domain", key)
	}
	if address+length < address {
		return piece{}, faultf(c.wrap, "%d bytes at address %#x", length, address)
	}
	size := uint64(region.Size())
	if address < region.Address() || address-region.Address() > size || length > size-(address-region.Address()) {
		return piece{}, faultf(c.bounds, "%d bytes at address %#x, the region has %d at %#x",
			length, address, size, region.Address())
	}
	if region.Access()&need != need {
		return piece{}, faultf(c.rights, "key %#x does not allow it", key)
	}
	return piece{region, int(address - region.Address()), int(length)}, nil
}

func (e *Engine) beginWrite() *fault {
	x := &e.rx
	if x.left == 0 {
		return nil // touches nothing, so no tag is looked at (RFC 5041 section 5.1)
	}
	to, f := e.admit(&writeCauses, x.segment.STag, x.segment.Offset, uint64(x.left), rdma.AccessRemoteWrite)
	if f != nil {
		return f
	}
	x.target, x.to = targetPiece, to
	return nil
}

func (e *Engine) endWrite() *fault {
	x := &e.rx
	if f, ok := wire.ParseAnnouncement(&x.segment, x.ulpdu-wire.TaggedHeaderSize); ok {
		e.heardAnnouncement(f)
		return nil
	}
	x.wrote += int64(x.ulpdu - wire.TaggedHeaderSize)
	if x.segment.Last {
		x.lastWrite, x.wrote = x.wrote, 0
	}
	return nil
}

func (e *Engine) beginImmediate() *fault {
	x := &e.rx
	if x.open {
		return faultf(wire.DDPUntaggedOffset, "Immediate Data within a Send")
	}
	return e.beginUntagged(x.sendMSN, wire.ImmediateSize, wire.ImmediateSize)
}

func (e *Engine) endImmediate() *fault {
	if x := &e.rx; !e.cfg.Receives.takeOrWait(&x.waiter) {
		x.waits = (*Engine).immediateReceived
		return nil
	}
	return e.immediateReceived()
}

// immediateReceived has the receive of Immediate Data.
func (e *Engine) immediateReceived() *fault {
	x := &e.rx
	x.sendMSN++
	e.cfg.RecvCompletions.Push(rdma.Completion{
		ID: x.message.id, QueuePair: e.cfg.Number, Op: rdma.OpRecvWriteImmediate, Length: uint32(x.lastWrite),
		HasImmediate: true, Immediate: uint32(binary.BigEndian.Uint64(x.scratch[:])),
	}, x.segment.Opcode == wire.OpImmediateSolicited, &e.cfg.Receives.used, 1)
	return nil
}

func (e *Engine) beginAtomicRequest() *fault {
	return e.beginUntagged(e.rx.readMSN, wire.AtomicRequestSize, wire.AtomicRequestSize)
}

func (e *Engine) endAtomicRequest() *fault {
	x := &e.rx
	x.readMSN++
	change, err := wire.ParseAtomicRequest(x.scratch[:x.filled])
	if err != nil {
		return faultf(wire.RDMAPUnspecified, "%v", err)
	}
	if change.Op != wire.AtomicFetchAdd && change.Op != wire.AtomicCompareSwap {
		return faultf(wire.RDMAPUnexpectedOpcode, "atomic operation %d", change.Op)
	}
	at, f := e.admit(&readCauses, change.STag, change.Offset, 8, rdma.AccessRemoteAtomic)
	if f != nil {
		return f
	}
	if change.Offset%8 != 0 { // the memory is aligned as its address is
		return faultf(wire.RDMAPUnspecified, "an atomic operation at %#x, which is not a multiple of 8", change.Offset)
	}
	return e.respond(response{atomic: true, change: change, segment: x.segment, region: at.region, offset: at.offset})
}

func (e *Engine) beginAtomicResponse() *fault {
	x := &e.rx
	if r := e.oldestRead(); r == nil || !r.atomic {
		return faultf(wire.RDMAPUnexpectedOpcode, "an Atomic Response that is not due")
	}
	return e.beginUntagged(x.atomicMSN, wire.AtomicResponseSize, wire.AtomicResponseSize)
}

func (e *Engine) endAtomicResponse() *fault {
	x := &e.rx
	r := e.oldestRead()
	x.atomicMSN++
	answer, err := wire.ParseAtomicResponse(x.scratch[:x.filled])
	if err != nil || answer.ID != r.tag {
		return faultf(wire.RDMAPUnspecified, "an Atomic Response to request %d, expected %d", answer.ID, r.tag)
	}
	if !r.to.region.Pin() {
		f := faultf(wire.RDMAPStreamCatastrophic, "the region of an atomic operation's result was closed")
		f.status = rdma.StatusLocalProtection
		return f
	}
	binary.NativeEndian.PutUint64(r.to.region.Bytes()[r.to.offset:], answer.Value)
	r.to.region.Unpin()
	e.mu.Lock()
	e.slot(r.request).done = true
	e.readHead++
	e.retire()
	e.mu.Unlock()
	x.kick = true
	return nil
}

func (e *Engine) beginSend() *fault {
	x := &e.rx
	if x.segment.MSN != x.sendMSN {
		return faultf(wire.DDPUntaggedMSN, "message %d, expected %d", x.segment.MSN, x.sendMSN)
	}
	if x.readySend && !x.heard && x.left == 0 && x.segment.Last && x.segment.Opcode == wire.OpSend {
		return nil
	}
	if !x.open {
		if x.segment.Offset != 0 {
			return faultf(wire.DDPUntaggedOffset, "a message begins at %d", x.segment.Offset)
		}
		if !e.cfg.Receives.takeOrWait(&x.waiter) {
			x.waits = (*Engine).openSend
			return nil
		}
		return e.openSend()
	}
	return e.continueSend()
}

// openSend has the receive of a message whose first segment begins.
func (e *Engine) openSend() *fault {
	x := &e.rx
	x.open, x.got, x.part, x.status = true, 0, 0, rdma.StatusFlushed
	x.kind, x.invalidate = x.segment.Opcode, x.segment.STag
	if len(x.message.pieces) > 0 {
		x.to = x.message.pieces[0]
	}
	return e.continueSend()
}

// continueSend looks at a segment of the open message.
func (e *Engine) continueSend() *fault {
	x := &e.rx
	if x.segment.Opcode != x.kind || x.revokes() && x.segment.STag != x.invalidate {
		return faultf(wire.RDMAPUnexpectedOpcode, "a %s of tag %#x within a %s", x.segment.Opcode, x.segment.STag, x.kind)
	}
	if x.segment.Offset != uint64(x.got) {
		return faultf(wire.DDPUntaggedOffset, "offset %d, expected %d", x.segment.Offset, x.got)
	}
	if x.got+int64(x.left) > x.message.length {
		f := faultf(wire.DDPUntaggedTooLong, "a Send of at least %d bytes, the receive has %d",
			x.got+int64(x.left), x.message.length)
		f.status = rdma.StatusLocalLength
		return f
	}
	// Segments of other messages may have come in between.
	if x.part < len(x.message.pieces) {
		x.to = x.message.pieces[x.part]
		done := x.got
		for _, p := range x.message.pieces[:x.part] {
			done -= int64(p.length)
		}
		x.to.offset += int(done)
		x.to.length -= int(done)
	}
	x.target = targetMessage
	x.got += int64(x.left)
	return nil
}

func (e *Engine) endSend() *fault {
	x := &e.rx
	if !x.segment.Last {
		return nil
	}
	x.sendMSN++
	if !x.open {
		return nil // the ready-to-receive message, which no receive sees
	}
	c := rdma.Completion{ID: x.message.id, QueuePair: e.cfg.Number, Op: rdma.OpRecv, Length: uint32(x.got)}
	if x.revokes() {
		if f := e.revoke(x.invalidate); f != nil {
			return f
		}
		c.Invalidated, c.Immediate = true, x.invalidate
	}
	x.open = false
	solicited := x.kind == wire.OpSendSolicited || x.kind == wire.OpSendSolicitedInvalidate
	e.cfg.RecvCompletions.Push(c, solicited, &e.cfg.Receives.used, 1)
	return nil
}

// revokes tells whether the open message invalidates a tag.
func (x *receiver) revokes() bool {
	return x.kind == wire.OpSendInvalidate || x.kind == wire.OpSendSolicitedInvalidate
}

// revoke takes back a key for the peer (RFC 5040 section 5.3).
func (e *Engine) revoke(key uint32) *fault {
	region := e.lookup(key)
	switch {
	case region == nil:
		return faultf(wire.RDMAPInvalidSTag, "key %#x, to be invalidated, names no region", key)
	case region.Owner() != e.cfg.Owner:
		return faultf(wire.RDMAPNotAssociated, "key %#x, to be invalidated, belongs to another domain", key)
	case region.Access()&rdma.AccessRemoteInvalidate == 0:
		return faultf(wire.RDMAPProtectInvalidate, "key %#x", key)
	}
	region.Revoke()
	return nil
}

// beginUntagged checks a message of one segment for the scratch buffer.
func (e *Engine) beginUntagged(msn uint32, least, most int) *fault {
	x := &e.rx
	switch {
	case x.segment.MSN != msn:
		return faultf(wire.DDPUntaggedMSN, "%s %d, expected %d", x.segment.Opcode, x.segment.MSN, msn)
	case x.segment.Offset != 0:
		return faultf(wire.DDPUntaggedOffset, "%s begins at %d", x.segment.Opcode, x.segment.Offset)
	case x.left > most:
		return faultf(wire.DDPUntaggedTooLong, "%s of %d bytes, at most %d", x.segment.Opcode, x.left, most)
	case x.left < least || !x.segment.Last:
		return faultf(wire.RDMAPUnspecified, "%s of %d bytes is cut off", x.segment.Opcode, x.left)
	}
	x.target = targetScratch
	return nil
}

func (e *Engine) beginReadRequest() *fault {
	return e.beginUntagged(e.rx.readMSN, wire.ReadRequestSize, wire.ReadRequestSize)
}

func (e *Engine) endReadRequest() *fault {
	x := &e.rx
	x.readMSN++
	request, err := wire.ParseReadRequest(x.scratch[:x.filled])
	if err != nil {
		return faultf(wire.RDMAPUnspecified, "%v", err)
	}
	var from piece
	if request.Length > 0 {
		var f *fault
		from, f = e.admit(&readCauses, request.SourceSTag, request.SourceOffset, uint64(request.Length), rdma.AccessRemoteRead)
		if f != nil {
			return f
		}
	}
	return e.respond(response{request: request, segment: x.segment, region: from.region, offset: from.offset})
}

// respond queues a Read or an atomic operation of the peer.
func (e *Engine) respond(r response) *fault {
	e.mu.Lock()
	// A Read of no data as the ready-to-receive message is no part of what was
	// negotiated, so there is always a place for one.
	full := e.respEnd-e.respHead >= uint64(max(e.params.IRD, 1))
	if !full {
		e.responses[e.respEnd%uint64(len(e.responses))] = r
		e.respEnd++
	}
	e.mu.Unlock()
	if full {
		return faultf(wire.DDPUntaggedNoBuffer, "more than the %d Reads that were agreed on", e.params.IRD)
	}
	e.rx.kick = true
	return nil
}

// oldestRead is the Read that the next response belongs to. Only the reader
// removes it, so the place stays its own without the lock.
func (e *Engine) oldestRead() *read {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.readHead == e.readEnd {
		return nil
	}
	return &e.reads[e.readHead%uint64(len(e.reads))]
}

func (e *Engine) beginReadResponse() *fault {
	x := &e.rx
	r := e.oldestRead()
	if r == nil || r.atomic {
		return faultf(wire.DDPTaggedInvalidSTag, "a Read Response and no Read is outstanding")
	}
	if x.left > 0 || r.length > 0 {
		if x.segment.STag != r.tag {
			return faultf(wire.DDPTaggedInvalidSTag, "a Read Response for tag %#x, expected %#x", x.segment.STag, r.tag)
		}
		if x.segment.Offset != uint64(r.got) || uint64(x.left) > uint64(r.length-r.got) {
			return faultf(wire.DDPTaggedBounds, "a Read Response of %d bytes at %d, expected %d of %d",
				x.left, x.segment.Offset, r.got, r.length)
		}
	}
	if x.left > 0 {
		x.target = targetPiece
		x.to = piece{r.to.region, r.to.offset + int(r.got), x.left}
	}
	return nil
}

func (e *Engine) endReadResponse() *fault {
	x := &e.rx
	r := e.oldestRead()
	r.got += uint32(x.ulpdu - wire.TaggedHeaderSize)
	if !x.segment.Last {
		return nil
	}
	if r.got != r.length {
		return faultf(wire.DDPTaggedBounds, "a Read Response ends at %d of %d bytes", r.got, r.length)
	}
	e.mu.Lock()
	if !r.internal {
		e.slot(r.request).done = true
	}
	if r.probe {
		e.probed()
	}
	e.readHead++
	e.retire()
	e.mu.Unlock()
	x.kick = true
	return nil
}

func (e *Engine) beginTerminate() *fault {
	return e.beginUntagged(wire.FirstMSN, 0, wire.MaxULPDU)
}

func (e *Engine) endTerminate() *fault {
	x := &e.rx
	t, err := wire.ParseTerminate(x.scratch[:x.filled])
	// Of the set-up's errors an initiator tells, in its first message. Elsewhere it
	// is siw that speaks, of an opcode or too many Reads.
	if (t.Cause == wire.MPAInsufficientIRD || t.Cause == wire.MPANoReadyToReceiveModes) && !t.HasSegment && (e.params.Initiator || !x.first) {
		t.Cause = t.Cause.Mirrored()
	}
	ended := &TerminateError{Layer: t.Cause.Layer, Type: t.Cause.Type, Code: t.Cause.Code}
	if err != nil {
		ended.Reason = err.Error()
	} else if t.HasSegment {
		ended.Reason = "about a " + t.Segment.Opcode.String()
	}
	x.over = true
	e.Fail(ended)
	return nil
}

// flush completes the receives that will not be filled any more.
func (x *receiver) flush(cfg *Config) {
	push := func(status rdma.Status) {
		cfg.RecvCompletions.Push(rdma.Completion{ID: x.message.id, QueuePair: cfg.Number, Op: rdma.OpRecv, Status: status},
			false, &cfg.Receives.used, 1)
	}
	if x.waits != nil {
		x.waits, x.held, x.heldFrame, x.buffer = nil, nil, nil, nil
		if cfg.Receives.leave(&x.waiter) {
			push(rdma.StatusFlushed)
		}
	}
	if x.open {
		x.open = false
		push(x.status)
	}
	if cfg.SharedReceives {
		return
	}
	for cfg.Receives.take(&x.message) {
		push(rdma.StatusFlushed)
	}
}
