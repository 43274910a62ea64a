package external

import (
	"encoding/binary"
	"unsafe"
)

// entry stands for a record in an arena.
type entry struct {
	prefix uint64 // eight bytes of the key, from some depth on, big-endian, with zeros behind its end
	at     uint32 // where the key begins
	length uint32 // of the key
}

const entrySize = int(unsafe.Sizeof(entry{}))

// arenaLimit is the most that an arena may hold: entries have 32 bits for places in it.
const arenaLimit = 1 << 30

// arena is memory that records fill from its beginning and their entries from its end.
type arena struct {
	memory  []byte
	used    int // bytes of records
	entries int
}

func (a *arena) reset() { a.used, a.entries = 0, 0 }

// room is where the next record goes if it has n bytes, or nil if there is no room.
func (a *arena) room(n int) []byte {
	if a.used+n > len(a.memory)-(a.entries+1)*entrySize {
		return nil
	}
	return a.memory[a.used:][:n:n]
}

// add takes the record that has been written there, whose key has so many bytes, from keyAt on.
func (a *arena) add(record []byte, keyAt, keyLength int) {
	at := len(a.memory) - (a.entries+1)*entrySize
	*(*entry)(unsafe.Pointer(&a.memory[at])) = entry{Prefix(record[keyAt : keyAt+keyLength]), uint32(a.used + keyAt), uint32(keyLength)}
	a.used += len(record)
	a.entries++
}

// all are the entries. An arena's memory is aligned to pages, and its length to entries.
func (a *arena) all() []entry {
	if a.entries == 0 {
		return nil
	}
	return unsafe.Slice((*entry)(unsafe.Pointer(&a.memory[len(a.memory)-a.entries*entrySize])), a.entries)
}

// sort puts the entries into the order of the records.
func (a *arena) sort() {
	entries := a.all()
	sorter{a.memory[:a.used]}.sort(entries, 0)
}

// Prefix is the first eight bytes of a key as a number that orders as they do, with zeros
// behind a shorter one.
func Prefix(key []byte) uint64 {
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var p uint64
	for i, b := range key {
		p |= uint64(b) << (56 - 8*i)
	}
	return p
}
