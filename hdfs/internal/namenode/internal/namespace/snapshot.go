package namespace

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

const (
	snapshotVersion = 1
	// maxRecord bounds one record of a snapshot: a file of MaxFileBlocks blocks.
	maxRecord = 64 << 20
)

// AppendSnapshot appends the whole state to buf: the records that
// namespace.proto describes. Equal states give equal bytes.
func (ns *Namespace) AppendSnapshot(buf []byte) ([]byte, error) {
	w := recordWriter{buf: buf}
	w.put(&nspb.SnapshotHeader{
		Version:         proto.Uint32(snapshotVersion),
		ClusterId:       proto.String(ns.clusterID),
		BlockPoolId:     proto.String(ns.blockPoolID),
		NextInode:       proto.Uint64(ns.nextInode),
		NextBlock:       proto.Uint64(ns.nextBlock),
		GenerationLimit: proto.Uint64(ns.stamps),
		ClockMs:         proto.Int64(ns.clock),
		LastMs:          proto.Int64(ns.last),
		Names:           ns.names,
		Inodes:          proto.Uint64(uint64(len(ns.inodes))),
		Datanodes:       proto.Uint64(uint64(len(ns.datanodes))),
		Calls:           proto.Uint64(uint64(len(ns.retry.order))),
	})
	// One message for all inodes, its pointers aimed at these variables, keeps
	// a snapshot of millions from making garbage of millions.
	var (
		id, parent         uint64
		mtime, atime       int64
		owner, group, mode uint32
		rec                = nspb.SnapshotInode{Id: &id, Parent: &parent, MtimeMs: &mtime, AtimeMs: &atime, Owner: &owner, Group: &group, Mode: &mode}
		stack              = []*Inode{ns.root}
	)
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		id, parent, mtime, atime = n.id, 0, n.mtime, n.atime
		owner, group, mode = n.owner, n.group, uint32(n.mode)
		if n.parent != nil {
			parent = n.parent.id
		}
		rec.Name = []byte(n.name)
		rec.Attributes = snapshotAttributes(n.more)
		rec.File = nil
		if n.file != nil {
			rec.File = snapshotFile(n.file)
		}
		w.put(&rec)
		if n.dir != nil {
			for i := len(n.dir.chunks) - 1; i >= 0; i-- {
				for j := len(n.dir.chunks[i]) - 1; j >= 0; j-- {
					stack = append(stack, n.dir.chunks[i][j])
				}
			}
		}
	}
	for _, dn := range ns.Datanodes() {
		rec := &nspb.RegisterDatanode{Uuid: &dn.UUID, Host: &dn.Host, Port: &dn.Port, Hostname: &dn.Hostname}
		if dn.GoneMillis != 0 {
			rec.GoneMs = &dn.GoneMillis
		}
		w.put(rec)
	}
	for _, key := range ns.retry.order {
		c := ns.retry.calls[key]
		w.put(&nspb.SnapshotCall{ClientId: key.client[:], CallId: &key.id, TimeMs: &c.time, Ok: &c.ok, Inode: &c.inode})
	}
	return w.buf, w.err
}

func snapshotFile(f *file) *nspb.SnapshotFile {
	out := &nspb.SnapshotFile{
		Replication: proto.Uint32(uint32(f.replication)),
		BlockSize:   proto.Uint64(f.blockSize),
		Blocks:      make([]*nspb.SnapshotBlock, len(f.blocks)),
	}
	if f.open {
		out.Holder = proto.String(f.holder)
	}
	for i, b := range f.blocks {
		p := &nspb.SnapshotBlock{Id: &b.ID, Generation: &b.Generation, Length: &b.Length}
		if u := b.Construction; u != nil {
			p.Construction = &nspb.SnapshotConstruction{Targets: u.Targets, Recovery: &u.Recovery}
			if u.Truncate {
				p.Construction.TruncateTo = &u.TruncateTo
			}
		}
		out.Blocks[i] = p
	}
	return out
}

type recordWriter struct {
	buf []byte
	err error
}

func (w *recordWriter) put(m proto.Message) {
	if w.err != nil {
		return
	}
	opts := proto.MarshalOptions{Deterministic: true}
	w.buf = binary.AppendUvarint(w.buf, uint64(opts.Size(m)))
	w.buf, w.err = opts.MarshalAppend(w.buf, m)
}

// Restore reads a snapshot. Whatever the bytes are, it returns a consistent
// namespace or an error, and uses memory in proportion to what it has read.
func Restore(r io.Reader) (*Namespace, error) {
	ns, err := restore(r)
	if err != nil {
		return nil, fmt.Errorf("namespace: restore snapshot: %w", err)
	}
	return ns, nil
}

func restore(in io.Reader) (*Namespace, error) {
	r := bufio.NewReaderSize(in, 1<<16)
	var h nspb.SnapshotHeader
	if err := readRecord(r, &h); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if h.GetVersion() != snapshotVersion {
		return nil, fmt.Errorf("version %d, this program reads %d: run a version at least as new as the one that wrote it", h.GetVersion(), snapshotVersion)
	}
	if h.GetInodes() == 0 {
		return nil, errors.New("it has no root")
	}
	ns := New()
	ns.clusterID, ns.blockPoolID = h.GetClusterId(), h.GetBlockPoolId()
	ns.nextInode, ns.nextBlock, ns.stamps, ns.clock = h.GetNextInode(), h.GetNextBlock(), h.GetGenerationLimit(), h.GetClockMs()
	ns.last = ns.clock
	if h.LastMs != nil {
		ns.last = h.GetLastMs()
	}
	clear(ns.inodes)
	clear(ns.nameIDs)
	ns.names = ns.names[:0]
	for i, name := range h.GetNames() {
		if ns.intern(name) != uint32(i) {
			return nil, fmt.Errorf("name %q is there twice", name)
		}
	}
	var rec nspb.SnapshotInode
	for i := range h.GetInodes() {
		proto.Reset(&rec)
		if err := readRecord(r, &rec); err != nil {
			return nil, fmt.Errorf("inode %d of %d: %w", i, h.GetInodes(), err)
		}
		if err := ns.restoreInode(&rec, i == 0); err != nil {
			return nil, fmt.Errorf("inode %d of %d: %w", i, h.GetInodes(), err)
		}
	}
	for i := range h.GetDatanodes() {
		var dn nspb.RegisterDatanode
		if err := readRecord(r, &dn); err != nil {
			return nil, fmt.Errorf("DataNode %d of %d: %w", i, h.GetDatanodes(), err)
		}
		if _, ok := ns.datanodes[dn.GetUuid()]; ok || dn.GetUuid() == "" {
			return nil, fmt.Errorf("DataNode %d has the uuid %q, which is empty or another's", i, dn.GetUuid())
		}
		ns.datanodes[dn.GetUuid()] = Datanode{UUID: dn.GetUuid(), Host: dn.GetHost(), Port: dn.GetPort(), Hostname: dn.GetHostname(), GoneMillis: dn.GetGoneMs()}
	}
	for i := range h.GetCalls() {
		var c nspb.SnapshotCall
		if err := readRecord(r, &c); err != nil {
			return nil, fmt.Errorf("call %d of %d: %w", i, h.GetCalls(), err)
		}
		if len(c.GetClientId()) != 16 {
			return nil, fmt.Errorf("call %d has a client id of %d bytes, not 16", i, len(c.GetClientId()))
		}
		key := callKey{client: [16]byte(c.GetClientId()), id: c.GetCallId()}
		if _, ok := ns.retry.calls[key]; ok {
			return nil, fmt.Errorf("call %d is there twice", i)
		}
		ns.retry.add(key, call{time: c.GetTimeMs(), ok: c.GetOk(), inode: c.GetInode()})
	}
	if _, err := r.ReadByte(); err != io.EOF {
		return nil, errors.New("more bytes than records")
	}
	return ns, nil
}

func (ns *Namespace) restoreInode(rec *nspb.SnapshotInode, root bool) error {
	n := &Inode{
		id: rec.GetId(), name: string(rec.GetName()),
		mtime: rec.GetMtimeMs(), atime: rec.GetAtimeMs(),
		owner: rec.GetOwner(), group: rec.GetGroup(), mode: uint16(rec.GetMode() & modeBits),
	}
	switch {
	case n.id == 0 || n.id >= ns.nextInode || ns.inodes[n.id] != nil:
		return fmt.Errorf("id %d is not below the next (%d), or another's", n.id, ns.nextInode)
	case uint64(n.owner) >= uint64(len(ns.names)) || uint64(n.group) >= uint64(len(ns.names)):
		return fmt.Errorf("owner %d or group %d is beyond the %d names", n.owner, n.group, len(ns.names))
	case root && (rec.GetParent() != 0 || n.name != "" || rec.File != nil || n.id != rootID):
		return fmt.Errorf("the first is not the root: id %d, name %q, parent %d", n.id, n.name, rec.GetParent())
	}
	if root {
		ns.root = n
	} else {
		parent := ns.inodes[rec.GetParent()]
		if parent == nil || parent.dir == nil {
			return fmt.Errorf("its parent %d is no directory before it", rec.GetParent())
		}
		if n.name == "" || len(n.name) > MaxComponentLength || slices.Contains(rec.GetName(), '/') || parent.dir.get(n.name) != nil {
			return fmt.Errorf("name %q is no name or another's", printable(n.name))
		}
		n.parent = parent
		parent.dir.insert(n)
	}
	ns.inodes[n.id] = n
	var err error
	if n.more, err = restoreAttributes(rec.Attributes, rec.File == nil); err != nil {
		return err
	}
	if rec.File == nil {
		n.dir = &children{}
		return nil
	}
	return ns.restoreFile(n, rec.File)
}

func (ns *Namespace) restoreFile(n *Inode, rec *nspb.SnapshotFile) error {
	if rec.GetReplication() < 1 || rec.GetReplication() > MaxReplication || rec.GetBlockSize() == 0 {
		return fmt.Errorf("replication %d or block size %d is out of range", rec.GetReplication(), rec.GetBlockSize())
	}
	n.file = &file{replication: uint16(rec.GetReplication()), blockSize: rec.GetBlockSize()}
	ns.files++
	if len(rec.GetBlocks()) > 0 {
		n.file.blocks = make([]*Block, 0, len(rec.GetBlocks()))
	}
	for i, p := range rec.GetBlocks() {
		b := &Block{ID: p.GetId(), Generation: p.GetGeneration(), Length: p.GetLength(), inode: n}
		if b.ID >= ns.nextBlock || b.Generation >= ns.stamps || ns.blocks[b.ID] != nil {
			return fmt.Errorf("block %d (generation stamp %d) is not below the next (%d, %d), or another's", b.ID, b.Generation, ns.nextBlock, ns.stamps)
		}
		if u := p.GetConstruction(); u != nil {
			if i != len(rec.GetBlocks())-1 || rec.Holder == nil {
				return fmt.Errorf("block %d is under construction but not the last of an open file", b.ID)
			}
			b.Construction = &Construction{Targets: slices.Clone(u.GetTargets()), Recovery: u.GetRecovery(), Truncate: u.TruncateTo != nil, TruncateTo: u.GetTruncateTo()}
			if u.GetRecovery() != 0 {
				ns.recovering[b.ID] = b
			}
		}
		ns.blocks[b.ID] = b
		n.file.blocks = append(n.file.blocks, b)
	}
	if rec.Holder != nil {
		ns.lease(n, rec.GetHolder())
	}
	return nil
}

func readRecord(r *bufio.Reader, m proto.Message) error {
	// protodelim allocates what the length says; a small file can't claim much.
	size, err := peekUvarint(r)
	if err != nil {
		return err
	}
	if size > maxRecord {
		return fmt.Errorf("a record of %d bytes; the limit is %d", size, maxRecord)
	}
	if size <= uint64(r.Size())-binary.MaxVarintLen64 {
		return protodelim.UnmarshalOptions{MaxSize: maxRecord}.UnmarshalFrom(r, m)
	}
	if _, err := binary.ReadUvarint(r); err != nil {
		return err
	}
	buf, err := io.ReadAll(io.LimitReader(r, int64(size)))
	if err != nil {
		return err
	}
	if uint64(len(buf)) != size {
		return io.ErrUnexpectedEOF
	}
	return proto.Unmarshal(buf, m)
}

func peekUvarint(r *bufio.Reader) (uint64, error) {
	for n := 1; n <= binary.MaxVarintLen64; n++ {
		b, err := r.Peek(n)
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		if b[n-1] < 0x80 {
			v, used := binary.Uvarint(b)
			if used <= 0 {
				return 0, errors.New("a length that overflows")
			}
			return v, nil
		}
	}
	return 0, errors.New("a length that overflows")
}
