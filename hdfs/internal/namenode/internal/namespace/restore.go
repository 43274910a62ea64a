package namespace

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/quota"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/storagepolicy"
)

// Restore reads a snapshot of this version or of version 1. Whatever the bytes are, it
// returns a consistent namespace or an error, and uses memory in proportion to what it
// has read. It decodes on all processors.
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
	if h.GetVersion() < 1 || h.GetVersion() > snapshotVersion {
		return nil, fmt.Errorf("version %d, this program reads 1 to %d: run a version at least as new as the one that wrote it", h.GetVersion(), snapshotVersion)
	}
	ns := New()
	ns.clusterID, ns.blockPoolID = h.GetClusterId(), h.GetBlockPoolId()
	ns.nextInode, ns.nextBlock, ns.stamps, ns.clock = h.GetNextInode(), h.GetNextBlock(), h.GetGenerationLimit(), h.GetClockMs()
	ns.last = ns.clock
	if h.LastMs != nil {
		ns.last = h.GetLastMs()
	}
	ns.inodes.Delete(rootID)
	clear(ns.nameIDs)
	ns.names = ns.names[:0]
	for i, name := range h.GetNames() {
		if ns.intern(name) != uint32(i) {
			return nil, fmt.Errorf("name %q is there twice", name)
		}
	}
	readInodes := ns.readBatches
	if h.GetVersion() == 1 {
		readInodes = func(r *bufio.Reader) error { return ns.readSingly(r, h.GetInodes()) }
	}
	if err := readInodes(r); err != nil {
		return nil, err
	}
	if ns.root() == nil {
		return nil, errors.New("it has no root")
	}
	ns.countLimited()
	if err := ns.readRest(r, &h); err != nil {
		return nil, err
	}
	if _, err := r.ReadByte(); err != io.EOF {
		if err == nil {
			err = errors.New("more bytes than records")
		}
		return nil, err
	}
	return ns, nil
}

// readRest reads what comes after the inodes.
func (ns *Namespace) readRest(r *bufio.Reader, h *nspb.SnapshotHeader) error {
	for i := range h.GetDatanodes() {
		var dn nspb.RegisterDatanode
		if err := readRecord(r, &dn); err != nil {
			return fmt.Errorf("DataNode %d of %d: %w", i, h.GetDatanodes(), err)
		}
		if _, ok := ns.datanodes[dn.GetUuid()]; ok || dn.GetUuid() == "" {
			return fmt.Errorf("DataNode %d has the uuid %q, which is empty or another's", i, dn.GetUuid())
		}
		ns.datanodes[dn.GetUuid()] = Datanode{UUID: dn.GetUuid(), Host: dn.GetHost(), Port: dn.GetPort(), Hostname: dn.GetHostname(), GoneMillis: dn.GetGoneMs()}
	}
	for i := range h.GetCalls() {
		var c nspb.SnapshotCall
		if err := readRecord(r, &c); err != nil {
			return fmt.Errorf("call %d of %d: %w", i, h.GetCalls(), err)
		}
		if len(c.GetClientId()) != 16 {
			return fmt.Errorf("call %d has a client id of %d bytes, not 16", i, len(c.GetClientId()))
		}
		key := callKey{client: [16]byte(c.GetClientId()), id: c.GetCallId()}
		if _, ok := ns.retry.get(key); ok {
			return fmt.Errorf("call %d is there twice", i)
		}
		ns.retry.add(key, call{time: c.GetTimeMs(), ok: c.GetOk(), inode: c.GetInode()})
	}
	return nil
}

// readSingly reads the inodes as version 1 has them.
func (ns *Namespace) readSingly(r *bufio.Reader, count uint64) error {
	var rec nspb.SnapshotInode
	for i := range count {
		proto.Reset(&rec)
		if err := readRecord(r, &rec); err != nil {
			return fmt.Errorf("inode %d of %d: %w", i, count, err)
		}
		n, blocks, err := inodeOf(&rec)
		if err == nil {
			err = ns.restoreInode(n, blocks)
		}
		if err != nil {
			return fmt.Errorf("inode %d of %d: %w", i, count, err)
		}
	}
	return nil
}

// batch is a part of the inodes on its way from the file into the namespace.
type batch struct {
	data    []byte
	inodes  []Inode
	blocks  []Block // of all files, in order
	err     error
	decoded chan struct{}
}

// readBatches reads the inodes: one goroutine reads the bytes, one for each
// processor decodes batches, and this one puts them in place in their order.
func (ns *Namespace) readBatches(r *bufio.Reader) error {
	workers := runtime.GOMAXPROCS(0)
	encoded, ordered := make(chan *batch, workers), make(chan *batch, workers)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for b := range encoded {
				b.err = b.decode()
				close(b.decoded)
			}
		})
	}
	var readErr error
	wg.Go(func() {
		defer close(encoded)
		defer close(ordered)
		for {
			data, err := readSized(r, maxRecord+batchSize)
			if err != nil || len(data) == 0 {
				readErr = err
				return
			}
			b := &batch{data: data, decoded: make(chan struct{})}
			select {
			case ordered <- b:
			case <-stop:
				return
			}
			encoded <- b
		}
	})
	var err error
	count := 0
	for b := range ordered {
		<-b.decoded
		if err == nil {
			if err = ns.place(b, &count); err != nil {
				close(stop)
			}
		}
	}
	wg.Wait()
	if err == nil && readErr != nil {
		err = fmt.Errorf("behind inode %d: %w", count, readErr)
	}
	return err
}

func (ns *Namespace) place(b *batch, count *int) error {
	blocks := b.blocks
	for i := range b.inodes {
		n := &b.inodes[i]
		of := 0
		if n.file != nil {
			of = len(n.file.blocks)
		}
		if err := ns.restoreInode(n, blocks[:of]); err != nil {
			return fmt.Errorf("inode %d: %w", *count, err)
		}
		blocks = blocks[of:]
		*count++
	}
	if b.err != nil {
		return fmt.Errorf("inode %d: %w", *count, b.err)
	}
	return nil
}

// slab is how many inodes share the memory of their names and properties: as long as
// one of them is there.
const slab = 32

// decode reads the records of a batch.
func (b *batch) decode() error {
	var (
		d     decoder
		names []byte
		from  int // the first inode whose name is in names alone
	)
	settle := func() {
		all := string(names)
		for i := from; i < len(b.inodes); i++ {
			n := &b.inodes[i]
			n.name, all = all[:d.lengths[i-from]], all[d.lengths[i-from]:]
		}
		names, d.lengths, from = names[:0], d.lengths[:0], len(b.inodes)
	}
	b.inodes = make([]Inode, 0, len(b.data)/48)
	b.blocks = make([]Block, 0, len(b.data)/64)
	for rest := b.data; len(rest) > 0; {
		rec, n := protowire.ConsumeBytes(rest)
		if n < 0 {
			settle()
			return protowire.ParseError(n)
		}
		rest = rest[n:]
		var in Inode
		before := len(b.blocks)
		name, ok := d.plain(rec, &in, &b.blocks)
		if !ok {
			b.blocks = b.blocks[:before]
			m, blocks, err := unmarshalInode(rec)
			if err != nil {
				settle()
				return err
			}
			in, name = *m, []byte(m.name)
			b.blocks = append(b.blocks, blocks...)
		}
		names = append(names, name...)
		d.lengths = append(d.lengths, len(name))
		b.inodes = append(b.inodes, in)
		if len(b.inodes)-from == slab {
			settle()
		}
	}
	settle()
	b.data = nil
	return nil
}

// decoder has the memory that the inodes of a slab share.
type decoder struct {
	lengths []int // of names
	files   []file
	ids     []uint64
}

func (d *decoder) newFile() *file {
	if len(d.files) == cap(d.files) {
		d.files = make([]file, 0, slab)
	}
	d.files = append(d.files, file{})
	return &d.files[len(d.files)-1]
}

// keep returns the ids of a file's blocks in memory of their own.
func (d *decoder) keep(blocks []Block) []uint64 {
	if len(blocks) == 0 {
		return nil
	}
	if len(d.ids)+len(blocks) > cap(d.ids) {
		d.ids = make([]uint64, 0, max(slab, len(blocks)))
	}
	from := len(d.ids)
	for i := range blocks {
		d.ids = append(d.ids, blocks[i].ID)
	}
	return slices.Clip(d.ids[from:])
}

// plain reads a SnapshotInode as appendInode writes it. ok is false if there is more in
// it, or if it is damaged: protobuf's own code is to look at it then.
func (d *decoder) plain(rec []byte, n *Inode, blocks *[]Block) (name []byte, ok bool) {
	ok = eachField(rec, func(field protowire.Number, v uint64, bytes []byte) bool {
		if bytes != nil && field != inodeName && field != inodeFile {
			return false
		}
		switch field {
		case inodeID:
			n.id = v
		case inodeParent:
			n.parent = v
		case inodeName:
			name = bytes
			return bytes != nil
		case inodeModTime:
			n.mtime = int64(v)
		case inodeAccessTime:
			n.atime = int64(v)
		case inodeOwner:
			n.owner = uint32(v)
			return v == uint64(n.owner)
		case inodeGroup:
			n.group = uint32(v)
			return v == uint64(n.group)
		case inodeMode:
			n.mode = uint16(v & modeBits)
		case inodeFile:
			if n.file != nil || bytes == nil {
				return false
			}
			n.file = d.newFile()
			return d.plainFile(bytes, n.file, blocks)
		default:
			return false
		}
		return true
	})
	return name, ok
}

func (d *decoder) plainFile(rec []byte, f *file, blocks *[]Block) bool {
	from := len(*blocks)
	ok := eachField(rec, func(field protowire.Number, v uint64, bytes []byte) bool {
		switch field {
		case fileReplication:
			f.replication = uint16(v)
			return bytes == nil && v <= MaxReplication
		case fileBlockSize:
			f.blockSize = v
			return bytes == nil
		case fileBlocks:
			var b Block
			ok := bytes != nil && eachField(bytes, func(field protowire.Number, v uint64, bytes []byte) bool {
				switch field {
				case blockID:
					b.ID = v
				case blockGeneration:
					b.Generation = v
				case blockLength:
					b.Length = v
				default:
					return false
				}
				return bytes == nil
			})
			*blocks = append(*blocks, b)
			return ok
		case fileHolder:
			holder := string(bytes)
			f.holder = &holder
			return bytes != nil
		}
		return false
	})
	f.blocks = d.keep((*blocks)[from:])
	return ok
}

// eachField calls visit for the fields of a message, with a number or with bytes, which
// are not nil. It returns false if visit does, or if there is another kind of field or
// none that can be read.
func eachField(rec []byte, visit func(field protowire.Number, v uint64, bytes []byte) bool) bool {
	for len(rec) > 0 {
		field, kind, n := protowire.ConsumeTag(rec)
		if n < 0 {
			return false
		}
		rec = rec[n:]
		var v uint64
		var bytes []byte
		switch kind {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(rec)
		case protowire.BytesType:
			bytes, n = protowire.ConsumeBytes(rec)
		default:
			return false
		}
		if n < 0 || !visit(field, v, bytes) {
			return false
		}
		rec = rec[n:]
	}
	return true
}

func unmarshalInode(rec []byte) (*Inode, []Block, error) {
	var p nspb.SnapshotInode
	if err := proto.Unmarshal(rec, &p); err != nil {
		return nil, nil, err
	}
	return inodeOf(&p)
}

// inodeOf is what a record says, and its blocks.
func inodeOf(rec *nspb.SnapshotInode) (n *Inode, blocks []Block, err error) {
	n = &Inode{
		id: rec.GetId(), parent: rec.GetParent(), name: string(rec.GetName()),
		mtime: rec.GetMtimeMs(), atime: rec.GetAtimeMs(),
		owner: rec.GetOwner(), group: rec.GetGroup(), mode: uint16(rec.GetMode() & modeBits),
	}
	if n.more, err = restoreAttributes(rec.Attributes, rec.File == nil); err != nil || rec.File == nil {
		return n, nil, err
	}
	n.file = &file{replication: uint16(min(rec.File.GetReplication(), MaxReplication+1)), blockSize: rec.File.GetBlockSize()}
	if rec.File.Holder != nil {
		holder := rec.File.GetHolder()
		n.file.holder = &holder
	}
	blocks = make([]Block, len(rec.File.GetBlocks()))
	for i, p := range rec.File.GetBlocks() {
		blocks[i] = Block{ID: p.GetId(), Generation: p.GetGeneration(), Length: p.GetLength()}
		n.file.blocks = append(n.file.blocks, p.GetId())
		if u := p.GetConstruction(); u != nil {
			blocks[i].Construction = &Construction{Targets: slices.Clone(u.GetTargets()), Recovery: u.GetRecovery(), Truncate: u.TruncateTo != nil, TruncateTo: u.GetTruncateTo()}
		}
	}
	return n, blocks, nil
}

// restoreInode puts an inode with its blocks in its place, and keeps a copy of it.
func (ns *Namespace) restoreInode(n *Inode, blocks []Block) error {
	root := ns.inodes.Len() == 0
	n.more = ns.lists.share(n.more)
	switch {
	case n.id == 0 || n.id >= ns.nextInode || ns.inodes.Get(n.id) != nil:
		return fmt.Errorf("id %d is not below the next (%d), or another's", n.id, ns.nextInode)
	case uint64(n.owner) >= uint64(len(ns.names)) || uint64(n.group) >= uint64(len(ns.names)):
		return fmt.Errorf("owner %d or group %d is beyond the %d names", n.owner, n.group, len(ns.names))
	case root && (n.parent != 0 || n.name != "" || n.file != nil || n.id != rootID):
		return fmt.Errorf("the first is not the root: id %d, name %q, parent %d", n.id, n.name, n.parent)
	}
	if !root {
		parent := ns.inodes.Get(n.parent)
		if parent == nil || parent.dir == nil {
			return fmt.Errorf("its parent %d is no directory before it", n.parent)
		}
		if n.name == "" || len(n.name) > MaxComponentLength || strings.IndexByte(n.name, '/') >= 0 {
			return fmt.Errorf("name %q is no name", printable(n.name))
		}
		if !parent.dir.names.Append(ns.gen, n.name, n.id) {
			if _, ok := parent.dir.names.Get(n.name); ok {
				return fmt.Errorf("name %q is another's", printable(n.name))
			}
			parent.dir.names.Insert(ns.gen, n.name, n.id)
		}
		if n.file == nil {
			parent.dir.directories++
		}
	}
	if n.more != nil && n.more.limits != nil {
		ns.usage[n.id] = quota.Counts{} // counted when all is there
	}
	ns.policies = ns.policies || n.ownPolicy() != storagepolicy.Unspecified
	if n.file == nil {
		n.dir = &directory{gen: ns.gen}
		ns.inodes.Put(n.id, *n)
		return nil
	}
	ns.inodes.Put(n.id, *n)
	return ns.restoreFile(n, blocks)
}

func (ns *Namespace) restoreFile(n *Inode, blocks []Block) error {
	f := n.file
	if f.replication < 1 || f.replication > MaxReplication || f.blockSize == 0 {
		return fmt.Errorf("replication %d or block size %d is out of range", f.replication, f.blockSize)
	}
	ns.files++
	for i, b := range blocks {
		if b.ID >= ns.nextBlock || b.Generation >= ns.stamps || ns.blocks.Get(b.ID) != nil {
			return fmt.Errorf("block %d (generation stamp %d) is not below the next (%d, %d), or another's", b.ID, b.Generation, ns.nextBlock, ns.stamps)
		}
		if u := b.Construction; u != nil {
			if i != len(blocks)-1 || f.holder == nil {
				return fmt.Errorf("block %d is under construction but not the last of an open file", b.ID)
			}
			if u.Recovery != 0 {
				ns.recovering[b.ID] = struct{}{}
			}
		}
		b.inode = n.id
		ns.blocks.Put(b.ID, b)
	}
	if f.holder != nil {
		ns.lease(n.id, *f.holder)
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
	buf, err := readSized(r, maxRecord)
	if err != nil {
		return err
	}
	return proto.Unmarshal(buf, m)
}

// readSized reads bytes with their number before them. It allocates no more than twice
// what there is.
func readSized(r *bufio.Reader, limit uint64) ([]byte, error) {
	size, err := peekUvarint(r)
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, fmt.Errorf("%d bytes in one piece; the limit is %d", size, limit)
	}
	if _, err := binary.ReadUvarint(r); err != nil {
		return nil, err
	}
	if size <= 2*batchSize {
		buf := make([]byte, size)
		if _, err = io.ReadFull(r, buf); err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return buf, err
	}
	buf, err := io.ReadAll(io.LimitReader(r, int64(size)))
	if err != nil {
		return nil, err
	}
	if uint64(len(buf)) != size {
		return nil, io.ErrUnexpectedEOF
	}
	return buf, nil
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
