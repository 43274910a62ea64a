// Package fifo is a queue that keeps its memory: in steady state it allocates
// nothing, and what has been taken out of it takes no more room than what is in it, even if it is never empty.
package fifo

// A Queue holds values in the order in which they were pushed. The zero value is
// empty. Its methods must not be called concurrently.
type Queue[T any] struct {
	items []T
	first int
}

// Len is how many values there are.
func (q *Queue[T]) Len() int { return len(q.items) - q.first }

// Cap is how many values there is memory for.
func (q *Queue[T]) Cap() int { return cap(q.items) }

// Push puts v at the end. For each value that it moves one has been taken since it last did, so that a long queue is
// no slower than a short one.
func (q *Queue[T]) Push(v T) {
	if len(q.items) == cap(q.items) && q.first > 0 && q.first >= q.Len() {
		n := copy(q.items, q.items[q.first:])
		clear(q.items[n:])
		q.items, q.first = q.items[:n], 0
	}
	q.items = append(q.items, v)
}

// Front is the first value, which must be there. The pointer is valid until the next
// Push, Pop or Remove.
func (q *Queue[T]) Front() *T { return &q.items[q.first] }

// Values are all in order. The slice is valid until the next Push, Pop, Remove or Clear.
func (q *Queue[T]) Values() []T { return q.items[q.first:] }

// Pop takes the first value out, which must be there.
func (q *Queue[T]) Pop() T {
	var none T
	v := q.items[q.first]
	q.items[q.first] = none
	q.first++
	q.rewind()
	return v
}

// Remove takes the first value out for which is says so, if there is one.
func (q *Queue[T]) Remove(is func(T) bool) {
	for i := q.first; i < len(q.items); i++ {
		if is(q.items[i]) {
			last := len(q.items) - 1
			copy(q.items[i:], q.items[i+1:])
			clear(q.items[last:])
			q.items = q.items[:last]
			q.rewind()
			return
		}
	}
}

// Clear empties the queue and tells how much was in it.
func (q *Queue[T]) Clear() int {
	n := q.Len()
	clear(q.items)
	q.items, q.first = q.items[:0], 0
	return n
}

// rewind begins at the front again when there is nothing.
func (q *Queue[T]) rewind() {
	if q.first == len(q.items) {
		q.items, q.first = q.items[:0], 0
	}
}
