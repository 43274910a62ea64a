package external

import (
	"bytes"
	"context"
	"errors"
	"io"
)

// cursor is a source with its first record.
type cursor struct {
	source source
	record []byte // nil at the end
	key    []byte
	prefix uint64
}

// merger is a tree of losers (Knuth, The Art of Computer Programming 3, 5.4.1): each inner
// node has the cursor that lost there, so that a new record meets one opponent on each
// level.
type merger struct {
	cursors []cursor
	tree    []int // tree[0] is the winner
	layout  layout
}

// newMerger takes at least one source.
func newMerger(sources []source, layout layout) (*merger, error) {
	m := &merger{cursors: make([]cursor, len(sources)), tree: make([]int, len(sources)), layout: layout}
	for i, s := range sources {
		m.cursors[i].source = s
		if err := m.advance(i); err != nil {
			return nil, err
		}
	}
	m.tree[0] = m.winner(1)
	return m, nil
}

// winner plays the games below a node. Leaf i is the node len(cursors)+i.
func (m *merger) winner(node int) int {
	n := len(m.cursors)
	if node >= n {
		return node - n
	}
	a, b := m.winner(2*node), m.winner(2*node+1)
	if m.less(b, a) {
		a, b = b, a
	}
	m.tree[node] = b
	return a
}

func (m *merger) less(a, b int) bool {
	x, y := &m.cursors[a], &m.cursors[b]
	if x.prefix != y.prefix {
		return x.prefix < y.prefix
	}
	switch {
	case x.record == nil:
		return false
	case y.record == nil:
		return true
	}
	return bytes.Compare(x.key, y.key) < 0
}

func (m *merger) advance(i int) error {
	c := &m.cursors[i]
	record, err := c.source.next()
	switch {
	case err == nil:
		at, length := m.layout.key(record)
		c.record, c.key = record, record[at:at+length]
		c.prefix = Prefix(c.key)
	case errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		c.record, c.prefix = nil, ^uint64(0)
	default:
		return err
	}
	return nil
}

// After so many bytes each looks whether its context has ended, and a record counts for lookPerRecord bytes more.
const lookEach, lookPerRecord = 1 << 20, 1 << 10

// each calls take for all records in order.
func (m *merger) each(ctx context.Context, take func(record []byte) error) error {
	for left := 0; ; {
		top := m.tree[0]
		record := m.cursors[top].record
		if record == nil {
			return nil
		}
		if left -= len(record) + lookPerRecord; left < 0 {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			left = lookEach
		}
		if err := take(record); err != nil {
			return err
		}
		if err := m.advance(top); err != nil {
			return err
		}
		for node := (top + len(m.cursors)) / 2; node > 0; node /= 2 {
			if m.less(m.tree[node], top) {
				m.tree[node], top = top, m.tree[node]
			}
		}
		m.tree[0] = top
	}
}

// writeTo writes all records in order.
func (m *merger) writeTo(ctx context.Context, w *blockWriter, progress func(bytes int)) error {
	const often = 4 << 20
	done := 0
	err := m.each(ctx, func(record []byte) error {
		if done += len(record); done >= often {
			progress(done)
			done = 0
		}
		return w.write(ctx, record)
	})
	if err != nil {
		return err
	}
	progress(done)
	return w.flush(ctx)
}
