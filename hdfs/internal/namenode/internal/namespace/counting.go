package namespace

import (
	"iter"

	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/quota"
	"github.com/verbena-data/verbena/internal/cow"
)

// A counting counts what a directory and those below it hold, in parts, before an operation that needs
// to know it: the walk goes to the lowest directories first, so that what ns.usage has is always whole
// directories with all that is below. Directories on the way are counted up to a name, and changes
// before that name are charged to them. The entry finds what is there; one that comes from the log
// counts at once, and comes to the same.
type counting struct {
	root   uint64 // 0: there is nothing to count
	levels []countLevel
}

// A countLevel is a directory that is counted up to a name.
type countLevel struct {
	id    uint64
	after string
	used  quota.Counts
}

// needCounted has n counted in parts, if many names are below, before an operation that needs it to be. Once
// the operation is applied it counts what is left.
func (t *txn) needCounted(n *Inode) error {
	ns := t.ns
	if !t.dry || n.dir == nil || ns.few(n, ns.askedAtOnce) {
		return nil
	}
	if begun := ns.subtrees[t.entry]; begun != nil {
		begun.count.root = n.id
	}
	return ErrLarge
}

// few tells whether so many names at most have to be counted to know what n holds.
func (ns *Namespace) few(n *Inode, most int) bool {
	stack := []*Inode{n}
	for len(stack) > 0 {
		d := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if ns.limited(d.id) {
			continue
		}
		if most -= 1 + d.dir.names.Len(); most < 0 {
			return false
		}
		stack = ns.pushDirectories(stack, d)
	}
	return true
}

// CountOn counts a part of what Check has found to be counted for an entry that was asked for, if anything
// is. It changes no result of any operation. It must not run with others.
func (ns *Namespace) CountOn(e *nspb.Entry) {
	s := ns.subtrees[e]
	if s == nil || s.count.root == 0 {
		return
	}
	c := &s.count
	if len(c.levels) == 0 {
		c.levels = []countLevel{{id: c.root}}
	}
	s.looked = 0
	for left := ns.askedAtOnce; left > 0 && len(c.levels) > 0; left-- {
		top := &c.levels[len(c.levels)-1]
		d := ns.byID(top.id)
		if d == nil || ns.limited(d.id) {
			c.pop() // it was deleted, or another one has counted it
			continue
		}
		below, whole := uint64(0), true
		d.dir.names.After(top.after, func(name string, id uint64) bool {
			s.looked++
			child := ns.inodes.Get(id)
			if child.dir != nil && !ns.limited(id) {
				below, whole = id, false
				return false
			}
			used := ns.usageOf(child, child.dir != nil)
			top.used.Add(&used)
			top.after = name
			left--
			whole = left > 0
			return whole
		})
		switch {
		case below != 0:
			c.levels = append(c.levels, countLevel{id: below})
		case whole:
			top.used.Names++
			ns.usage[d.id] = top.used
			c.pop()
		}
	}
	if len(c.levels) == 0 {
		c.root = 0
	}
}

func (c *counting) pop() { c.levels = c.levels[:len(c.levels)-1] }

// levels iterates over the countings that have counted a name in a directory which is not counted yet.
func (ns *Namespace) levels(directory uint64, name string) iter.Seq[*countLevel] {
	return func(yield func(*countLevel) bool) {
		for _, s := range ns.subtrees {
			for i := range s.count.levels {
				l := &s.count.levels[i]
				if l.id == directory && !cow.Before(l.after, name) && !yield(l) {
					return
				}
			}
		}
	}
}

// counts tells whether a name in a directory is, or has been, counted there.
func (ns *Namespace) counts(directory uint64, name string) bool {
	if ns.limited(directory) {
		return true
	}
	for range ns.levels(directory, name) {
		return true
	}
	return false
}

// countAnew has a directory that is not whole counted from the start, as far as the name was before: what
// has come there is not counted itself.
func (ns *Namespace) countAnew(directory uint64, name string) {
	for l := range ns.levels(directory, name) {
		*l = countLevel{id: l.id}
	}
}
