package link

const (
	// PlaceSize is the memory in bytes that each request of the send queue has for
	// a header and what fits beside it.
	PlaceSize = 64
	// unsignaled is how many requests share a signalled completion, if the send
	// queue is at least twice as long: otherwise it could be full with nothing to
	// free it.
	unsignaled = 8
)

// A Post is a request for the send queue.
type Post struct {
	Seq      uint32 // its place is this modulo Limits.Places
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
	depth      uint32 // without operations
	head, tail uint32 // outstanding are head to tail
	paid       uint32 // of those that cost a credit
	quiet      int    // requests since the last signalled one
	pace       int    // one in so many is signalled
	operations uint32 // outstanding
}

func newSendQueue(memory []byte, l Limits) sendQueue {
	return sendQueue{
		places: make([]place, l.Places()), memory: memory, depth: uint32(l.ownDepth()),
		paid: uint32(l.paid()), pace: min(unsignaled, l.paid()/2),
	}
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
