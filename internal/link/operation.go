package link

// MayOperate tells whether n one-sided operations may be put into the send queue now.
// They have places of their own there: messages do not wait for them, nor they for
// messages.
func (m *Machine[M]) MayOperate(n int) bool {
	return m.takes && int(m.queue.operations)+n <= m.limits.Operations
}

// Operate takes the next n places of the send queue, when MayOperate. The caller
// posts the operations, behind what Posts has returned before, with sequence numbers
// from first on, the last one signalled. [Machine.Sent] tells when they are done.
func (m *Machine[M]) Operate(n int) (first uint32) {
	q := &m.queue
	first = q.tail
	for range n {
		*q.at(q.tail) = place{what: placeOperation}
		q.tail++
	}
	q.operations += uint32(n)
	q.quiet = 0
	return first
}
