package namespace

import (
	"slices"
	"strings"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/quota"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/storagepolicy"
)

// recoveryHolder has the lease of a file while the NameNode recovers it, so
// that its old writer can't go on.
const recoveryHolder = "HDFS_NameNode"

func (ns *Namespace) lease(id uint64, holder string) {
	ns.release(id)
	ns.changeFile(id).holder = &holder
	held := ns.leases[holder]
	if held == nil {
		held = make(map[uint64]struct{})
		ns.leases[holder] = held
	}
	held[id] = struct{}{}
}

func (ns *Namespace) release(id uint64) {
	f := ns.inodes.Get(id).file
	if !f.open() {
		return
	}
	held := ns.leases[*f.holder]
	delete(held, id)
	if len(held) == 0 {
		delete(ns.leases, *f.holder)
	}
	ns.changeFile(id).holder = nil
}

func (ns *Namespace) lastBlock(f *file) *Block {
	if len(f.blocks) == 0 {
		return nil
	}
	return ns.blocks.Get(f.blocks[len(f.blocks)-1])
}

func (ns *Namespace) secondLastBlock(f *file) *Block {
	if len(f.blocks) < 2 {
		return nil
	}
	return ns.blocks.Get(f.blocks[len(f.blocks)-2])
}

func (ns *Namespace) length(f *file) uint64 {
	var n uint64
	for _, id := range f.blocks {
		n += ns.blocks.Get(id).Length
	}
	return n
}

// matches tells whether both are the same block under the same generation
// stamp, or neither is one.
func (b *Block) matches(p *nspb.Block) bool {
	if p == nil || b == nil {
		return p == nil && b == nil
	}
	return b.ID == p.GetId() && b.Generation == p.GetGeneration()
}

// copyOf detaches a block from the state; targets are never changed in place.
func copyOf(b *Block) Block {
	c := Block{ID: b.ID, Generation: b.Generation, Length: b.Length}
	if b.Construction != nil {
		u := *b.Construction
		c.Construction = &u
	}
	return c
}

func (t *txn) create(op *nspb.Create) error {
	ns := t.ns
	if err := checkHolder("create", op.GetPath(), op.GetHolder()); err != nil {
		return err
	}
	r, err := t.creatable(op)
	if err != nil {
		return err
	}
	if op.GetBlockSize() == 0 || op.GetBlockSize() > 1<<50 {
		return exception.New(exception.IO, "create %s: block size %d is out of range", r, op.GetBlockSize())
	}
	if err := checkReplication(op.GetPath(), op.GetReplication()); err != nil {
		return err
	}
	if _, ok := storagepolicy.ByID(uint8(min(op.GetStoragePolicy(), 255))); !ok {
		return exception.New(exception.IllegalArgument, "Cannot find a block policy with the number %d", op.GetStoragePolicy())
	}
	n := r.last()
	switch {
	case n == nil:
		if err := t.checkNewNames(r); err != nil {
			return err
		}
	case !op.GetOverwrite() && n.file.open():
		return t.beingCreated("CREATE_FILE", n, op.GetHolder())
	case !op.GetOverwrite():
		return exception.New(exception.FileAlreadyExists, "%s for client %s already exists", r, op.GetHolder())
	}
	freed := quota.Counts{}
	if n != nil && ns.limited(n.parent) {
		freed = ns.usageOf(n, true)
	}
	if err := ns.roomForNames(r.ancestor(), max(1, len(r.comps)+1-len(r.nodes)), freed); err != nil {
		return err
	}
	if !t.write() {
		return nil
	}
	if n != nil {
		t.remove(n.id)
	}
	// As in HDFS, directories that a file needs inherit their parent's mode.
	parent := t.makeParents(r, modes{masked: r.ancestor().mode})
	n = t.newChild(parent, r.base(), nil, modes{masked: uint16(op.GetMode()), unmasked: op.Unmasked})
	n.file = &file{replication: uint16(op.GetReplication()), blockSize: op.GetBlockSize()}
	ns.files++
	t.newFilePolicy(n, uint8(op.GetStoragePolicy()))
	ns.lease(n.id, op.GetHolder())
	t.res.OK, t.res.Inode = true, n.id
	return nil
}

// creatable resolves the path of a create and checks what comes before the
// file's own properties.
func (t *txn) creatable(op *nspb.Create) (resolved, error) {
	ns, path := t.ns, op.GetPath()
	if err := checkLength("create", path); err != nil {
		return resolved{}, err
	}
	if !validName(path) || path == ReservedPath || strings.HasPrefix(path, ReservedPath+"/") &&
		!strings.HasPrefix(path, ReservedPath+"/"+rawName) && !strings.HasPrefix(path, ReservedPath+"/"+inodesName) {
		return resolved{}, exception.New(exception.InvalidPath, "Invalid path name %s", printable(path))
	}
	r, err := ns.resolve(&t.caller, path, creating)
	if err != nil {
		return r, err
	}
	if err := ns.needAncestor(&t.caller, r); err != nil {
		return r, err
	}
	n := r.last()
	switch {
	case n != nil && n.dir != nil:
		return r, exception.New(exception.FileAlreadyExists, "%s already exists as a directory", r)
	case n != nil && op.GetOverwrite():
		return r, ns.need(&t.caller, n, Write)
	case n != nil:
		return r, nil
	}
	if err := checkParent(r, op.GetCreateParent()); err != nil {
		return r, err
	}
	if op.GetMustExist() {
		return r, exception.New(exception.FileNotFound, "Can't overwrite non-existent %s for client %s", r, op.GetHolder())
	}
	return r, nil
}

// checkHolder checks the name under which a client will have a lease.
func checkHolder(what, path, holder string) error {
	switch {
	case holder == "":
		return exception.New(exception.IllegalArgument, "%s %s: the client has no name", what, printable(path))
	case len(holder) > maxHolderLength:
		return exception.New(exception.IllegalArgument, "%s %s: the client's name has %d bytes; the limit is %d", what, printable(path), len(holder), maxHolderLength)
	case holder == recoveryHolder:
		return exception.New(exception.IllegalArgument, "%s %s: the client name %s is the NameNode's own", what, printable(path), holder)
	}
	return nil
}

func (t *txn) beingCreated(what string, n *Inode, holder string) error {
	ns := t.ns
	if n.file.heldBy() == holder {
		return exception.New(exception.AlreadyBeingCreated, "Failed to %s %s for %s because %s is already the current lease holder.", what, ns.path(n), holder, holder)
	}
	if last := ns.lastBlock(n.file); last != nil && last.Construction != nil && last.Construction.Recovery != 0 {
		return exception.New(exception.RecoveryInProgress, "Failed to %s %s for %s because another recovery is in progress by %s.", what, ns.path(n), holder, n.file.heldBy())
	}
	return exception.New(exception.AlreadyBeingCreated, "Failed to %s %s for %s because this file lease is currently owned by %s.", what, ns.path(n), holder, n.file.heldBy())
}

// writable finds a file that holder is writing. A client that knows the
// inode's id keeps its file through renames.
func (t *txn) writable(path string, id uint64, holder string) (*Inode, error) {
	n, err := t.writableOrClosed(path, id, holder)
	if err != nil {
		return nil, err
	}
	ns := t.ns
	if !n.file.open() {
		return nil, exception.New(exception.LeaseExpired, "File is not open for writing: %s (inode %d) Holder %s does not have any open files.", ns.path(n), n.id, holder)
	}
	if n.file.heldBy() != holder {
		return nil, exception.New(exception.LeaseExpired, "Client (=%s) is not the lease owner (=%s): %s (inode %d) Holder %s does not have any open files.", holder, n.file.heldBy(), ns.path(n), n.id, holder)
	}
	return n, nil
}

func (t *txn) writableOrClosed(path string, id uint64, holder string) (*Inode, error) {
	ns := t.ns
	n, shown := ns.byID(id), path
	if id == 0 {
		r, err := ns.resolve(&t.caller, path, writing)
		if err != nil {
			return nil, err
		}
		n = r.last()
	} else if n == nil {
		if _, err := components(path); err != nil {
			return nil, err
		}
	}
	if n == nil {
		return nil, exception.New(exception.FileNotFound, "File does not exist: %s (inode %d) Holder %s does not have any open files.", printable(shown), id, printable(holder))
	}
	if n.file == nil {
		return nil, exception.New(exception.LeaseExpired, "INode is not a regular file: %s (inode %d) Holder %s does not have any open files.", ns.path(n), n.id, printable(holder))
	}
	return n, nil
}

// checkCommit checks what a client says a block has become. Of one that is
// complete already it may say anything.
func (ns *Namespace) checkCommit(b *Block, p *nspb.Block) error {
	if b.Construction == nil {
		return nil
	}
	if b.Construction.Recovery != 0 {
		return exception.New(exception.IO, "Commit or complete block %d, whereas it is under recovery.", p.GetId())
	}
	if b.ID != p.GetId() {
		return exception.New(exception.IO, "Trying to commit inconsistent block: id = %d, expected id = %d", p.GetId(), b.ID)
	}
	if b.Generation != p.GetGeneration() {
		return exception.New(exception.IO, "Commit block with mismatching GS. NN has %d, client submits %d (block %d)", b.Generation, p.GetGeneration(), b.ID)
	}
	if p.GetLength() < b.Length {
		return exception.New(exception.IO, "Commit or complete block %d: commit length %d is less than the length %d already known", b.ID, p.GetLength(), b.Length)
	}
	if limit := ns.inodes.Get(b.inode).file.blockSize; p.GetLength() > limit {
		return exception.New(exception.IO, "Commit or complete block %d: length %d is more than the file's block size %d", b.ID, p.GetLength(), limit)
	}
	return nil
}

func (t *txn) commitBlock(id, length uint64) {
	if t.ns.blocks.Get(id).Construction == nil {
		return
	}
	b := t.ns.blocks.Change(id)
	b.Length = length
	b.Construction = nil
	t.ns.chargeBytes(b.inode, int64(length)-int64(t.ns.inodes.Get(b.inode).file.blockSize))
	delete(t.ns.recovering, b.ID)
	t.res.Touched = append(t.res.Touched, b.ID)
}

func (t *txn) addBlock(op *nspb.AddBlock) error {
	ns := t.ns
	n, err := t.writable(op.GetPath(), op.GetFile(), op.GetHolder())
	if err != nil {
		return err
	}
	f, prev := n.file, op.GetPrevious()
	last := ns.lastBlock(f)
	switch {
	case last.matches(prev):
		if last != nil {
			if err := ns.checkCommit(last, prev); err != nil {
				return err
			}
		}
	case prev == nil && last != nil && last.Construction == nil && last.Length >= f.blockSize:
		// Appending after a full block.
	case ns.secondLastBlock(f).matches(prev):
		// Asked again: the answer to this very request was lost.
		if last.Construction == nil || last.Length != 0 || last.Construction.Recovery != 0 {
			return exception.New(exception.IO, "Request looked like a retry to allocate block %d but it already contains %d bytes", last.ID, last.Length)
		}
		t.res.OK, t.res.Inode, t.res.Block = true, n.id, copyOf(last)
		return nil
	default:
		return exception.New(exception.IO, "Cannot allocate block in %s: passed 'previous' block %d does not match actual last block in file %d", ns.path(n), prev.GetId(), idOf(last))
	}
	if most := t.fileBlocks(); len(f.blocks) >= most {
		return exception.New(exception.IO, "File has reached the limit on maximum number of blocks (dfs.namenode.fs-limits.max-blocks-per-file): %d >= %d", len(f.blocks), most)
	}
	if op.GetGeneration() == 0 || op.GetGeneration() >= ns.stamps {
		return exception.New(exception.IO, "generation stamp %d was not reserved", op.GetGeneration())
	}
	freed := int64(0)
	if last != nil && prev != nil && last.Construction != nil {
		freed = int64(f.blockSize) - int64(prev.GetLength())
	}
	if err := ns.roomForBytes(n, int64(f.blockSize), freed); err != nil {
		return err
	}
	if !t.write() {
		return nil
	}
	if last != nil && prev != nil {
		t.commitBlock(last.ID, prev.GetLength())
	}
	b := ns.blocks.Put(ns.nextBlock, Block{ID: ns.nextBlock, Generation: op.GetGeneration(), inode: n.id, Construction: &Construction{Targets: slices.Clone(op.GetTargets())}})
	ns.nextBlock++
	f = ns.changeFile(n.id)
	f.blocks = append(f.blocks, b.ID)
	ns.chargeBytes(n.id, int64(f.blockSize))
	t.res.OK, t.res.Inode, t.res.Block = true, n.id, copyOf(b)
	return nil
}

func idOf(b *Block) uint64 {
	if b == nil {
		return 0
	}
	return b.ID
}

func (t *txn) abandonBlock(op *nspb.AbandonBlock) error {
	n, err := t.writable(op.GetPath(), op.GetFile(), op.GetHolder())
	if err != nil {
		return err
	}
	// As in HDFS it may be complete: after an append, say.
	last := t.ns.lastBlock(n.file)
	if last == nil || last.ID != op.GetBlock().GetId() {
		return nil
	}
	if !t.write() {
		return nil
	}
	t.dropLast(n.id)
	return nil
}

func (t *txn) complete(op *nspb.Complete) error {
	n, err := t.writableOrClosed(op.GetPath(), op.GetFile(), op.GetHolder())
	if err != nil {
		return err
	}
	ns := t.ns
	last := ns.lastBlock(n.file)
	if !n.file.open() && last.matches(op.GetLast()) {
		t.res.OK = true // asked again
		return nil
	}
	if n, err = t.writable(op.GetPath(), op.GetFile(), op.GetHolder()); err != nil {
		return err
	}
	if last != nil && op.GetLast() != nil {
		if err := ns.checkCommit(last, op.GetLast()); err != nil {
			return err
		}
	}
	if last != nil && last.Construction != nil && op.GetLast() == nil {
		return nil // not before the client tells how long it has become
	}
	if !t.write() {
		return nil
	}
	if last != nil {
		t.commitBlock(last.ID, op.GetLast().GetLength())
	}
	t.close(n.id)
	t.res.OK = true
	return nil
}

func (t *txn) close(id uint64) {
	t.ns.release(id)
	n := t.ns.inodes.Change(id)
	n.mtime = t.now()
	t.touch(n.file.blocks)
}

func (t *txn) fsync(op *nspb.Fsync) error {
	n, err := t.writable(op.GetPath(), op.GetFile(), op.GetHolder())
	if err != nil {
		return err
	}
	ns := t.ns
	last := ns.lastBlock(n.file)
	if op.GetLastBlockLength() < 0 || last == nil || last.Construction == nil {
		return nil
	}
	length := uint64(op.GetLastBlockLength())
	if length > n.file.blockSize {
		return exception.New(exception.IO, "fsync %s: last block length %d is more than the block size %d", ns.path(n), length, n.file.blockSize)
	}
	if length > last.Length && t.write() {
		ns.blocks.Change(last.ID).Length = length
	}
	return nil
}

func (t *txn) append(op *nspb.Append) error {
	ns := t.ns
	if err := checkHolder("append", op.GetPath(), op.GetHolder()); err != nil {
		return err
	}
	r, err := ns.resolve(&t.caller, op.GetPath(), writing)
	if err != nil {
		return err
	}
	n := r.last()
	if n == nil {
		return exception.New(exception.FileNotFound, "Failed to append to non-existent file %s for client %s", r, op.GetHolder())
	}
	if n.file == nil {
		return exception.New(exception.FileAlreadyExists, "Cannot append to directory %s; already exists as a directory.", r)
	}
	if err := ns.need(&t.caller, n, Write); err != nil {
		return err
	}
	if ns.lazy(n) {
		return exception.New(exception.UnsupportedOperation, "Cannot append to lazy persist file %s", r)
	}
	if n.file.open() {
		return t.beingCreated("APPEND_FILE", n, op.GetHolder())
	}
	last := ns.lastBlock(n.file)
	if last != nil { // HDFS asks for room even if a new block is wanted
		if err := ns.roomForBytes(n, int64(n.file.blockSize)-int64(last.Length), 0); err != nil {
			return err
		}
	}
	if !t.write() {
		return nil
	}
	ns.lease(n.id, op.GetHolder())
	t.res.OK, t.res.Inode = true, n.id
	if last != nil && last.Length < n.file.blockSize && !op.GetNewBlock() {
		// The generation stamp stays: replicas have it. A client that needs a new
		// one for its pipeline asks for it, and then updates the pipeline.
		last = ns.blocks.Change(last.ID)
		last.Construction = &Construction{Targets: slices.Clone(op.GetTargets())}
		ns.chargeBytes(n.id, int64(n.file.blockSize)-int64(last.Length))
		t.res.Block = copyOf(last)
	}
	return nil
}

func (t *txn) truncate(op *nspb.Truncate) error {
	ns := t.ns
	if int64(op.GetLength()) < 0 {
		return exception.New(exception.IllegalArgument, "Cannot truncate to a negative file size: %d.", int64(op.GetLength()))
	}
	if err := checkHolder("truncate", op.GetPath(), op.GetHolder()); err != nil {
		return err
	}
	r, err := ns.resolve(&t.caller, op.GetPath(), writing)
	if err != nil {
		return err
	}
	if err := ns.needLast(&t.caller, r, Write); err != nil {
		return err
	}
	n, err := r.existingFile()
	if err != nil {
		return err
	}
	if ns.lazy(n) {
		return exception.New(exception.UnsupportedOperation, "Cannot truncate lazy persist file %s", r)
	}
	f := n.file
	length := ns.length(f)
	if last := ns.lastBlock(f); last != nil && last.Construction != nil && last.Construction.Recovery != 0 && last.Construction.Truncate {
		if op.GetLength() == length-last.Length+last.Construction.TruncateTo {
			return nil // it is under way: OK stays false
		}
		return exception.New(exception.AlreadyBeingCreated, "Failed to TRUNCATE_FILE %s for %s because it is being truncated.", ns.path(n), op.GetHolder())
	}
	if f.open() {
		return t.beingCreated("TRUNCATE_FILE", n, op.GetHolder())
	}
	if op.GetLength() > length {
		return exception.New(exception.IllegalArgument, "Cannot truncate to a larger file size. Current size: %d, truncate size: %d.", length, op.GetLength())
	}
	t.res.OK, t.res.Inode = true, n.id
	if op.GetLength() == length {
		return nil
	}
	keep, rest := 0, op.GetLength()
	for keep < len(f.blocks) {
		length := ns.blocks.Get(f.blocks[keep]).Length
		if length > rest {
			break
		}
		rest -= length
		keep++
	}
	if rest > 0 && (op.GetGeneration() == 0 || op.GetGeneration() >= ns.stamps) {
		return exception.New(exception.IO, "generation stamp %d was not reserved", op.GetGeneration())
	}
	if err := ns.roomForBytes(n, ns.truncatedBytes(f, keep, rest), 0); err != nil {
		t.res = Result{}
		return err
	}
	if !t.write() {
		return nil
	}
	ns.inodes.Change(n.id).mtime = t.now()
	if rest > 0 {
		keep++
	}
	for range len(f.blocks) - keep {
		t.dropLast(n.id)
	}
	if rest == 0 {
		return nil
	}
	ns.lease(n.id, op.GetHolder())
	last := ns.blocks.Change(f.blocks[keep-1])
	last.Construction = &Construction{Targets: slices.Clone(op.GetTargets()), Recovery: op.GetGeneration(), Truncate: true, TruncateTo: rest}
	ns.recovering[last.ID] = struct{}{}
	ns.chargeBytes(n.id, int64(f.blockSize)-int64(last.Length))
	t.res.OK, t.res.Block = false, copyOf(last)
	return nil
}

// truncatedBytes is how much longer each replica counts for, as long as a file is cut: the block
// that is cut inside counts as full. It may be below 0.
func (ns *Namespace) truncatedBytes(f *file, keep int, rest uint64) (bytes int64) {
	for i, id := range f.blocks[keep:] {
		bytes -= int64(ns.blocks.Get(id).Length)
		if i == 0 && rest > 0 {
			bytes += int64(f.blockSize)
		}
	}
	return bytes
}

// Constructing finds a block that holder is writing.
func (ns *Namespace) constructing(id uint64, holder string) (*Block, error) {
	b := ns.blockByID(id)
	if b == nil {
		return nil, exception.New(exception.IO, "block %d does not exist: its file was deleted or the block abandoned", id)
	}
	if b.Construction == nil || !ns.inodes.Get(b.inode).file.open() {
		return nil, exception.New(exception.IO, "block %d of %s is not under construction", id, ns.path(ns.inodes.Get(b.inode)))
	}
	if ns.inodes.Get(b.inode).file.heldBy() != holder {
		return nil, exception.New(exception.LeaseExpired, "Client (=%s) is not the lease owner (=%s): %s (inode %d)", holder, ns.inodes.Get(b.inode).file.heldBy(), ns.path(ns.inodes.Get(b.inode)), b.inode)
	}
	if b.Construction.Recovery != 0 {
		return nil, exception.New(exception.IO, "block %d of %s is being recovered", id, ns.path(ns.inodes.Get(b.inode)))
	}
	return b, nil
}

func (t *txn) updatePipeline(op *nspb.UpdatePipeline) error {
	ns := t.ns
	b, err := ns.constructing(op.GetOld().GetId(), op.GetHolder())
	if err != nil {
		return err
	}
	next := op.GetNew()
	if len(op.GetTargets()) > MaxReplication {
		return exception.New(exception.IllegalArgument, "Update block %d: a pipeline of %d DataNodes", b.ID, len(op.GetTargets()))
	}
	if next.GetId() != b.ID || next.GetGeneration() <= b.Generation || next.GetGeneration() >= ns.stamps ||
		next.GetLength() < b.Length || next.GetLength() > ns.inodes.Get(b.inode).file.blockSize {
		return exception.New(exception.IO, "Update block %d (generation stamp %d, length %d) to an older state: block %d, generation stamp %d, length %d", b.ID, b.Generation, b.Length, next.GetId(), next.GetGeneration(), next.GetLength())
	}
	if !t.write() {
		return nil
	}
	b = ns.blocks.Change(b.ID)
	b.Generation, b.Length = next.GetGeneration(), next.GetLength()
	u := *b.Construction
	u.Targets = slices.Clone(op.GetTargets())
	b.Construction = &u
	t.res.OK = true
	return nil
}

func (t *txn) startRecovery(op *nspb.StartRecovery) error {
	ns := t.ns
	n := ns.byID(op.GetFile())
	if n == nil || n.file == nil || !n.file.open() {
		return exception.New(exception.IO, "inode %d is no file under construction", op.GetFile())
	}
	b := ns.lastBlock(n.file)
	if b == nil || b.ID != op.GetBlock() || b.Construction == nil {
		return exception.New(exception.IO, "block %d is not the last block of %s under construction", op.GetBlock(), ns.path(n))
	}
	if op.GetGeneration() <= max(b.Generation, b.Construction.Recovery) || op.GetGeneration() >= ns.stamps {
		return exception.New(exception.IO, "recovery of block %d needs a generation stamp above %d, got %d", b.ID, max(b.Generation, b.Construction.Recovery), op.GetGeneration())
	}
	if !t.write() {
		return nil
	}
	ns.lease(n.id, recoveryHolder)
	b = ns.blocks.Change(b.ID)
	u := *b.Construction
	u.Recovery = op.GetGeneration()
	b.Construction = &u
	ns.recovering[b.ID] = struct{}{}
	t.res.OK, t.res.Inode, t.res.Block = true, n.id, copyOf(b)
	return nil
}

func (t *txn) commitRecovery(op *nspb.CommitRecovery) error {
	ns := t.ns
	b := ns.blockByID(op.GetBlock())
	if b == nil {
		return exception.New(exception.IO, "block %d does not exist: its file was deleted", op.GetBlock())
	}
	if b.Construction == nil {
		if b.Generation == op.GetGeneration() && b.Length == op.GetLength() {
			t.res.OK = true // told again
			return nil
		}
		return exception.New(exception.IO, "block %d is not being recovered", b.ID)
	}
	if b.Construction.Recovery == 0 || b.Construction.Recovery != op.GetGeneration() {
		return exception.New(exception.IO, "The recovery id %d does not match current recovery id %d for block %d", op.GetGeneration(), b.Construction.Recovery, b.ID)
	}
	drop := len(op.GetTargets()) == 0
	switch {
	case drop && op.GetLength() != 0:
		return exception.New(exception.IO, "recovery of block %d with length %d names no DataNode", b.ID, op.GetLength())
	case op.GetLength() > ns.inodes.Get(b.inode).file.blockSize:
		return exception.New(exception.IO, "recovery of block %d ends with length %d, more than the block size %d", b.ID, op.GetLength(), ns.inodes.Get(b.inode).file.blockSize)
	case !drop && b.Construction.Truncate && op.GetLength() != b.Construction.TruncateTo:
		return exception.New(exception.IO, "truncation of block %d to %d bytes ended with %d", b.ID, b.Construction.TruncateTo, op.GetLength())
	}
	if !t.write() {
		return nil
	}
	file := b.inode
	if drop {
		t.dropLast(file)
	} else {
		ns.blocks.Change(b.ID).Generation = op.GetGeneration()
		t.commitBlock(b.ID, op.GetLength())
	}
	t.close(file)
	t.res.OK = true
	return nil
}

func (t *txn) closeFile(op *nspb.CloseFile) error {
	ns := t.ns
	n := ns.byID(op.GetFile())
	if n == nil || n.file == nil || !n.file.open() {
		return nil
	}
	last := ns.lastBlock(n.file)
	unwritten := last != nil && last.Construction != nil
	if unwritten && !op.GetDropLast() && !op.GetKeepLast() {
		return exception.New(exception.IO, "the last block of %s is under construction", ns.path(n))
	}
	if !t.write() {
		return nil
	}
	switch {
	case unwritten && op.GetKeepLast():
		t.commitBlock(last.ID, last.Length)
	case unwritten:
		t.dropLast(n.id)
	}
	t.close(n.id)
	t.res.OK = true
	return nil
}
