package verbena

// A fifo is a queue that keeps its memory.
type fifo[T comparable] struct {
	items []T
	first int
}

func (f *fifo[T]) len() int { return len(f.items) - f.first }

func (f *fifo[T]) push(v T) {
	if f.first > 0 && len(f.items) == cap(f.items) {
		n := copy(f.items, f.items[f.first:])
		clear(f.items[n:])
		f.items, f.first = f.items[:n], 0
	}
	f.items = append(f.items, v)
}

func (f *fifo[T]) front() *T { return &f.items[f.first] }

func (f *fifo[T]) pop() T {
	var none T
	v := f.items[f.first]
	f.items[f.first] = none
	if f.first++; f.first == len(f.items) {
		f.items, f.first = f.items[:0], 0
	}
	return v
}

// remove takes v out, wherever it is.
func (f *fifo[T]) remove(v T) {
	for i := f.first; i < len(f.items); i++ {
		if f.items[i] == v {
			var none T
			copy(f.items[i:], f.items[i+1:])
			f.items[len(f.items)-1] = none
			f.items = f.items[:len(f.items)-1]
			break
		}
	}
	if f.first == len(f.items) {
		f.items, f.first = f.items[:0], 0
	}
}
