package namespace

import (
	"encoding/binary"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/internal/cow"
)

const (
	snapshotVersion = 2
	// maxRecord bounds one record of a snapshot: a file of MaxFileBlocks blocks.
	maxRecord = 64 << 20
	// batchSize is after how many bytes a batch of inodes ends.
	batchSize = 256 << 10
)

// Version is the state as it was at one moment. It never changes, and needs no lock.
type Version struct {
	header    *nspb.SnapshotHeader
	inodes    *cow.Map[Inode]
	blocks    *cow.Map[Block]
	datanodes []Datanode
	calls     []remembered
}

// Freeze takes a version, in a time that does not grow with the files. It counts as a
// change: nobody may read meanwhile.
func (ns *Namespace) Freeze() *Version {
	v := &Version{inodes: ns.inodes.Freeze(), blocks: ns.blocks.Freeze(), datanodes: ns.Datanodes(), calls: ns.retry.order}
	ns.gen++
	v.header = &nspb.SnapshotHeader{
		Version:         proto.Uint32(snapshotVersion),
		ClusterId:       proto.String(ns.clusterID),
		BlockPoolId:     proto.String(ns.blockPoolID),
		NextInode:       proto.Uint64(ns.nextInode),
		NextBlock:       proto.Uint64(ns.nextBlock),
		GenerationLimit: proto.Uint64(ns.stamps),
		ClockMs:         proto.Int64(ns.clock),
		LastMs:          proto.Int64(ns.last),
		Names:           ns.names[:len(ns.names):len(ns.names)], // names are only added
		Datanodes:       proto.Uint64(uint64(len(v.datanodes))),
		Calls:           proto.Uint64(uint64(len(v.calls))),
	}
	return v
}

// AppendSnapshot appends the whole state to buf, as [Version.WriteTo] writes it.
func (ns *Namespace) AppendSnapshot(buf []byte) ([]byte, error) {
	w := appender{buf}
	_, err := ns.Freeze().WriteTo(&w)
	return w.buf, err
}

type appender struct{ buf []byte }

func (a *appender) Write(p []byte) (int, error) {
	a.buf = append(a.buf, p...)
	return len(p), nil
}

// WriteTo writes the version: the header, the inodes in batches, each with its length
// before it, an empty batch, the DataNodes and the calls, all of them records as
// namespace.proto describes. Equal states give equal bytes. A directory comes before what
// is in it, and its children in the order of their names. What was deleted and has not
// been taken apart is not in it.
func (v *Version) WriteTo(out io.Writer) (int64, error) {
	w := recordWriter{out: out}
	w.put(v.header)
	w.flush()
	w.inodes(v)
	for i := range v.datanodes {
		dn := &v.datanodes[i]
		rec := &nspb.RegisterDatanode{Uuid: &dn.UUID, Host: &dn.Host, Port: &dn.Port, Hostname: &dn.Hostname}
		if dn.GoneMillis != 0 {
			rec.GoneMs = &dn.GoneMillis
		}
		w.put(rec)
	}
	for i := range v.calls {
		c := &v.calls[i]
		w.put(&nspb.SnapshotCall{ClientId: c.client[:], CallId: &c.id, TimeMs: &c.time, Ok: &c.ok, Inode: &c.inode})
		if len(w.buf) > batchSize {
			w.flush()
		}
	}
	w.flush()
	return w.written, w.err
}

type recordWriter struct {
	out     io.Writer
	buf     []byte
	written int64
	err     error
}

func (w *recordWriter) flush() {
	if w.err == nil && len(w.buf) > 0 {
		var n int
		n, w.err = w.out.Write(w.buf)
		w.written += int64(n)
	}
	w.buf = w.buf[:0]
}

func (w *recordWriter) put(m proto.Message) {
	if w.err != nil {
		return
	}
	opts := proto.MarshalOptions{Deterministic: true}
	w.buf = binary.AppendUvarint(w.buf, uint64(opts.Size(m)))
	w.buf, w.err = opts.MarshalAppend(w.buf, m)
}

// inodes writes what hangs together with the root.
func (w *recordWriter) inodes(v *Version) {
	stack := []uint64{rootID}
	var scratch []byte
	for len(stack) > 0 && w.err == nil {
		n := v.inodes.Get(stack[len(stack)-1])
		stack = stack[:len(stack)-1]
		if v.plain(n) {
			scratch = v.appendInode(scratch[:0], n)
			w.buf = protowire.AppendBytes(w.buf, scratch)
		} else {
			w.put(v.record(n))
		}
		if len(w.buf) >= batchSize {
			w.endBatch()
		}
		if n.dir == nil {
			continue
		}
		count := n.dir.names.Len()
		at := len(stack) + count
		stack = append(stack, make([]uint64, count)...)
		n.dir.names.After("", func(_ string, id uint64) bool {
			at--
			stack[at] = id
			return true
		})
	}
	w.endBatch()
	w.buf = append(w.buf, 0)
	w.flush()
}

func (w *recordWriter) endBatch() {
	if len(w.buf) == 0 || w.err != nil {
		return
	}
	batch := w.buf
	w.buf = binary.AppendUvarint(nil, uint64(len(batch)))
	w.flush()
	w.buf = batch
	w.flush()
}

// Numbers of fields of namespace.proto, of the messages that are written and read
// without its generated code: millions of records take a fifth of the time.
const (
	inodeID, inodeParent, inodeName, inodeModTime, inodeAccessTime = 1, 2, 3, 4, 5
	inodeOwner, inodeGroup, inodeMode, inodeFile                   = 6, 7, 8, 9
	fileReplication, fileBlockSize, fileBlocks, fileHolder         = 1, 2, 3, 4
	blockID, blockGeneration, blockLength                          = 1, 2, 3
)

// plain tells whether appendInode can write an inode.
func (v *Version) plain(n *Inode) bool {
	if n.more != nil {
		return false
	}
	if n.file == nil || !n.file.open() || len(n.file.blocks) == 0 {
		return true
	}
	return v.blocks.Get(n.file.blocks[len(n.file.blocks)-1]).Construction == nil
}

// appendInode writes a SnapshotInode, without its fields that are 0.
func (v *Version) appendInode(buf []byte, n *Inode) []byte {
	buf = appendField(buf, inodeID, n.id)
	buf = appendField(buf, inodeParent, n.parent)
	if n.name != "" {
		buf = protowire.AppendTag(buf, inodeName, protowire.BytesType)
		buf = protowire.AppendString(buf, n.name)
	}
	buf = appendField(buf, inodeModTime, uint64(n.mtime))
	buf = appendField(buf, inodeAccessTime, uint64(n.atime))
	buf = appendField(buf, inodeOwner, uint64(n.owner))
	buf = appendField(buf, inodeGroup, uint64(n.group))
	buf = appendField(buf, inodeMode, uint64(n.mode))
	f := n.file
	if f == nil {
		return buf
	}
	buf = protowire.AppendTag(buf, inodeFile, protowire.BytesType)
	size := sizeField(fileReplication, uint64(f.replication)) + sizeField(fileBlockSize, f.blockSize)
	for _, id := range f.blocks {
		size += protowire.SizeTag(fileBlocks) + protowire.SizeBytes(sizeBlock(v.blocks.Get(id)))
	}
	if f.holder != nil {
		size += protowire.SizeTag(fileHolder) + protowire.SizeBytes(len(*f.holder))
	}
	buf = protowire.AppendVarint(buf, uint64(size))
	buf = appendField(buf, fileReplication, uint64(f.replication))
	buf = appendField(buf, fileBlockSize, f.blockSize)
	for _, id := range f.blocks {
		b := v.blocks.Get(id)
		buf = protowire.AppendTag(buf, fileBlocks, protowire.BytesType)
		buf = protowire.AppendVarint(buf, uint64(sizeBlock(b)))
		buf = appendField(buf, blockID, b.ID)
		buf = appendField(buf, blockGeneration, b.Generation)
		buf = appendField(buf, blockLength, b.Length)
	}
	if f.holder != nil {
		buf = protowire.AppendTag(buf, fileHolder, protowire.BytesType)
		buf = protowire.AppendString(buf, *f.holder)
	}
	return buf
}

func sizeBlock(b *Block) int {
	return sizeField(blockID, b.ID) + sizeField(blockGeneration, b.Generation) + sizeField(blockLength, b.Length)
}

func sizeField(field protowire.Number, v uint64) int {
	if v == 0 {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeVarint(v)
}

func appendField(buf []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return buf
	}
	return protowire.AppendVarint(protowire.AppendTag(buf, field, protowire.VarintType), v)
}

// record is any inode as a message.
func (v *Version) record(n *Inode) *nspb.SnapshotInode {
	out := &nspb.SnapshotInode{
		Id: &n.id, Parent: &n.parent, Name: []byte(n.name), MtimeMs: &n.mtime, AtimeMs: &n.atime,
		Owner: &n.owner, Group: &n.group, Mode: proto.Uint32(uint32(n.mode)), Attributes: snapshotAttributes(n.more),
	}
	if n.file == nil {
		return out
	}
	out.File = &nspb.SnapshotFile{
		Replication: proto.Uint32(uint32(n.file.replication)), BlockSize: &n.file.blockSize, Holder: n.file.holder,
		Blocks: make([]*nspb.SnapshotBlock, len(n.file.blocks)),
	}
	for i, id := range n.file.blocks {
		b := v.blocks.Get(id)
		p := &nspb.SnapshotBlock{Id: &b.ID, Generation: &b.Generation, Length: &b.Length}
		if u := b.Construction; u != nil {
			p.Construction = &nspb.SnapshotConstruction{Targets: u.Targets, Recovery: &u.Recovery}
			if u.Truncate {
				p.Construction.TruncateTo = &u.TruncateTo
			}
		}
		out.File.Blocks[i] = p
	}
	return out
}
