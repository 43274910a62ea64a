package namespace

import "hash/maphash"

// placeTable tells the numbers of calls by their keys: a hash table of 8 bytes a place, of which at most half are
// taken, so that most looks for a call that is not there touch one line of a cache. A Go map of the calls
// themselves is several times as large, and was a twelfth of the processor time of a delete.
//
// It does not know the keys. Places whose hashes differ by the mask alone follow each other.
type placeTable struct {
	seed  maphash.Seed
	slots []uint64 // 0: free; else the highest bit, 31 bits of the hash, and the number
	used  int
}

const (
	leastPlaces = 1 << 8
	taken       = 1 << 63
)

func newPlaceTable() placeTable {
	return placeTable{seed: maphash.MakeSeed(), slots: make([]uint64, leastPlaces)}
}

// hash has 31 bits, of which the lowest tell the place.
func (t *placeTable) hash(key callKey) uint64 { return maphash.Comparable(t.seed, key) >> 33 }

func (t *placeTable) mask() uint64 { return uint64(len(t.slots) - 1) }

// numbers calls f with the number of each place that may be the key's, until f returns true. It tells whether
// f did.
func (t *placeTable) numbers(key callKey, f func(number uint32) bool) bool {
	h := t.hash(key)
	for i := h & t.mask(); t.slots[i] != 0; i = (i + 1) & t.mask() {
		if s := t.slots[i]; s&^taken>>32 == h && f(uint32(s)) {
			return true
		}
	}
	return false
}

// add adds the number of a key that has none.
func (t *placeTable) add(key callKey, number uint32) {
	if t.used++; 2*t.used > len(t.slots) {
		old := t.slots
		t.slots = make([]uint64, 2*len(old))
		for _, s := range old {
			if s != 0 {
				t.put(s)
			}
		}
	}
	t.put(taken | t.hash(key)<<32 | uint64(number))
}

func (t *placeTable) put(s uint64) {
	i := t.home(s)
	for t.slots[i] != 0 {
		i = (i + 1) & t.mask()
	}
	t.slots[i] = s
}

// home is where the search for a place begins.
func (t *placeTable) home(s uint64) uint64 { return s &^ taken >> 32 & t.mask() }

// remove removes a number of a key, which is there.
func (t *placeTable) remove(key callKey, number uint32) {
	s := taken | t.hash(key)<<32 | uint64(number)
	i := t.home(s)
	for t.slots[i] != s {
		i = (i + 1) & t.mask()
	}
	t.used--
	// What follows and would not be found behind a free place moves there.
	for next := i; ; {
		t.slots[i] = 0
		for {
			next = (next + 1) & t.mask()
			if t.slots[next] == 0 {
				return
			}
			if (next-t.home(t.slots[next]))&t.mask() >= (next-i)&t.mask() {
				break
			}
		}
		t.slots[i] = t.slots[next]
		i = next
	}
}
