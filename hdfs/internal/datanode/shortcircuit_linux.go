package datanode

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/shortcircuit"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/internal/memfd"
)

// local is what a DataNode has handed over to processes of its host.
type local struct {
	registry *shortcircuit.Registry

	mu    sync.Mutex
	metas map[metaKey]*metaFile
	bytes int64 // of metas
}

// metaKey names a replica that does not change.
type metaKey struct{ id, generation uint64 }

// metaFile is a replica's checksums as HDFS's meta file has them, in memory, for as long
// as a slot stands for the replica.
type metaFile struct {
	file *memfd.File
	key  metaKey
	size int64
	uses int
}

// hold is what a slot keeps in memory.
type hold struct {
	released bool
	meta     *metaFile
}

func newLocal(cfg *Config) *local {
	return &local{registry: shortcircuit.NewRegistry(cfg.MaxLocalClients), metas: map[metaKey]*metaFile{}}
}

// collect returns the numbers of what was handed over.
func (l *local) collect() LocalStats {
	c := l.registry.Counts()
	l.mu.Lock()
	defer l.mu.Unlock()
	return LocalStats{Segments: c.Segments, Slots: c.Slots, Revoked: c.Revoked, ChecksumBytes: l.bytes}
}

// changing takes back what was handed over of a block.
func (l *local) changing(id uint64) { l.registry.Revoke(id) }

// localOp returns the request of an operation that only processes of this host may ask
// for, and what serves it; nil if op is none, or p comes from elsewhere.
func (dn *DataNode) localOp(p *peer, op transfer.Op) (proto.Message, func() error) {
	c, ok := p.Conn.(*net.UnixConn)
	if !ok {
		return nil, nil
	}
	switch op {
	case transfer.OpRequestShortCircuitFDs:
		m := &hdfspb.OpRequestShortCircuitAccessProto{}
		return m, func() error { return dn.handOver(p, c, m) }
	case transfer.OpReleaseShortCircuitFDs:
		m := &hdfspb.ReleaseShortCircuitAccessRequestProto{}
		return m, func() error { return dn.takeBack(p, m) }
	case transfer.OpRequestShortCircuitShm:
		m := &hdfspb.ShortCircuitShmRequestProto{}
		return m, func() error { return dn.shareSlots(p, c) }
	}
	return nil, nil
}

// shareSlots gives a client a segment of slots, which ends with the connection.
func (dn *DataNode) shareSlots(p *peer, c *net.UnixConn) (err error) {
	segment, err := dn.local.registry.NewSegment()
	if err != nil {
		text := err.Error()
		return transfer.WriteMessage(p, &hdfspb.ShortCircuitShmResponseProto{Status: hdfspb.Status_ERROR.Enum(), Error: &text})
	}
	defer func() { err = errors.Join(err, dn.local.registry.Remove(segment)) }()
	err = p.sendDescriptors(c, &hdfspb.ShortCircuitShmResponseProto{Status: hdfspb.Status_SUCCESS.Enum(), Id: segment.ID().Proto()}, shortcircuit.NoReceipt, segment.FD())
	if err != nil {
		return err
	}
	// It is no operation under way that others would have to wait for.
	dn.transfers.Add(-1)
	defer dn.transfers.Add(1)
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	var b [1]byte
	if n, err := c.Read(b[:]); n > 0 || err == nil {
		return fmt.Errorf("%w: bytes on a connection that stands for a segment of slots", transfer.ErrMalformed)
	}
	return io.EOF
}

// sendDescriptors is [shortcircuit.Send] to a peer, whose connection is c, within the time that a write may take.
func (p *peer) sendDescriptors(c *net.UnixConn, response proto.Message, with byte, fds ...int) error {
	if err := p.limitWrite(); err != nil {
		return err
	}
	return shortcircuit.Send(c, response, with, fds...)
}

// handOver hands over the descriptors of a finalized replica.
func (dn *DataNode) handOver(p *peer, c *net.UnixConn, op *hdfspb.OpRequestShortCircuitAccessProto) error {
	version := uint32(shortcircuit.VersionHDFS)
	if op.GetMaxVersion() >= shortcircuit.VersionOwn {
		version = shortcircuit.VersionOwn
	}
	rd, slot, held, err := dn.openLocal(op)
	if err != nil {
		return dn.refuseLocal(p, version, err)
	}
	defer rd.Close()
	// From here on the slot is registered: it ends here unless all has arrived.
	fds, response, done, err := dn.describe(rd, version, held)
	if err != nil {
		_ = dn.local.registry.Unregister(slot)
		return dn.refuseLocal(p, version, err)
	}
	defer done()
	with := byte(shortcircuit.NoReceipt)
	if op.GetSupportsReceiptVerification() {
		with = shortcircuit.Receipt
	}
	dn.reads.local.Add(1) // before the client can know
	err = p.sendDescriptors(c, response, with, fds...)
	if err == nil && with == shortcircuit.Receipt {
		var b [1]byte
		_, err = io.ReadFull(p.r, b[:])
	}
	if err != nil {
		// The segment may have ended meanwhile, and its slots with it.
		_ = dn.local.registry.Unregister(slot)
		dn.reads.local.Add(^uint64(0))
		return fmt.Errorf("hand over the descriptors of block %d: %w", rd.Info.ID, err)
	}
	return nil
}

// errNotLocal says that a block can't be handed over now, which says nothing of others.
var errNotLocal = errors.New("no descriptors")

// openLocal checks a request, opens the replica and registers the slot.
func (dn *DataNode) openLocal(op *hdfspb.OpRequestShortCircuitAccessProto) (_ *store.Reader, slot shortcircuit.SlotID, held *hold, err error) {
	block := op.GetHeader().GetBlock()
	if err := dn.checkBlock(block); err != nil {
		return nil, slot, nil, err
	}
	if err := dn.allow(op.GetHeader().GetToken(), blocktoken.Access{Block: block, Mode: blocktoken.Read}); err != nil {
		return nil, slot, nil, err
	}
	if op.GetMaxVersion() < shortcircuit.VersionHDFS {
		return nil, slot, nil, fmt.Errorf("%w for version %d of blocks' files, the first is %d", errNotLocal, op.GetMaxVersion(), shortcircuit.VersionHDFS)
	}
	if op.SlotId == nil {
		return nil, slot, nil, fmt.Errorf("%w without a slot, by which they could be taken back", errNotLocal)
	}
	slot = shortcircuit.SlotIDOf(op.SlotId)
	rd, err := dn.openReader(block, 0, false)
	if err != nil {
		return nil, slot, nil, err
	}
	defer func() {
		if err != nil {
			rd.Close()
		}
	}()
	if rd.Info.State != store.Finalized {
		return nil, slot, nil, fmt.Errorf("%w: block %d is %v; read it over a connection", errNotLocal, rd.Info.ID, rd.Info.State)
	}
	if _, ok := rd.Local(); !ok {
		return nil, slot, nil, fmt.Errorf("%w: this DataNode's files have none", errNotLocal)
	}
	held = &hold{}
	if err := dn.local.registry.Register(slot, rd.Info.ID, func() { dn.local.release(held) }); err != nil {
		return nil, slot, nil, err
	}
	// Whoever changes the replica from here on finds the slot; whoever did before shows here.
	if !rd.Current() {
		return nil, slot, nil, errors.Join(fmt.Errorf("%w: block %d is changing", errNotLocal, rd.Info.ID), dn.local.registry.Unregister(slot))
	}
	return rd, slot, held, nil
}

// describe returns the descriptors and the response for them. done is to be called when
// they have been handed over.
func (dn *DataNode) describe(rd *store.Reader, version uint32, held *hold) (fds []int, response *hdfspb.BlockOpResponseProto, done func(), err error) {
	files, ok := rd.HandOver()
	if !ok {
		return nil, nil, nil, fmt.Errorf("%w: block %d is changing", errNotLocal, rd.Info.ID)
	}
	for _, fd := range []int{int(files.Data), int(files.Meta)} {
		if err := ownersAlone(fd); err != nil {
			return nil, nil, nil, err
		}
	}
	response = &hdfspb.BlockOpResponseProto{Status: hdfspb.Status_SUCCESS.Enum(), ShortCircuitAccessVersion: &version}
	if version == shortcircuit.VersionOwn {
		length, offset := uint64(rd.Length), uint64(files.SumsOffset)
		response.LocalReplica = &hdfspb.LocalReplicaProto{Checksum: rd.Sum.Proto(), Length: &length, SumsOffset: &offset, Tail: &files.Tail}
		return []int{int(files.Data), int(files.Meta)}, response, func() {}, nil
	}
	if err := dn.local.keepMeta(rd, held, dn.cfg.LocalMemory); err != nil {
		return nil, nil, nil, err
	}
	meta, err := dn.local.openMeta(held)
	if err != nil {
		return nil, nil, nil, err
	}
	return []int{int(files.Data), meta}, response, func() { unix.Close(meta) }, nil
}

// ownersAlone has nobody but a file's owner open it for writing, who would only need a
// descriptor of it: /proc leads from there to the file.
func ownersAlone(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&0o022 == 0 {
		return nil
	}
	return unix.Fchmod(fd, st.Mode&0o755)
}

// refuseLocal answers with a refusal. The connection can be used further.
func (dn *DataNode) refuseLocal(p *peer, version uint32, err error) error {
	dn.reads.refused.Add(1)
	response := transfer.ErrorResponse(statusOf(err), nil, err.Error())
	if response.GetStatus() != hdfspb.Status_ERROR_ACCESS_TOKEN {
		// With a version, it concerns this block alone. Without one, or with another status,
		// Java's clients ask for none for ten minutes.
		response.Status, response.ShortCircuitAccessVersion = hdfspb.Status_ERROR_UNSUPPORTED.Enum(), &version
	}
	return transfer.WriteMessage(p, response)
}

// takeBack frees a slot.
func (dn *DataNode) takeBack(p *peer, m *hdfspb.ReleaseShortCircuitAccessRequestProto) error {
	response := &hdfspb.ReleaseShortCircuitAccessResponseProto{Status: hdfspb.Status_SUCCESS.Enum()}
	if err := dn.local.registry.Unregister(shortcircuit.SlotIDOf(m.GetSlotId())); err != nil {
		text := err.Error()
		response.Status, response.Error = hdfspb.Status_ERROR_INVALID.Enum(), &text
	}
	return transfer.WriteMessage(p, response)
}

// keepMeta makes a replica's checksums as HDFS has them, if nobody has them yet, and keeps
// them for a slot. All of them together have at most so many bytes.
func (l *local) keepMeta(rd *store.Reader, held *hold, most int64) error {
	key, size := metaKey{rd.Info.ID, rd.Info.Generation}, shortcircuit.MetaHeader+4*rd.Sum.Chunks(rd.Length)
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.metas[key]; m != nil {
		return l.hold(held, m)
	}
	if l.bytes+size > most {
		return fmt.Errorf("%w: the checksums of the blocks that are handed over have %d bytes already, %d are allowed", errNotLocal, l.bytes, most)
	}
	l.bytes += size
	l.mu.Unlock()
	file, err := hdfsMeta(rd, int(size))
	l.mu.Lock()
	if err != nil {
		l.bytes -= size
		return err
	}
	m := &metaFile{file: file, key: key, size: size}
	if other := l.metas[key]; other != nil {
		l.drop(m) // made at the same time
		m = other
	}
	return l.hold(held, m)
}

// hdfsMeta makes HDFS's meta file of a replica.
func hdfsMeta(rd *store.Reader, size int) (*memfd.File, error) {
	file, err := memfd.Create("verbena-checksums", size, memfd.Reserved)
	if err != nil {
		return nil, err
	}
	shortcircuit.AppendMeta(file.Bytes()[:0], rd.Sum)
	if err := rd.Sums(file.Bytes()[shortcircuit.MetaHeader:], 0); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// hold has a slot keep m. l.mu is held.
func (l *local) hold(held *hold, m *metaFile) error {
	if held.released {
		if m.uses == 0 {
			l.drop(m)
		}
		return fmt.Errorf("%w: the slot was released meanwhile", errNotLocal)
	}
	l.metas[m.key] = m
	m.uses++
	held.meta = m
	return nil
}

// openMeta returns another descriptor of the checksums that a slot keeps, for reading.
func (l *local) openMeta(held *hold) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if held.released {
		return -1, fmt.Errorf("%w: the slot was released meanwhile", errNotLocal)
	}
	return held.meta.file.OpenReadOnly()
}

// release ends what a slot has kept.
func (l *local) release(held *hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held.released = true
	m := held.meta
	if m == nil {
		return
	}
	if m.uses--; m.uses == 0 {
		delete(l.metas, m.key)
		l.drop(m)
	}
}

// drop frees the memory of m, which no slot keeps, also under clients that have released
// their slots and kept the descriptors. l.mu is held.
func (l *local) drop(m *metaFile) {
	l.bytes -= m.size
	_ = unix.Fallocate(m.file.FD(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, m.size)
	_ = m.file.Close()
}
