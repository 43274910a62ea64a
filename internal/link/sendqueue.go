package link

import "math"

const (
	// PlaceSize is the memory in bytes that each request of the send queue has for
	// a header and what fits beside it.
	PlaceSize = 64
	// unsignaled is how many requests share a signalled completion, if the send
	// queue is at least twice as long: otherwise it could be full with nothing to
	// free it.
	unsignaled = 8
	// firstDepth is how many requests beside operations have a place at first: an end
	// that is idle needs no more.
	firstDepth = 2 * unsignaled
)

// A Post is a request for the send queue.
type Post struct {
	Seq      uint32 // its place is this modulo the number of places
	Signaled bool
	Read     bool

	// Of a Send: the bytes at its place, and of an eager message those of the
	// payload that follow from elsewhere.
	Size, Payload int

	// Of a Read: the message, as [Machine.Handle] takes it, the place in it, and
	// the peer's memory.
	Message        uint64
	Offset, Length int
	Address        uint64
	Key            uint32
}

type placeKind uint8

const (
	placeSend placeKind = iota
	placeRead
	placeGoodbye
	placeOperation
)

// A place is what a request in the send queue is for.
type place struct {
	what    placeKind
	message uint64 // that is read
	offer   readOffer
}

type readOffer struct{ id, length uint32 }

// sendQueue mirrors the send queue of the queue pair. Requests complete in order.
type sendQueue struct {
	places     []place // a power of two, for seq to wrap
	memory     []byte
	limits     Limits
	depth      uint32 // without operations, with the places that there are
	head, tail uint32 // outstanding are head to tail
	paid       uint32 // of those that cost a credit
	crowded    uint32 // outstanding requests, without operations, from which on more places are wanted
	quiet      int    // requests since the last signalled one
	pace       int    // one in so many is signalled
	operations uint32 // outstanding
}

func newSendQueue(memory []byte, l Limits) sendQueue {
	q := sendQueue{limits: l}
	q.grow(memory)
	return q
}

// grow gives the requests to come places in other memory, which has more. Those that
// are outstanding keep the memory that they were posted with.
func (q *sendQueue) grow(memory []byte) {
	former := q.places
	q.memory, q.places = memory, make([]place, len(memory)/PlaceSize)
	for seq := q.head; seq != q.tail; seq++ {
		*q.at(seq) = former[int(seq)&(len(former)-1)]
	}
	l := &q.limits
	depth, paid := l.ownDepth(), l.paid()
	q.crowded = math.MaxUint32
	if n := len(q.places); n < l.Places() {
		// Operations keep their places, and so does a quarter of the rest for what frees
		// something.
		depth = n - l.Operations
		paid = min(paid, depth-depth/4)
		q.crowded = uint32(paid)
	}
	q.depth, q.paid, q.pace = uint32(depth), uint32(paid), min(unsignaled, l.paid()/2, paid)
}

func (q *sendQueue) slot(seq uint32) int { return int(seq) & (len(q.places) - 1) }

func (q *sendQueue) at(seq uint32) *place { return &q.places[q.slot(seq)] }

// place is the memory of a request.
func (q *sendQueue) place(seq uint32) []byte {
	i := q.slot(seq) * PlaceSize
	return q.memory[i : i+PlaceSize : i+PlaceSize]
}

// body is what of it is behind the header.
func (q *sendQueue) body(seq uint32) []byte { return q.place(seq)[headerSize:] }

// room tells whether the queue takes another request that frees something.
func (q *sendQueue) room() bool { return q.tail-q.head-q.operations < q.depth }

// roomPaid tells whether the queue takes another message that costs a credit.
func (q *sendQueue) roomPaid() bool { return q.tail-q.head-q.operations < q.paid }

// signal tells whether the next request has to be signalled.
func (q *sendQueue) signal(wanted bool) bool {
	if q.quiet++; wanted || q.quiet >= q.pace {
		q.quiet = 0
		return true
	}
	return false
}
