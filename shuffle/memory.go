package shuffle

import (
	"encoding/binary"
	"errors"
	"sync"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

// A block is memory of this process in which a thread collects a part.
type block struct {
	memory []byte
	length int // of the part, with its header, when it is complete
	places int // that it takes in a window: how many parts its memory is long
}

// blocks hands out the blocks of a process. They are as many as are in use at a time.
type blocks struct {
	size  int   // bytes of a part
	limit int64 // bytes of all, beyond which those that are free are given to the collector
	mu    sync.Mutex
	free  [][]*block // by places
	made  int64      // bytes of all
}

// besideLong is how many bytes a block of several places has more, for the headers of a record that fills the places:
// so that two of half a window fit into it.
const besideLong = wire.PartSize + binary.MaxVarintLen64

// places is how many a part of one record of n bytes takes.
func (m *blocks) places(n int) int { return (n + m.size - 1) / m.size }

// length is how many bytes a block of so many places has.
func (m *blocks) length(places int) int64 {
	if places > 1 {
		return int64(places)*int64(m.size) + besideLong
	}
	return int64(m.size)
}

// get returns a block of the length of so many parts.
func (m *blocks) get(places int) *block {
	m.mu.Lock()
	defer m.mu.Unlock()
	if free := m.free[places]; len(free) > 0 {
		b := free[len(free)-1]
		m.free[places] = free[:len(free)-1]
		return b
	}
	n := m.length(places)
	for other := range m.free {
		for m.made+n > m.limit && len(m.free[other]) > 0 {
			m.free[other] = m.free[other][:len(m.free[other])-1]
			m.made -= m.length(other)
		}
	}
	m.made += n
	return &block{memory: make([]byte, n), places: places}
}

// bytes is how many bytes all blocks have.
func (m *blocks) bytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.made
}

func (m *blocks) put(b *block) {
	m.mu.Lock()
	m.free[b.places] = append(m.free[b.places], b)
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
