package verbena

import "sync"

// An inbox holds the messages of a stream that Receive has not taken, in order.
type inbox struct {
	mu     sync.Mutex
	ring   []*Message // a power of two long
	first  int
	count  int
	bytes  int           // of the messages that are there
	popped Traffic       // taken by Receive
	ready  chan struct{} // one token when something changed
}

func (q *inbox) push(m *Message) {
	q.mu.Lock()
	if q.count == len(q.ring) {
		bigger := make([]*Message, max(2*len(q.ring), 8))
		for i := range q.count {
			bigger[i] = *q.at(i)
		}
		q.ring, q.first = bigger, 0
	}
	*q.at(q.count) = m
	q.count++
	q.bytes += len(m.data)
	q.mu.Unlock()
	q.wake()
}

func (q *inbox) at(i int) **Message { return &q.ring[(q.first+i)&(len(q.ring)-1)] }

// pop takes the first message, or returns nil.
func (q *inbox) pop() *Message {
	m := q.take()
	if m != nil {
		q.passed(len(m.data))
	}
	return m
}

// take is pop without counting.
func (q *inbox) take() *Message {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.count == 0 {
		return nil
	}
	m := q.remove()
	q.bytes -= len(m.data)
	return m
}

// passed counts a message that the application gets.
func (q *inbox) passed(bytes int) {
	q.mu.Lock()
	q.popped.add(bytes)
	q.mu.Unlock()
}

func (q *inbox) remove() *Message {
	slot := q.at(0)
	m := *slot
	*slot = nil
	q.first = (q.first + 1) & (len(q.ring) - 1)
	q.count--
	return m
}

// size tells how many messages wait, and their bytes.
func (q *inbox) size() (messages, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.count, q.bytes
}

func (q *inbox) received() Traffic {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.popped
}

func (q *inbox) wake() { notify(q.ready) }

// clear releases what nobody will receive.
func (q *inbox) clear() {
	q.mu.Lock()
	var all []*Message
	for q.count > 0 {
		all = append(all, q.remove())
	}
	q.bytes = 0
	q.mu.Unlock()
	for _, m := range all {
		m.Release()
	}
}
