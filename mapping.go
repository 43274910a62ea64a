package verbena

import (
	"fmt"
	"sync"
)

// A Mapping is memory outside the Go heap that every transport can expose: a memfd of
// fixed size where there are some (Linux), so that a peer on this host can map it, too.
// It must be closed. Its methods may be called concurrently.
type Mapping struct {
	bytes    []byte
	fd       int // -1: there is none
	writable bool

	mu     sync.Mutex
	closed bool
}

// NewMapping maps size bytes of zeros, at least one. The system provides memory when
// they are touched.
func NewMapping(size int) (*Mapping, error) {
	if size <= 0 || size > maxExposure {
		return nil, fmt.Errorf("verbena: map memory: %w: %d bytes", ErrTooLong, size)
	}
	m, err := mapNew(size)
	if err != nil {
		return nil, fmt.Errorf("verbena: map memory: %w", err)
	}
	mappings.add(m)
	return m, nil
}

// MapDescriptor maps the whole of a memfd that the caller has made, of huge pages or
// others: once more, if the caller has mapped it already. Its size has to be sealed
// (F_SEAL_SHRINK and F_SEAL_GROW), or it is sealed now; so are the seals. The mode becomes
// 0600: whoever gets it for reading must not open it anew for writing. Without the right
// to write the mapping is for reading. The descriptor stays the caller's.
func MapDescriptor(fd uintptr) (*Mapping, error) {
	m, err := mapDescriptor(fd)
	if err != nil {
		return nil, fmt.Errorf("verbena: map a descriptor: %w", err)
	}
	mappings.add(m)
	return m, nil
}

// Bytes is the memory, until Close.
func (m *Mapping) Bytes() []byte { return m.bytes }

// Close unmaps the memory. While part of it is exposed or in use as a [Buffer] it fails
// with [ErrInUse] and leaves it mapped.
func (m *Mapping) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	if err := Forget(m.bytes); err != nil {
		return err
	}
	m.closed = true
	mappings.remove(m)
	return m.unmap()
}

// mappings are those of the process.
var mappings mappingTable

type mappingTable struct {
	mu  sync.Mutex
	all map[*Mapping]struct{}
}

func (t *mappingTable) add(m *Mapping) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[*Mapping]struct{}{}
	}
	t.all[m] = struct{}{}
}

func (t *mappingTable) remove(m *Mapping) {
	t.mu.Lock()
	delete(t.all, m)
	t.mu.Unlock()
}

// find returns the mapping in which memory lies, and where in it.
func (t *mappingTable) find(memory []byte) (m *Mapping, offset int) {
	start, length := extent(memory)
	t.mu.Lock()
	defer t.mu.Unlock()
	for m := range t.all {
		from, size := extent(m.bytes)
		if start >= from && start-from <= size && length <= size-(start-from) {
			return m, int(start - from)
		}
	}
	return nil, 0
}
