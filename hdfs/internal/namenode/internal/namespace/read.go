package namespace

import (
	"slices"

	"github.com/verbena-data/verbena/hadoop/exception"
)

// Status is what a file or directory looks like from outside.
type Status struct {
	ID          uint64
	Name        string // its own, empty for the root
	Directory   bool
	Open        bool // a file under construction
	Length      uint64
	Mode        uint16
	Owner       string
	Group       string
	ModTime     int64 // Unix milliseconds
	AccessTime  int64
	Replication uint16
	BlockSize   uint64
	Children    int
}

func (ns *Namespace) status(n *Inode) Status {
	s := Status{
		ID: n.id, Name: n.name, Mode: n.mode,
		Owner: ns.names[n.owner], Group: ns.names[n.group],
		ModTime: n.mtime, AccessTime: n.atime,
	}
	if n.dir != nil {
		s.Directory, s.AccessTime, s.Children = true, 0, n.dir.count
		return s
	}
	s.Open = n.file.open
	s.Length = n.file.length()
	s.Replication = n.file.replication
	s.BlockSize = n.file.blockSize
	return s
}

// Stat tells about a path; ok is false if there is nothing there.
func (ns *Namespace) Stat(c Caller, path string) (s Status, ok bool, err error) {
	r, err := ns.reach(&c, path)
	if err != nil {
		return Status{}, false, err
	}
	n := r.last()
	if n == nil {
		return Status{}, false, nil
	}
	return ns.status(n), true, nil
}

// StatID is Stat by inode id, without permission checks.
func (ns *Namespace) StatID(id uint64) (Status, bool) {
	n := ns.inodes[id]
	if n == nil {
		return Status{}, false
	}
	return ns.status(n), true
}

// Entry is one line of a listing.
type Entry struct {
	Status Status
	Blocks []Block // of a file, if asked for
}

// List returns the entries of a directory whose names come after start, at
// most limit, and how many are left after them. A file is its own only entry, with
// an empty name. ok is false if there is nothing there.
func (ns *Namespace) List(c Caller, path, start string, limit int, blocks bool) (entries []Entry, rest int, ok bool, err error) {
	r, err := ns.reach(&c, path)
	if err != nil {
		return nil, 0, false, err
	}
	n := r.last()
	if n == nil {
		return nil, 0, false, nil
	}
	if n.dir == nil {
		e := Entry{Status: ns.status(n)}
		e.Status.Name = ""
		if blocks {
			e.Blocks = blocksOf(n.file)
		}
		return []Entry{e}, 0, true, nil
	}
	if err := ns.need(&c, n, Read|Execute); err != nil {
		return nil, 0, false, err
	}
	rest = n.dir.count
	if start != "" {
		rest = n.dir.rest(start)
	}
	entries = make([]Entry, 0, min(limit, rest))
	n.dir.after(start, func(child *Inode) bool {
		if len(entries) == limit {
			return false
		}
		e := Entry{Status: ns.status(child)}
		if blocks && child.file != nil {
			e.Blocks = blocksOf(child.file)
		}
		entries = append(entries, e)
		return true
	})
	return entries, rest - len(entries), true, nil
}

func blocksOf(f *file) []Block {
	out := make([]Block, len(f.blocks))
	for i, b := range f.blocks {
		out[i] = copyOf(b)
	}
	return out
}

// FileBlocks are a file's status and all its blocks.
type FileBlocks struct {
	Status Status
	Holder string
	Blocks []Block
}

// File returns a file's blocks; the caller needs access to it.
func (ns *Namespace) File(c Caller, path string, access Access) (FileBlocks, error) {
	t := txn{ns: ns, caller: c}
	n, err := t.existing(path)
	if err != nil {
		return FileBlocks{}, err
	}
	if n.file == nil {
		return FileBlocks{}, exception.New(exception.FileNotFound, "Path is not a file: %s", n.Path())
	}
	if err := ns.need(&c, n, access); err != nil {
		return FileBlocks{}, err
	}
	return FileBlocks{Status: ns.status(n), Holder: n.file.holder, Blocks: blocksOf(n.file)}, nil
}

// FileByID is File by inode id, without permission checks.
func (ns *Namespace) FileByID(id uint64) (FileBlocks, bool) {
	n := ns.inodes[id]
	if n == nil || n.file == nil {
		return FileBlocks{}, false
	}
	return FileBlocks{Status: ns.status(n), Holder: n.file.holder, Blocks: blocksOf(n.file)}, true
}

// Written returns the file that holder writes, as addBlock and its like see it.
func (ns *Namespace) Written(c Caller, path string, id uint64, holder string) (FileBlocks, error) {
	t := txn{ns: ns, caller: c}
	n, err := t.writable(path, id, holder)
	if err != nil {
		return FileBlocks{}, err
	}
	return FileBlocks{Status: ns.status(n), Holder: holder, Blocks: blocksOf(n.file)}, nil
}

// WrittenEnd is Written with none but the last block: files may have very many.
func (ns *Namespace) WrittenEnd(c Caller, path string, id uint64, holder string) (s Status, last Block, err error) {
	t := txn{ns: ns, caller: c}
	n, err := t.writable(path, id, holder)
	if err != nil {
		return Status{}, Block{}, err
	}
	if b := n.file.last(); b != nil {
		last = copyOf(b)
	}
	return ns.status(n), last, nil
}

// Constructing returns a block that holder writes, and its file's id.
func (ns *Namespace) Constructing(id uint64, holder string) (Block, uint64, error) {
	b, err := ns.constructing(id, holder)
	if err != nil {
		return Block{}, 0, err
	}
	return copyOf(b), b.inode.id, nil
}

// BlockInfo is what block placement wants to know of a block.
type BlockInfo struct {
	ID          uint64
	Generation  uint64
	Length      uint64
	File        uint64 // inode id
	Replication int    // wanted
	Writing     bool   // generation and length are not final
}

// Block looks a block up.
func (ns *Namespace) Block(id uint64) (BlockInfo, bool) {
	b := ns.blocks[id]
	if b == nil {
		return BlockInfo{}, false
	}
	return BlockInfo{
		ID: id, Generation: b.Generation, Length: b.Length, File: b.inode.id,
		Replication: int(b.inode.file.replication), Writing: b.Construction != nil,
	}, true
}

// EachBlock visits all blocks in no order, until visit returns false.
func (ns *Namespace) EachBlock(visit func(id uint64) bool) {
	for id := range ns.blocks {
		if !visit(id) {
			return
		}
	}
}

// Holders returns who has leases.
func (ns *Namespace) Holders() []string {
	out := make([]string, 0, len(ns.leases))
	for h := range ns.leases {
		out = append(out, h)
	}
	slices.Sort(out)
	return out
}

// Leased tells whether holder has a lease.
func (ns *Namespace) Leased(holder string) bool { return len(ns.leases[holder]) > 0 }

// OpenFiles returns the ids of the files that holder writes, in order.
func (ns *Namespace) OpenFiles(holder string) []uint64 {
	held := ns.leases[holder]
	out := make([]uint64, 0, len(held))
	for id := range held {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// Recovering returns the blocks with a recovery under way, with their files' ids.
func (ns *Namespace) Recovering() (blocks []Block, files []uint64) {
	ids := make([]uint64, 0, len(ns.recovering))
	for id := range ns.recovering {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		b := ns.recovering[id]
		blocks = append(blocks, copyOf(b))
		files = append(files, b.inode.id)
	}
	return blocks, files
}

// Recovery returns a block with a recovery under way, with its file's id.
func (ns *Namespace) Recovery(id uint64) (b Block, file uint64, ok bool) {
	found := ns.recovering[id]
	if found == nil {
		return Block{}, 0, false
	}
	return copyOf(found), found.inode.id, true
}

// RecoveryHolder is the lease holder of files that the NameNode recovers.
func RecoveryHolder() string { return recoveryHolder }

// Summary adds up a subtree.
type Summary struct {
	Length      uint64
	Space       uint64 // length times replication
	Files       uint64
	Directories uint64
}

// Summing is a walk over a subtree in steps, between which the namespace may
// change: what is added or removed meanwhile may be counted or not.
type Summing struct {
	caller Caller
	queue  []summingDir
	Total  Summary
}

type summingDir struct {
	id    uint64
	after string
	begun bool
}

// Sum begins a summary of path.
func (ns *Namespace) Sum(c Caller, path string) (*Summing, error) {
	t := txn{ns: ns, caller: c}
	n, err := t.existing(path)
	if err != nil {
		return nil, err
	}
	s := &Summing{caller: c}
	if n.file != nil {
		s.file(n)
		return s, nil
	}
	s.queue = []summingDir{{id: n.id}}
	return s, nil
}

func (s *Summing) file(n *Inode) {
	length := n.file.length()
	s.Total.Files++
	s.Total.Length += length
	s.Total.Space += length * uint64(n.file.replication)
}

// Step visits about limit inodes and tells whether that was all.
func (s *Summing) Step(ns *Namespace, limit int) (done bool, err error) {
	for limit > 0 && len(s.queue) > 0 {
		at := len(s.queue) - 1
		d := ns.inodes[s.queue[at].id]
		if d == nil || d.dir == nil {
			s.queue = s.queue[:at]
			continue
		}
		start := s.queue[at].after
		if !s.queue[at].begun {
			if err := ns.need(&s.caller, d, Read|Execute); err != nil {
				return false, err
			}
			s.queue[at].begun = true
			s.Total.Directories++
			limit--
		}
		more := false
		var below []summingDir
		d.dir.after(start, func(n *Inode) bool {
			if limit <= 0 {
				more = true
				return false
			}
			limit--
			s.queue[at].after = n.name
			if n.dir != nil {
				below = append(below, summingDir{id: n.id})
			} else {
				s.file(n)
			}
			return true
		})
		if !more {
			s.queue = append(s.queue[:at], s.queue[at+1:]...)
		}
		s.queue = append(s.queue, below...)
	}
	return len(s.queue) == 0, nil
}
