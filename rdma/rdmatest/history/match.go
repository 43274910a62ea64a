package history

import (
	"bytes"
	"fmt"

	"github.com/verbena-data/verbena/rdma"
)

// A matcher follows the messages of the peer's posters. Those of one poster come in
// order; those of several come in any mixture, so that a state is how many have come
// of each. Equal messages of two posters leave several states possible.
type matcher struct {
	d      *direction
	states map[[maxPosters]int]struct{}
	spare  map[[maxPosters]int]struct{}
	total  int
	got    int
}

func (m *matcher) begin(d *direction) {
	m.d, m.got, m.total = d, 0, 0
	if m.states == nil {
		m.states, m.spare = map[[maxPosters]int]struct{}{}, map[[maxPosters]int]struct{}{}
	}
	clear(m.states)
	m.states[[maxPosters]int{}] = struct{}{}
	for p := range d.count {
		m.total += len(d.posters[p].messages)
	}
}

// match keeps the states in which this message can be the next one.
func (m *matcher) match(c rdma.Completion, payload []byte) error {
	if m.d.count == 1 {
		want := &m.d.posters[0].messages[m.got]
		if !want.is(&c, payload, m.d) {
			return m.mismatch(&c, want)
		}
		m.got++
		return nil
	}
	clear(m.spare)
	var want *message
	for state := range m.states {
		for p := range m.d.count {
			if state[p] == len(m.d.posters[p].messages) {
				continue
			}
			if want = &m.d.posters[p].messages[state[p]]; !want.is(&c, payload, m.d) {
				continue
			}
			next := state
			next[p]++
			m.spare[next] = struct{}{}
		}
	}
	if len(m.spare) == 0 {
		return m.mismatch(&c, want)
	}
	m.states, m.spare = m.spare, m.states
	m.got++
	return nil
}

func (m *message) is(c *rdma.Completion, payload []byte, d *direction) bool {
	return c.Op == m.op && int(c.Length) == m.length && c.HasImmediate == m.immediate && (!m.immediate || c.Immediate == m.value) &&
		bytes.Equal(payload[:m.to-m.from], d.data[m.from:m.to])
}

func (m *matcher) mismatch(c *rdma.Completion, want *message) error {
	what := "nothing"
	if want != nil {
		what = fmt.Sprintf("a %s of %d bytes, immediate %v %#x, of certain content", want.op, want.length, want.immediate, want.value)
	}
	return fmt.Errorf("message %d of %d is a %s of %d bytes, immediate %v %#x; want %s", m.got, m.total, c.Op, c.Length, c.HasImmediate, c.Immediate, what)
}
