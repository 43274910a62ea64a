package namespace

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/quota"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/storagepolicy"
)

// Status is what a file or directory looks like from outside.
type Status struct {
	ID          uint64
	Name        string // its own, empty for the root
	Directory   bool
	Open        bool // a file under construction
	Length      uint64
	Mode        uint16
	Policy      uint8 // the storage policy that counts for it
	ACL         bool  // its access control list has more than the mode says
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
		ID: n.id, Name: n.name, Mode: n.mode, ACL: len(n.acl()) > 0, Policy: ns.policy(n),
		Owner: ns.names[n.owner], Group: ns.names[n.group],
		ModTime: n.mtime, AccessTime: n.atime,
	}
	if n.dir != nil {
		s.Directory, s.Children = true, n.dir.names.Len()
		return s
	}
	s.Open = n.file.open()
	s.Length = ns.length(n.file)
	s.Replication = n.file.replication
	s.BlockSize = n.file.blockSize
	return s
}

// noID is the id of what is shown and is no inode: -1, as in HDFS.
const noID = math.MaxUint64

// Stat tells about a path; ok is false if there is nothing there.
func (ns *Namespace) Stat(c Caller, path string) (s Status, ok bool, err error) {
	r, err := ns.resolve(&c, path, reading)
	var refused *exception.Error
	switch {
	case c.Superuser && errors.As(err, &refused) && refused.Class == exception.AccessControl:
		return Status{}, false, nil // below a file
	case err != nil:
		return Status{}, false, err
	case r.isReserved():
		return Status{ID: noID, Directory: true, Mode: 0o1770}, true, nil
	case r.isSnapshots():
		return Status{ID: noID, Directory: true, Mode: 0o777}, true, nil
	}
	n := r.last()
	if n == nil {
		return Status{}, false, nil
	}
	return ns.status(n), true, nil
}

// Access tells why the caller may not do what it wants with a path.
func (ns *Namespace) Access(c Caller, path string, want Access) error {
	r, err := ns.resolve(&c, path, reading)
	if err != nil {
		return err
	}
	n, err := r.existing()
	if err != nil {
		return err
	}
	return ns.need(&c, n, want)
}

// EnclosingRoot is the directory out of which what path names can't be renamed:
// the root, as there are no encryption zones. The path need not exist.
func (ns *Namespace) EnclosingRoot(c Caller, path string) (string, error) {
	r, err := ns.resolve(&c, path, reading)
	if err != nil {
		return "", err
	}
	return "/", ns.needLast(&c, r, Read)
}

// StatID is Stat by inode id, without permission checks.
func (ns *Namespace) StatID(id uint64) (Status, bool) {
	n := ns.byID(id)
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
	r, err := ns.resolve(&c, path, reading)
	if err != nil {
		return nil, 0, false, err
	}
	if err := ns.needListing(&c, r); err != nil {
		return nil, 0, false, err
	}
	switch {
	case r.isReserved():
		return ns.reserved(), 0, true, nil
	case r.isSnapshots():
		return nil, 0, true, nil
	case len(r.comps) > 0 && r.base() == snapshotName:
		return nil, 0, false, r.noSnapshots()
	}
	n := r.last()
	if n == nil {
		return nil, 0, false, nil
	}
	if n.dir == nil {
		e := Entry{Status: ns.status(n)}
		e.Status.Name = ""
		if blocks {
			e.Blocks = ns.blocksOf(n.file)
		}
		return []Entry{e}, 0, true, nil
	}
	rest = n.dir.names.Len()
	if start != "" {
		rest = n.dir.names.Rest(start)
	}
	entries = make([]Entry, 0, min(limit, rest))
	n.dir.names.After(start, func(_ string, id uint64) bool {
		if len(entries) == limit {
			return false
		}
		child := ns.inodes.Get(id)
		e := Entry{Status: ns.status(child)}
		if blocks && child.file != nil {
			e.Blocks = ns.blocksOf(child.file)
		}
		entries = append(entries, e)
		return true
	})
	return entries, rest - len(entries), true, nil
}

// needListing is for listing what a path names.
func (ns *Namespace) needListing(c *caller, r resolved) error {
	if n := r.last(); n != nil && n.dir != nil {
		return ns.need(c, n, Read|Execute)
	}
	return nil
}

// reserved lists /.reserved.
func (ns *Namespace) reserved() []Entry {
	s := Status{ID: noID, Directory: true, Mode: 0o770, Group: ns.names[ns.root().group], ModTime: ns.created(), AccessTime: ns.created()}
	inodes, raw := s, s
	inodes.Name, raw.Name = inodesName, rawName
	return []Entry{{Status: inodes}, {Status: raw}}
}

// created is when the file system was made, as the block pool's id ends with it;
// Unix milliseconds, 0 if it does not.
func (ns *Namespace) created() int64 {
	ms, err := strconv.ParseInt(ns.blockPoolID[strings.LastIndexByte(ns.blockPoolID, '-')+1:], 10, 64)
	if err != nil {
		return 0
	}
	return ms
}

// isSnapshots tells whether the path names the root's snapshots. The root could
// have some from the start in HDFS, other directories only once they are told.
func (r resolved) isSnapshots() bool { return len(r.comps) == 1 && r.comps[0] == snapshotName }

// noSnapshots tells why the snapshots of a directory can't be listed.
func (r resolved) noSnapshots() error {
	switch parent := r.parent(); {
	case parent == nil:
		return exception.New(exception.FileNotFound, "Directory does not exist: %s", r.parentString())
	case parent.dir == nil:
		return exception.New(exception.PathIsNotDirectory, "`%s': Is not a directory", r.parentString())
	}
	return exception.New(exception.Snapshot, "Directory is not a snapshottable directory: %s", r.parentString())
}

func (ns *Namespace) blocksOf(f *file) []Block {
	out := make([]Block, len(f.blocks))
	for i, id := range f.blocks {
		out[i] = copyOf(ns.blocks.Get(id))
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
	r, err := ns.resolve(&c, path, reading)
	if err != nil {
		return FileBlocks{}, err
	}
	n, err := r.existingFile()
	if err != nil {
		return FileBlocks{}, err
	}
	if err := ns.need(&c, n, access); err != nil {
		return FileBlocks{}, err
	}
	return ns.fileBlocks(n), nil
}

func (ns *Namespace) fileBlocks(n *Inode) FileBlocks {
	return FileBlocks{Status: ns.status(n), Holder: n.file.heldBy(), Blocks: ns.blocksOf(n.file)}
}

// Readable is File for reading. As HDFS it tells anybody what is no file.
func (ns *Namespace) Readable(c Caller, path string) (FileBlocks, error) {
	r, err := ns.resolve(&caller{Superuser: true}, path, reading)
	if err != nil {
		return FileBlocks{}, err
	}
	n, err := r.existingFile()
	if err != nil {
		return FileBlocks{}, err
	}
	if _, err := ns.traverse(&c, r); err != nil {
		return FileBlocks{}, err
	}
	if err := ns.need(&c, n, Read); err != nil {
		return FileBlocks{}, err
	}
	if err := ns.needReadable(&c, n); err != nil {
		return FileBlocks{}, err
	}
	return ns.fileBlocks(n), nil
}

// Recoverable is File for taking the file's lease from its writer, which needs the
// right to write if there is one.
func (ns *Namespace) Recoverable(c Caller, path string) (FileBlocks, error) {
	r, err := ns.resolve(&c, path, writing)
	if err != nil {
		return FileBlocks{}, err
	}
	n, err := r.existingFile()
	if err != nil || !n.file.open() {
		return FileBlocks{}, err
	}
	return ns.File(c, path, Write)
}

// CheckCreate tells why a file can't be made, as far as its path goes: before
// what is asked of its blocks.
func (ns *Namespace) CheckCreate(c Caller, op *nspb.Create) error {
	t := txn{ns: ns, caller: c}
	_, err := t.creatable(op)
	return err
}

// FileByID is File by inode id, without permission checks.
func (ns *Namespace) FileByID(id uint64) (FileBlocks, bool) {
	n := ns.byID(id)
	if n == nil || n.file == nil {
		return FileBlocks{}, false
	}
	return ns.fileBlocks(n), true
}

// Written returns the file that holder writes, as addBlock and its like see it.
func (ns *Namespace) Written(c Caller, path string, id uint64, holder string) (FileBlocks, error) {
	t := txn{ns: ns, caller: c}
	n, err := t.writable(path, id, holder)
	if err != nil {
		return FileBlocks{}, err
	}
	return FileBlocks{Status: ns.status(n), Holder: holder, Blocks: ns.blocksOf(n.file)}, nil
}

// WrittenEnd is Written with none but the last block and the one before it, each zero if there is none:
// files may have very many.
func (ns *Namespace) WrittenEnd(c Caller, path string, id uint64, holder string) (s Status, last, before Block, err error) {
	t := txn{ns: ns, caller: c}
	n, err := t.writable(path, id, holder)
	if err != nil {
		return Status{}, Block{}, Block{}, err
	}
	if b := ns.lastBlock(n.file); b != nil {
		last = copyOf(b)
	}
	if b := ns.secondLastBlock(n.file); b != nil {
		before = copyOf(b)
	}
	return ns.status(n), last, before, nil
}

// Constructing returns a block that holder writes, and its file's id.
func (ns *Namespace) Constructing(id uint64, holder string) (Block, uint64, error) {
	b, err := ns.constructing(id, holder)
	if err != nil {
		return Block{}, 0, err
	}
	return copyOf(b), b.inode, nil
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
	b := ns.blockByID(id)
	if b == nil {
		return BlockInfo{}, false
	}
	return BlockInfo{
		ID: id, Generation: b.Generation, Length: b.Length, File: b.inode,
		Replication: int(ns.inodes.Get(b.inode).file.replication), Writing: b.Construction != nil,
	}, true
}

// EachBlock visits the blocks with numbers from start on, in order, until visit returns
// false.
func (ns *Namespace) EachBlock(start uint64, visit func(id uint64) bool) {
	for id := range ns.blocks.From(start) {
		if ns.blockByID(id) != nil && !visit(id) {
			return
		}
	}
}

// Holders returns who has leases.
func (ns *Namespace) Holders() []string {
	out := make([]string, 0, len(ns.leases))
	for h := range ns.leases {
		if ns.Leased(h) {
			out = append(out, h)
		}
	}
	slices.Sort(out)
	return out
}

// Leased tells whether holder has a lease.
func (ns *Namespace) Leased(holder string) bool {
	for id := range ns.leases[holder] {
		if ns.byID(id) != nil {
			return true
		}
	}
	return false
}

// OpenFiles returns the ids of the files that holder writes, in order.
func (ns *Namespace) OpenFiles(holder string) []uint64 {
	held := ns.leases[holder]
	out := make([]uint64, 0, len(held))
	for id := range held {
		if ns.byID(id) != nil {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// Recovering returns the blocks with a recovery under way, with their files' ids.
func (ns *Namespace) Recovering() (blocks []Block, files []uint64) {
	ids := make([]uint64, 0, len(ns.recovering))
	for id := range ns.recovering {
		if ns.blockByID(id) != nil {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		b := ns.blocks.Get(id)
		blocks = append(blocks, copyOf(b))
		files = append(files, b.inode)
	}
	return blocks, files
}

// Recovery returns a block with a recovery under way, with its file's id.
func (ns *Namespace) Recovery(id uint64) (b Block, file uint64, ok bool) {
	found := ns.blockByID(id)
	if _, ok := ns.recovering[id]; !ok || found == nil {
		return Block{}, 0, false
	}
	return copyOf(found), found.inode, true
}

// RecoveryHolder is the lease holder of files that the NameNode recovers.
func RecoveryHolder() string { return recoveryHolder }

// Summary adds up a subtree.
type Summary struct {
	Length      uint64
	Space       uint64 // bytes that all replicas take, or are expected to
	Files       uint64
	Directories uint64
	// TypeSpaces are what files with a storage policy take of each kind of storage, TypeLengths
	// the same without what a block that is written will take.
	TypeSpaces, TypeLengths [storagepolicy.Types]int64
}

// Summing is a walk over a subtree in steps, between which the namespace may
// change: what is added or removed meanwhile may be counted or not.
type Summing struct {
	caller Caller
	queue  []summingDir
	Root   bool // it is all there is
	Limits quota.Limits
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
	n, err := t.existing(path, reading)
	if err != nil {
		return nil, err
	}
	s := &Summing{caller: c, Root: n.id == rootID, Limits: n.limits()}
	if n.file != nil {
		s.file(ns, n)
		return s, nil
	}
	s.queue = []summingDir{{id: n.id}}
	return s, nil
}

func (s *Summing) file(ns *Namespace, n *Inode) {
	length := ns.length(n.file)
	s.Total.Files++
	s.Total.Length += length
	policy, replication := ns.policy(n), int(n.file.replication)
	lengths, spaces := quota.Blocks(int64(length), replication, policy), quota.Blocks(ns.bytesOf(n.file), replication, policy)
	for t := range lengths.Types {
		s.Total.TypeLengths[t] += lengths.Types[t]
		s.Total.TypeSpaces[t] += spaces.Types[t]
	}
	s.Total.Space += uint64(spaces.Space)
}

// Step visits about limit inodes and tells whether that was all.
func (s *Summing) Step(ns *Namespace, limit int) (done bool, err error) {
	for limit > 0 && len(s.queue) > 0 {
		at := len(s.queue) - 1
		d := ns.byID(s.queue[at].id)
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
		d.dir.names.After(start, func(name string, id uint64) bool {
			if limit <= 0 {
				more = true
				return false
			}
			limit--
			s.queue[at].after = name
			if n := ns.inodes.Get(id); n.dir != nil {
				below = append(below, summingDir{id: id})
			} else {
				s.file(ns, n)
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
