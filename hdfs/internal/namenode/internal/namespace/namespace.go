// Package namespace is the NameNode's state machine: the tree of directories
// and files, the blocks of each file, leases, the counters of ids and generation stamps,
// the DataNodes ever seen and the calls remembered for retries. It does no
// I/O, reads no clock and starts no goroutine: the same entries applied in the
// same order give the same state and the same results, byte for byte.
//
// Where replicas are is not here: that is soft state, which DataNodes report.
//
// A [Namespace] has no lock. Reads may run concurrently with each other and
// with [Namespace.Check], but not with [Namespace.Apply].
package namespace

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/quota"
	"github.com/verbena-data/verbena/internal/cow"
)

// Limits of HDFS's defaults. Those on names, children and blocks may be set lower, or for
// children higher, by an entry.
const (
	MaxComponentLength = 255     // bytes of one name
	MaxPathLength      = 8000    // bytes
	MaxPathDepth       = 1000    // components
	MaxDirectoryItems  = 1 << 20 // children of one directory
	MaxFileBlocks      = 1 << 20
	MaxReplication     = 512

	// Limits of our own on what is kept because a client says so.
	maxNameLength   = 255  // bytes of a user's or group's name
	maxHolderLength = 1024 // bytes of a client's name
	maxUUIDLength   = 128  // bytes of a DataNode's id
	maxHostLength   = 255  // bytes of a host's name
	maxDatanodes    = 1 << 16

	rootID       = 16385 // HDFS's first inode id; clients treat ids below as unset
	firstBlockID = 1 << 30
	firstStamp   = 1000
)

// Block is one block of a file.
type Block struct {
	ID         uint64
	Generation uint64
	Length     uint64 // bytes; of a block under construction, what is known so far
	// Construction is nil once length and generation are final.
	Construction *Construction

	inode uint64
}

// Construction is what a block has only while it is written or recovered. Once a block has
// it it does not change: a change makes another one.
type Construction struct {
	Targets    []string // uuids of the DataNodes of its pipeline
	Recovery   uint64   // generation stamp of the recovery under way, 0: none
	Truncate   bool
	TruncateTo uint64 // bytes
}

// Datanode is a DataNode that has once registered.
type Datanode struct {
	UUID     string
	Host     string
	Port     uint32
	Hostname string
	// GoneMillis is since when it has been dead, in Unix milliseconds, 0 if it is not
	// known to be.
	GoneMillis int64
}

// Namespace is the state. Make one with [New] or [Restore].
type Namespace struct {
	clusterID   string
	blockPoolID string

	gen    uint64 // counts the versions taken; see Freeze
	inodes cow.Map[Inode]
	blocks cow.Map[Block]
	leases map[string]map[uint64]struct{} // inodes by holder
	// detached are directories that were deleted and still have to be taken apart, see Reap.
	detached []detached

	recovering map[uint64]struct{} // blocks with a recovery under way
	datanodes  map[string]Datanode

	names   []string
	nameIDs map[string]uint32

	nextInode uint64
	nextBlock uint64
	stamps    uint64 // stamps below may have been handed out
	clock     int64  // milliseconds by which calls are remembered, see tick
	last      int64  // the last entry's time

	files int64
	retry retryCache
	// policies tells that some inode may have a storage policy.
	policies bool
	usage    map[uint64]quota.Counts // of directories with limits
	bounds   int                     // directories with limits
	lists    sharing
	// subtrees are those that operations need to look at, as far as they have; see Ask. They are no
	// part of the state: who asks for all at once hears the same.
	subtrees map[*nspb.Entry]*subtree
	// What goes of a deleted tree with an entry, and how many names one Check asks for below a
	// directory; constants, but in tests.
	reapNow, reapBehind, askedAtOnce int
}

// New returns a namespace that has not been formatted: apply an entry with a
// Format to it first.
func New() *Namespace {
	ns := &Namespace{
		leases:     make(map[string]map[uint64]struct{}),
		recovering: make(map[uint64]struct{}),
		datanodes:  make(map[string]Datanode),
		nameIDs:    make(map[string]uint32),
		usage:      make(map[uint64]quota.Counts),
		lists:      make(sharing),
		nextInode:  rootID,
		nextBlock:  firstBlockID,
		stamps:     firstStamp,
		reapNow:    reapNow,
		reapBehind: reapBehind,

		askedAtOnce: askedAtOnce,
	}
	ns.retry.places = newPlaceTable()
	nobody := ns.intern("")
	ns.inodes.Put(rootID, Inode{id: rootID, dir: &directory{}, mode: 0o755, owner: nobody, group: nobody})
	ns.nextInode++
	return ns
}

// Result is what an entry did. The slices belong to the caller.
type Result struct {
	OK    bool   // the boolean answer of the methods that have one
	Inode uint64 // the file created, appended to or replaced
	Block Block  // the block added, or the last one of a file appended to; Targets shared, read only
	// Removed are blocks whose replicas are of no use any more; Touched are those whose
	// wanted replication, length or generation has changed.
	Removed []uint64
	Touched []uint64
}

// txn is one run of one operation. An operation checks everything first, then asks
// write, and changes the state only if write says so. So the same code serves
// Check and Apply, and a refused operation has no effect.
type txn struct {
	ns      *Namespace
	entry   *nspb.Entry
	caller  caller
	dry     bool
	changes bool
	res     Result
}

func (t *txn) write() bool {
	t.changes = true
	return !t.dry
}

// limit returns a limit of the entry, or what is the limit if that says none.
func limit(set uint32, most int) int {
	if set == 0 {
		return most
	}
	return int(set)
}

func (t *txn) componentLength() int {
	return min(limit(t.entry.GetLimits().GetComponentLength(), MaxComponentLength), MaxComponentLength)
}

func (t *txn) directoryItems() int {
	return limit(t.entry.GetLimits().GetDirectoryItems(), MaxDirectoryItems)
}

func (t *txn) fileBlocks() int {
	return min(limit(t.entry.GetLimits().GetFileBlocks(), MaxFileBlocks), MaxFileBlocks)
}

func (t *txn) now() int64 { return t.entry.GetTimeMs() }

// Check tells what Apply would do now without doing it. If changes is false
// the result or the error is final, and there is nothing to log.
func (ns *Namespace) Check(e *nspb.Entry) (res Result, changes bool, err error) {
	t := txn{ns: ns, entry: e, caller: callerOf(e), dry: true}
	err = t.run()
	return t.res, t.changes && err == nil, err
}

// Apply runs one entry. An [exception.Error] is the operation's refusal
// and part of the deterministic outcome. Any other error means that the entry
// is not understood, so that this state can't follow the log any further.
func (ns *Namespace) Apply(e *nspb.Entry) (Result, error) {
	if key, ok := keyOf(e); ok {
		if c, ok := ns.retry.get(key); ok {
			return Result{OK: c.ok, Inode: c.inode}, nil
		}
	}
	ns.tick(e.GetTimeMs())
	reaped := ns.Reap(ns.reapBehind)
	t := txn{ns: ns, entry: e, caller: callerOf(e)}
	err := t.run()
	t.res.Removed = append(t.res.Removed, reaped...)
	if err != nil {
		return Result{Removed: t.res.Removed}, err
	}
	if key, ok := keyOf(e); ok {
		ns.retry.add(key, call{time: ns.clock, ok: t.res.OK, inode: t.res.Inode})
	}
	return t.res, nil
}

func (t *txn) run() error {
	if len(t.caller.User) > maxNameLength {
		return exception.New(exception.IllegalArgument, "the user name has %d bytes; the limit is %d", len(t.caller.User), maxNameLength)
	}
	switch op := t.entry.GetOp().(type) {
	case *nspb.Entry_Format:
		return t.format(op.Format)
	case *nspb.Entry_Mkdirs:
		return t.mkdirs(op.Mkdirs)
	case *nspb.Entry_Create:
		return t.create(op.Create)
	case *nspb.Entry_AddBlock:
		return t.addBlock(op.AddBlock)
	case *nspb.Entry_AbandonBlock:
		return t.abandonBlock(op.AbandonBlock)
	case *nspb.Entry_Complete:
		return t.complete(op.Complete)
	case *nspb.Entry_Fsync:
		return t.fsync(op.Fsync)
	case *nspb.Entry_Append:
		return t.append(op.Append)
	case *nspb.Entry_Truncate:
		return t.truncate(op.Truncate)
	case *nspb.Entry_UpdatePipeline:
		return t.updatePipeline(op.UpdatePipeline)
	case *nspb.Entry_Rename:
		return t.rename(op.Rename)
	case *nspb.Entry_Delete:
		return t.delete(op.Delete)
	case *nspb.Entry_SetPermission:
		return t.setPermission(op.SetPermission)
	case *nspb.Entry_SetOwner:
		return t.setOwner(op.SetOwner)
	case *nspb.Entry_SetTimes:
		return t.setTimes(op.SetTimes)
	case *nspb.Entry_SetReplication:
		return t.setReplication(op.SetReplication)
	case *nspb.Entry_Concat:
		return t.concat(op.Concat)
	case *nspb.Entry_StartRecovery:
		return t.startRecovery(op.StartRecovery)
	case *nspb.Entry_CommitRecovery:
		return t.commitRecovery(op.CommitRecovery)
	case *nspb.Entry_CloseFile:
		return t.closeFile(op.CloseFile)
	case *nspb.Entry_ReserveGenerations:
		return t.reserveGenerations(op.ReserveGenerations)
	case *nspb.Entry_RegisterDatanode:
		return t.registerDatanode(op.RegisterDatanode)
	case *nspb.Entry_DatanodeGone:
		return t.datanodeGone(op.DatanodeGone)
	case *nspb.Entry_SetAcl:
		return t.setACL(op.SetAcl)
	case *nspb.Entry_SetQuota:
		return t.setQuota(op.SetQuota)
	case *nspb.Entry_SetStoragePolicy:
		return t.setStoragePolicy(op.SetStoragePolicy)
	case *nspb.Entry_SetXattr:
		return t.setXAttr(op.SetXattr)
	case *nspb.Entry_RemoveXattr:
		return t.removeXAttr(op.RemoveXattr)
	default:
		return fmt.Errorf("namespace: log entry with an operation this version does not know (%T): run a version at least as new as the one that wrote it", op)
	}
}

func (t *txn) format(op *nspb.Format) error {
	ns := t.ns
	if ns.clusterID != "" {
		return exception.New(exception.IO, "the namespace is already formatted, with cluster id %s", ns.clusterID)
	}
	if op.GetClusterId() == "" || op.GetBlockPoolId() == "" || op.GetSuperuser() == "" {
		return exception.New(exception.IllegalArgument, "a format needs a cluster id, a block pool id and a superuser")
	}
	if !t.write() {
		return nil
	}
	ns.clusterID = op.GetClusterId()
	ns.blockPoolID = op.GetBlockPoolId()
	root := ns.inodes.Change(rootID)
	root.owner = ns.intern(op.GetSuperuser())
	root.group = ns.intern(op.GetSupergroup())
	root.mtime = t.now()
	return nil
}

func (t *txn) reserveGenerations(op *nspb.ReserveGenerations) error {
	if op.GetLimit() <= t.ns.stamps && op.GetNextBlock() <= t.ns.nextBlock {
		return nil
	}
	if t.write() {
		t.ns.stamps = max(t.ns.stamps, op.GetLimit())
		t.ns.nextBlock = max(t.ns.nextBlock, op.GetNextBlock())
	}
	return nil
}

func (t *txn) registerDatanode(op *nspb.RegisterDatanode) error {
	ns := t.ns
	dn := Datanode{UUID: op.GetUuid(), Host: op.GetHost(), Port: op.GetPort(), Hostname: op.GetHostname()}
	if dn.UUID == "" || dn.Host == "" || dn.Port == 0 || dn.Port > 65535 {
		return exception.New(exception.IllegalArgument, "a DataNode needs a uuid, a host and a port, got %q %q %d", dn.UUID, dn.Host, dn.Port)
	}
	if len(dn.UUID) > maxUUIDLength || len(dn.Host) > maxHostLength || len(dn.Hostname) > maxHostLength {
		return exception.New(exception.IllegalArgument, "a DataNode's uuid of %d bytes, or names of its host of %d and %d; the limits are %d and %d", len(dn.UUID), len(dn.Host), len(dn.Hostname), maxUUIDLength, maxHostLength)
	}
	known, ok := ns.datanodes[dn.UUID]
	if known == dn {
		return nil
	}
	if !ok && len(ns.datanodes) >= maxDatanodes {
		return exception.New(exception.IO, "%d DataNodes have registered, as many as there may be", len(ns.datanodes))
	}
	if !t.write() {
		return nil
	}
	for uuid, other := range ns.datanodes {
		// A DataNode whose directory was made anew comes under another uuid; the
		// one that had its address can't come back.
		if other.Host == dn.Host && other.Port == dn.Port {
			delete(ns.datanodes, uuid)
		}
	}
	ns.datanodes[dn.UUID] = dn
	return nil
}

func (t *txn) datanodeGone(op *nspb.DatanodeGone) error {
	dn, ok := t.ns.datanodes[op.GetUuid()]
	if !ok || !op.GetForget() && dn.GoneMillis == op.GetSinceMs() || !t.write() {
		return nil
	}
	if op.GetForget() {
		delete(t.ns.datanodes, dn.UUID)
		return nil
	}
	dn.GoneMillis = op.GetSinceMs()
	t.ns.datanodes[dn.UUID] = dn
	return nil
}

func (ns *Namespace) intern(name string) uint32 {
	if id, ok := ns.nameIDs[name]; ok {
		return id
	}
	id := uint32(len(ns.names))
	ns.names = append(ns.names, name)
	ns.nameIDs[name] = id
	return id
}

// ClusterID is empty before the format.
func (ns *Namespace) ClusterID() string { return ns.clusterID }

// BlockPoolID is empty before the format.
func (ns *Namespace) BlockPoolID() string { return ns.blockPoolID }

// Stamps returns the limit below which generation stamps may have been used.
func (ns *Namespace) Stamps() uint64 { return ns.stamps }

// NextBlock returns a block id that no block has had so far, and none above it.
func (ns *Namespace) NextBlock() uint64 { return ns.nextBlock }

// Counts returns how many files, directories and blocks there are, those included that
// [Namespace.Reap] has yet to take apart.
func (ns *Namespace) Counts() (files, directories, blocks int) {
	return int(ns.files), ns.inodes.Len() - int(ns.files), ns.blocks.Len()
}

// Datanodes returns the DataNodes known, by uuid.
func (ns *Namespace) Datanodes() []Datanode {
	out := make([]Datanode, 0, len(ns.datanodes))
	for _, dn := range ns.datanodes {
		out = append(out, dn)
	}
	slices.SortFunc(out, func(a, b Datanode) int { return cmp.Compare(a.UUID, b.UUID) })
	return out
}

// Datanode returns one DataNode.
func (ns *Namespace) Datanode(uuid string) (Datanode, bool) {
	dn, ok := ns.datanodes[uuid]
	return dn, ok
}
