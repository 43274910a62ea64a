package cow

import (
	"iter"
	"math/bits"
)

// Sizes of pages. A page of values has 64, so that one word tells which are there. A twig
// spans 8,192 numbers, a branch 64 times what is below it.
const (
	leafBits   = 6
	twigBits   = 7
	branchBits = 6
	twigSpan   = leafBits + twigBits
)

// Map holds values by number. It is a radix tree whose height grows with the largest
// number, made for numbers that are handed out one after the other. Single numbers far
// away cost up to ten pages each. The zero Map is empty.
type Map[V any] struct {
	gen    uint64
	root   ref[V]
	height int // of branches above the twigs
	count  int
}

type leaf[V any] struct {
	gen  uint64
	used uint64 // a bit for each value that is there
	vals [1 << leafBits]V
}

type twig[V any] struct {
	gen    uint64
	used   int
	leaves [1 << twigBits]*leaf[V]
}

type branch[V any] struct {
	gen  uint64
	used int
	refs [1 << branchBits]ref[V]
}

// ref is a branch, a twig at the lowest height, or nothing.
type ref[V any] struct {
	branch *branch[V]
	twig   *twig[V]
}

// Len is how many values there are.
func (m *Map[V]) Len() int { return m.count }

// covers tells whether the tree is high enough for number.
func (m *Map[V]) covers(number uint64) bool {
	shift := twigSpan + branchBits*m.height
	return shift >= 64 || number>>shift == 0
}

// Get returns the value of number, nil if there is none. The value must not be
// changed; it is what the version has for ever if this is a version, and valid until the
// next change of the map if it is not.
func (m *Map[V]) Get(number uint64) *V {
	if !m.covers(number) {
		return nil
	}
	at := m.root
	for h := m.height; h > 0; h-- {
		if at.branch == nil {
			return nil
		}
		at = at.branch.refs[number>>(twigSpan+branchBits*(h-1))&(1<<branchBits-1)]
	}
	if at.twig == nil {
		return nil
	}
	l := at.twig.leaves[number>>leafBits&(1<<twigBits-1)]
	if l == nil || l.used>>(number&(1<<leafBits-1))&1 == 0 {
		return nil
	}
	return &l.vals[number&(1<<leafBits-1)]
}

// Change returns the value of number for changing it in place, until the next Freeze;
// nil if there is none. What Get returned of it, and of its neighbours,
// may be a version's from then on.
func (m *Map[V]) Change(number uint64) *V {
	if m.Get(number) == nil {
		return nil
	}
	return &m.own(number).vals[number&(1<<leafBits-1)]
}

// Put sets the value of number and returns it as Change does.
func (m *Map[V]) Put(number uint64, v V) *V {
	for !m.covers(number) {
		if m.root != (ref[V]{}) {
			b := &branch[V]{gen: m.gen, used: 1}
			b.refs[0] = m.root
			m.root = ref[V]{branch: b}
		}
		m.height++
	}
	l := m.own(number)
	i := number & (1<<leafBits - 1)
	if l.used>>i&1 == 0 {
		l.used |= 1 << i
		m.count++
	}
	l.vals[i] = v
	return &l.vals[i]
}

// own returns the page of number as one that may be changed, and makes what is missing.
// The tree is high enough.
func (m *Map[V]) own(number uint64) *leaf[V] {
	at := &m.root
	for h := m.height; h > 0; h-- {
		switch b := at.branch; {
		case b == nil:
			at.branch = &branch[V]{gen: m.gen}
		case b.gen != m.gen:
			c := *b
			c.gen = m.gen
			at.branch = &c
		}
		b := at.branch
		at = &b.refs[number>>(twigSpan+branchBits*(h-1))&(1<<branchBits-1)]
		if *at == (ref[V]{}) {
			b.used++
		}
	}
	switch t := at.twig; {
	case t == nil:
		at.twig = &twig[V]{gen: m.gen}
	case t.gen != m.gen:
		c := *t
		c.gen = m.gen
		at.twig = &c
	}
	t := at.twig
	slot := &t.leaves[number>>leafBits&(1<<twigBits-1)]
	switch l := *slot; {
	case l == nil:
		*slot = &leaf[V]{gen: m.gen}
		t.used++
	case l.gen != m.gen:
		c := *l
		c.gen = m.gen
		*slot = &c
	}
	return *slot
}

// Delete removes the value of number, if there is one, and pages that become empty.
func (m *Map[V]) Delete(number uint64) {
	if m.Get(number) == nil {
		return
	}
	l := m.own(number)
	i := number & (1<<leafBits - 1)
	l.used &^= 1 << i
	var none V
	l.vals[i] = none
	m.count--
	if l.used == 0 {
		m.prune(&m.root, m.height, number)
	}
}

// prune takes away the empty page of number, and what becomes empty with it. own has
// made the way to it changeable.
func (m *Map[V]) prune(at *ref[V], height int, number uint64) {
	if height > 0 {
		b := at.branch
		below := &b.refs[number>>(twigSpan+branchBits*(height-1))&(1<<branchBits-1)]
		m.prune(below, height-1, number)
		if *below == (ref[V]{}) {
			b.used--
		}
		if b.used == 0 {
			*at = ref[V]{}
		}
		return
	}
	t := at.twig
	t.leaves[number>>leafBits&(1<<twigBits-1)] = nil
	if t.used--; t.used == 0 {
		*at = ref[V]{}
	}
}

// Freeze returns the present state as a version of its own, which must not be changed.
// What Change and Put have returned must not be changed any more either.
func (m *Map[V]) Freeze() *Map[V] {
	v := *m
	m.gen++
	return &v
}

// From iterates over the values of the numbers from start on, in order. The map must
// not change meanwhile.
func (m *Map[V]) From(start uint64) iter.Seq2[uint64, *V] {
	return func(yield func(uint64, *V) bool) {
		if m.covers(start) {
			m.walk(m.root, m.height, 0, start, yield)
		}
	}
}

func (m *Map[V]) walk(at ref[V], height int, base, start uint64, yield func(uint64, *V) bool) bool {
	if height > 0 {
		if at.branch == nil {
			return true
		}
		shift := twigSpan + branchBits*(height-1)
		for i := first(base, start, shift, branchBits); i < 1<<branchBits; i++ {
			if !m.walk(at.branch.refs[i], height-1, base|i<<shift, start, yield) {
				return false
			}
		}
		return true
	}
	if at.twig == nil {
		return true
	}
	for i := first(base, start, leafBits, twigBits); i < 1<<twigBits; i++ {
		l := at.twig.leaves[i]
		if l == nil {
			continue
		}
		from := base | i<<leafBits
		used := l.used
		if start > from {
			used &= ^uint64(0) << (start - from)
		}
		for ; used != 0; used &= used - 1 {
			j := uint64(bits.TrailingZeros64(used))
			if !yield(from|j, &l.vals[j]) {
				return false
			}
		}
	}
	return true
}

// first is the index of the first page below base that reaches start.
func first(base, start uint64, shift, width int) uint64 {
	if start <= base {
		return 0
	}
	return min((start-base)>>shift, 1<<width)
}
