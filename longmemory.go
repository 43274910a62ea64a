package verbena

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// readAhead is how many bytes of long messages the application has to leave unreceived
// for no more to be read. What it receives later is not in the caches any more.
const readAhead = 2 << 20

// A longMessage is one that was read out of the peer's memory, or is viewed there.
type longMessage struct {
	message Message
	holder  longHolder
	share   *share // of the peer: what it has of its pool
	slab    slab.Slab
	kind    memoryKind // of slab
	view    view       // in place of slab
}

// A view is where a message lies in the peer's memory.
type view struct {
	memory []byte
	pin    rdma.Pin // nil: it lies in this side's
	offer  uint32   // of the peer

	// For peers that may read it there; nil: none has been told.
	passed rdma.Region
	use    rdma.Pin // of passed
}

// A passedTo is an endpoint whose peer reads what lies in another's memory. Err tells why
// it has ended, if it has.
type passedTo interface {
	Err() error
	Done() <-chan struct{}
}

// A passedFrom is an endpoint whose peer's memory it is.
type passedFrom interface {
	// passedAll tells that a passage has no offer under way any more. It takes no lock.
	passedAll()
}

// A passage is the way of what lies in the memory of an endpoint's peer to the peer of
// another endpoint.
type passage struct {
	from   passedFrom
	to     passedTo
	offers atomic.Int64 // that the second peer has not confirmed
}

// begin counts an offer of b that is about to be posted. It reports false if what lies
// there may not be the message any more. The first endpoint's Close says so before it looks
// for offers under way, and begin counts before it asks: one of the two sees the other.
func (at *location) begin(b *Buffer) bool {
	if at.passage == nil {
		return true
	}
	at.passage.offers.Add(1)
	if !intact(b.owner) {
		at.passage.end()
		return false
	}
	return true
}

// end counts an offer less. It may be called with any endpoint's lock.
func (p *passage) end() {
	if p.offers.Add(-1) == 0 {
		p.from.passedAll()
	}
}

// idle tells that the second peer reads nothing there. One whose endpoint has failed reads
// nothing either, although its Close alone lets go.
func (p *passage) idle() bool {
	if p.offers.Load() == 0 {
		return true
	}
	err := p.to.Err()
	return err != nil && !errors.Is(err, ErrClosed)
}

// A longHolder is the endpoint whose message it is.
type longHolder interface {
	// releasedLong takes the message back from the application.
	releasedLong(*longMessage)
	// passOn tells where peers of an endpoint of the domain may read a message that is
	// viewed. It reports false if they may not.
	passOn(*longMessage, *domain, passedTo) (location, bool)
	// viewsHold tells whether the peer still keeps what is viewed.
	viewsHold() bool
}

func (l *longMessage) location() location {
	if l.view.pin != nil {
		return location{}
	}
	return location{pool: l.share.of.long, slab: l.slab}
}

func (l *longMessage) viewed() *longMessage {
	if l.view.pin == nil {
		return nil
	}
	return l
}

func (l *longMessage) intact() bool { return l.view.pin == nil || l.holder.viewsHold() }

// bytes is the memory of the message, which may be longer.
func (l *longMessage) bytes() []byte {
	if l.view.pin != nil {
		return l.view.memory
	}
	return l.slab.Bytes()
}

// size is how much memory of this side the message has.
func (l *longMessage) size() int {
	if l.slab.None() {
		return 0
	}
	return l.slab.Size()
}

func (l *longMessage) release() { l.holder.releasedLong(l) }

// longMemory is the account of the memory that an endpoint's long messages have: those
// that are arriving, wait to be received, or are the application's. The shell's mu
// guards it.
type longMemory struct {
	share   *share // of the peer
	bytes   int
	ahead   int    // of them, those of messages that the application has not received
	pace    pace   // of the peer
	fetched uint64 // bytes that Reads had brought at the last look
	fresh   stock[longMessage]
}

// portion is how much memory a message gets: the best size, or only what it needs if
// that would be above the endpoint's share.
func (a *longMemory) portion(want link.Want) int {
	if want.Size > a.share.of.endpointShare() {
		return want.Need
	}
	return want.Size
}

// atOnce is how much a message gets when it is announced; 0 tells that it gets none
// before Receive asks for it. The first message of an endpoint may exceed its share.
func (a *longMemory) atOnce(want link.Want) int {
	pool := a.share.of.long
	if want.Have > 0 || a.ahead >= readAhead || pool.Used() >= pool.Limit()/2 {
		return 0
	}
	size := a.portion(want)
	if a.bytes > 0 && a.bytes+size > a.share.of.endpointShare() {
		return 0
	}
	return size
}

// begin makes a message that has no memory yet.
func (a *longMemory) begin(holder longHolder) *longMessage {
	l := a.fresh.take()
	l.holder, l.share, l.message.owner = holder, a.share, l
	return l
}

// move moves a message, of which have bytes are there, into memory.
func (a *longMemory) move(l *longMessage, memory slab.Slab, kind memoryKind, have int) {
	if !l.slab.None() {
		copy(memory.Bytes(), l.slab.Bytes()[:have])
		a.bytes -= l.slab.Size()
		a.ahead -= l.slab.Size()
		l.share.put(l.slab, l.kind)
	}
	l.slab, l.kind = memory, kind
	a.bytes += memory.Size()
	a.ahead += memory.Size()
	a.pace.begin(time.Now())
}

// brought notes that Reads have brought so many bytes in all.
func (a *longMemory) brought(fetched uint64) {
	a.pace.brought(time.Now(), int(fetched-a.fetched))
	a.fetched = fetched
}

// received notes that the application has a message, or that it never will.
func (a *longMemory) received(l *longMessage) { a.ahead -= l.size() }

// free gives the memory of a message back. It was received before. spoilt tells that a
// Read may be under way.
func (a *longMemory) free(l *longMessage, spoilt bool) {
	a.bytes -= l.slab.Size()
	if spoilt {
		l.share.spoil(l.slab, l.kind)
	} else {
		l.share.put(l.slab, l.kind)
	}
	l.slab = slab.Slab{}
}
