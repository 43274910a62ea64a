package shuffle

import "sync"

// A block is memory of this process in which a part of a stream is put together.
type block struct {
	// memory has room for what stands before a block that travels as a message, and then for
	// the block.
	memory []byte
	at     int // where memory begins in that of all blocks
	length int // of the block, with its header, when it is complete
}

// blocks hands out the blocks of a process. How many there are at most, the exchange
// counts: one for each stream, and some that wait for their turn.
type blocks struct {
	size   int // bytes of one
	mu     sync.Mutex
	free   []*block
	memory []byte // of blocks that were never used
	next   int
	spare  int // how many more may wait
}

func (m *blocks) get() *block {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.free); n > 0 {
		b := m.free[n-1]
		m.free = m.free[:n-1]
		return b
	}
	b := &block{at: m.next}
	if m.memory == nil { // one process: nothing of it is registered
		b.memory = make([]byte, m.size)
		return b
	}
	b.memory = m.memory[m.next : m.next+m.size : m.next+m.size]
	m.next += m.size
	return b
}

func (m *blocks) put(b *block) {
	m.mu.Lock()
	m.free = append(m.free, b)
	m.mu.Unlock()
}

// wait takes a block from the number of those that may wait, if there is one left.
func (m *blocks) wait() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.spare == 0 {
		return false
	}
	m.spare--
	return true
}

// gone gives back a block that has waited.
func (m *blocks) gone(b *block) {
	m.mu.Lock()
	m.spare++
	m.free = append(m.free, b)
	m.mu.Unlock()
}
