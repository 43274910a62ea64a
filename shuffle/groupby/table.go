package groupby

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"math/big"
	"unsafe"

	"github.com/verbena-data/verbena/shuffle/internal/external"
)

// state is what is known of a key.
type state struct {
	count int64
	sum   decimal
}

func (s *state) add(t state) {
	s.count += t.count
	s.sum = s.sum.plus(t.sum)
}

func (s *state) encode(b []byte) []byte {
	return s.sum.encode(binary.AppendUvarint(b, uint64(s.count)))
}

func decodeState(b []byte) (s state, err error) {
	count, n := binary.Uvarint(b)
	if n <= 0 || int64(count) < 0 {
		return s, errors.New("a damaged partial result")
	}
	s.count = int64(count)
	s.sum, err = decodeDecimal(b[n:])
	return s, err
}

// table adds up by key in a fixed amount of memory outside Go's heap: a hash table with open
// addressing, whose slots tell where groups stand that lie one behind the other.
type table struct {
	memory []byte // of the groups
	used   int
	slots  []uint32 // in units of groupAlign, from 1 on; 0: free
	mask   uint32
	groups int
	large  []*big.Int // sums that are too large for a group
	seed   maphash.Seed
	mapped []byte
	// full is called when there is no room for a further key, or when mostLarge sums lie on the heap, and the table is
	// cleared afterwards.
	full func(*table) error
}

// group is in memory, with its key behind it.
type group struct {
	hash, length uint32
	count, units int64
	scale        int32
	large        int32 // in the table's list, from 1 on; 0: units are the sum
}

const (
	groupSize  = int(unsafe.Sizeof(group{}))
	groupAlign = 8
)

// newTable takes the bytes of memory that it may use, at most 16 GiB of them.
func newTable(room int64, full func(*table) error) (*table, error) {
	room = min(room, 16<<30)
	slots := uint32(1024)
	for int64(slots)*4*2*8 <= room { // an eighth at most
		slots *= 2
	}
	mapped, err := external.MapMemory(int(room))
	if err != nil {
		return nil, err
	}
	return &table{
		mapped: mapped, slots: unsafe.Slice((*uint32)(unsafe.Pointer(&mapped[0])), slots), memory: mapped[4*slots:],
		mask: slots - 1, seed: maphash.MakeSeed(), full: full,
	}, nil
}

func (t *table) close() error { return external.Unmap(t.mapped) }

func (t *table) at(slot uint32) *group {
	return (*group)(unsafe.Pointer(&t.memory[int(slot-1)*groupAlign]))
}

// keyOf is the key of a group that stands at a slot's place.
func (t *table) keyOf(slot uint32, g *group) []byte {
	return t.memory[int(slot-1)*groupAlign+groupSize:][:g.length]
}

func (t *table) state(g *group) state {
	s := state{g.count, decimal{units: g.units, scale: int(g.scale)}}
	if g.large > 0 {
		s.sum.units, s.sum.large = 0, t.large[g.large-1]
	}
	return s
}

func (t *table) set(g *group, s state) {
	g.count, g.units, g.scale = s.count, s.sum.units, int32(s.sum.scale)
	if s.sum.large == nil {
		g.large = 0
		return
	}
	if g.large == 0 {
		t.large = append(t.large, nil)
		g.large = int32(len(t.large))
	}
	t.large[g.large-1] = s.sum.large
}

// mostLarge bounds the sums that lie on the heap.
const mostLarge = 20_000

// add adds to a key.
func (t *table) add(key []byte, s state) error {
	hash := uint32(maphash.Bytes(t.seed, key))
	i := hash & t.mask
	for ; t.slots[i] != 0; i = (i + 1) & t.mask {
		if g := t.at(t.slots[i]); g.hash == hash && bytes.Equal(t.keyOf(t.slots[i], g), key) {
			if s.sum.units == 0 && s.sum.large == nil && s.sum.scale == 0 { // a count
				g.count += s.count
				return nil
			}
			sum := t.state(g)
			sum.add(s)
			t.set(g, sum)
			return t.boundLarge()
		}
	}
	size := (groupSize + len(key) + groupAlign - 1) / groupAlign * groupAlign
	if t.used+size > len(t.memory) || t.groups >= len(t.slots)/8*7 {
		if t.groups == 0 {
			return fmt.Errorf("a key of %d bytes does not fit into the memory: raise --memory", len(key))
		}
		if err := t.empty(); err != nil {
			return err
		}
		return t.add(key, s)
	}
	slot := uint32(t.used/groupAlign) + 1
	g := t.at(slot)
	*g = group{hash: hash, length: uint32(len(key))}
	copy(t.keyOf(slot, g), key)
	t.set(g, s)
	t.slots[i] = slot
	t.used += size
	t.groups++
	return t.boundLarge()
}

// boundLarge empties the table when it has as many large sums as it may, of new keys or of those that it had.
func (t *table) boundLarge() error {
	if len(t.large) < mostLarge {
		return nil
	}
	return t.empty()
}

// empty hands on what is known of all keys, and forgets them.
func (t *table) empty() error {
	if err := t.full(t); err != nil {
		return err
	}
	clear(t.slots)
	t.used, t.groups, t.large = 0, 0, nil
	return nil
}

// all are the keys and what is known of them. Keys are valid until the next add.
func (t *table) all() iter.Seq2[[]byte, state] {
	return func(yield func([]byte, state) bool) {
		for at := 0; at < t.used; {
			slot := uint32(at/groupAlign) + 1
			g := t.at(slot)
			if !yield(t.keyOf(slot, g), t.state(g)) {
				return
			}
			at += (groupSize + int(g.length) + groupAlign - 1) / groupAlign * groupAlign
		}
	}
}

// value is the state that a record adds.
func (c *Config) value(text []byte) (state, error) {
	if c.Sum == "" {
		return state{count: 1}, nil
	}
	if len(text) == 0 { // no value
		return state{}, nil
	}
	d, err := parseDecimal(text)
	if err != nil {
		return state{}, fmt.Errorf("%s is %.40q: %w", c.Sum, text, err)
	}
	return state{count: 1, sum: d}, nil
}
