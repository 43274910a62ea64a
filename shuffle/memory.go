package shuffle

import (
	"errors"
	"sync"

	"github.com/verbena-data/verbena"
)

// A block is memory of this process in which a thread collects a part.
type block struct {
	memory []byte
	length int // of the part, with its header, when it is complete
}

// blocks hands out the blocks of a process. They are as many as are in use at a time.
type blocks struct {
	size int // bytes of one
	mu   sync.Mutex
	free []*block
	made int // how many there are
}

func (m *blocks) get() *block {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.free); n > 0 {
		b := m.free[n-1]
		m.free = m.free[:n-1]
		return b
	}
	m.made++
	return &block{memory: make([]byte, m.size)}
}

// bytes is how many bytes all blocks have.
func (m *blocks) bytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int64(m.made) * int64(m.size)
}

func (m *blocks) put(b *block) {
	m.mu.Lock()
	m.free = append(m.free, b)
	m.mu.Unlock()
}

// mapped is the memory outside the Go heap. Receivers hold it while they have a block that
// lies there; it is unmapped when the exchange is closed and nobody holds it.
type mapped struct {
	mu       sync.Mutex
	mappings []*verbena.Mapping
	size     int64
	holds    int
	closed   bool
}

// add maps more.
func (m *mapped) add(size int) ([]byte, error) {
	mapping, err := verbena.NewMapping(size)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.mappings = append(m.mappings, mapping)
	m.size += int64(size)
	m.mu.Unlock()
	return mapping.Bytes(), nil
}

// bytes is how many bytes are mapped.
func (m *mapped) bytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.size
}

// hold reports false if the memory has gone.
func (m *mapped) hold() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.holds++
	return true
}

func (m *mapped) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holds--; m.closed && m.holds == 0 {
		_ = m.unmap() // Close has returned before
	}
}

// close unmaps the memory, or leaves that to who holds it last.
func (m *mapped) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.holds > 0 {
		return nil
	}
	return m.unmap()
}

func (m *mapped) unmap() error {
	var errs []error
	for _, mapping := range m.mappings {
		errs = append(errs, mapping.Close())
	}
	m.mappings, m.size = nil, 0
	return errors.Join(errs...)
}
