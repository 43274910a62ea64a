package onesided

// Most is how many operations of an endpoint a device has at a time.
const Most = 16

// Flights are the batches of operations that a device was given, in the order of their
// posts, the batches that wait in a line for room, and the calls that use memory for
// them. F is the caller's handle of a batch. The zero value is empty.
type Flights[F comparable] struct {
	ring  [Most]posted[F] // each has an operation at least, so there are never more
	first uint32
	count uint32
	line  []F

	callers  int
	deserted chan struct{} // closed when no call is left; nil unless somebody waits for that
}

// posted is a batch on the device.
type posted[F any] struct {
	flight F
	last   uint32 // sequence number of its last operation in the send queue
}

// Any tells whether a batch is under way.
func (q *Flights[F]) Any() bool { return q.count > 0 }

// Post notes that the operations of a batch are on the device, behind all others. last is
// the sequence number of the last of them.
func (q *Flights[F]) Post(f F, last uint32) {
	q.ring[(q.first+q.count)%Most] = posted[F]{f, last}
	q.count++
}

// Land takes out the first batch if all its operations are before sequence number seq:
// the device is through with them.
func (q *Flights[F]) Land(seq uint32) (f F, ok bool) {
	if q.count == 0 || int32(seq-q.ring[q.first%Most].last) <= 0 {
		return f, false
	}
	return q.Take()
}

// Take takes out the first batch, whether or not the device is through with it.
func (q *Flights[F]) Take() (f F, ok bool) {
	if q.count == 0 {
		return f, false
	}
	p := &q.ring[q.first%Most]
	f = p.flight
	*p = posted[F]{}
	q.first++
	q.count--
	return f, true
}

// Under tells whether is holds for a batch that is under way.
func (q *Flights[F]) Under(is func(F) bool) bool {
	for i := range q.count {
		if is(q.ring[(q.first+i)%Most].flight) {
			return true
		}
	}
	return false
}

// Wait puts a batch at the end of the line.
func (q *Flights[F]) Wait(f F) { q.line = append(q.line, f) }

// Next is the batch that may be posted as soon as there is room, if one waits.
func (q *Flights[F]) Next() (f F, ok bool) {
	if len(q.line) == 0 {
		return f, false
	}
	return q.line[0], true
}

// Turn tells whether no other batch has to be posted before f, which may be in the line.
func (q *Flights[F]) Turn(f F) bool { return len(q.line) == 0 || q.line[0] == f }

// Leave takes a batch out of the line, wherever it stands.
func (q *Flights[F]) Leave(f F) {
	for i := range q.line {
		if q.line[i] == f {
			copy(q.line[i:], q.line[i+1:])
			clear(q.line[len(q.line)-1:])
			q.line = q.line[:len(q.line)-1]
			return
		}
	}
}

// Enter counts a call that uses memory for operations, until Exit.
func (q *Flights[F]) Enter() { q.callers++ }

// Exit ends what Enter began. A batch whose caller has gone may still be under way.
func (q *Flights[F]) Exit() {
	if q.callers--; q.callers == 0 && q.deserted != nil {
		close(q.deserted)
	}
}

// Deserted is closed as soon as no call is left; nil says that there is none now. It is
// called once, when no further one begins.
func (q *Flights[F]) Deserted() <-chan struct{} {
	if q.callers > 0 {
		q.deserted = make(chan struct{})
	}
	return q.deserted
}
