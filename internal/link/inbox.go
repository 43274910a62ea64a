package link

// A message is one of the peer's that has arrived, or is arriving.
type message[M any] struct {
	handle M
	tag    uint32
	total  int // bytes
	long   bool

	// Of a long one, in bytes:
	offered  int // by parts that have been announced
	settled  int // that have been read, or will not be
	reading  int // Reads under way
	capacity int // memory that the caller has provided
	given    bool
	viewed   bool // it lies in the peer's memory
	givenUp  bool // by the peer: what is missing never comes
}

// complete tells that nothing of the message is to come any more.
func (e *message[M]) complete() bool {
	return !e.long || e.settled == e.total || e.givenUp && e.settled == e.offered
}

// inbox holds the messages in the order in which their first Sends arrived.
// Positions count from the first message of the connection.
type inbox[M any] struct {
	ring        []message[M] // a power of two long
	first, next uint64
	incomplete  int
}

func (b *inbox[M]) at(n uint64) *message[M] { return &b.ring[n&uint64(len(b.ring)-1)] }

func (b *inbox[M]) push(e message[M]) uint64 {
	if b.next-b.first == uint64(len(b.ring)) {
		bigger := inbox[M]{ring: make([]message[M], max(2*len(b.ring), 8)), first: b.first, next: b.next}
		for n := b.first; n != b.next; n++ {
			*bigger.at(n) = *b.at(n)
		}
		b.ring = bigger.ring
	}
	n := b.next
	*b.at(n) = e
	b.next++
	if !e.complete() {
		b.incomplete++
	}
	return n
}

// pop takes the first message out.
func (b *inbox[M]) pop() message[M] {
	e := b.at(b.first)
	out := *e
	*e = message[M]{}
	b.first++
	return out
}

func (b *inbox[M]) empty() bool { return b.first == b.next }

// A Message is one that [Machine.Next] hands over.
type Message[M any] struct {
	Handle M
	Tag    uint32
	Length int  // bytes
	Long   bool // it was read into memory that the caller provided, or is viewed
}

// Next takes the first message out of the inbox if it is complete; posts may follow
// from it. Messages that the peer gave up are taken out on the way, and freed is called
// for each that has memory.
func (m *Machine[M]) Next(freed func(M)) (Message[M], bool) {
	for !m.inbox.empty() && m.inbox.at(m.inbox.first).complete() {
		e := m.inbox.pop()
		if !e.givenUp && (!e.long || e.given) { // memory of long ones goes back when this side has closed
			if m.inbox.empty() && m.credits.peers == 0 {
				m.pump() // a credit that is owed may be due
			}
			return Message[M]{Handle: e.handle, Tag: e.tag, Length: e.total, Long: e.long}, true
		}
		if e.given {
			freed(e.handle)
		}
	}
	return Message[M]{}, false
}

// FirstIsViewed tells that Next would return a message that is viewed.
func (m *Machine[M]) FirstIsViewed() bool {
	return !m.inbox.empty() && m.inbox.at(m.inbox.first).viewed
}

// Ready tells that Next has something to return, or that the first message waits
// for memory: see [Machine.Wanted].
func (m *Machine[M]) Ready() bool {
	if m.inbox.empty() {
		return false
	}
	e := m.inbox.at(m.inbox.first)
	return e.complete() || m.short(m.inbox.first)
}

// Unfinished tells that a long message which has memory waits for the peer: for the
// answers to Reads of so many bytes or, if there are none, for its next part.
func (m *Machine[M]) Unfinished() (reading int, ok bool) {
	a := &m.arrivals
	if a.reading > 0 {
		return a.asked, true
	}
	return 0, a.arriving && a.pending.Len() == 0 && m.inbox.at(a.current).given
}

// Fetched is how many bytes Reads have brought so far.
func (m *Machine[M]) Fetched() uint64 { return m.arrivals.fetched }

// Discard empties the inbox, complete or not, and returns the handles to be freed
// through freed. The device must no longer touch their memory.
func (m *Machine[M]) Discard(freed func(M)) {
	for !m.inbox.empty() {
		if e := m.inbox.pop(); !e.long || e.given {
			freed(e.handle)
		}
	}
	m.inbox.incomplete = 0
}
