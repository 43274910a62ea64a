package stream

import (
	"errors"
	"sync"
)

// ErrUnread says that too many bytes waited for peers that do not read, and that
// this connection was the one to end.
var ErrUnread = errors.New("too much waits for the peer, which does not read")

// A Budget bounds the bytes that wait for the peers of many writers, beyond
// 4 MiB for each. One writer may have half of it. If all together have more than
// all of it, the one with the most has to end. The methods of a nil Budget do nothing.
type Budget struct {
	most int64

	mu    sync.Mutex
	held  map[*Writer]int64
	total int64
}

// NewBudget returns a budget of so many bytes.
func NewBudget(most int64) *Budget {
	return &Budget{most: most, held: map[*Writer]int64{}}
}

// charge sets what w holds. It returns the writer that has to end, if any, whose
// bytes count no more from then on.
func (b *Budget) charge(w *Writer, bytes int64) (slowest *Writer) {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.held[w]
	b.set(w, bytes)
	switch {
	case bytes <= before:
		return nil
	case bytes > b.most/2:
		slowest = w
	case b.total > b.most:
		for other, n := range b.held {
			if slowest == nil || n > b.held[slowest] {
				slowest = other
			}
		}
	default:
		return nil
	}
	b.set(slowest, 0)
	return slowest
}

func (b *Budget) set(w *Writer, bytes int64) {
	b.total += bytes - b.held[w]
	if bytes == 0 {
		delete(b.held, w)
	} else {
		b.held[w] = bytes
	}
}

// forget ends what w holds.
func (b *Budget) forget(w *Writer) { b.charge(w, 0) }
