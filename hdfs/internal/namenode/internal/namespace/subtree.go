package namespace

import (
	"errors"
	"math"
	"slices"

	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// ErrLarge is what [Namespace.Check] says of an operation for which more of the tree has to be looked at
// than one hold of the lock may: [Namespace.Ask] for it, and in turns check again and have
// [Namespace.CountOn] count, until Check says something else.
var ErrLarge = errors.New("namespace: what is below a directory is looked at in parts")

// askedAtOnce is how many names one Check looks at below a directory, in less than a
// millisecond.
const askedAtOnce = 2000

// A question is what somebody wants to know of a directory and all those below it.
type question struct {
	// want are the rights that he needs on each of them; as in HDFS a sticky bit is in the way, too, whatever
	// they are for.
	want Access
	// deleting: those without names do not matter.
	deleting bool
	// depth is how many names the path of the directory is to have, 0: it stays where it is. None below
	// may come to lie too deep.
	depth int
}

// A subtree is a directory with all that is below, as far as a question has been asked of it. A change
// that may matter to what has been asked has it asked again, so that at the end the answer is that of
// the present.
type subtree struct {
	root uint64
	question
	stack  []position // of the directories that are left, the last one is next
	looked int        // names that the last part has looked at
	count  counting
}

// A position in a directory: its names up to after, and what is below them, have been asked.
type position struct {
	id    uint64
	after string
	left  int  // so many subdirectories are behind it at most
	alone bool // what is below its names is not asked
}

func (s *subtree) begin(root uint64, q question) {
	s.root, s.question, s.stack = root, q, []position{{id: root}}
}

// Ask makes Check go on where it stopped for this entry, until Asked. Neither may run
// with Check.
func (ns *Namespace) Ask(e *nspb.Entry) {
	if ns.subtrees == nil {
		ns.subtrees = make(map[*nspb.Entry]*subtree)
	}
	ns.subtrees[e] = &subtree{}
}

// Asked forgets what Ask began.
func (ns *Namespace) Asked(e *nspb.Entry) { delete(ns.subtrees, e) }

// needSubtree is for deleting what is below n: all rights on every directory
// that has children, and on none of them a sticky bit in the way.
func (t *txn) needSubtree(n *Inode) error {
	if t.caller.Superuser {
		return nil
	}
	return t.askSubtree(n, question{want: Read | Write | Execute, deleting: true})
}

// askSubtree asks of n and all directories below. An entry that is applied gets an answer at once: all that
// is left is asked, which after Check has been content are the changes since.
func (t *txn) askSubtree(n *Inode, q question) error {
	if n.dir == nil {
		return nil
	}
	begun := t.ns.subtrees[t.entry]
	if begun == nil || !t.dry && (begun.root != n.id || begun.question != q) {
		begun = &subtree{}
	}
	if begun.root != n.id || begun.question != q {
		begun.begin(n.id, q)
	}
	limit := t.ns.askedAtOnce
	if !t.dry {
		limit = math.MaxInt
	}
	if err := t.ns.ask(&t.caller, begun, limit); err != nil {
		return err
	}
	if len(begun.stack) > 0 {
		return ErrLarge
	}
	return nil
}

// ask looks at limit names, and takes what it has asked off the stack.
func (ns *Namespace) ask(c *caller, s *subtree, limit int) error {
	s.looked = 0
	for limit > 0 && len(s.stack) > 0 {
		limit--
		top := &s.stack[len(s.stack)-1]
		d := ns.byID(top.id)
		if d == nil || !ns.below(d, s.root) || s.deleting && d.dir.names.Len() == 0 {
			s.pop() // it was deleted or moved away, or nothing is in it
			continue
		}
		if top.after == "" {
			if err := ns.askOne(c, s, d); err != nil {
				return err
			}
			top.left = d.dir.directories
		}
		byName := s.want != 0 && d.mode&sticky != 0
		if !byName && (top.alone || top.left <= 0) {
			s.pop()
			continue
		}
		var (
			next uint64
			err  error
			done = true
		)
		d.dir.names.After(top.after, func(name string, id uint64) bool {
			s.looked++
			child := ns.inodes.Get(id)
			if byName {
				if err = ns.needSticky(c, d, child); err != nil {
					return false
				}
			}
			top.after = name
			if child.dir != nil && !top.alone {
				top.left--
				next, done = id, false
				return false
			}
			limit--
			done = !byName && (top.alone || top.left <= 0)
			return !done && limit > 0
		})
		switch {
		case err != nil:
			return err
		case next != 0:
			s.stack = append(s.stack, position{id: next})
		case done || limit > 0: // there are no more names
			s.pop()
		}
	}
	return nil
}

// askOne asks what concerns a directory itself, and how deep those in it lie.
func (ns *Namespace) askOne(c *caller, s *subtree, d *Inode) error {
	if s.want != 0 {
		if err := ns.need(c, d, s.want); err != nil {
			return err
		}
	}
	if s.depth > 0 && d.dir.directories > 0 && s.depth+ns.depth(d)-ns.depth(ns.inodes.Get(s.root))+1 >= MaxPathDepth {
		return errTooDeep
	}
	return nil
}

func (s *subtree) pop() { s.stack = s.stack[:len(s.stack)-1] }

// below tells whether a directory is root or below it.
func (ns *Namespace) below(n *Inode, root uint64) bool {
	for n != nil && n.id != root && n.id != rootID {
		n = ns.inodes.Get(n.parent)
	}
	return n != nil && n.id == root
}

// askAgain has a directory asked again by all who have begun to ask above it: who may do what with
// it, or which names are in it, has changed.
func (ns *Namespace) askAgain(id uint64) { ns.askAt(position{id: id, alone: true}) }

// askBelow is askAgain for a directory that has come from elsewhere with all that is below.
func (ns *Namespace) askBelow(id uint64) { ns.askAt(position{id: id}) }

func (ns *Namespace) askAt(at position) {
	for _, s := range ns.subtrees {
		for i := range s.stack {
			if s.stack[i].id == at.id {
				s.stack[i].left++ // there may be one more
			}
		}
		if s.root == 0 || slices.ContainsFunc(s.stack, func(p position) bool { return p.id == at.id && p.alone == at.alone && p.after == "" }) {
			continue
		}
		if n := ns.inodes.Get(at.id); n != nil && n.dir != nil && ns.below(n, s.root) {
			s.stack = slices.Insert(s.stack, 0, at)
		}
	}
}
