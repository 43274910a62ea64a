package queue

// Levels is how many levels of priority there are; 0 comes first.
const Levels = 4

// weights is how many items a level gives before the next one's turn, as
// Hadoop's FairCallQueue has it by default.
var weights = [Levels]int{8, 4, 2, 1}

// levels are queues that take turns.
type levels[T any] struct {
	rings [Levels]ring[T]
	turn  int // whose turn it is
	given int // in this turn
}

func (l *levels[T]) push(level int, item T) { l.rings[level].push(item) }

// pop takes the next item.
func (l *levels[T]) pop() (item T, level int, ok bool) {
	for range Levels + 1 {
		if r := &l.rings[l.turn]; r.n > 0 && l.given < weights[l.turn] {
			l.given++
			return r.pop(), l.turn, true
		}
		l.turn, l.given = (l.turn+1)%Levels, 0
	}
	return item, 0, false
}

// ring is a queue that keeps its memory.
type ring[T any] struct {
	items []T
	first int
	n     int
}

func (r *ring[T]) push(item T) {
	if r.n == len(r.items) {
		bigger := make([]T, max(16, 2*r.n))
		for i := range r.n {
			bigger[i] = r.items[(r.first+i)%r.n]
		}
		r.items, r.first = bigger, 0
	}
	r.items[(r.first+r.n)%len(r.items)] = item
	r.n++
}

func (r *ring[T]) pop() T {
	var none T
	item := r.items[r.first]
	r.items[r.first] = none
	r.first = (r.first + 1) % len(r.items)
	if r.n--; r.n == 0 && len(r.items) > 1<<10 { // after a burst
		r.items, r.first = nil, 0
	}
	return item
}
