package cow

import "slices"

// pageNames bounds what one insertion moves, and what the first change of a page copies.
const pageNames = 128

// Before tells whether one name comes before another, as in Apache HDFS: by their bytes,
// which Java takes for signed. So what is not ASCII comes first.
func Before(a, b string) bool {
	const signs = 0x8080808080808080
	for len(a) >= 8 && len(b) >= 8 {
		if x, y := eight(a), eight(b); x != y {
			return x^signs < y^signs
		}
		a, b = a[8:], b[8:]
	}
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return int8(a[i]) < int8(b[i])
		}
	}
	return len(a) < len(b)
}

// eight is the first eight bytes, the first one as the highest.
func eight(s string) uint64 {
	_ = s[7]
	return uint64(s[7]) | uint64(s[6])<<8 | uint64(s[5])<<16 | uint64(s[4])<<24 |
		uint64(s[3])<<32 | uint64(s[2])<<40 | uint64(s[1])<<48 | uint64(s[0])<<56
}

// Names maps a directory's names to numbers, in the order of [Before]. It is a list of
// pages of at most 128 names. A directory of a million has some ten thousand pages, whose
// list, 80 kB, is what its first change in a generation copies. The zero Names is empty.
//
// The caller keeps the generation: a copy of a Names is a version of its own as soon as
// the original is only changed in a later generation.
type Names struct {
	gen   uint64 // of the list
	pages []*page
	count int
}

type page struct {
	gen     uint64
	entries []Name
}

// Name is a name and its number.
type Name struct {
	Name   string
	Number uint64
}

// Len is how many names there are.
func (s *Names) Len() int { return s.count }

// search returns where name is or would be. It is a large part of every operation, so there
// is no function between it and the comparison.
func (s *Names) search(name string) (page, index int, found bool) {
	end := len(s.pages)
	for page < end {
		i := int(uint(page+end) >> 1)
		if last := s.pages[i].entries; Before(last[len(last)-1].Name, name) {
			page = i + 1
		} else {
			end = i
		}
	}
	if page == len(s.pages) {
		return page, 0, false
	}
	entries := s.pages[page].entries
	end = len(entries)
	for index < end {
		i := int(uint(index+end) >> 1)
		if Before(entries[i].Name, name) {
			index = i + 1
		} else {
			end = i
		}
	}
	return page, index, entries[index].Name == name
}

// Get returns a name's number.
func (s *Names) Get(name string) (number uint64, ok bool) {
	page, index, ok := s.search(name)
	if !ok {
		return 0, false
	}
	return s.pages[page].entries[index].Number, true
}

// own makes the list changeable in gen.
func (s *Names) own(gen uint64) {
	if s.gen != gen {
		s.pages = slices.Clone(s.pages)
		s.gen = gen
	}
}

// ownPage makes one page changeable in gen, with room for one more name. The list
// is changeable already.
func (s *Names) ownPage(gen uint64, at int) *page {
	p := s.pages[at]
	if p.gen != gen {
		entries := make([]Name, len(p.entries), min(len(p.entries)+len(p.entries)/4+1, pageNames))
		copy(entries, p.entries)
		p = &page{gen: gen, entries: entries}
		s.pages[at] = p
	}
	return p
}

// Insert adds a name that is not there yet.
func (s *Names) Insert(gen uint64, name string, number uint64) {
	s.own(gen)
	s.count++
	at, index, _ := s.search(name)
	if at == len(s.pages) {
		if at == 0 {
			s.pages = append(s.pages, &page{gen: gen, entries: []Name{{name, number}}})
			return
		}
		at--
		index = len(s.pages[at].entries)
	}
	p := s.ownPage(gen, at)
	if len(p.entries) == pageNames {
		// Names often come in order: then full pages stay full.
		half := pageNames / 2
		if at == len(s.pages)-1 && index == pageNames {
			half = pageNames
		}
		right := &page{gen: gen, entries: make([]Name, pageNames-half, pageNames)}
		copy(right.entries, p.entries[half:])
		clear(p.entries[half:])
		p.entries = p.entries[:half]
		s.pages = slices.Insert(s.pages, at+1, right)
		if index >= half {
			p, index = right, index-half
		}
	}
	p.entries = slices.Insert(p.entries, index, Name{name, number})
}

// Append adds a name that comes after all others: nothing is searched. It returns false,
// and has done nothing, if the name does not come after all others.
func (s *Names) Append(gen uint64, name string, number uint64) bool {
	s.own(gen)
	last := len(s.pages) - 1
	if last >= 0 {
		entries := s.pages[last].entries
		if !Before(entries[len(entries)-1].Name, name) {
			return false
		}
	}
	s.count++
	if last >= 0 && len(s.pages[last].entries) < pageNames {
		p := s.ownPage(gen, last)
		p.entries = append(p.entries, Name{name, number})
		return true
	}
	p := &page{gen: gen}
	if last >= 0 {
		p.entries = make([]Name, 0, pageNames)
	}
	p.entries = append(p.entries, Name{name, number})
	s.pages = append(s.pages, p)
	return true
}

// Delete removes a name, if it is there.
func (s *Names) Delete(gen uint64, name string) {
	at, index, ok := s.search(name)
	if !ok {
		return
	}
	s.own(gen)
	s.count--
	if len(s.pages[at].entries) == 1 {
		s.pages = slices.Delete(s.pages, at, at+1)
		return
	}
	p := s.ownPage(gen, at)
	p.entries = slices.Delete(p.entries, index, index+1)
}

// After calls visit for the names that come after start, in order, until it returns
// false. Start "" begins with the first.
func (s *Names) After(start string, visit func(name string, number uint64) bool) {
	at, index := 0, 0
	if start != "" {
		var found bool
		at, index, found = s.search(start)
		if found {
			index++
		}
	}
	for ; at < len(s.pages); at, index = at+1, 0 {
		for _, e := range s.pages[at].entries[index:] {
			if !visit(e.Name, e.Number) {
				return
			}
		}
	}
}

// Rest counts the names that come after start.
func (s *Names) Rest(start string) int {
	at, index, found := s.search(start)
	if found {
		index++
	}
	n := -index
	for ; at < len(s.pages); at++ {
		n += len(s.pages[at].entries)
	}
	return max(n, 0)
}
