package namenode

import (
	"iter"
	"math/bits"

	"github.com/verbena-data/verbena/internal/cow"
)

// blockSet is a set of blocks, ordered by their ids. A bit for each block stands in pages of 512
// bytes for 4,096 of them, which come and go one by one: where all of ten million blocks lack
// replicas after a start, that is 1.4 MB, no page is ever copied, and a walk can stop anywhere and
// go on there. The zero set is empty; a nil one is, too, and takes nothing.
type blockSet struct {
	words cow.Map[uint64] // by block id / 64; none is 0
	count int
}

func (s *blockSet) len() int {
	if s == nil {
		return 0
	}
	return s.count
}

func (s *blockSet) has(id uint64) bool {
	if s == nil {
		return false
	}
	w := s.words.Get(id >> 6)
	return w != nil && *w>>(id&63)&1 == 1
}

func (s *blockSet) add(id uint64) {
	bit := uint64(1) << (id & 63)
	w := s.words.Change(id >> 6)
	switch {
	case w == nil:
		s.words.Put(id>>6, bit)
	case *w&bit != 0:
		return
	default:
		*w |= bit
	}
	s.count++
}

func (s *blockSet) remove(id uint64) {
	if !s.has(id) {
		return
	}
	w := s.words.Change(id >> 6)
	if *w &^= 1 << (id & 63); *w == 0 {
		s.words.Delete(id >> 6)
	}
	s.count--
}

// set adds a block or removes it.
func (s *blockSet) set(id uint64, in bool) {
	if in {
		s.add(id)
	} else {
		s.remove(id)
	}
}

// next returns the first block whose id is not below start.
func (s *blockSet) next(start uint64) (id uint64, ok bool) {
	if s.len() == 0 {
		return 0, false
	}
	for at, w := range s.words.From(start >> 6) {
		left := *w
		if at == start>>6 {
			left &^= 1<<(start&63) - 1
		}
		if left != 0 {
			return at<<6 | uint64(bits.TrailingZeros64(left)), true
		}
	}
	return 0, false
}

// all iterates in the order of ids. The set must not change meanwhile.
func (s *blockSet) all() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		if s.len() == 0 {
			return
		}
		for at, w := range s.words.From(0) {
			for left := *w; left != 0; left &= left - 1 {
				if !yield(at<<6 | uint64(bits.TrailingZeros64(left))) {
					return
				}
			}
		}
	}
}
